// heddle/compute/kokkos/cached_rows.hpp: copies of rows into a cache, and rows of a table added to others, as Kokkos kernels.
#pragma once

#include <heddle/compute/host/argument_checks.hpp>
#include <heddle/compute/host/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/launched_indices.hpp>

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

/// Row rows[r] of `to` becomes row r of x.
template <class Exec, class T, class Space>
void launch_store_rows(const on<Exec>& exec, const head_rows<const T, Space>& x, const std::int32_t* rows,
                       const head_rows<T, Space>& to) {
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
void launch_add_rows(const on<Exec>& exec, std::int64_t rows, std::int64_t width, T* x, const T* table,
                     const std::int32_t* ids) {
  each(
      exec, "heddle::add_rows", rows, rows * width, KOKKOS_LAMBDA(const std::int64_t r) {
        T* const to = x + r * width;
        map_block<Exec>(width, to, [](T v, T p) { return v + p; }, static_cast<const T*>(to), table + ids[r] * width);
      });
}

/// The kernels of `cache_kernels` as members of `Backend`, whose tensors lie in `Space`.
template <class Backend, class Space>
class cache_members {
  using ids_row = vector_view<const std::int32_t, Space>;

 public:
  /// Errors: `layout_error` for heads of other sizes, and for rows that are not there where kernels run on the host.
  template <class T>
  void store_rows(std::type_identity_t<head_rows<const T, Space>> x, ids_row rows, head_rows<T, Space> to) {
    using checks = argument_checks;
    expect("store_rows", "rows of x", x.rows, rows.size());
    expect("store_rows", "heads of the cache", x.heads, to.heads);
    expect("store_rows", "columns of a head of the cache", x.head_dim, to.head_dim);
    checks::rows_apart<T>("store_rows", "x", {x.data, x.rows, x.heads, x.head_dim, x.stride});
    checks::rows_apart<T>("store_rows", "the cache", {to.data, to.rows, to.heads, to.head_dim, to.stride});
    indices_within(self().launcher(), self().queue(), "store_rows", "rows", rows, 0, to.rows);
    launch_store_rows(self().launcher(), x, rows.address(), to);
  }
  /// Errors: `layout_error` for ids that the table does not have, where kernels run on the host.
  template <class T>
  void add_rows(matrix_view<T, Space> x, std::type_identity_t<matrix_view<const T, Space>> table, ids_row ids) {
    expect("add_rows", "elements of ids", x.extent(0), ids.size());
    expect("add_rows", "columns of the table", x.extent(1), table.extent(1));
    indices_within(self().launcher(), self().queue(), "add_rows", "ids", ids, 0, table.extent(0));
    launch_add_rows(self().launcher(), x.extent(0), x.extent(1), x.address(), table.address(), ids.address());
  }

 private:
  Backend& self() noexcept { return static_cast<Backend&>(*this); }
};

}  // namespace heddle::inline v0::compute::detail::on_kokkos
