// heddle/compute/cuda/rows.hpp: layer norm, root-mean-square norm and the pieces of softmax cross-entropy for the CUDA backend, a group of threads per row.
#pragma once

#include <heddle/compute/cuda/launcher.hpp>

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
    const T *const in = x + i * columns, *const factor = w, *const shift = b;
    const T inverse = T(1) / static_cast<T>(columns);
    const T rough = sum_over(g, columns, [in](std::int64_t j) { return in[j]; }) * inverse;
    // What rounding left of the mean would be multiplied by 1 / deviation: take it off, for rows far from zero.
    const T mu = rough + sum_over(g, columns, [in, rough](std::int64_t j) { return in[j] - rough; }) * inverse;
    const T variance = sum_over(g, columns, [in, mu](std::int64_t j) { return (in[j] - mu) * (in[j] - mu); }) * inverse;
    const T s = T(1) / std::sqrt(variance + eps);
    T* const out = y + i * columns;
    for_each_of(g, columns, [=](std::int64_t j) { out[j] = (in[j] - mu) * s * factor[j] + shift[j]; });
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
    T* const out = dx + i * columns;
    const T mu = mean[i], s = rstd[i], inverse = T(1) / static_cast<T>(columns);
    const T of_g = sum_over(g, columns, [=](std::int64_t j) { return d[j] * factor[j]; }) * inverse;
    const T of_gn =
        sum_over(g, columns, [=](std::int64_t j) { return d[j] * factor[j] * ((in[j] - mu) * s); }) * inverse;
    for_each_of(g, columns,
                [=](std::int64_t j) { out[j] += s * (d[j] * factor[j] - of_g - (in[j] - mu) * s * of_gn); });
  }
};
template <launcher L, class T>
void launch_layer_norm_backward_input(const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                                      const T* w, const T* mean, const T* rstd, T* dx) {
  if (columns > 0) on.each_row(rows, columns, layer_norm_backward_row<T>{columns, dy, x, w, mean, rstd, dx});
}
template <class T>
struct layer_norm_backward_column {
  std::int64_t rows, columns;
  const T *dy, *x, *mean, *rstd;
  T *dw, *db;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t j) const {
    const T *const d = dy, *const in = x, *const mu = mean, *const s = rstd;  // nothing is added to them without rows
    const std::int64_t step = columns;
    const T scaled =
        sum_over(g, rows, [=](std::int64_t i) { return d[i * step + j] * ((in[i * step + j] - mu[i]) * s[i]); });
    const T plain = sum_over(g, rows, [=](std::int64_t i) { return d[i * step + j]; });
    if (g.leads()) {
      dw[j] += scaled;
      db[j] += plain;
    }
  }
};
template <launcher L, class T>
void launch_layer_norm_backward_weight(const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                                       const T* mean, const T* rstd, T* dw, T* db) {
  on.each_column(columns, layer_norm_backward_column<T>{rows, columns, dy, x, mean, rstd, dw, db});
}

template <class T>
struct rms_norm_row {
  std::int64_t columns;
  const T *x, *w;
  T eps;
  T *y, *rstd;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t i) const {
    const T *const in = x + i * columns, *const factor = w;
    T* const out = y + i * columns;
    const T squares = sum_over(g, columns, [in](std::int64_t j) { return in[j] * in[j]; });
    const T s = T(1) / std::sqrt(squares / static_cast<T>(columns) + eps);
    for_each_of(g, columns, [=](std::int64_t j) { out[j] = in[j] * s * factor[j]; });
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
    T* const out = dx + i * columns;
    const T s = rstd[i];
    const T of_gn =
        sum_over(g, columns, [=](std::int64_t j) { return d[j] * factor[j] * (in[j] * s); }) / static_cast<T>(columns);
    for_each_of(g, columns, [=](std::int64_t j) { out[j] += s * (d[j] * factor[j] - in[j] * s * of_gn); });
  }
};
template <launcher L, class T>
void launch_rms_norm_backward_input(const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                                    const T* w, const T* rstd, T* dx) {
  if (columns > 0) on.each_row(rows, columns, rms_norm_backward_row<T>{columns, dy, x, w, rstd, dx});
}
template <class T>
struct rms_norm_backward_column {
  std::int64_t rows, columns;
  const T *dy, *x, *rstd;
  T* dw;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t j) const {
    const T *const d = dy, *const in = x, *const s = rstd;
    const std::int64_t step = columns;
    const T sum = sum_over(g, rows, [=](std::int64_t i) { return d[i * step + j] * (in[i * step + j] * s[i]); });
    if (g.leads()) dw[j] += sum;
  }
};
template <launcher L, class T>
void launch_rms_norm_backward_weight(const L& on, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                                     const T* rstd, T* dw) {
  on.each_column(columns, rms_norm_backward_column<T>{rows, columns, dy, x, rstd, dw});
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
    for (std::int64_t j = g.rank(); j < columns; j += g.size()) top = larger(top, row[j]);
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
    const T all = sum_over(g, columns, [=](std::int64_t j) { return math::exponential(row[j] - top); });
    if (g.leads()) sum[i] = all;
  }
};
template <launcher L, class T>
void launch_row_sum_exp(const L& on, std::int64_t rows, std::int64_t columns, const T* logits, const T* m, T* sum) {
  on.each_row(rows, columns, row_sum_exp_row<T>{columns, logits, m, sum});
}
template <class T>
struct pick_target_body {
  std::int64_t columns;
  const T* logits;
  const std::int32_t* targets;
  std::int64_t first_id;
  T* picked;

  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t target = targets[i], column = target - first_id;
    picked[i] = target >= 0 && column >= 0 && column < columns ? logits[i * columns + column] : T(0);
  }
};
template <launcher L, class T>
void launch_pick_target(const L& on, std::int64_t rows, std::int64_t columns, const T* logits,
                        const std::int32_t* targets, std::int64_t first_id, T* picked) {
  on.each(rows, pick_target_body<T>{columns, logits, targets, first_id, picked});
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
    for_each_of(g, columns, [=](std::int64_t j) {
      row[j] = target < 0 ? T(0) : math::exponential(row[j] - top) * share - (j == here ? taken : T(0));
    });
  }
};
template <launcher L, class T>
void launch_cross_entropy_backward(const L& on, std::int64_t rows, std::int64_t columns, T* logits, const T* m,
                                   const T* sum, const std::int32_t* targets, std::int64_t first_id, T factor) {
  on.each_row(rows, columns, cross_entropy_backward_row<T>{columns, logits, m, sum, targets, first_id, factor});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
