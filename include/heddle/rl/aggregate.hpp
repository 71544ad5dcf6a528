// heddle/rl/aggregate.hpp: aggregations: how terms of tokens become the loss of a step.
#pragma once

#include <heddle/core/config.hpp>

namespace heddle::inline v0::rl {

/// How the terms of tokens become the loss of a step. An aggregation is a type with `double weight(double own, double
/// answers, double all) const`: the weight of each token of an answer with `own` tokens that count, of so many answers
/// that have any, with `all` tokens together; the trainer's loss is the sum of weighted terms over `all`. Other
/// trainers take means of means over microbatches; here no mesh and no number of microbatches changes the loss.
namespace aggregate {
/// The mean over all tokens of the step (DAPO; "token-mean" of verl).
struct token_mean {
  static constexpr double weight(double, double, double) noexcept { return 1; }
};
/// The mean over answers of the mean over an answer's tokens (GRPO; "seq-mean-token-mean").
struct sequence_mean {
  static constexpr double weight(double own, double answers, double all) noexcept { return all / (answers * own); }
};
/// The mean over answers of the sum over an answer's tokens, over a constant, such as the longest answer (Dr. GRPO;
/// "seq-mean-token-sum-norm").
struct constant {
  double of = 1;
  constexpr double weight(double, double answers, double all) const noexcept { return all / (answers * of); }
};
}  // namespace aggregate

/// How terms of tokens become a loss, see `aggregate`; `constant` is over `settings.most_tokens`.
enum class aggregation_of { token_mean, sequence_mean, constant };
/// An aggregation that is chosen at run time; `constant`: over `of`.
struct any_aggregate {
  aggregation_of how = aggregation_of::token_mean;
  double of = 1;
  double weight(double own, double answers, double all) const noexcept {
    if (how == aggregation_of::token_mean) return aggregate::token_mean::weight(own, answers, all);
    if (how == aggregation_of::sequence_mean) return aggregate::sequence_mean::weight(own, answers, all);
    return aggregate::constant{of}.weight(own, answers, all);
  }
};

}  // namespace heddle::inline v0::rl
