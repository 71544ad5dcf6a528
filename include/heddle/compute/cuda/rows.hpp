// heddle/compute/cuda/rows.hpp: layer norm, root-mean-square norm and the pieces of softmax cross-entropy for the CUDA backend, a group of threads per row.
#pragma once

#include <heddle/compute/cuda/column_sums.hpp>
#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/cuda/vectors.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

namespace heddle::inline v0::compute::detail::on_cuda {

template <class T>
struct layer_norm_row {
  std::int64_t columns;
  const T *x, *w, *b;
  T eps;
  T *y, *mean, *rstd;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const in = x + i * columns;
    const T inverse = T(1) / static_cast<T>(columns);
    const T rough = sum_packs<T>(g, columns, [](T e) { return e; }, in) * inverse;
    // What rounding left of the mean would be multiplied by 1 / deviation: take it off, for rows far from zero.
    const T mu = rough + sum_packs<T>(g, columns, [rough](T e) { return e - rough; }, in) * inverse;
    const T variance = sum_packs<T>(g, columns, [mu](T e) { return (e - mu) * (e - mu); }, in) * inverse;
    const T s = T(1) / std::sqrt(variance + eps);
    const auto normed = [mu, s](std::int64_t, T e, T factor, T shift, T& out) { out = (e - mu) * s * factor + shift; };
    for_packs(g, columns, normed, in, w, b, overwritten(y + i * columns));
    if (g.leads()) {
      mean[i] = mu;
      rstd[i] = s;
    }
  }
};
template <launcher L, class T>
void launch_layer_norm(const L& on, std::int64_t rows, std::int64_t columns, const T* x, const T* w, const T* b, T eps,
                       T* y, T* mean, T* rstd) {
  if (columns > 0) on.each_row(rows, columns, layer_norm_row<T>{columns, x, w, b, eps, y, mean, rstd});
}

/// dx += s (g - mean(g) - n mean(g n)) with g = w dy and n = (x - mu) s.
template <class T>
struct layer_norm_backward_row {
  std::int64_t columns;
  const T *dy, *x, *w, *mean, *rstd;
  T* dx;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T *const d = dy + i * columns, *const in = x + i * columns, *const factor = w;
    const T mu = mean[i], s = rstd[i], inverse = T(1) / static_cast<T>(columns);
    const T of_g = sum_packs<T>(g, columns, [](T e, T f) { return e * f; }, d, factor) * inverse;
    const auto projected = [mu, s](T e, T f, T at) { return e * f * ((at - mu) * s); };
    const T of_gn = sum_packs<T>(g, columns, projected, d, factor, in) * inverse;
    const auto added = [mu, s, of_g, of_gn](std::int64_t, T e, T f, T at, T& out) {
      out += s * (e * f - of_g - (at - mu) * s * of_gn);
    };
    for_packs(g, columns, added, d, factor, in, dx + i * columns);
  }
};
template <launcher L, class T>
void launch_layer_norm_backward_input(const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                                      const T* w, const T* mean, const T* rstd, T* dx) {
  if (columns > 0) on.each_row(rows, columns, layer_norm_backward_row<T>{columns, dy, x, w, mean, rstd, dx});
}
/// Of dw and db, in one pass over dy and x.
template <class T>
struct layer_norm_weight_terms {
  std::int64_t columns;
  const T *dy, *x, *mean, *rstd;
  HEDDLE_HD void add(std::int64_t i, std::int64_t j, T (&sums)[2]) const {
    const T d = dy[i * columns + j];
    sums[0] += d * ((x[i * columns + j] - mean[i]) * rstd[i]);
    sums[1] += d;
  }
};
template <launcher L, class T>
void launch_layer_norm_backward_weight(const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                                       const T* mean, const T* rstd, T* dw, T* db) {
  add_column_sums<T>(on, rows, columns, layer_norm_weight_terms<T>{columns, dy, x, mean, rstd}, {dw, db});
}

template <class T>
struct rms_norm_row {
  std::int64_t columns;
  const T *x, *w;
  T eps;
  T *y, *rstd;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const in = x + i * columns;
    const T squares = sum_packs<T>(g, columns, [](T e) { return e * e; }, in);
    const T s = T(1) / std::sqrt(squares / static_cast<T>(columns) + eps);
    const auto normed = [s](std::int64_t, T e, T factor, T& out) { out = e * s * factor; };
    for_packs(g, columns, normed, in, w, overwritten(y + i * columns));
    if (g.leads()) rstd[i] = s;
  }
};
template <launcher L, class T>
void launch_rms_norm(const L& on, std::int64_t rows, std::int64_t columns, const T* x, const T* w, T eps, T* y,
                     T* rstd) {
  if (columns > 0) on.each_row(rows, columns, rms_norm_row<T>{columns, x, w, eps, y, rstd});
}
/// dx += s (g - n mean(g n)) with g = w dy and n = x s.
template <class T>
struct rms_norm_backward_row {
  std::int64_t columns;
  const T *dy, *x, *w, *rstd;
  T* dx;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T *const d = dy + i * columns, *const in = x + i * columns, *const factor = w;
    const T s = rstd[i];
    const auto projected = [s](T e, T f, T at) { return e * f * (at * s); };
    const T of_gn = sum_packs<T>(g, columns, projected, d, factor, in) / static_cast<T>(columns);
    const auto added = [s, of_gn](std::int64_t, T e, T f, T at, T& out) { out += s * (e * f - at * s * of_gn); };
    for_packs(g, columns, added, d, factor, in, dx + i * columns);
  }
};
template <launcher L, class T>
void launch_rms_norm_backward_input(const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                                    const T* w, const T* rstd, T* dx) {
  if (columns > 0) on.each_row(rows, columns, rms_norm_backward_row<T>{columns, dy, x, w, rstd, dx});
}
template <class T>
struct rms_norm_weight_terms {
  std::int64_t columns;
  const T *dy, *x, *rstd;
  HEDDLE_HD void add(std::int64_t i, std::int64_t j, T (&sums)[1]) const {
    sums[0] += dy[i * columns + j] * (x[i * columns + j] * rstd[i]);
  }
};
template <launcher L, class T>
void launch_rms_norm_backward_weight(const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                                     const T* rstd, T* dw) {
  add_column_sums<T>(on, rows, columns, rms_norm_weight_terms<T>{columns, dy, x, rstd}, {dw});
}

