// heddle/compute/host/routing.hpp: routing of rows to experts on the host, and back.
#pragma once

#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/ops/routing.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::compute::detail {

/// The k greatest of n logits in descending order; equal ones in the order of their ids; NaN before all numbers.
template <class T>
HEDDLE_HD void choose_greatest(std::int64_t n, const T* logits, std::int64_t k, std::int32_t* ids) {
  const auto before = [](T a, T b) { return a > b || (a != a && b == b); };
  std::int64_t held = 0;
  for (std::int64_t e = 0; e < n; ++e) {
    if (held == k && !before(logits[e], logits[ids[k - 1]])) continue;
    std::int64_t at = held < k ? held++ : k - 1;
    for (; at > 0 && before(logits[e], logits[ids[at - 1]]); --at) ids[at] = ids[at - 1];
    ids[at] = static_cast<std::int32_t>(e);
  }
}

// Elements of 16 bits are computed with in float (`sum_of_type`), and rounded once where they are written.
template <class Rule, class T>
void body(ops::top_k<Rule>, team& workers, std::int64_t tokens, std::int64_t experts, std::int64_t k, const T* logits,
          std::int32_t* ids, T* weights) {
  using S = sum_of_type<T>;
  if (k == 0) return;
  workers.split(tokens, row_grain(experts), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const T* row = logits + t * experts;
      std::int32_t* chosen = ids + t * k;
      T* out = weights + t * k;
      choose_greatest(experts, row, k, chosen);
      const S top = row[chosen[0]];
      S sum = 0;
      if constexpr (std::is_same_v<Rule, softmax_of_all>)
        for (std::int64_t e = 0; e < experts; ++e) sum += std::exp(row[e] - top);
      else
        for (std::int64_t j = 0; j < k; ++j) sum += std::exp(row[chosen[j]] - top);
      for (std::int64_t j = 0; j < k; ++j) out[j] = static_cast<T>(std::exp(row[chosen[j]] - top) / sum);
    }
  });
}

/// With w the weights and d their gradient: dlogits = p (g - sum of w d), where g is d at the chosen experts and 0 at the
/// others, and p is the softmax that the rule takes (over the chosen: w there and 0 elsewhere).
template <class Rule, class T>
void body(ops::top_k_backward<Rule>, team& workers, std::int64_t tokens, std::int64_t experts, std::int64_t k,
          const T* logits, const std::int32_t* ids, const T* weights, const T* dweights, T* dlogits) {
  using S = sum_of_type<T>;
  workers.split(tokens, row_grain(experts), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const T* row = logits + t * experts;
      const T *w = weights + t * k, *d = dweights + t * k;
      const std::int32_t* chosen = ids + t * k;
      T* out = dlogits + t * experts;
      S inner = 0, top = 0, sum = 0;
      for (std::int64_t j = 0; j < k; ++j) inner += w[j] * d[j];
      if (std::is_same_v<Rule, softmax_of_chosen> || k == 0) {
        std::fill_n(out, experts, T(0));
      } else {
        top = row[chosen[0]];
        for (std::int64_t e = 0; e < experts; ++e) sum += std::exp(row[e] - top);
        for (std::int64_t e = 0; e < experts; ++e) out[e] = static_cast<T>(-(std::exp(row[e] - top) / sum) * inner);
      }
      for (std::int64_t j = 0; j < k; ++j) {
        if constexpr (std::is_same_v<Rule, softmax_of_chosen>)
          out[chosen[j]] = static_cast<T>(w[j] * (d[j] - inner));
        else if constexpr (is_half_precision<T>)
          out[chosen[j]] = T(w[j] * d[j] - std::exp(row[chosen[j]] - top) / sum * inner);
        else
          out[chosen[j]] += w[j] * d[j];
      }
    }
  });
}

