// heddle/compute/cuda/rows.hpp: norms and softmax of rows on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/column_sums.hpp>
#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/group/vectors.hpp>
#include <heddle/core/half_precision.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

// Rows of 16-bit elements are summed and normed in float (`sum_of_type`), and rounded once where they are written.
namespace heddle::inline v0::compute::detail::on_cuda {

using in_groups::each_row_of_packs;
using in_groups::for_packs;
using in_groups::overwritten;
using in_groups::sum_packs;

template <class T>
struct layer_norm_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T *x, *w, *b;
  S eps;
  T* y;
  S *mean, *rstd;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const in = x + i * columns;
    const S inverse = S(1) / static_cast<S>(columns);
    const S rough = sum_packs<S>(g, columns, [](S e) { return e; }, in) * inverse;
    // What rounding left of the mean would be multiplied by 1 / deviation: take it off, for rows far from zero.
    const S mu = rough + sum_packs<S>(g, columns, [rough](S e) { return e - rough; }, in) * inverse;
    const S variance = sum_packs<S>(g, columns, [mu](S e) { return (e - mu) * (e - mu); }, in) * inverse;
    const S s = S(1) / std::sqrt(variance + eps);
    const auto normed = [mu, s](std::int64_t, S e, S factor, S shift, T& out) {
      out = converted<T>((e - mu) * s * factor + shift);
    };
    for_packs(g, columns, normed, in, w, b, overwritten(y + i * columns));
    if (g.leads()) {
      mean[i] = mu;
      rstd[i] = s;
    }
  }
};
template <launcher L, class T>
void body(ops::layer_norm, const L& on, std::int64_t rows, std::int64_t columns, const T* x, const T* w, const T* b,
          sum_of_type<T> eps, T* y, sum_of_type<T>* mean, sum_of_type<T>* rstd) {
  if (columns > 0) each_row_of_packs<T>(on, rows, columns, layer_norm_row<T>{columns, x, w, b, eps, y, mean, rstd});
}

/// dx = onto + s (g - mean(g) - n mean(g n)) with g = w dy and n = (x - mu) s. `onto` may be dx.
template <class T>
struct layer_norm_backward_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T *dy, *x, *w;
  const S *mean, *rstd;
  const T* onto;
  T* dx;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T *const d = dy + i * columns, *const in = x + i * columns, *const factor = w;
    const S mu = mean[i], s = rstd[i], inverse = S(1) / static_cast<S>(columns);
    const S of_g = sum_packs<S>(g, columns, [](S e, S f) { return e * f; }, d, factor) * inverse;
    const auto projected = [mu, s](S e, S f, S at) { return e * f * ((at - mu) * s); };
    const S of_gn = sum_packs<S>(g, columns, projected, d, factor, in) * inverse;
    const auto added = [mu, s, of_g, of_gn](std::int64_t, S e, S f, S at, S before, T& out) {
      out = converted<T>(before + s * (e * f - of_g - (at - mu) * s * of_gn));
    };
    for_packs(g, columns, added, d, factor, in, onto + i * columns, overwritten(dx + i * columns));
  }
};
template <launcher L, class T>
void body(ops::layer_norm_backward_onto, const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
          const T* w, const sum_of_type<T>* mean, const sum_of_type<T>* rstd, const T* onto, T* dx) {
  if (columns > 0)
    each_row_of_packs<T>(on, rows, columns, layer_norm_backward_row<T>{columns, dy, x, w, mean, rstd, onto, dx});
}
template <launcher L, class T>
void body(ops::layer_norm_backward_input, const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
          const T* w, const sum_of_type<T>* mean, const sum_of_type<T>* rstd, T* dx) {
  body(ops::layer_norm_backward_onto{}, on, rows, columns, dy, x, w, mean, rstd, static_cast<const T*>(dx), dx);
}
/// Of dw and db, in one pass over dy and x.
template <class T>
struct layer_norm_weight_terms {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T *dy, *x;
  const S *mean, *rstd;
  HEDDLE_HD void add(std::int64_t i, std::int64_t j, S (&sums)[2]) const {
    const S d = dy[i * columns + j];
    sums[0] += d * ((x[i * columns + j] - mean[i]) * rstd[i]);
    sums[1] += d;
  }
};
template <launcher L, class T>
void body(ops::layer_norm_backward_weight, const L& on, std::int64_t rows, std::int64_t columns, const T* dy,
          const T* x, const sum_of_type<T>* mean, const sum_of_type<T>* rstd, sum_of_type<T>* dw, sum_of_type<T>* db) {
  add_column_sums<sum_of_type<T>>(on, rows, columns, layer_norm_weight_terms<T>{columns, dy, x, mean, rstd}, {dw, db});
}

