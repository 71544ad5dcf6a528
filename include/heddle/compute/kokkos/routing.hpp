// heddle/compute/kokkos/routing.hpp: routing of rows to experts as Kokkos kernels.
#pragma once

#include <heddle/compute/group/choices.hpp>
#include <heddle/compute/host/routing.hpp>
#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/kokkos/sums.hpp>
#include <heddle/compute/ops/routing.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

using in_groups::is_greater;

/// The greatest of n numbers; the first one if n is 1, NaN where the first one is.
template <class T>
KOKKOS_INLINE_FUNCTION T greatest(std::int64_t n, const T* x) {
  T top = x[0];
  for (std::int64_t e = 1; e < n; ++e) top = x[e] > top ? x[e] : top;
  return top;
}
/// The sum of e^(x - top) over n numbers, in order.
template <class T>
KOKKOS_INLINE_FUNCTION T sum_of_exponentials(std::int64_t n, const T* x, T top) {
  using std::exp;
  T sum = 0;
  for (std::int64_t e = 0; e < n; ++e) sum += exp(x[e] - top);
  return sum;
}

template <class Rule, class Exec, class T>
void body(ops::top_k<Rule>, const on<Exec>& exec, std::int64_t tokens, std::int64_t experts, std::int64_t k,
          const T* logits, std::int32_t* ids, T* weights) {
  if (k == 0) return;
  each(
      exec, "heddle::top_k", tokens, tokens * experts, KOKKOS_LAMBDA(const std::int64_t t) {
        using std::exp;
        const T* const row = logits + t * experts;
        std::int32_t* const chosen = ids + t * k;
        T* const out = weights + t * k;
        choose_greatest(experts, row, k, chosen);
        const T top = row[chosen[0]];
        T sum = 0;
        if constexpr (std::is_same_v<Rule, softmax_of_all>)
          sum = sum_of_exponentials(experts, row, top);
        else
          for (std::int64_t j = 0; j < k; ++j) sum += exp(row[chosen[j]] - top);
        for (std::int64_t j = 0; j < k; ++j) out[j] = exp(row[chosen[j]] - top) / sum;
      });
}
/// The formula is beside `detail::top_k_backward` in host/routing.hpp.
template <class Rule, class Exec, class T>
void body(ops::top_k_backward<Rule>, const on<Exec>& exec, std::int64_t tokens, std::int64_t experts, std::int64_t k,
          const T* logits, const std::int32_t* ids, const T* weights, const T* dweights, T* dlogits) {
  each(
      exec, "heddle::top_k_backward", tokens, tokens * experts, KOKKOS_LAMBDA(const std::int64_t t) {
        using std::exp;
        const T* const row = logits + t * experts;
        const T *const w = weights + t * k, *const d = dweights + t * k;
        const std::int32_t* const chosen = ids + t * k;
        T* const out = dlogits + t * experts;
        T inner = 0;
        for (std::int64_t j = 0; j < k; ++j) inner += w[j] * d[j];
        if (std::is_same_v<Rule, softmax_of_chosen> || k == 0) {
          for (std::int64_t e = 0; e < experts; ++e) out[e] = T(0);
        } else {
          const T top = row[chosen[0]], sum = sum_of_exponentials(experts, row, top);
          for (std::int64_t e = 0; e < experts; ++e) out[e] = -(exp(row[e] - top) / sum) * inner;
        }
        for (std::int64_t j = 0; j < k; ++j) {
          if constexpr (std::is_same_v<Rule, softmax_of_chosen>)
            out[chosen[j]] = w[j] * (d[j] - inner);
          else
            out[chosen[j]] += w[j] * d[j];
        }
      });
}