/// A counting sort by expert that keeps the order of tokens and choices.
inline void route(std::int64_t tokens, std::int64_t k, std::int64_t experts, const std::int32_t* ids,
                  std::int64_t first_id, std::int64_t* offsets, std::int32_t* sources, std::int32_t* places) {
  const std::int64_t n = tokens * k;
  const auto here = [&](std::int64_t i) {
    const std::int64_t e = ids[i] - first_id;
    return e >= 0 && e < experts ? e : std::int64_t{-1};
  };
  std::fill_n(offsets, experts + 1, std::int64_t{0});
  for (std::int64_t i = 0; i < n; ++i)
    if (const std::int64_t e = here(i); e >= 0) ++offsets[e + 1];
  for (std::int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  std::fill_n(sources, n, std::int32_t{-1});
  // offsets[e] walks to the expert's end, which is where the next one begins: moved back by one place afterwards.
  for (std::int64_t t = 0, i = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < k; ++j, ++i) {
      const std::int64_t e = here(i);
      places[i] = -1;
      if (e < 0) continue;
      const std::int64_t row = offsets[e]++;
      sources[row] = static_cast<std::int32_t>(t);
      places[i] = static_cast<std::int32_t>(row);
    }
  for (std::int64_t e = experts; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
}

inline void body(ops::route, team&, std::int64_t tokens, std::int64_t k, std::int64_t offsets_size, std::int64_t,
                 const std::int32_t* ids, std::int64_t first_id, std::int64_t* offsets, std::int32_t* sources,
                 std::int32_t* places) {
  route(tokens, k, offsets_size - 1, ids, first_id, offsets, sources, places);
}

/// f(row, the softmax of its logits) for each row.
template <class T, class F>
void for_each_softmax(std::int64_t tokens, std::int64_t experts, const T* logits, F&& f) {
  using S = sum_of_type<T>;
  std::vector<S> p(static_cast<std::size_t>(experts));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const T* const row = logits + t * experts;
    const S top = *std::max_element(row, row + experts);
    S sum = 0;
    for (std::size_t e = 0; e < p.size(); ++e) sum += p[e] = std::exp(row[e] - top);
    for (S& one : p) one /= sum;
    f(t, std::as_const(p));
  }
}
template <class T>
std::vector<T> choices_of_experts(std::int64_t choices, std::int64_t experts, const std::int32_t* ids) {
  std::vector<T> count(static_cast<std::size_t>(experts));
  for (std::int64_t i = 0; i < choices; ++i)
    if (ids[i] >= 0) ++count[static_cast<std::size_t>(ids[i])];
  return count;
}
template <class T>
void body(ops::expert_balance, team&, std::int64_t tokens, std::int64_t experts, std::int64_t k, const T* logits,
          const std::int32_t* ids, double* out) {
  const auto count = choices_of_experts<double>(tokens * k, experts, ids);
  double sum = 0;
  for_each_softmax(tokens, experts, logits, [&](std::int64_t, const auto& p) {
    for (std::size_t e = 0; e < p.size(); ++e) sum += count[e] * static_cast<double>(p[e]);
  });
  *out += sum;
}
/// dlogits += scale p (c - sum of p c).
template <class T>
void body(ops::counted_balance_backward, team&, std::int64_t tokens, std::int64_t experts, const T* logits,
          const sum_of_type<T>* count, sum_of_type<T> scale, T* dlogits) {
  using S = sum_of_type<T>;
  for_each_softmax(tokens, experts, logits, [&](std::int64_t t, const auto& p) {
    S mean = 0;
    for (std::size_t e = 0; e < p.size(); ++e) mean += p[e] * count[e];
    for (std::size_t e = 0; e < p.size(); ++e) {
      T& to = dlogits[t * experts + static_cast<std::int64_t>(e)];
      to = static_cast<T>(to + scale * p[e] * (count[e] - mean));
    }
  });
}

template <class T>
void body(ops::expert_balance_backward, team& workers, std::int64_t tokens, std::int64_t experts, std::int64_t k,
          const T* logits, const std::int32_t* ids, sum_of_type<T> scale, T* dlogits) {
  const auto counts = choices_of_experts<sum_of_type<T>>(tokens * k, experts, ids);
  body(ops::counted_balance_backward{}, workers, tokens, experts, logits, counts.data(), scale, dlogits);
}

/// Expert by expert: the choices that it keeps, in the order of the rule.
template <class Rule, class T>
void limit_choices(std::int64_t choices, std::int64_t experts, std::int64_t most, const std::int32_t* ids,
                   const T* weights, std::int32_t* kept) {
  std::vector<std::vector<std::int64_t>> of_expert(static_cast<std::size_t>(experts));
  for (std::int64_t i = 0; i < choices; ++i)
    if (ids[i] >= 0) of_expert[static_cast<std::size_t>(ids[i])].push_back(i);
  std::fill_n(kept, choices, std::int32_t{-1});
  for (std::int64_t e = 0; e < experts; ++e) {
    auto& mine = of_expert[static_cast<std::size_t>(e)];
    const auto n = static_cast<std::size_t>((std::max)(most, std::int64_t{0}));
    if constexpr (std::is_same_v<Rule, keep_heaviest>)
      if (mine.size() > n)
        std::sort(mine.begin(), mine.end(), [&](std::int64_t i, std::int64_t j) {
          const T a = weights[i], b = weights[j];
          if (a != a || b != b) return a != a && (b == b || i < j);  // NaN first
          return a > b || (a == b && i < j);
        });
    for (std::size_t i = 0; i < (std::min)(n, mine.size()); ++i) kept[mine[i]] = static_cast<std::int32_t>(e);
  }
}

template <class Rule, class T>
void body(ops::limit_choices<Rule>, team&, std::int64_t rows, std::int64_t k, const std::int32_t* ids, const T* weights,
          std::int64_t experts, std::int64_t most, std::int32_t* kept) {
  limit_choices<Rule>(rows * k, experts, most, ids, weights, kept);
}

template <class T>
void body(ops::permute, team& workers, std::int64_t, std::int64_t rows, std::int64_t width, const T* x,
          const std::int32_t* sources, T* y) {
  workers.split(rows, row_grain(width), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      if (sources[i] >= 0)
        std::copy_n(x + sources[i] * width, width, y + i * width);
      else
        std::fill_n(y + i * width, width, T(0));
  });
}

