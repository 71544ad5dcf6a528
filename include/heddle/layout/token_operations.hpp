// heddle/layout/token_operations.hpp: factor rules of expert choice and rotary pairs.
#pragma once

#include <heddle/layout/factor_rule.hpp>
#include <heddle/layout/operations.hpp>
#include <heddle/layout/propagate.hpp>

#include <array>
#include <cstddef>

namespace heddle::inline v0 {
namespace detail {

template <int Dim, int K>
struct checked_choice {
  static constexpr bool ok = checked_dims<Dim>::ok && K >= 1;
  static_assert(operator_dimensions_are_valid<(K >= 1), Dim, K>,
                "heddle: an operator that chooses the K largest elements needs K of at least 1");
};

}  // namespace detail

namespace op {

/// The `K` largest elements along `Dim`, or their places: one of the results of `top_k`, with `K` elements where those that
/// they were chosen of were. Takes no partial values: the largest of contributions are not those of their sum.
template <int Dim, int K>
struct chosen_of : detail::checked_operation<detail::checked_choice<Dim, K>, 1> {
  static constexpr int choices = K;
  template <std::size_t Count>
  static constexpr auto rule(const std::array<int, Count>& ranks) {
    return detail::unary_rule<Dim>(detail::rank_of_all(ranks, Dim + 1), factor_kind::whole, detail::listed::replaced,
                                   no_partials);
  }
};

/// Tokens through the feed-forward layers of the experts that they chose, and the sum of what comes out, weighted: x [tokens,
/// features], ids [tokens, k], weights [tokens, k], gate and up [experts, features, inner], down [experts, inner, outputs]
/// give [tokens, outputs]. Tokens may be split; where experts are split, or their inner dimension, the result is a sum.
/// Source: Shazeer et al. 2017, arXiv:1701.06538.
struct expert_layers : detail::operation_base<6> {
  template <std::size_t Count>
  static constexpr auto rule(const std::array<int, Count>&) {
    factor_rule<> made;
    const char t = made.factor(), o = made.factor(), e = made.factor(factor_kind::reduction),
               f = made.factor(factor_kind::reduction), i = made.factor(factor_kind::whole),
               k = made.factor(factor_kind::whole);
    const auto fill = [](rule_term<20>& term, auto... letters) { (detail::append(term, letters), ...); };
    fill(made.operand(), t, i);
    fill(made.operand(), t, k);
    fill(made.operand(1, sums), t, k);  // linear in the weights, and in what goes down
    fill(made.operand(), e, i, f);
    fill(made.operand(), e, i, f);
    fill(made.operand(2, sums), e, f, o);
    fill(made.result(), t, o);
    return made;
  }
};

/// Pairs of elements along `Dim` turned by angles that depend on the other places alone: linear, so that sums pass. A pair's elements
/// may lie anywhere along `Dim`, which no axis may split.
template <int Dim>
struct turned_pairs : detail::checked_operation<detail::checked_dims<Dim>, 1> {
  template <std::size_t Count>
  static constexpr auto rule(const std::array<int, Count>& ranks) {
    return detail::unary_rule<Dim>(detail::rank_of_all(ranks, Dim + 1), factor_kind::whole, detail::listed::kept, sums);
  }
};

}  // namespace op
}  // namespace heddle::inline v0