template <class T>
struct rms_norm_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T *x, *w;
  S eps;
  T* y;
  S* rstd;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const in = x + i * columns;
    const S squares = sum_packs<S>(g, columns, [](S e) { return e * e; }, in);
    const S s = S(1) / std::sqrt(squares / static_cast<S>(columns) + eps);
    const auto normed = [s](std::int64_t, S e, S factor, T& out) { out = converted<T>(e * s * factor); };
    for_packs(g, columns, normed, in, w, overwritten(y + i * columns));
    if (g.leads()) rstd[i] = s;
  }
};
template <launcher L, class T>
void body(ops::rms_norm, const L& on, std::int64_t rows, std::int64_t columns, const T* x, const T* w,
          sum_of_type<T> eps, T* y, sum_of_type<T>* rstd) {
  if (columns > 0) each_row_of_packs<T>(on, rows, columns, rms_norm_row<T>{columns, x, w, eps, y, rstd});
}
/// dx = onto + s (g - n mean(g n)) with g = w dy and n = x s. `onto` may be dx.
template <class T>
struct rms_norm_backward_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T *dy, *x, *w;
  const S* rstd;
  const T* onto;
  T* dx;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T *const d = dy + i * columns, *const in = x + i * columns, *const factor = w;
    const S s = rstd[i];
    const auto projected = [s](S e, S f, S at) { return e * f * (at * s); };
    const S of_gn = sum_packs<S>(g, columns, projected, d, factor, in) / static_cast<S>(columns);
    const auto added = [s, of_gn](std::int64_t, S e, S f, S at, S before, T& out) {
      out = converted<T>(before + s * (e * f - at * s * of_gn));
    };
    for_packs(g, columns, added, d, factor, in, onto + i * columns, overwritten(dx + i * columns));
  }
};
template <launcher L, class T>
void body(ops::rms_norm_backward_onto, const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
          const T* w, const sum_of_type<T>* rstd, const T* onto, T* dx) {
  if (columns > 0) each_row_of_packs<T>(on, rows, columns, rms_norm_backward_row<T>{columns, dy, x, w, rstd, onto, dx});
}
template <launcher L, class T>
void body(ops::rms_norm_backward_input, const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
          const T* w, const sum_of_type<T>* rstd, T* dx) {
  body(ops::rms_norm_backward_onto{}, on, rows, columns, dy, x, w, rstd, static_cast<const T*>(dx), dx);
}
template <class T>
struct rms_norm_weight_terms {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T *dy, *x;
  const S* rstd;
  HEDDLE_HD void add(std::int64_t i, std::int64_t j, S (&sums)[1]) const {
    sums[0] += dy[i * columns + j] * (x[i * columns + j] * rstd[i]);
  }
};
template <launcher L, class T>
void body(ops::rms_norm_backward_weight, const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
          const sum_of_type<T>* rstd, sum_of_type<T>* dw) {
  add_column_sums<sum_of_type<T>>(on, rows, columns, rms_norm_weight_terms<T>{columns, dy, x, rstd}, {dw});
}

// ---- the same norm of columns on several ranks ----

