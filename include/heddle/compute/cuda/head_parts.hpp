// heddle/compute/cuda/head_parts.hpp: parts of heads on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/ops/head_parts.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

/// Head i of all rows.
template <class T>
struct copied_head {
  std::int64_t heads, columns, from_stride, from_dim, to_stride, to_dim;
  const T* from;
  T* to;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const std::int64_t r = i / heads, h = i % heads;
    for (std::int64_t c = g.rank(); c < columns; c += g.size())
      to[r * to_stride + h * to_dim + c] = from[r * from_stride + h * from_dim + c];
  }
};
template <launcher L, class T>
void body(ops::copy_heads, const L& on, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
          head_rows<const T> x, std::int64_t columns, head_rows<T> y) {
  on.each_row(
      y.rows * y.heads, columns,
      copied_head<T>{y.heads, columns, x.stride, x.heads == 1 ? 0 : x.head_dim, y.stride, y.head_dim, x.data, y.data});
}
template <class T>
struct sum_of_heads_row {
  std::int64_t heads, columns, from_stride, from_dim, to_stride;
  const T* from;
  T* to;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    for (std::int64_t c = g.rank(); c < columns; c += g.size()) {
      T sum = 0;
      for (std::int64_t h = 0; h < heads; ++h) sum += from[r * from_stride + h * from_dim + c];
      to[r * to_stride + c] = sum;
    }
  }
};
template <launcher L, class T>
void body(ops::sum_heads, const L& on, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
          head_rows<const T> x, std::int64_t columns, head_rows<T> y) {
  on.each_row(y.rows, columns, sum_of_heads_row<T>{x.heads, columns, x.stride, x.head_dim, y.stride, x.data, y.data});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
