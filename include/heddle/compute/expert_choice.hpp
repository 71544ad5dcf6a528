// heddle/compute/expert_choice.hpp: choice of experts by scores with a selection bias and group limits, as DeepSeek's routers have it.
#pragma once

#include <heddle/compute/facets.hpp>
#include <heddle/compute/kernels.hpp>

#include <cstdint>

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

/// `choose_experts<Scores>(logits, bias, rule, ids, weights)`: the experts that `rule` gives each row, in descending order of score + bias,
/// equal ones by lower id, NaN first, and their weights. `choose_experts_backward<Scores>(logits, ids, rule, dweights, dlogits)`
/// overwrites dlogits; the choice is a constant. `balance_bias(counts, rate, bias)`: bias[e] += rate * sign(mean of counts -
/// counts[e]), the update that keeps experts evenly loaded without a term of the loss.
/// Shapes: logits, dlogits [tokens, experts]; bias, counts [experts], the bias of a choice also empty: none; ids, weights, dweights [tokens, k].
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2; Wang et al. 2024, arXiv:2408.15664, algorithm 1 (balance).
template <class B, class T>
concept expert_choice_kernels = requires(B& backend, detail::arguments_of<B, T> x, const grouped_choice& rule) {
  backend.template choose_experts<sigmoid_scores>(x.in, x.values, rule, x.places_out, x.out);
  backend.template choose_experts<softmax_scores>(x.in, x.values, rule, x.places_out, x.out);
  backend.template choose_experts_backward<sigmoid_scores>(x.in, x.places, rule, x.in, x.out);
  backend.template choose_experts_backward<softmax_scores>(x.in, x.places, rule, x.in, x.out);
  backend.balance_bias(x.values, x.factor, x.results);
};

/// Choice of experts by biased scores in groups.
struct expert_choice_facet {
  template <class B, class T>
  static constexpr bool offered = expert_choice_kernels<B, T>;
};

}  // namespace heddle::inline v0::compute
