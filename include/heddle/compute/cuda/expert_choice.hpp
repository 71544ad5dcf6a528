// heddle/compute/cuda/expert_choice.hpp: expert choice in groups on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/cuda/routing.hpp>
#include <heddle/compute/ops/expert_choice.hpp>
#include <heddle/compute/group/choices.hpp>
#include <heddle/compute/host/expert_choice.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail::on_cuda {

/// The scores of the experts of one row of logits, one by one.
template <class Scores, class T>
struct scores_of_row;
template <class T>
struct scores_of_row<softmax_scores, T> : softmax_of_row<T> {
  using softmax_of_row<T>::softmax_of_row;
};
template <class T>
struct scores_of_row<sigmoid_scores, T> {
  template <class G>
  HEDDLE_HD scores_of_row(G&, std::int64_t, const T*) {}
  HEDDLE_HD T of(T logit) const {
    using std::exp;
    const T decay = exp(logit < 0 ? logit : -logit);  // at most 1: no overflow
    return (logit < 0 ? decay : T(1)) / (T(1) + decay);
  }
};

/// Score + bias of all experts of a row.
template <class Scores, class T>
struct biased_scores_row {
  std::int64_t experts;
  const T *logits, *bias;
  T* biased;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t t) const {
    const T* const row = logits + t * experts;
    const scores_of_row<Scores, T> scores(g, experts, row);
    for (std::int64_t e = g.rank(); e < experts; e += g.size())
      biased[t * experts + e] = scores.of(row[e]) + (bias != nullptr ? bias[e] : T(0));
  }
};
/// Group i of all rows: the sum of its `best` greatest, added in descending order.
template <class T>
struct sum_of_greatest_row {
  std::int64_t in_group, best;
  const T* biased;
  T* of_group;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const row = biased + i * in_group;
    T sum = 0;
    std::int64_t last = -1;
    for (std::int64_t j = 0; j < best; ++j) {
      last = next_greatest(g, in_group, row, last);
      sum += row[last];
    }
    if (g.leads()) of_group[i] = sum;
  }
};
/// Group i of all rows loses if so many others of its row have greater sums.
template <class T>
struct kept_group_row {
  std::int64_t groups, kept, in_group;
  const T* of_group;
  T* biased;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    constexpr T none = in_groups::minus_infinity<T>;
    const T* const row = of_group + i / groups * groups;
    const std::int64_t me = i % groups;
    std::int64_t before = 0;
    for (std::int64_t o = 0; o < groups; ++o) before += in_groups::is_greater(row[o], o, row[me], me) ? 1 : 0;
    if (before < kept) return;
    for (std::int64_t e = g.rank(); e < in_group; e += g.size()) biased[i * in_group + e] = none;
  }
};
template <class Scores, class T>
struct choose_experts_row {
  std::int64_t experts, k;
  bool normed;
  T scale, added;
  const T *logits, *biased;
  std::int32_t* ids;
  T* weights;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t t) const {
    const T* const row = logits + t * experts;
    const scores_of_row<Scores, T> scores(g, experts, row);
    T sum = added;
    std::int64_t last = -1;
    for (std::int64_t j = 0; j < k; ++j) {
      last = next_greatest(g, experts, biased + t * experts, last);
      sum += scores.of(row[last]);
      if (g.leads()) ids[t * k + j] = static_cast<std::int32_t>(last);
    }
    if (!g.leads()) return;
    const T factor = scale / (normed ? sum : T(1));
    for (std::int64_t j = t * k; j < (t + 1) * k; ++j) weights[j] = factor * scores.of(row[ids[j]]);
  }
};
template <class Scores, launcher L, class T>
void body(ops::choose_experts<Scores>, const L& on, std::int64_t tokens, std::int64_t experts, std::int64_t k,
          std::int64_t biases, const T* logits, const T* bias, const grouped_choice& rule, std::int32_t* ids,
          T* weights) {
  const std::int64_t groups = rule.groups, in_group = experts / groups;
  const std::int64_t best = rule.best < in_group ? rule.best : in_group;
  auto scratch = on.template room<T>(tokens * (experts + groups));
  T *const biased = scratch.address(), *const of_group = biased + tokens * experts;
  on.each_row(tokens, experts, biased_scores_row<Scores, T>{experts, logits, biases > 0 ? bias : nullptr, biased});
  if (rule.kept < groups) {
    on.each_row(tokens * groups, in_group, sum_of_greatest_row<T>{in_group, best, biased, of_group});
    on.each_row(tokens * groups, in_group, kept_group_row<T>{groups, rule.kept, in_group, of_group, biased});
  }
  on.each_row(tokens, experts,
              choose_experts_row<Scores, T>{experts, k, rule.normed, static_cast<T>(rule.scale), added_to_scores<T>,
                                            logits, biased, ids, weights});
}

/// The formula is beside `choose_experts_backward_of` in host/expert_choice.hpp.
template <class Scores, class T>
struct choose_experts_backward_row {
  std::int64_t experts, k;
  bool normed;
  T scale, added;
  const T* logits;
  const std::int32_t* ids;
  const T* dweights;
  T* dlogits;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t t) const {
    const T* const row = logits + t * experts;
    const scores_of_row<Scores, T> scores(g, experts, row);
    T sum = added, inner = 0, through = 0;
    for (std::int64_t j = t * k; j < (t + 1) * k; ++j) {
      const T s = scores.of(row[ids[j]]);
      sum += s;
      inner += dweights[j] * s;
    }
    const auto of_score = [&](std::int64_t j) {
      return normed ? scale * (dweights[j] - inner / sum) / sum : scale * dweights[j];
    };
    for (std::int64_t j = t * k; j < (t + 1) * k; ++j) through += of_score(j) * scores.of(row[ids[j]]);
    for (std::int64_t e = g.rank(); e < experts; e += g.size()) {
      const T s = scores.of(row[e]);
      T ds = 0;
      for (std::int64_t j = t * k; j < (t + 1) * k; ++j)
        if (ids[j] == e) ds = of_score(j);
      dlogits[t * experts + e] = std::is_same_v<Scores, sigmoid_scores> ? ds * s * (T(1) - s) : s * (ds - through);
    }
  }
};
template <class Scores, launcher L, class T>
void body(ops::choose_experts_backward<Scores>, const L& on, std::int64_t tokens, std::int64_t experts, std::int64_t k,
          const T* logits, const std::int32_t* ids, const grouped_choice& rule, const T* dweights, T* dlogits) {
  on.each_row(tokens, experts,
              choose_experts_backward_row<Scores, T>{experts, k, rule.normed, static_cast<T>(rule.scale),
                                                     added_to_scores<T>, logits, ids, dweights, dlogits});
}

/// One row: the experts.
template <class T>
struct balance_bias_row {
  std::int64_t experts;
  const T* counts;
  T rate;
  T* bias;
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t) const {
    const T* const c = counts;
    const double sum = sum_over(g, experts, [=](std::int64_t e) { return static_cast<double>(c[e]); });
    for (std::int64_t e = g.rank(); e < experts; e += g.size()) {
      const double more = sum - static_cast<double>(c[e]) * static_cast<double>(experts);
      bias[e] += more > 0 ? rate : more < 0 ? -rate : T(0);
    }
  }
};
template <launcher L, class T>
void body(ops::balance_bias, const L& on, std::int64_t experts, const T* counts, T rate, T* bias) {
  on.each_row(1, experts, balance_bias_row<T>{experts, counts, rate, bias});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
