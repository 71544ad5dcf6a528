// heddle/compute/host/cached_rows.hpp: copies of rows into a cache, and rows of a table added to others.
#pragma once

#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/host/lanes.hpp>
#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/kernels.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0::compute::detail {

/// The kernels of `cache_kernels` as members of the host backend `Host`.
template <class Host>
class cache_members {
  using checks = argument_checks;

 public:
  /// Errors: `layout_error` for heads of other sizes and for rows that are not there.
  template <class T>
  void store_rows(input_heads<T> x, token_ids rows, head_rows<T> to) {
    expect("store_rows", "rows of x", x.rows, rows.size());
    expect("store_rows", "heads of the cache", x.heads, to.heads);
    expect("store_rows", "columns of a head of the cache", x.head_dim, to.head_dim);
    rows_apart("store_rows", "x", x);
    rows_apart("store_rows", "the cache", to);
    checks::within("store_rows", "rows", rows, 0, to.rows);
    for (std::int64_t r = 0; r < x.rows && x.width() > 0; ++r)
      std::copy_n(x.row(r, 0), x.width(), to.row(rows[static_cast<std::size_t>(r)], 0));
  }
  /// Errors: `layout_error` for ids that the table does not have.
  template <class T>
  void add_rows(matrix_view<T> x, input_matrix<T> table, token_ids ids) {
    expect("add_rows", "elements of ids", x.extent(0), ids.size());
    expect("add_rows", "columns of the table", x.extent(1), table.extent(1));
    checks::within("add_rows", "ids", ids, 0, table.extent(0));
    const std::int64_t width = x.extent(1);
    team_of_host().split(x.extent(0), row_grain(width), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        T* const to = x.data() + r * width;
        map_lanes(
            width, to, [](T v, T p) { return v + p; }, static_cast<const T*>(to),
            table.data() + ids[static_cast<std::size_t>(r)] * width);
      }
    });
  }

 private:
  team& team_of_host() noexcept { return static_cast<Host*>(this)->workers(); }
};

}  // namespace heddle::inline v0::compute::detail
