// heddle/compute/ops/head_parts.hpp: operations that copy and sum a part of each head.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
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

namespace ops {
struct other_heads {};    ///< a dimension: heads of another argument
struct other_columns {};  ///< its columns of a head

/// The base of operations on the first `columns` elements of heads.
struct head_part_operation : operation {
  static constexpr const char* arguments[] = {"x", "columns", "y"};
  using dims = sizes<rows, other_heads, other_columns, heads, columns>;
  using takes = signature<in_heads<rows, other_heads, other_columns>, index, out_heads<rows, heads, columns>>;

 protected:
  static void check_part(const char* name, const dims& n, std::int64_t part) {
    const std::int64_t most = (std::min)(n[other_columns{}], n[columns{}]);
    if (part < 0 || part > most) [[unlikely]]
      throw layout_error("heddle: " + std::string(name) + ": columns should be from 0 to those of a head, " +
                         std::to_string(most) + ", got " + std::to_string(part));
  }
};
/// The first `columns` elements of each head of y become those of the same head of x, or of its one head.
struct copy_heads : head_part_operation {
  static constexpr const char* name = "copy_heads";
  static constexpr std::int64_t flops(const dims&) { return 0; }
  static void check(const dims& n, const auto&, std::int64_t part, const auto&) {
    if (n[other_heads{}] != 1) detail::expect(name, "heads of x", n[heads{}], n[other_heads{}]);
    check_part(name, n, part);
  }
};
/// Those of the one head of y become the sum over all heads of x, 0 where it has none.
struct sum_heads : head_part_operation {
  static constexpr const char* name = "sum_heads";
  static constexpr std::int64_t flops(const dims& n) { return n[rows{}] * n[other_heads{}] * n[columns{}]; }
  static void check(const dims& n, const auto&, std::int64_t part, const auto&) {
    detail::expect(name, "heads of y", 1, n[heads{}]);
    check_part(name, n, part);
  }
};
}  // namespace ops

/// Copies and sums of parts of heads.
struct head_part_facet : operations<ops::copy_heads, ops::sum_heads> {};

}  // namespace heddle::inline v0::compute
