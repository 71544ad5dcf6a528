// heddle/compute/host/head_parts.hpp: the host's copies and sums of a part of each head's elements.
#pragma once

#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/ops/head_parts.hpp>

#include <algorithm>
#include <cstdint>

namespace heddle::inline v0::compute::detail {

template <class T>
void body(ops::copy_heads, team& workers, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
          head_rows<const T> x, std::int64_t columns, head_rows<T> y) {
  workers.split(y.rows, row_grain(y.heads * columns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t h = 0; h < y.heads; ++h) std::copy_n(x.row(r, x.heads == 1 ? 0 : h), columns, y.row(r, h));
  });
}
template <class T>
void body(ops::sum_heads, team& workers, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
          head_rows<const T> x, std::int64_t columns, head_rows<T> y) {
  workers.split(y.rows, row_grain(x.heads * columns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      T* const to = y.row(r, 0);
      std::fill_n(to, columns, T(0));
      for (std::int64_t h = 0; h < x.heads; ++h) {
        const T* const from = x.row(r, h);
        for (std::int64_t i = 0; i < columns; ++i) to[i] += from[i];
      }
    }
  });
}

}  // namespace heddle::inline v0::compute::detail