template <class T>
struct row_sum_squares_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T* x;
  S* sum;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const S all = sum_packs<S>(g, columns, [](S e) { return e * e; }, x + i * columns);
    if (g.leads()) sum[i] = all;
  }
};
template <launcher L, class T>
void body(ops::row_sum_squares, const L& on, std::int64_t rows, std::int64_t columns, const T* x, sum_of_type<T>* sum) {
  each_row_of_packs<T>(on, rows, columns, row_sum_squares_row<T>{columns, x, sum});
}
template <class T>
struct rms_norm_of_sums_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T *x, *w;
  const S* sum;
  S count, eps;
  T* y;
  S* rstd;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T *const in = x + i * columns, *const factor = w;
    const S s = S(1) / std::sqrt(sum[i] / count + eps);
    const auto normed = [s](std::int64_t, S e, S f, T& out) { out = converted<T>(e * s * f); };
    for_packs(g, columns, normed, in, factor, overwritten(y + i * columns));
    if (g.leads()) rstd[i] = s;
  }
};
template <launcher L, class T>
void body(ops::rms_norm_of_sums, const L& on, std::int64_t rows, std::int64_t columns, const T* x, const T* w,
          const sum_of_type<T>* sum, sum_of_type<T> count, sum_of_type<T> eps, T* y, sum_of_type<T>* rstd) {
  if (columns > 0)
    each_row_of_packs<T>(on, rows, columns, rms_norm_of_sums_row<T>{columns, x, w, sum, count, eps, y, rstd});
}
template <class T>
struct rms_norm_row_dot_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T *dy, *x, *w;
  S* sum;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T *const d = dy + i * columns, *const in = x + i * columns, *const factor = w;
    const S all = sum_packs<S>(g, columns, [](S e, S f, S at) { return e * f * at; }, d, factor, in);
    if (g.leads()) sum[i] = all;
  }
};
template <launcher L, class T>
void body(ops::rms_norm_row_dot, const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
          const T* w, sum_of_type<T>* sum) {
  each_row_of_packs<T>(on, rows, columns, rms_norm_row_dot_row<T>{columns, dy, x, w, sum});
}
template <class T>
struct rms_norm_backward_of_sums_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T *dy, *x, *w;
  const S *rstd, *sum;
  S count;
  T* dx;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T *const d = dy + i * columns, *const in = x + i * columns, *const factor = w;
    const S s = rstd[i], back = s * s * sum[i] / count;
    const auto added = [s, back](std::int64_t, S e, S f, S at, S before, T& out) {
      out = converted<T>(before + s * (e * f - at * back));
    };
    const T* const onto = dx + i * columns;
    for_packs(g, columns, added, d, factor, in, onto, overwritten(dx + i * columns));
  }
};
template <launcher L, class T>
void body(ops::rms_norm_backward_of_sums, const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
          const T* w, const sum_of_type<T>* rstd, const sum_of_type<T>* sum, sum_of_type<T> count, T* dx) {
  if (columns > 0)
    each_row_of_packs<T>(on, rows, columns, rms_norm_backward_of_sums_row<T>{columns, dy, x, w, rstd, sum, count, dx});
}

// ---- softmax cross-entropy ----