/// out[t] = sum over j, in order, of factor(t, j) * y[places[t][j]].
template <class T, class Factor>
void gather_rows(team& workers, std::int64_t tokens, std::int64_t k, std::int64_t width, const T* y,
                 const std::int32_t* places, T* out, Factor factor) {
  using S = sum_of_type<T>;
  workers.split(tokens, row_grain(width), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<S> sums(is_half_precision<T> ? static_cast<std::size_t>(width) : 0);
    for (std::int64_t t = begin; t < end; ++t) {
      S* to = nullptr;
      if constexpr (is_half_precision<T>)
        to = sums.data();
      else
        to = out + t * width;
      std::fill_n(to, width, S(0));
      for (std::int64_t j = 0; j < k; ++j) {
        const std::int64_t row = places[t * k + j];
        if (row < 0) continue;
        const S f = factor(t * k + j);
        map_lanes(width, to, [f](S old, S v) { return old + f * v; }, static_cast<const S*>(to), y + row * width);
      }
      if constexpr (is_half_precision<T>)
        map_lanes(width, out + t * width, [](S sum) { return sum; }, static_cast<const S*>(to));
    }
  });
}

template <class T>
void body(ops::permute_backward, team& workers, std::int64_t tokens, std::int64_t k, std::int64_t, std::int64_t width,
          const T* dy, const std::int32_t* places, T* dx) {
  gather_rows(workers, tokens, k, width, dy, places, dx, [](std::int64_t) { return T(1); });
}
template <class T>
void body(ops::unpermute, team& workers, std::int64_t tokens, std::int64_t k, std::int64_t, std::int64_t width,
          const T* y, const std::int32_t* places, const T* weights, T* out) {
  gather_rows(workers, tokens, k, width, y, places, out, [weights](std::int64_t i) { return weights[i]; });
}

/// Every row of y belongs to one choice of one token, so that threads share the tokens. dy may be y.
template <class T>
void body(ops::unpermute_backward, team& workers, std::int64_t tokens, std::int64_t k, std::int64_t rows,
          std::int64_t width, const T* dout, const T* y, const std::int32_t* places, const T* weights, T* dy,
          T* dweights) {
  using S = sum_of_type<T>;
  workers.split(tokens, row_grain(width), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t j = 0; j < k; ++j) {
        const std::int64_t i = t * k + j, row = places[i];
        dweights[i] = T(0);
        if (row < 0) continue;
        const T* d = dout + t * width;
        const S f = weights[i];
        dweights[i] = static_cast<T>(sum_lanes<S>(width, [](S a, S b) { return a * b; }, d, y + row * width));
        map_lanes(width, dy + row * width, [f](S v) { return f * v; }, d);
      }
  });
  std::vector<bool> used(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < tokens * k; ++i)
    if (places[i] >= 0) used[static_cast<std::size_t>(places[i])] = true;
  for (std::int64_t r = 0; r < rows; ++r)
    if (!used[static_cast<std::size_t>(r)]) std::fill_n(dy + r * width, width, T(0));
}

}  // namespace heddle::inline v0::compute::detail