/// A counting sort that keeps the order of tokens and choices: of one thread on the host, as there each choice is then looked at once;
/// elsewhere an item of work for each expert looks at all choices, so that nothing is added atomically.
template <class Exec>
void body(ops::route, const on<Exec>& exec, std::int64_t tokens, std::int64_t k, std::int64_t begins, std::int64_t,
          const std::int32_t* ids, std::int64_t first_id, std::int64_t* offsets, std::int32_t* sources,
          std::int32_t* places) {
  const std::int64_t experts = begins - 1;
  if constexpr (runs_on_host<Exec>) {
    each(exec, "heddle::route", 1, tokens * k,
         [=](std::int64_t) { detail::route(tokens, k, experts, ids, first_id, offsets, sources, places); });
  } else {
    const std::int64_t n = tokens * k;
    each(exec, "heddle::route, none yet", n, n, KOKKOS_LAMBDA(const std::int64_t i) { sources[i] = places[i] = -1; });
    each(
        exec, "heddle::route, sizes", experts, experts * n, KOKKOS_LAMBDA(const std::int64_t e) {
          std::int64_t count = 0;
          for (std::int64_t i = 0; i < n; ++i) count += ids[i] - first_id == e ? 1 : 0;
          offsets[e + 1] = count;
        });
    each(
        exec, "heddle::route, offsets", 1, experts, KOKKOS_LAMBDA(std::int64_t) {
          offsets[0] = 0;
          for (std::int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
        });
    each(
        exec, "heddle::route, places", experts, experts * n, KOKKOS_LAMBDA(const std::int64_t e) {
          std::int64_t row = offsets[e];
          for (std::int64_t i = 0; i < n; ++i) {
            if (ids[i] - first_id != e) continue;
            sources[row] = static_cast<std::int32_t>(i / k);
            places[i] = static_cast<std::int32_t>(row++);
          }
        });
  }
}

/// counts[e] = how many of the choices are expert e.
template <class Exec>
double* count_choices(const on<Exec>& exec, std::int64_t choices, std::int64_t experts, const std::int32_t* ids) {
  double* const counts = exec.rooms.counts.of(exec.queue, experts, "choices of experts");
  each(
      exec, "heddle::count_choices", experts, experts * choices, KOKKOS_LAMBDA(const std::int64_t e) {
        std::int64_t count = 0;
        for (std::int64_t i = 0; i < choices; ++i) count += ids[i] == e ? 1 : 0;
        counts[e] = static_cast<double>(count);
      });
  return counts;
}
template <class Exec, class T>
void body(ops::expert_balance, const on<Exec>& exec, std::int64_t tokens, std::int64_t experts, std::int64_t k,
          const T* logits, const std::int32_t* ids, double* out) {
  const double* const counts = count_choices(exec, tokens * k, experts, ids);
  if (experts == 0) return;
  add_blocks(
      exec, "heddle::expert_balance", tokens, out,
      KOKKOS_LAMBDA(const std::int64_t begin, const std::int64_t count)->double {
        using std::exp;
        double total = 0;
        for (std::int64_t t = begin; t < begin + count; ++t) {
          const T* const row = logits + t * experts;
          const T top = greatest(experts, row), sum = sum_of_exponentials(experts, row, top);
          for (std::int64_t e = 0; e < experts; ++e) total += counts[e] * static_cast<double>(exp(row[e] - top) / sum);
        }
        return total;
      });
}
/// dlogits += scale p (c - sum of p c).
template <class Exec, class T>
void body(ops::expert_balance_backward, const on<Exec>& exec, std::int64_t tokens, std::int64_t experts, std::int64_t k,
          const T* logits, const std::int32_t* ids, T scale, T* dlogits) {
  const double* const counts = count_choices(exec, tokens * k, experts, ids);
  if (experts == 0) return;
  each(
      exec, "heddle::expert_balance_backward", tokens, tokens * experts, KOKKOS_LAMBDA(const std::int64_t t) {
        using std::exp;
        const T* const row = logits + t * experts;
        const T top = greatest(experts, row), sum = sum_of_exponentials(experts, row, top);
        T mean = 0;
        for (std::int64_t e = 0; e < experts; ++e) mean += exp(row[e] - top) / sum * static_cast<T>(counts[e]);
        for (std::int64_t e = 0; e < experts; ++e)
          dlogits[t * experts + e] += scale * (exp(row[e] - top) / sum) * (static_cast<T>(counts[e]) - mean);
      });
}

/// Whether choice j of an expert is kept rather than choice i of the same expert.
template <class Rule, class T>
KOKKOS_INLINE_FUNCTION bool goes_before(std::int64_t j, std::int64_t i, const T* weights) {
  if constexpr (std::is_same_v<Rule, keep_heaviest>)
    return is_greater(weights[j], j, weights[i], i);
  else
    return j < i;
}
/// Sorted by one thread on the host; elsewhere each choice counts those that go before it.
template <class Rule, class Exec, class T>
void body(ops::limit_choices<Rule>, const on<Exec>& exec, std::int64_t rows, std::int64_t k, const std::int32_t* ids,
          const T* weights, std::int64_t experts, std::int64_t most, std::int32_t* kept) {
  const std::int64_t choices = rows * k;
  if constexpr (runs_on_host<Exec>) {
    each(exec, "heddle::limit_choices", 1, choices,
         [=](std::int64_t) { detail::limit_choices<Rule>(choices, experts, most, ids, weights, kept); });
  } else {
    each(
        exec, "heddle::limit_choices", choices, choices * choices, KOKKOS_LAMBDA(const std::int64_t i) {
          std::int64_t before = 0;
          for (std::int64_t j = 0; j < choices; ++j)
            before += ids[j] == ids[i] && goes_before<Rule>(j, i, weights) ? 1 : 0;
          kept[i] = before < most ? ids[i] : -1;
        });
  }
}

template <class Exec, class T>
void body(ops::permute, const on<Exec>& exec, std::int64_t, std::int64_t rows, std::int64_t width, const T* x,
          const std::int32_t* sources, T* y) {
  each(
      exec, "heddle::permute", rows, rows * width, KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t from = sources[i];
        for (std::int64_t c = 0; c < width; ++c) y[i * width + c] = from >= 0 ? x[from * width + c] : T(0);
      });
}
/// out[t] = sum over j, in order, of weights[t, j] * y[places[t, j]]; without weights for a null pointer.
template <class Exec, class T>
void gather_rows(const on<Exec>& exec, std::int64_t tokens, std::int64_t k, std::int64_t width, const T* y,
                 const std::int32_t* places, const T* weights, T* out) {
  each(
      exec, "heddle::gather_rows", tokens, tokens * k * width, KOKKOS_LAMBDA(const std::int64_t t) {
        T* const to = out + t * width;
        for (std::int64_t c = 0; c < width; ++c) to[c] = T(0);
        for (std::int64_t j = 0; j < k; ++j) {
          const std::int64_t row = places[t * k + j];
          if (row < 0) continue;
          const T f = weights != nullptr ? weights[t * k + j] : T(1);
          map_block<Exec>(
              width, to, [f](T old, T v) { return old + f * v; }, static_cast<const T*>(to), y + row * width);
        }
      });
}
template <class Exec, class T>
void body(ops::permute_backward, const on<Exec>& exec, std::int64_t tokens, std::int64_t k, std::int64_t,
          std::int64_t width, const T* dy, const std::int32_t* places, T* dx) {
  gather_rows(exec, tokens, k, width, dy, places, static_cast<const T*>(nullptr), dx);
}
template <class Exec, class T>
void body(ops::unpermute, const on<Exec>& exec, std::int64_t tokens, std::int64_t k, std::int64_t, std::int64_t width,
          const T* y, const std::int32_t* places, const T* weights, T* out) {
  gather_rows(exec, tokens, k, width, y, places, weights, out);
}
/// Every row of y belongs to one choice of one token. dy may be y; rows of no choice, which `used` finds, become zeros.
template <class Exec, class T>
void body(ops::unpermute_backward, const on<Exec>& exec, std::int64_t tokens, std::int64_t k, std::int64_t rows,
          std::int64_t width, const T* dout, const T* y, const std::int32_t* places, const T* weights, T* dy,
          T* dweights) {
  std::int32_t* const used = exec.rooms.used.of(exec.queue, rows, "rows that are used");
  each(exec, "heddle::unpermute_backward, unused", rows, rows, KOKKOS_LAMBDA(const std::int64_t r) { used[r] = 0; });
  each(
      exec, "heddle::unpermute_backward", tokens, tokens * k * width, KOKKOS_LAMBDA(const std::int64_t t) {
        for (std::int64_t j = 0; j < k; ++j) {
          const std::int64_t i = t * k + j, row = places[i];
          dweights[i] = T(0);
          if (row < 0) continue;
          used[row] = 1;
          const T* const d = dout + t * width;
          const T f = weights[i];
          dweights[i] = sum_of_block<Exec, T>(width, [](T a, T b) { return a * b; }, d, y + row * width);
          map_block<Exec>(width, dy + row * width, [f](T v) { return f * v; }, d);
        }
      });
  each(
      exec, "heddle::unpermute_backward, zeros", rows, rows * width, KOKKOS_LAMBDA(const std::int64_t r) {
        if (used[r] != 0) return;
        for (std::int64_t c = 0; c < width; ++c) dy[r * width + c] = T(0);
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
