// heddle/compute/kokkos/sums.hpp: sums over whole rows of numbers, in an order that depends on their count alone.
#pragma once

#include <heddle/compute/kokkos/launch.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

/// Elements of one item of work, whatever the execution space and the number of its threads.
inline constexpr std::int64_t sum_block = 4096;
/// Numbers between that a sum of n elements needs.
constexpr std::int64_t sum_blocks(std::int64_t n) noexcept {
  return (n + sum_block - 1) / sum_block;
}

/// *out += the sum of f(0) to f(n - 1) in double: sums of blocks, added in order. A parallel_reduce would add in an order of its
/// own, and in Kokkos 3.4 all ranks of a process would share the memory in which Serial reduces.
template <class Exec, class F>
void add_sum(const Exec& exec, const char* label, std::int64_t n, double* parts, double* out, const F& f) {
  if (n == 0) return;
  const std::int64_t blocks = sum_blocks(n);
  each(
      exec, label, blocks, KOKKOS_LAMBDA(const std::int64_t block) {
        const std::int64_t begin = block * sum_block, rest = n - begin;
        parts[block] = sum_of<double>(rest < sum_block ? rest : sum_block,
                                      [&f, begin](std::int64_t i) -> double { return f(begin + i); });
      });
  each(
      exec, label, 1, KOKKOS_LAMBDA(std::int64_t) {
        double sum = 0;
        for (std::int64_t b = 0; b < blocks; ++b) sum += parts[b];
        *out += sum;
      });
}

template <class Exec, class T>
void sum_of_squares(const Exec& exec, std::int64_t n, const T* x, double* parts, double* out) {
  add_sum(
      exec, "heddle::sum_of_squares", n, parts, out, KOKKOS_LAMBDA(const std::int64_t i) {
        const double v = static_cast<double>(static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(x[i]));
        return v * v;
      });
}
/// The number of infinities and NaN. Looks at exponent bits, as the host's does.
template <class Exec, class T>
void count_nonfinite(const Exec& exec, std::int64_t n, const T* x, double* parts, double* out) {
  using bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
  constexpr bits exponent = std::bit_cast<bits>((std::numeric_limits<T>::infinity)());
  const auto* const raw = reinterpret_cast<const unsigned char*>(x);
  add_sum(
      exec, "heddle::count_nonfinite", n, parts, out, KOKKOS_LAMBDA(const std::int64_t i) {
        bits b = 0;
        auto* const to = reinterpret_cast<unsigned char*>(&b);
        for (std::size_t k = 0; k < sizeof(bits); ++k) to[k] = raw[static_cast<std::size_t>(i) * sizeof(bits) + k];
        return (b & exponent) == exponent ? 1.0 : 0.0;
      });
}
template <class Exec, class T>
void cross_entropy_loss(const Exec& exec, std::int64_t rows, const T* m, const T* sum, const T* picked,
                        const std::int32_t* targets, double* parts, double* out) {
  add_sum(
      exec, "heddle::cross_entropy_loss", rows, parts, out, KOKKOS_LAMBDA(const std::int64_t i) {
        using std::log;
        const double below = static_cast<double>(m[i]) - static_cast<double>(picked[i]);
        return targets[i] < 0 ? 0.0 : log(static_cast<double>(sum[i])) + below;
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
