// heddle/compute/ops/cache.hpp: operations on cached rows and on positions by row.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/compute/ops/embedding.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle::inline v0::compute {
namespace ops {
struct cached {};  ///< a dimension: rows of a cache

/// Row rows[r] of `to` becomes row r of x; `rows` names none twice. Errors: `layout_error` for rows that are not there, where the host
/// can read them.
struct store_rows : operation {
  static constexpr const char* name = "store_rows";
  static constexpr const char* arguments[] = {"x", "rows", "to"};
  using dims = sizes<rows, heads, columns, cached>;
  using takes = signature<in_heads<rows, heads, columns>, in_ids<rows>, out_heads<cached, heads, columns>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
  static void check(const dims&, const auto& x, const void*, const auto& to) {
    detail::rows_apart(name, "x", x);
    detail::rows_apart(name, "to", to);
  }
  static void check_values(const dims& n, const auto&, const std::int32_t* at, const auto&) {
    detail::indices_within(name, "rows", {at, static_cast<std::size_t>(n[rows{}])}, 0, n[cached{}]);
  }
};
/// x[r] += table[ids[r]]. Errors: `layout_error` for ids that the table does not have, where the host can read them.
struct add_rows : operation {
  static constexpr const char* name = "add_rows";
  static constexpr const char* arguments[] = {"x", "table", "ids"};
  using dims = sizes<rows, words, columns>;
  using takes = signature<inout<rows, columns>, in<words, columns>, in_ids<rows>>;
  static constexpr std::int64_t flops(const dims& n) { return n[rows{}] * n[columns{}]; }
  static void check_values(const dims& n, const void*, const void*, const std::int32_t* ids) {
    detail::indices_within(name, "ids", {ids, static_cast<std::size_t>(n[rows{}])}, 0, n[words{}]);
  }
};
}  // namespace ops

/// Rows that a cache keeps.
struct cache_facet : operations<ops::store_rows, ops::add_rows> {};

}  // namespace heddle::inline v0::compute
