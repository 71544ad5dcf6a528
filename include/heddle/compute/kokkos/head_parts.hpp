// heddle/compute/kokkos/head_parts.hpp: copies and sums of a part of each head's elements, as Kokkos kernels.
#pragma once

#include <heddle/compute/head_parts.hpp>
#include <heddle/compute/host/check.hpp>
#include <heddle/compute/host/head_parts.hpp>
#include <heddle/compute/kokkos/launch.hpp>

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

template <class Exec, class T, class Space>
void launch_copy_heads(const on<Exec>& exec, const head_rows<const T, Space>& x, std::int64_t columns,
                       const head_rows<T, Space>& y) {
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
template <class Exec, class T, class Space>
void launch_sum_heads(const on<Exec>& exec, const head_rows<const T, Space>& x, std::int64_t columns,
                      const head_rows<T, Space>& y) {
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

/// The kernels of `head_part_kernels` as members of `Backend`, whose tensors lie in `Space`.
template <class Backend, class Space>
class head_part_members {
 public:
  /// Errors: `layout_error` for other rows, for heads that are neither as many nor one, and for more columns than a head has.
  template <class T>
  void copy_heads(std::type_identity_t<head_rows<const T, Space>> x, std::int64_t columns, head_rows<T, Space> y) {
    if (x.heads != 1) expect("copy_heads", "heads of x", y.heads, x.heads);
    expect_head_parts("copy_heads", x.rows, x.head_dim, columns, y.rows, y.head_dim);
    launch_copy_heads(self().launcher(), x, columns, y);
  }
  /// Errors: as above, and for a y of other than one head.
  template <class T>
  void sum_heads(std::type_identity_t<head_rows<const T, Space>> x, std::int64_t columns, head_rows<T, Space> y) {
    expect("sum_heads", "heads of y", 1, y.heads);
    expect_head_parts("sum_heads", x.rows, x.head_dim, columns, y.rows, y.head_dim);
    launch_sum_heads(self().launcher(), x, columns, y);
  }

 private:
  Backend& self() noexcept { return static_cast<Backend&>(*this); }
};

}  // namespace heddle::inline v0::compute::detail::on_kokkos
