// heddle/compute/kokkos/sums.hpp: row sums on Kokkos, in an order fixed by the length.
#pragma once

#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/ops/sums.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

/// *out += the sum of all block(begin, count), added in order, in double. A parallel_reduce would add in an order of its own, and
/// in Kokkos 3.4 all ranks of a process would share the memory in which Serial reduces.
template <class Exec, class Block>
void add_blocks(const on<Exec>& exec, const char* label, std::int64_t n, double* out, const Block& block) {
  if (n == 0) return;
  const std::int64_t blocks = sum_blocks(n);
  double* const parts = exec.rooms.sums.of(exec.queue, blocks, "the sums of blocks");
  each_block<sum_block>(
      exec, label, n, KOKKOS_LAMBDA(const std::int64_t begin, const std::int64_t count) {
        parts[begin / sum_block] = block(begin, count);
      });
  each(
      exec, label, 1, blocks, KOKKOS_LAMBDA(std::int64_t) {
        double sum = 0;
        for (std::int64_t b = 0; b < blocks; ++b) sum += parts[b];
        *out += sum;
      });
}

/// *out += the sum of term(i), i < n.
template <class Exec, class Term>
void add_terms(const on<Exec>& exec, const char* label, std::int64_t n, double* out, const Term& term) {
  add_blocks(
      exec, label, n, out, KOKKOS_LAMBDA(const std::int64_t begin, const std::int64_t count)->double {
        double sum = 0;
        for (std::int64_t i = begin; i < begin + count; ++i) sum += term(i);
        return sum;
      });
}

template <class Exec, class T>
void body(ops::sum_of_squares, const on<Exec>& exec, std::int64_t n, const T* x, double* out) {
  add_blocks(
      exec, "heddle::sum_of_squares", n, out,
      KOKKOS_LAMBDA(const std::int64_t begin, const std::int64_t count)->double {
        return sum_of_block<Exec, double>(
            count,
            [](T v) {
              const double d = static_cast<double>(v);
              return d * d;
            },
            x + begin);
      });
}

/// Whether these bits are those of an infinity or a NaN.
template <class Bits>
KOKKOS_INLINE_FUNCTION Bits is_nonfinite(Bits bits, Bits exponent) {
  return static_cast<Bits>((bits & exponent) == exponent ? 1 : 0);
}
/// The number of infinities and NaN, from the bits of the exponents, so that it also holds under -ffinite-math-only.
template <class Exec, class T>
void body(ops::count_nonfinite, const on<Exec>& exec, std::int64_t n, const T* x, double* out) {
  using bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
  constexpr bits exponent = std::bit_cast<bits>((std::numeric_limits<T>::infinity)());
  add_blocks(
      exec, "heddle::count_nonfinite", n, out,
      KOKKOS_LAMBDA(const std::int64_t begin, const std::int64_t count)->double {
        std::int64_t found = 0;
        constexpr int width = 32;
        std::int64_t i = begin;
        const std::int64_t end = begin + count;
        for (; i + width <= end; i += width) {
          bits in[width], some = 0;
          std::memcpy(in, x + i, sizeof in);
          for (int l = 0; l < width; ++l) some = static_cast<bits>(some + is_nonfinite(in[l], exponent));
          found += static_cast<std::int64_t>(some);
        }
        for (; i < end; ++i) {
          bits one = 0;
          std::memcpy(&one, x + i, sizeof one);
          found += static_cast<std::int64_t>(is_nonfinite(one, exponent));
        }
        return static_cast<double>(found);
      });
}
template <class Exec, class T>
void body(ops::squared_error, const on<Exec>& exec, std::int64_t n, const T* x, const T* target, double* out) {
  add_terms(
      exec, "heddle::squared_error", n, out, KOKKOS_LAMBDA(const std::int64_t i)->double {
        const double d = static_cast<double>(x[i]) - static_cast<double>(target[i]);
        return d * d;
      });
}
template <class Exec, class T>
void body(ops::cross_entropy_loss, const on<Exec>& exec, std::int64_t rows, const T* m, const T* sum, const T* picked,
          const std::int32_t* targets, double* out) {
  add_terms(
      exec, "heddle::cross_entropy_loss", rows, out, KOKKOS_LAMBDA(const std::int64_t i)->double {
        using std::log;
        const double below = static_cast<double>(m[i]) - static_cast<double>(picked[i]);
        return targets[i] >= 0 ? log(static_cast<double>(sum[i])) + below : 0.0;
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
