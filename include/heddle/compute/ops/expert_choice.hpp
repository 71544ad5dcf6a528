// heddle/compute/ops/expert_choice.hpp: operations of DeepSeek's routers: biased choice.
#pragma once

#include <heddle/compute/op.hpp>
#include <heddle/compute/ops/routing.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0::compute {

/// Scores of experts: each the sigmoid of its own logit, or the softmax over all logits of a row.
struct sigmoid_scores {};
struct softmax_scores {};  ///< the softmax over all logits of a row

/// The experts of a row are those of the greatest score + bias in the `kept` groups whose `best` greatest score + bias have the greatest sum.
/// Groups are consecutive experts, as many in each. The weight of a chosen expert is its score without the bias, over the sum of the
/// chosen scores + 1e-20 where `normed`, times `scale`. One group: no limit.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, equations (12) to (16) (sigmoid, best 2, normed); arXiv:2405.04434, section 2.2.2 (softmax,
/// best 1); Wang et al. 2024, arXiv:2408.15664 (bias).
struct grouped_choice {
  std::int64_t groups = 1;
  std::int64_t kept = 1;
  std::int64_t best = 2;  ///< more than a group has: all of it
  bool normed = true;
  double scale = 1;
  friend constexpr bool operator==(const grouped_choice&, const grouped_choice&) = default;
};

namespace detail {
/// Errors: `layout_error` for groups that do not divide the experts, and for fewer experts in the kept groups than are chosen.
inline void expect_groups(std::int64_t experts, std::int64_t k, const grouped_choice& rule) {
  const bool fits = rule.groups >= 1 && rule.kept >= 1 && rule.kept <= rule.groups && rule.best >= 1 &&
                    experts % rule.groups == 0 && k <= experts / rule.groups * rule.kept;
  if (!fits) [[unlikely]]
    throw layout_error("heddle: choose_experts: " + std::to_string(k) + " of " + std::to_string(experts) +
                       " experts should be in " + std::to_string(rule.kept) + " of " + std::to_string(rule.groups) +
                       " groups of the same size, which have at least so many experts");
}
}  // namespace detail

namespace ops {
struct biases {};  ///< a dimension: a bias of each expert, or none

/// The experts that `rule` gives each row, in descending order of score + bias, equal ones by lower id, NaN first, and their weights.
/// The bias may be empty: none. Errors: `layout_error` for groups that do not divide the experts, and for fewer experts in the kept
/// groups than are chosen.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2.
template <class Scores>
struct choose_experts : operation {
  static constexpr const char* name = "choose_experts";
  static constexpr const char* arguments[] = {"logits", "bias", "rule", "ids", "weights"};
  static constexpr std::size_t chosen_argument = 3;
  using dims = sizes<rows, experts, choices, biases>;
  using takes = signature<in<rows, experts>, in<biases>, value<grouped_choice>, out_of<std::int32_t, rows, choices>,
                          out<rows, choices>>;
  static constexpr std::int64_t flops(const dims& n) { return 5 * n[rows{}] * n[experts{}]; }
  static void check(const dims& n, const void*, const void*, const grouped_choice& rule, const void*, const void*) {
    detail::expect_choices(name, n[choices{}], n[experts{}]);
    if (n[biases{}] > 0) detail::expect(name, "elements of the bias", n[experts{}], n[biases{}]);
    detail::expect_groups(n[experts{}], n[choices{}], rule);
  }
};
/// Overwrites dlogits; the choice is a constant.
template <class Scores>
struct choose_experts_backward : choice_operation {
  static constexpr const char* name = "choose_experts_backward";
  static constexpr const char* arguments[] = {"logits", "ids", "rule", "dweights", "dlogits"};
  using takes = signature<in<rows, experts>, in_of<std::int32_t, rows, choices>, value<grouped_choice>,
                          in<rows, choices>, out<rows, experts>>;
  static constexpr std::int64_t flops(const dims& n) { return 8 * n[rows{}] * n[experts{}]; }
  static void check_values(const dims& n, const void*, const std::int32_t* ids, const grouped_choice&, const void*,
                           const void*) {
    check_ids(name, "ids", ids, n[rows{}] * n[choices{}], 0, n[experts{}]);
  }
};
/// bias[e] += rate * sign(mean of counts - counts[e]), which keeps experts evenly loaded without a term of the loss.
/// Source: Wang et al. 2024, arXiv:2408.15664, algorithm 1.
struct balance_bias : operation {
  static constexpr const char* name = "balance_bias";
  static constexpr const char* arguments[] = {"counts", "rate", "bias"};
  using dims = sizes<experts>;
  using takes = signature<in<experts>, number, inout<experts>>;
  static constexpr std::int64_t flops(const dims& n) { return 4 * n.product(); }
};
}  // namespace ops

/// Choice of experts by biased scores in groups.
struct expert_choice_facet : operations<ops::choose_experts<sigmoid_scores>, ops::choose_experts<softmax_scores>,
                                        ops::choose_experts_backward<sigmoid_scores>,
                                        ops::choose_experts_backward<softmax_scores>, ops::balance_bias> {};

}  // namespace heddle::inline v0::compute
