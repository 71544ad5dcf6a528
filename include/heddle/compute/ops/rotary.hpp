// heddle/compute/ops/rotary.hpp: operations on rotary positions of heads.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/op.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::compute {
namespace ops {
struct angles {};  ///< rows of tables of angles, which positions name
struct pairs {};   ///< columns of these tables: pairs of elements of a head that turn

/// y = x, the first 2 * `pairs` elements of each head turned by the angles in row positions[r] of the tables (back, with `Back`); y may
/// be x. Errors: `layout_error` for tables of more pairs than a head has; for a position that they do not have, where the host can read it.
/// Source: Su et al. 2021, arXiv:2104.09864.
template <rotary_pairs Pairs, bool Back = false>
struct rotary : operation {
  static constexpr const char* name = Back ? "rotary_backward" : "rotary";
  static constexpr const char* arguments[] = {"x", "positions", "cos", "sin", "y"};
  using dims = sizes<rows, heads, columns, angles, pairs>;
  using takes = signature<in_heads<rows, heads, columns>, in_ids<rows>, in_sums<angles, pairs>, in_sums<angles, pairs>,
                          out_heads<rows, heads, columns>>;
  static constexpr std::int64_t flops(const dims& n) { return 6 * n[rows{}] * n[heads{}] * n[pairs{}]; }
  static void check(const dims& n, const auto& x, const void*, const void*, const void*, const auto& y) {
    detail::rows_apart(name, "x", x);
    detail::rows_apart(name, "y", y);
    if (2 * n[pairs{}] > n[columns{}]) [[unlikely]]
      throw layout_error("heddle: " + std::string(name) + ": tables of " + std::to_string(n[pairs{}]) +
                         " columns turn " + std::to_string(2 * n[pairs{}]) + " elements, but a head has " +
                         std::to_string(n[columns{}]));
  }
  static void check_values(const dims& n, const auto&, const std::int32_t* positions, const void*, const void*,
                           const auto&) {
    for (std::int64_t r = 0; r < n[rows{}]; ++r)
      if (const std::int32_t p = positions[r]; p < 0 || p >= n[angles{}]) [[unlikely]]
        throw layout_error("heddle: " + std::string(name) + ": positions should be from 0 to " +
                           std::to_string(n[angles{}] - 1) + ", as the tables are, got " + std::to_string(p));
  }
};
/// Turns back.
template <rotary_pairs Pairs>
using rotary_backward = rotary<Pairs, true>;
}  // namespace ops

/// Rotary embeddings.
struct rotary_facet
    : operations<ops::rotary<rotary_pairs::halves>, ops::rotary_backward<rotary_pairs::halves>,
                 ops::rotary<rotary_pairs::neighbours>, ops::rotary_backward<rotary_pairs::neighbours>> {};

}  // namespace heddle::inline v0::compute
