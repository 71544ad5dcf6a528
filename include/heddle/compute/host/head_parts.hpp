// heddle/compute/host/head_parts.hpp: the host's copies and sums of a part of each head's elements.
#pragma once

#include <heddle/compute/head_parts.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

namespace heddle::inline v0::compute::detail {

/// Errors: `layout_error` for other rows than those of y, and for more columns than a head of x or of y has.
inline void expect_head_parts(const char* kernel, std::int64_t rows, std::int64_t head_dim, std::int64_t columns,
                              std::int64_t y_rows, std::int64_t y_head_dim) {
  expect(kernel, "rows of y", rows, y_rows);
  if (columns < 0 || columns > head_dim || columns > y_head_dim) [[unlikely]]
    throw layout_error("heddle: " + std::string(kernel) + ": columns should be from 0 to those of a head, " +
                       std::to_string((std::min)(head_dim, y_head_dim)) + ", got " + std::to_string(columns));
}

/// The kernels of `head_part_kernels` as members of the host backend `Host`.
template <class Host>
class head_part_members {
 public:
  /// Errors: `layout_error` for other rows, for heads that are neither as many nor one, and for more columns than a head has.
  template <class T>
  void copy_heads(input_heads<T> x, std::int64_t columns, head_rows<T> y) {
    if (x.heads != 1) expect("copy_heads", "heads of x", y.heads, x.heads);
    expect_head_parts("copy_heads", x.rows, x.head_dim, columns, y.rows, y.head_dim);
    team_of_host().split(y.rows, row_grain(y.heads * columns), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t h = 0; h < y.heads; ++h) std::copy_n(x.row(r, x.heads == 1 ? 0 : h), columns, y.row(r, h));
    });
  }
  /// Errors: as above, and for a y of other than one head.
  template <class T>
  void sum_heads(input_heads<T> x, std::int64_t columns, head_rows<T> y) {
    expect("sum_heads", "heads of y", 1, y.heads);
    expect_head_parts("sum_heads", x.rows, x.head_dim, columns, y.rows, y.head_dim);
    team_of_host().split(y.rows, row_grain(x.heads * columns), 1, [&](std::int64_t begin, std::int64_t end) {
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

 private:
  team& team_of_host() noexcept { return static_cast<Host*>(this)->workers(); }
};

}  // namespace heddle::inline v0::compute::detail
