// heddle/compute/host/cached_rows.hpp: rows into a cache, and rows of a table added to others.
#pragma once

#include <heddle/compute/host/lanes.hpp>
#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/ops/cache.hpp>

#include <algorithm>
#include <cstdint>

namespace heddle::inline v0::compute::detail {

template <class T>
void body(ops::store_rows, team&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, head_rows<const T> x,
          const std::int32_t* rows, head_rows<T> to) {
  if (to.lies_by_head()) {
    for (std::int64_t r = 0; r < x.rows; ++r)
      for (std::int64_t h = 0; h < x.heads; ++h)
        std::copy_n(x.row(r, h), x.head_dim, to.row(to.row_in_blocks(rows[r]), h));
    return;
  }
  for (std::int64_t r = 0; r < x.rows && x.width() > 0; ++r) std::copy_n(x.row(r, 0), x.width(), to.row(rows[r], 0));
}
template <class T>
void body(ops::add_rows, team& workers, std::int64_t rows, std::int64_t, std::int64_t width, T* x, const T* table,
          const std::int32_t* ids) {
  workers.split(rows, row_grain(width), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      T* const to = x + r * width;
      map_lanes(width, to, [](T v, T p) { return v + p; }, static_cast<const T*>(to), table + ids[r] * width);
    }
  });
}

}  // namespace heddle::inline v0::compute::detail