/// -inf for no columns; NaN if there is one.
template <class T>
struct row_max_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T* logits;
  S lowest;
  S* m;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const row = logits + i * columns;
    S top = lowest;
    for_packs(g, columns, [&top](std::int64_t, S e) { top = larger(top, e); }, row);
    top = g.largest(top);
    if (g.leads()) m[i] = top;
  }
};
template <launcher L, class T>
void body(ops::row_max, const L& on, std::int64_t rows, std::int64_t columns, const T* logits, sum_of_type<T>* m) {
  constexpr sum_of_type<T> lowest = -(std::numeric_limits<sum_of_type<T>>::infinity)();
  each_row_of_packs<T>(on, rows, columns, row_max_row<T>{columns, logits, lowest, m});
}
template <class T>
struct row_sum_exp_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  const T* logits;
  const S* m;
  S* sum;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const row = logits + i * columns;
    const S top = m[i];
    const S all = sum_packs<S>(g, columns, [top](S e) { return math::exponential(e - top); }, row);
    if (g.leads()) sum[i] = all;
  }
};
template <launcher L, class T>
void body(ops::row_sum_exp, const L& on, std::int64_t rows, std::int64_t columns, const T* logits,
          const sum_of_type<T>* m, sum_of_type<T>* sum) {
  each_row_of_packs<T>(on, rows, columns, row_sum_exp_row<T>{columns, logits, m, sum});
}
/// The targets of the rows among these columns, which are those of the words from `first_id` on.
struct target_columns {
  std::int64_t columns;
  const std::int32_t* targets;
  std::int64_t first_id;
  /// Of row i; -1 if it has none here.
  HEDDLE_HD std::int64_t operator[](std::int64_t i) const {
    const std::int64_t target = targets[i], column = target - first_id;
    return target >= 0 && column >= 0 && column < columns ? column : -1;
  }
};
template <class T>
struct pick_target_body {
  target_columns target;
  const T* logits;
  sum_of_type<T>* picked;

  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t column = target[i];
    using S = sum_of_type<T>;
    picked[i] = column >= 0 ? static_cast<S>(logits[i * target.columns + column]) : S(0);
  }
};
template <launcher L, class T>
void body(ops::pick_target, const L& on, std::int64_t rows, std::int64_t columns, const T* logits,
          const std::int32_t* targets, std::int64_t first_id, sum_of_type<T>* picked) {
  on.each(rows, pick_target_body<T>{{columns, targets, first_id}, logits, picked});
}
/// Greatest number and sum of exponentials of what came so far, in one pass. The sum is in units of exp(unit), a number that came; a greater one takes its
/// place only if it is more than `most_above` greater, so that threads of a warp seldom take two paths.
/// Source: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3.
template <class T>
struct online_softmax {
  static constexpr int most_above = 8;
  T top, unit, lowest, sum = T(0);  // lowest: -inf
  HEDDLE_HD explicit online_softmax(T minus_infinity)
      : top(minus_infinity), unit(minus_infinity), lowest(minus_infinity) {}
  /// Sum of exponentials in units of exp(m).
  HEDDLE_HD online_softmax(T m, T exponentials, T minus_infinity)
      : top(m), unit(m), lowest(minus_infinity), sum(exponentials) {}
  /// The sum in units of exp(to). What nothing was added to stays 0: exp(-inf + inf) would be NaN.
  HEDDLE_HD T scaled(T to) const { return sum == T(0) ? T(0) : sum * math::exponential(unit - to); }
  HEDDLE_HD void add(T x) {
    top = larger(top, x);
    if (x - unit <= T(most_above)) {
      sum += math::exponential(x - unit);
    } else if (x > lowest || x != x) {
      sum = scaled(x) + T(1);
      unit = x;
    }
  }
};
template <class T>
struct add_to_softmax_row {
  using S = sum_of_type<T>;
  target_columns target;
  const T* logits;
  S lowest;
  S *m, *sum, *picked;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const row = logits + i * target.columns;
    online_softmax<S> mine(lowest);
    const S m_before = m[i];
    for_packs(g, target.columns, [&mine](std::int64_t, S e) { mine.add(e); }, row);
    const S top = larger(m_before, g.largest(mine.top));
    const S added = g.sum(mine.scaled(top));
    if (!g.leads()) return;  // the others have no further need of m
    m[i] = top;
    sum[i] = online_softmax<S>(m_before, sum[i], lowest).scaled(top) + added;
    if (const std::int64_t column = target[i]; column >= 0) picked[i] = row[column];
  }
};
template <launcher L, class T>
void body(ops::add_to_softmax, const L& on, std::int64_t rows, std::int64_t columns, const T* logits,
          const std::int32_t* targets, std::int64_t first_id, sum_of_type<T>* m, sum_of_type<T>* sum,
          sum_of_type<T>* picked) {
  constexpr sum_of_type<T> lowest = -(std::numeric_limits<sum_of_type<T>>::infinity)();
  each_row_of_packs<T>(on, rows, columns,
                       add_to_softmax_row<T>{{columns, targets, first_id}, logits, lowest, m, sum, picked});
}
template <class T>
struct rescale_softmax_body {
  const T *before, *m;
  T* sum;
  HEDDLE_HD void operator()(std::int64_t i) const {
    if (sum[i] != T(0)) sum[i] *= math::exponential(before[i] - m[i]);
  }
};
template <launcher L, class T>
void body(ops::rescale_softmax, const L& on, std::int64_t rows, const T* before, const T* m, T* sum) {
  on.each(rows, rescale_softmax_body<T>{before, m, sum});
}
/// `Factor`: one for all rows, or the address of one for each.
template <class T, class Factor = sum_of_type<T>>
struct cross_entropy_backward_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  T* logits;
  const S *m, *sum;
  const std::int32_t* targets;
  std::int64_t first_id;
  Factor factor;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    T* const row = logits + i * columns;
    const std::int64_t target = targets[i], here = target - first_id;
    const S taken = of_row(factor, i), top = m[i], share = target < 0 ? S(0) : taken / sum[i];
    const auto gradient = [=](std::int64_t j, T& e) {
      e = converted<T>(target < 0 ? S(0) : math::exponential(e - top) * share - (j == here ? taken : S(0)));
    };
    for_packs(g, columns, gradient, row);
  }
};
template <launcher L, class T>
void body(ops::cross_entropy_backward, const L& on, std::int64_t rows, std::int64_t columns, T* logits,
          const sum_of_type<T>* m, const sum_of_type<T>* sum, const std::int32_t* targets, std::int64_t first_id,
          sum_of_type<T> scale) {
  each_row_of_packs<T>(on, rows, columns,
                       cross_entropy_backward_row<T>{columns, logits, m, sum, targets, first_id, scale});
}
template <launcher L, class T>
void body(ops::weighted_cross_entropy_backward, const L& on, std::int64_t rows, std::int64_t columns, T* logits,
          const sum_of_type<T>* m, const sum_of_type<T>* sum, const std::int32_t* targets, std::int64_t first_id,
          const sum_of_type<T>* scales) {
  using factors = const sum_of_type<T>*;
  each_row_of_packs<T>(on, rows, columns,
                       cross_entropy_backward_row<T, factors>{columns, logits, m, sum, targets, first_id, scales});
}

