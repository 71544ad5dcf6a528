// heddle/compute/host/expert_choice.hpp: choice of experts by biased scores in groups.
#pragma once

#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/host/routing.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/ops/expert_choice.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::compute::detail {

/// scores[e] of one row of logits.
template <class Scores, class T>
void score_experts(std::int64_t experts, const T* logits, T* scores) {
  if constexpr (std::is_same_v<Scores, sigmoid_scores>) {
    for (std::int64_t e = 0; e < experts; ++e) {
      const T decay = std::exp(-std::abs(logits[e]));  // at most 1: no overflow
      scores[e] = (logits[e] < 0 ? decay : T(1)) / (T(1) + decay);
    }
  } else {
    const T top = experts > 0 ? *std::max_element(logits, logits + experts) : T(0);
    T sum = 0;
    for (std::int64_t e = 0; e < experts; ++e) sum += scores[e] = std::exp(logits[e] - top);
    for (std::int64_t e = 0; e < experts; ++e) scores[e] /= sum;
  }
}

/// What the sum of the chosen scores is divided by besides its own size.
template <class T>
inline constexpr T added_to_scores = T(1e-20);

/// Lets experts of groups that are not kept lose: their biased score becomes -infinity.
template <class T>
void keep_groups(const grouped_choice& rule, std::int64_t experts, T* biased, std::vector<T>& of_group,
                 std::vector<std::int32_t>& order) {
  const std::int64_t each = experts / rule.groups, best = (std::min)(rule.best, each);
  of_group.resize(static_cast<std::size_t>(rule.groups));
  order.resize(static_cast<std::size_t>((std::max)(rule.groups, best)));
  for (std::int64_t g = 0; g < rule.groups; ++g) {
    choose_greatest(each, biased + g * each, best, order.data());
    T sum = 0;
    for (std::int64_t j = 0; j < best; ++j) sum += biased[g * each + order[static_cast<std::size_t>(j)]];
    of_group[static_cast<std::size_t>(g)] = sum;
  }
  choose_greatest(rule.groups, of_group.data(), rule.groups, order.data());
  for (std::int64_t i = rule.kept; i < rule.groups; ++i)
    std::fill_n(biased + order[static_cast<std::size_t>(i)] * each, each, -std::numeric_limits<T>::infinity());
}

/// The choice of the rows [begin, end). `bias` may be null.
template <class Scores, class T>
void choose_experts_of(std::int64_t begin, std::int64_t end, std::int64_t experts, std::int64_t k,
                       const grouped_choice& rule, const T* logits, const T* bias, std::int32_t* ids, T* weights) {
  std::vector<T> scores(static_cast<std::size_t>(experts)), biased(scores), of_group;
  std::vector<std::int32_t> order;
  for (std::int64_t t = begin; t < end; ++t) {
    score_experts<Scores>(experts, logits + t * experts, scores.data());
    for (std::size_t e = 0; e < scores.size(); ++e) biased[e] = bias != nullptr ? scores[e] + bias[e] : scores[e];
    if (rule.kept < rule.groups) keep_groups(rule, experts, biased.data(), of_group, order);
    std::int32_t* const chosen = ids + t * k;
    choose_greatest(experts, biased.data(), k, chosen);
    T sum = added_to_scores<T>;
    for (std::int64_t j = 0; j < k; ++j) sum += scores[static_cast<std::size_t>(chosen[j])];
    const T factor = static_cast<T>(rule.scale) / (rule.normed ? sum : T(1));
    for (std::int64_t j = 0; j < k; ++j) weights[t * k + j] = factor * scores[static_cast<std::size_t>(chosen[j])];
  }
}

/// Gradients of the rows [begin, end). With s the scores, S the sum of the chosen ones + 1e-20 and d the gradient of the weights:
/// ds_j = scale (d_j - (sum of d s) / S) / S where weights are normed, scale d_j elsewhere; dlogits = ds s (1 - s) for sigmoid,
/// s (ds - sum of ds s) for softmax.
template <class Scores, class T>
void choose_experts_backward_of(std::int64_t begin, std::int64_t end, std::int64_t experts, std::int64_t k,
                                const grouped_choice& rule, const T* logits, const std::int32_t* ids, const T* dweights,
                                T* dlogits) {
  std::vector<T> scores(static_cast<std::size_t>(experts));
  for (std::int64_t t = begin; t < end; ++t) {
    score_experts<Scores>(experts, logits + t * experts, scores.data());
    const std::int32_t* const chosen = ids + t * k;
    const T* const d = dweights + t * k;
    T* const out = dlogits + t * experts;
    const auto score = [&](std::int64_t j) { return scores[static_cast<std::size_t>(chosen[j])]; };
    T sum = added_to_scores<T>, inner = 0, through = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      sum += score(j);
      inner += d[j] * score(j);
    }
    std::fill_n(out, experts, T(0));
    const T scale = static_cast<T>(rule.scale);
    for (std::int64_t j = 0; j < k; ++j) {
      const T ds = rule.normed ? scale * (d[j] - inner / sum) / sum : scale * d[j];
      out[chosen[j]] = ds;
      through += ds * score(j);
    }
    for (std::int64_t e = 0; e < experts; ++e) {
      const T s = scores[static_cast<std::size_t>(e)];
      out[e] = std::is_same_v<Scores, sigmoid_scores> ? out[e] * s * (T(1) - s) : s * (out[e] - through);
    }
  }
}

template <class Scores, class T>
void body(ops::choose_experts<Scores>, team& workers, std::int64_t rows, std::int64_t experts, std::int64_t k,
          std::int64_t biases, const T* logits, const T* bias, const grouped_choice& rule, std::int32_t* ids,
          T* weights) {
  workers.split(rows, row_grain(experts), 1, [&](std::int64_t begin, std::int64_t end) {
    choose_experts_of<Scores>(begin, end, experts, k, rule, logits, biases > 0 ? bias : nullptr, ids, weights);
  });
}
template <class Scores, class T>
void body(ops::choose_experts_backward<Scores>, team& workers, std::int64_t rows, std::int64_t experts, std::int64_t k,
          const T* logits, const std::int32_t* ids, const grouped_choice& rule, const T* dweights, T* dlogits) {
  workers.split(rows, row_grain(experts), 1, [&](std::int64_t begin, std::int64_t end) {
    choose_experts_backward_of<Scores>(begin, end, experts, k, rule, logits, ids, dweights, dlogits);
  });
}
template <class T>
void body(ops::balance_bias, team&, std::int64_t experts, const T* counts, T rate, T* bias) {
  double sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) sum += static_cast<double>(counts[e]);
  for (std::int64_t e = 0; e < experts; ++e) {
    const double more = sum - static_cast<double>(counts[e]) * static_cast<double>(experts);
    bias[e] += more > 0 ? rate : more < 0 ? -rate : T(0);
  }
}

}  // namespace heddle::inline v0::compute::detail
