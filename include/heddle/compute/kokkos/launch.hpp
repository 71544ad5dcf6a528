// heddle/compute/kokkos/launch.hpp: launches of kernels on an instance of a Kokkos execution space, and what their bodies share.
#pragma once

#include <heddle/compute/host/math.hpp>

#include <cmath>
#include <cstdint>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

/// Whether kernels of this execution space are code of the host, which may then call functions of the host.
template <class Exec>
inline constexpr bool runs_on_host = Kokkos::SpaceAccessibility<Exec, Kokkos::HostSpace>::accessible;

/// `body(i)` for every i in [0, n), in the order of the instance.
template <class Exec, class Body>
void each(const Exec& exec, const char* label, std::int64_t n, const Body& body) {
  if (n > 0) Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, n), body);
}

/// The sum of f(0) to f(n - 1), in eight sums side by side that are added pairwise: the order depends on n alone.
template <class Sum, class F>
KOKKOS_INLINE_FUNCTION Sum sum_of(std::int64_t n, const F& f) {
  constexpr int lanes = 8;
  Sum part[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int l = 0; l < lanes; ++l) part[l] += f(i + l);
  for (int l = 0; i + l < n; ++l) part[l] += f(i + l);
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) part[l] += part[l + half];
  return part[0];
}

/// e^x: on the host in the form that is vectorised, elsewhere the device's.
template <class Exec, class T>
KOKKOS_INLINE_FUNCTION T exponential(T x) {
  if constexpr (runs_on_host<Exec>) {
    return exp_lane(x);
  } else {
    using std::exp;
    return exp(x);
  }
}
/// The square root of x.
template <class T>
KOKKOS_INLINE_FUNCTION T square_root(T x) {
  using std::sqrt;
  return sqrt(x);
}

/// Columns that one item of work takes when columns are shared: neighbours in memory on the host, single ones on a device,
/// where neighbouring items read neighbours.
template <class Exec>
inline constexpr int columns_of_item = runs_on_host<Exec> ? 16 : 1;

/// `body(begin, count)` for blocks of columns.
template <class Exec, class Body>
void each_columns(const Exec& exec, const char* label, std::int64_t columns, const Body& body) {
  constexpr int width = columns_of_item<Exec>;
  each(
      exec, label, (columns + width - 1) / width, KOKKOS_LAMBDA(const std::int64_t block) {
        const std::int64_t begin = block * width, rest = columns - begin;
        body(begin, rest < width ? static_cast<int>(rest) : width);
      });
}

/// sums[j] += the sum over rows i, in order, of f(i, i * columns + j).
template <class Exec, class T, class F>
void sum_columns(const Exec& exec, const char* label, std::int64_t rows, std::int64_t columns, T* sums, const F& f) {
  each_columns(
      exec, label, columns, KOKKOS_LAMBDA(const std::int64_t begin, const int count) {
        constexpr int width = columns_of_item<Exec>;
        T part[width] = {};
        if (count == width) {  // a number of turns that the compiler knows
          for (std::int64_t i = 0; i < rows; ++i)
            for (int l = 0; l < width; ++l) part[l] += f(i, i * columns + begin + l);
        } else {
          for (std::int64_t i = 0; i < rows; ++i)
            for (int l = 0; l < count; ++l) part[l] += f(i, i * columns + begin + l);
        }
        for (int l = 0; l < count; ++l) sums[begin + l] += part[l];
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
