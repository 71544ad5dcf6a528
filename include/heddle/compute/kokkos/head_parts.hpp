// heddle/compute/kokkos/head_parts.hpp: copies and sums of parts of heads on Kokkos.
#pragma once

#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/ops/head_parts.hpp>

#include <cstdint>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

template <class Exec, class T>
void body(ops::copy_heads, const on<Exec>& exec, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
          head_rows<const T> x, std::int64_t columns, head_rows<T> y) {
  const std::int64_t heads = y.heads, from_stride = x.stride, to_stride = y.stride, to_dim = y.head_dim;
  const std::int64_t from_dim = x.heads == 1 ? 0 : x.head_dim;
  const T* const from = x.data;
  T* const to = y.data;
  each(
      exec, "heddle::copy_heads", y.rows, y.rows * heads * columns, KOKKOS_LAMBDA(const std::int64_t r) {
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t i = 0; i < columns; ++i)
            to[r * to_stride + h * to_dim + i] = from[r * from_stride + h * from_dim + i];
      });
}
template <class Exec, class T>
void body(ops::sum_heads, const on<Exec>& exec, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
          head_rows<const T> x, std::int64_t columns, head_rows<T> y) {
  const std::int64_t heads = x.heads, from_stride = x.stride, from_dim = x.head_dim, to_stride = y.stride;
  const T* const from = x.data;
  T* const to = y.data;
  each(
      exec, "heddle::sum_heads", y.rows, y.rows * heads * columns, KOKKOS_LAMBDA(const std::int64_t r) {
        T* const sum = to + r * to_stride;
        for (std::int64_t i = 0; i < columns; ++i) sum[i] = T(0);
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t i = 0; i < columns; ++i) sum[i] += from[r * from_stride + h * from_dim + i];
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
