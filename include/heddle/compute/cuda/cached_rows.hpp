// heddle/compute/cuda/cached_rows.hpp: cached rows and table look-ups on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/group/vectors.hpp>
#include <heddle/compute/ops/cache.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

using in_groups::each_row_of_packs;
using in_groups::for_packs;
using in_groups::overwritten;

/// Row rows[r] of `to` becomes row r of x.
template <class T>
struct store_row {
  std::int64_t width;
  const T* x;
  std::int64_t stride;
  const std::int32_t* rows;
  T* to;
  std::int64_t to_stride;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    const T* const from = x + r * stride;
    for_packs(g, width, [](std::int64_t, T in, T& out) { out = in; }, from, overwritten(to + rows[r] * to_stride));
  }
};
template <launcher L, class T>
void body(ops::store_rows, const L& on, std::int64_t, std::int64_t, std::int64_t, std::int64_t, head_rows<const T> x,
          const std::int32_t* rows, head_rows<T> to) {
  each_row_of_packs<T>(on, x.rows, x.width(), store_row<T>{x.width(), x.data, x.stride, rows, to.data, to.stride});
}
/// x[r] += table[ids[r]], rounded once where elements have 16 bits.
template <class T>
struct add_row {
  std::int64_t width;
  T* x;
  const T* table;
  const std::int32_t* ids;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t r) const {
    using S = sum_of_type<T>;
    for_packs(
        g, width, [](std::int64_t, T& e, T p) { e = static_cast<T>(S{e} + S{p}); }, x + r * width,
        table + ids[r] * width);
  }
};
template <launcher L, class T>
void body(ops::add_rows, const L& on, std::int64_t rows, std::int64_t, std::int64_t width, T* x, const T* table,
          const std::int32_t* ids) {
  each_row_of_packs<T>(on, rows, width, add_row<T>{width, x, table, ids});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
