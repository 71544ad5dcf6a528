// heddle/compute/kokkos/expert_choice.hpp: choice of experts in groups on Kokkos.
#pragma once

#include <heddle/compute/host/expert_choice.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/kokkos/routing.hpp>
#include <heddle/compute/ops/expert_choice.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

/// Scores of the experts of one row of logits, computed one by one.
template <class Scores, class T>
class scores_of_row {
 public:
  KOKKOS_INLINE_FUNCTION scores_of_row(std::int64_t experts, const T* logits) : logits_(logits) {
    if (std::is_same_v<Scores, softmax_scores> && experts > 0) {
      top_ = greatest(experts, logits);
      sum_ = sum_of_exponentials(experts, logits, top_);
    }
  }
  KOKKOS_INLINE_FUNCTION T operator[](std::int64_t e) const {
    using std::exp;
    const T x = logits_[e];
    if constexpr (std::is_same_v<Scores, sigmoid_scores>) {
      const T decay = exp(x < 0 ? x : -x);  // at most 1: no overflow
      return (x < 0 ? decay : T(1)) / (T(1) + decay);
    } else {
      return exp(x - top_) / sum_;
    }
  }

 private:
  const T* logits_;
  T top_ = 0, sum_ = 1;
};

/// The sum of the `best` greatest of n numbers, added in descending order.
template <class T>
KOKKOS_INLINE_FUNCTION T sum_of_greatest(std::int64_t n, const T* x, std::int64_t best) {
  T sum = 0;
  std::int64_t last = -1;
  for (std::int64_t j = 0; j < best; ++j) {
    std::int64_t next = -1;
    for (std::int64_t e = 0; e < n; ++e)
      if ((last < 0 || is_greater(x[last], last, x[e], e)) && (next < 0 || is_greater(x[e], e, x[next], next)))
        next = e;
    sum += x[next];
    last = next;
  }
  return sum;
}

template <class Scores, class Exec, class T>
void body(ops::choose_experts<Scores>, const on<Exec>& exec, std::int64_t tokens, std::int64_t experts, std::int64_t k,
          std::int64_t biases, const T* logits, const T* biases_of, const grouped_choice& rule, std::int32_t* ids,
          T* weights) {
  const T* const bias = biases > 0 ? biases_of : nullptr;
  if constexpr (runs_on_host<Exec>) {
    each_block<64>(exec, "heddle::choose_experts", tokens, experts, [=](std::int64_t begin, std::int64_t count) {
      choose_experts_of<Scores>(begin, begin + count, experts, k, rule, logits, bias, ids, weights);
    });
  } else {
    const std::int64_t groups = rule.groups, in_group = experts / groups, kept = rule.kept;
    auto& room = std::get<growing_room<T, kokkos_memory<Exec>>>(exec.rooms.scores);
    T* const scratch = room.of(exec.queue, tokens * (experts + groups), "biased scores of experts");
    const std::int64_t best = rule.best < in_group ? rule.best : in_group;
    const bool normed = rule.normed;
    const T scale = static_cast<T>(rule.scale), added = added_to_scores<T>, none = -std::numeric_limits<T>::infinity();
    each(
        exec, "heddle::choose_experts", tokens, tokens * experts, KOKKOS_LAMBDA(const std::int64_t t) {
          const scores_of_row<Scores, T> scores(experts, logits + t * experts);
          T* const biased = scratch + t * (experts + groups);
          T* const of_group = biased + experts;
          for (std::int64_t e = 0; e < experts; ++e) biased[e] = bias != nullptr ? scores[e] + bias[e] : scores[e];
          if (kept < groups) {
            for (std::int64_t g = 0; g < groups; ++g)
              of_group[g] = sum_of_greatest(in_group, biased + g * in_group, best);
            for (std::int64_t g = 0; g < groups; ++g) {
              std::int64_t before = 0;
              for (std::int64_t o = 0; o < groups; ++o) before += is_greater(of_group[o], o, of_group[g], g) ? 1 : 0;
              for (std::int64_t e = 0; before >= kept && e < in_group; ++e) biased[g * in_group + e] = none;
            }
          }
          std::int32_t* const chosen = ids + t * k;
          choose_greatest(experts, biased, k, chosen);
          T sum = added;
          for (std::int64_t j = 0; j < k; ++j) sum += scores[chosen[j]];
          const T factor = scale / (normed ? sum : T(1));
          for (std::int64_t j = 0; j < k; ++j) weights[t * k + j] = factor * scores[chosen[j]];
        });
  }
}
/// The formula is beside `choose_experts_backward_of` in host/expert_choice.hpp.
template <class Scores, class Exec, class T>
void body(ops::choose_experts_backward<Scores>, const on<Exec>& exec, std::int64_t tokens, std::int64_t experts,
          std::int64_t k, const T* logits, const std::int32_t* ids, const grouped_choice& rule, const T* dweights,
          T* dlogits) {
  if constexpr (runs_on_host<Exec>) {
    each_block<64>(
        exec, "heddle::choose_experts_backward", tokens, experts, [=](std::int64_t begin, std::int64_t count) {
          choose_experts_backward_of<Scores>(begin, begin + count, experts, k, rule, logits, ids, dweights, dlogits);
        });
  } else {
    const bool normed = rule.normed;
    const T scale = static_cast<T>(rule.scale), added = added_to_scores<T>;
    each(
        exec, "heddle::choose_experts_backward", tokens, tokens * experts, KOKKOS_LAMBDA(const std::int64_t t) {
          const scores_of_row<Scores, T> scores(experts, logits + t * experts);
          const std::int32_t* const chosen = ids + t * k;
          const T* const d = dweights + t * k;
          T* const out = dlogits + t * experts;
          T sum = added, inner = 0, through = 0;
          for (std::int64_t j = 0; j < k; ++j) {
            sum += scores[chosen[j]];
            inner += d[j] * scores[chosen[j]];
          }
          for (std::int64_t e = 0; e < experts; ++e) out[e] = T(0);
          for (std::int64_t j = 0; j < k; ++j) {
            const T ds = normed ? scale * (d[j] - inner / sum) / sum : scale * d[j];
            out[chosen[j]] = ds;
            through += ds * scores[chosen[j]];
          }
          for (std::int64_t e = 0; e < experts; ++e) {
            const T s = scores[e];
            out[e] = std::is_same_v<Scores, sigmoid_scores> ? out[e] * s * (T(1) - s) : s * (out[e] - through);
          }
        });
  }
}
/// One item of work: there are few experts.
template <class Exec, class T>
void body(ops::balance_bias, const on<Exec>& exec, std::int64_t experts, const T* counts, T rate, T* bias) {
  each(
      exec, "heddle::balance_bias", 1, experts, KOKKOS_LAMBDA(std::int64_t) {
        double sum = 0;
        for (std::int64_t e = 0; e < experts; ++e) sum += static_cast<double>(counts[e]);
        for (std::int64_t e = 0; e < experts; ++e) {
          const double more = sum - static_cast<double>(counts[e]) * static_cast<double>(experts);
          bias[e] += more > 0 ? rate : more < 0 ? -rate : T(0);
        }
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
