// heddle/compute/head_parts.hpp: copies and sums of a part of each head's elements, for heads that share one.
#pragma once

#include <heddle/compute/facets.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::compute {

/// Heads that begin at column `first` of each of `heads` equal groups of columns, as a kernel of parts takes them: [rows, heads, the rest].
/// Errors: `layout_error` if the columns are not so many equal groups with this one in them.
template <class T, class Space>
head_rows<T, Space> part_of_heads(matrix_view<T, Space> m, std::int64_t heads, std::int64_t head_dim,
                                  std::int64_t first = 0) {
  if (heads < 0 || head_dim < 0 || heads * head_dim != m.extent(1) || first < 0 || first > head_dim)
    throw layout_error("heddle: part_of_heads: a matrix of " + std::to_string(m.extent(1)) +
                       " columns should have those of " + std::to_string(heads) + " heads of " +
                       std::to_string(head_dim) + ", and a part from column 0 to " + std::to_string(head_dim) +
                       " on, got " + std::to_string(first));
  return {m.size() == 0 ? m.address() : m.address() + first, m.extent(0), heads, head_dim, m.extent(1)};
}

/// `copy_heads(x, columns, y)`: the first `columns` elements of each head of y become those of the same head of x, or of its one head.
/// `sum_heads(x, columns, y)`: those of the one head of y become the sum over all heads of x, 0 where it has none.
template <class B, class T>
concept head_part_kernels = requires(B& backend, detail::arguments_of<B, T> x, std::int64_t columns) {
  backend.copy_heads(x.heads_in, columns, x.heads_out);
  backend.sum_heads(x.heads_in, columns, x.heads_out);
};

/// Copies and sums of parts of heads.
struct head_part_facet {
  template <class B, class T>
  static constexpr bool offered = head_part_kernels<B, T>;
};

}  // namespace heddle::inline v0::compute