template <class T>
struct capped_cross_entropy_backward_row {
  using S = sum_of_type<T>;
  std::int64_t columns;
  T* logits;
  const S *m, *sum;
  const std::int32_t* targets;
  std::int64_t first_id;
  S scale, cap;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    T* const row = logits + i * columns;
    const std::int64_t target = targets[i], here = target - first_id;
    const S taken = scale, below = cap, top = m[i], share = target < 0 ? S(0) : taken / sum[i];
    const auto gradient = [=](std::int64_t j, T& e) {
      const S v = static_cast<S>(e), of_capped = math::exponential(v - top) * share - (j == here ? taken : S(0));
      e = converted<T>(target < 0 ? S(0) : of_capped * (S(1) - v / below) * (S(1) + v / below));
    };
    for_packs(g, columns, gradient, row);
  }
};
template <launcher L, class T>
void body(ops::capped_cross_entropy_backward, const L& on, std::int64_t rows, std::int64_t columns, T* logits,
          const sum_of_type<T>* m, const sum_of_type<T>* sum, const std::int32_t* targets, std::int64_t first_id,
          sum_of_type<T> scale, sum_of_type<T> cap) {
  each_row_of_packs<T>(on, rows, columns,
                       capped_cross_entropy_backward_row<T>{columns, logits, m, sum, targets, first_id, scale, cap});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
