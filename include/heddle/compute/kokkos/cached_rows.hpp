// heddle/compute/kokkos/cached_rows.hpp: rows into a cache, rows of a table added, on Kokkos.
#pragma once

#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/ops/cache.hpp>

#include <cstdint>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

/// Row rows[r] of `to` becomes row r of x.
template <class Exec, class T>
void body(ops::store_rows, const on<Exec>& exec, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
          head_rows<const T> x, const std::int32_t* rows, head_rows<T> to) {
  const std::int64_t width = x.heads * x.head_dim, from_stride = x.stride, to_stride = to.stride;
  const T* const from = x.data;
  T* const cache = to.data;
  each(
      exec, "heddle::store_rows", x.rows, x.rows * width, KOKKOS_LAMBDA(const std::int64_t r) {
        for (std::int64_t c = 0; c < width; ++c) cache[rows[r] * to_stride + c] = from[r * from_stride + c];
      });
}
/// x[r] += table[ids[r]].
template <class Exec, class T>
void body(ops::add_rows, const on<Exec>& exec, std::int64_t rows, std::int64_t, std::int64_t width, T* x,
          const T* table, const std::int32_t* ids) {
  each(
      exec, "heddle::add_rows", rows, rows * width, KOKKOS_LAMBDA(const std::int64_t r) {
        T* const to = x + r * width;
        map_block<Exec>(width, to, [](T v, T p) { return v + p; }, static_cast<const T*>(to), table + ids[r] * width);
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