// ---- softmax cross-entropy ----

/// -inf for no columns; NaN if there is one.
template <class T>
struct row_max_row {
  std::int64_t columns;
  const T* logits;
  T lowest;
  T* m;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const row = logits + i * columns;
    T top = lowest;
    for_packs(g, columns, [&top](std::int64_t, T e) { top = larger(top, e); }, row);
    top = g.largest(top);
    if (g.leads()) m[i] = top;
  }
};
template <launcher L, class T>
void launch_row_max(const L& on, std::int64_t rows, std::int64_t columns, const T* logits, T* m) {
  on.each_row(rows, columns, row_max_row<T>{columns, logits, -(std::numeric_limits<T>::infinity)(), m});
}
template <class T>
struct row_sum_exp_row {
  std::int64_t columns;
  const T *logits, *m;
  T* sum;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const row = logits + i * columns;
    const T top = m[i];
    const T all = sum_packs<T>(g, columns, [top](T e) { return math::exponential(e - top); }, row);
    if (g.leads()) sum[i] = all;
  }
};
template <launcher L, class T>
void launch_row_sum_exp(const L& on, std::int64_t rows, std::int64_t columns, const T* logits, const T* m, T* sum) {
  on.each_row(rows, columns, row_sum_exp_row<T>{columns, logits, m, sum});
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
  T* picked;

  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t column = target[i];
    picked[i] = column >= 0 ? logits[i * target.columns + column] : T(0);
  }
};
template <launcher L, class T>
void launch_pick_target(const L& on, std::int64_t rows, std::int64_t columns, const T* logits,
                        const std::int32_t* targets, std::int64_t first_id, T* picked) {
  on.each(rows, pick_target_body<T>{{columns, targets, first_id}, logits, picked});
}
/// Greatest number and sum of exponentials of what came so far, in one pass.
/// Source: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3.
template <class T>
struct online_softmax {
  T top, lowest, sum = T(0);  // lowest: -inf
  HEDDLE_HD explicit online_softmax(T minus_infinity) : top(minus_infinity), lowest(minus_infinity) {}
  /// The sum in units of exp(to). What nothing was added to stays 0: exp(-inf + inf) would be NaN.
  HEDDLE_HD T scaled(T to) const { return sum == T(0) ? T(0) : sum * math::exponential(top - to); }
  HEDDLE_HD void add(T x) {
    if (x > top || x != x) {
      sum = scaled(x) + T(1);
      top = larger(top, x);
    } else if (x > lowest) {
      sum += math::exponential(x - top);
    }
  }
};
template <class T>
struct add_to_softmax_row {
  target_columns target;
  const T* logits;
  T lowest;
  T *m, *sum, *picked;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T* const row = logits + i * target.columns;
    online_softmax<T> mine(lowest), before(lowest);
    before.top = m[i];
    for_packs(g, target.columns, [&mine](std::int64_t, T e) { mine.add(e); }, row);
    const T top = larger(before.top, g.largest(mine.top));
    const T added = g.sum(mine.scaled(top));
    if (!g.leads()) return;  // the others have no further need of m
    before.sum = sum[i];
    m[i] = top;
    sum[i] = before.scaled(top) + added;
    if (const std::int64_t column = target[i]; column >= 0) picked[i] = row[column];
  }
};
template <launcher L, class T>
void launch_add_to_softmax(const L& on, std::int64_t rows, std::int64_t columns, const T* logits,
                           const std::int32_t* targets, std::int64_t first_id, T* m, T* sum, T* picked) {
  constexpr T lowest = -(std::numeric_limits<T>::infinity)();
  on.each_row(rows, columns, add_to_softmax_row<T>{{columns, targets, first_id}, logits, lowest, m, sum, picked});
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
void launch_rescale_softmax(const L& on, std::int64_t rows, const T* before, const T* m, T* sum) {
  on.each(rows, rescale_softmax_body<T>{before, m, sum});
}
template <class T>
struct cross_entropy_backward_row {
  std::int64_t columns;
  T* logits;
  const T *m, *sum;
  const std::int32_t* targets;
  std::int64_t first_id;
  T factor;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    T* const row = logits + i * columns;
    const std::int64_t target = targets[i], here = target - first_id;
    const T top = m[i], share = target < 0 ? T(0) : factor / sum[i], taken = factor;
    const auto gradient = [=](std::int64_t j, T& e) {
      e = target < 0 ? T(0) : math::exponential(e - top) * share - (j == here ? taken : T(0));
    };
    for_packs(g, columns, gradient, row);
  }
};
template <launcher L, class T>
void launch_cross_entropy_backward(const L& on, std::int64_t rows, std::int64_t columns, T* logits, const T* m,
                                   const T* sum, const std::int32_t* targets, std::int64_t first_id, T factor) {
  on.each_row(rows, columns, cross_entropy_backward_row<T>{columns, logits, m, sum, targets, first_id, factor});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
