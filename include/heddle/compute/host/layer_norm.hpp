// heddle/compute/host/layer_norm.hpp: layer norm and RMS norm of rows, on the host.
#pragma once

#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/ops/rows.hpp>
#include <heddle/core/half_precision.hpp>

#include <cmath>

namespace heddle::inline v0::compute::detail {

inline std::int64_t row_grain(std::int64_t columns) {
  return (std::max)(elementwise_grain / 4 / (std::max)(columns, std::int64_t{1}), std::int64_t{1});
}

/// f(i, 1 / columns) for each row i, by all workers; rows without elements have no norm.
template <class T, class F>
void each_normed_row(team& workers, std::int64_t rows, std::int64_t columns, const F& f) {
  if (columns == 0) return;
  const T inverse = T(1) / static_cast<T>(columns);
  workers.split(rows, row_grain(columns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i, inverse);
  });
}

template <class T>
void body(ops::layer_norm, team& workers, std::int64_t rows, std::int64_t columns, const T* x, const T* w, const T* b,
          sum_of_type<T> eps, T* y, sum_of_type<T>* mean, sum_of_type<T>* rstd) {
  using S = sum_of_type<T>;
  each_normed_row<S>(workers, rows, columns, [&](std::int64_t i, S inverse) {
    const T* in = x + i * columns;
    const S rough = sum_lanes<S>(columns, [](S v) { return v; }, in) * inverse;
    // What rounding left of the mean would be multiplied by 1 / deviation: take it off, for rows far from zero.
    const S mu = rough + sum_lanes<S>(columns, [rough](S v) { return v - rough; }, in) * inverse;
    const S variance = sum_lanes<S>(columns, [mu](S v) { return (v - mu) * (v - mu); }, in) * inverse;
    const S s = S(1) / std::sqrt(variance + eps);
    map_lanes(columns, y + i * columns, [mu, s](S v, S g, S c) { return (v - mu) * s * g + c; }, in, w, b);
    mean[i] = mu;
    rstd[i] = s;
  });
}

/// dx += s (g - mean(g) - n mean(g n)) with g = w dy and n = (x - mu) s.
template <class T>
void body(ops::layer_norm_backward_input, team& workers, std::int64_t rows, std::int64_t columns, const T* dy,
          const T* x, const T* w, const sum_of_type<T>* mean, const sum_of_type<T>* rstd, T* dx) {
  using S = sum_of_type<T>;
  each_normed_row<S>(workers, rows, columns, [&](std::int64_t i, S inverse) {
    const T *d = dy + i * columns, *in = x + i * columns;
    T* out = dx + i * columns;
    const S mu = mean[i], s = rstd[i];
    const S g = sum_lanes<S>(columns, [](S a, S c) { return a * c; }, d, w) * inverse;
    const S gn = sum_lanes<S>(columns, [mu, s](S a, S c, S v) { return a * c * ((v - mu) * s); }, d, w, in) * inverse;
    map_lanes(
        columns, out, [=](S old, S a, S c, S v) { return old + s * (a * c - g - (v - mu) * s * gn); },
        static_cast<const T*>(out), d, w, in);
  });
}

template <class T>
void body(ops::layer_norm_backward_weight, team& workers, std::int64_t rows, std::int64_t columns, const T* dy,
          const T* x, const sum_of_type<T>* mean, const sum_of_type<T>* rstd, sum_of_type<T>* dw, sum_of_type<T>* db) {
  using S = sum_of_type<T>;
  workers.split(columns, column_grain(rows), block_size<S>, [&](std::int64_t begin, std::int64_t end) {
    sum_columns(
        rows, columns, begin, end, dw, [=](std::int64_t i, S d, S v) { return d * ((v - mean[i]) * rstd[i]); }, dy, x);
    sum_columns(rows, columns, begin, end, db, [](std::int64_t, S d) { return d; }, dy);
  });
}

template <class T>
void body(ops::rms_norm, team& workers, std::int64_t rows, std::int64_t columns, const T* x, const T* w,
          sum_of_type<T> eps, T* y, sum_of_type<T>* rstd) {
  using S = sum_of_type<T>;
  each_normed_row<S>(workers, rows, columns, [&](std::int64_t i, S inverse) {
    const T* in = x + i * columns;
    const S s = S(1) / std::sqrt(sum_lanes<S>(columns, [](S v) { return v * v; }, in) * inverse + eps);
    map_lanes(columns, y + i * columns, [s](S v, S g) { return v * s * g; }, in, w);
    rstd[i] = s;
  });
}

/// dx += s (g - n mean(g n)) with g = w dy and n = x s.
template <class T>
void body(ops::rms_norm_backward_input, team& workers, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
          const T* w, const sum_of_type<T>* rstd, T* dx) {
  using S = sum_of_type<T>;
  each_normed_row<S>(workers, rows, columns, [&](std::int64_t i, S inverse) {
    const T *d = dy + i * columns, *in = x + i * columns;
    T* out = dx + i * columns;
    const S s = rstd[i];
    const S gn = sum_lanes<S>(columns, [s](S a, S c, S v) { return a * c * (v * s); }, d, w, in) * inverse;
    map_lanes(
        columns, out, [=](S old, S a, S c, S v) { return old + s * (a * c - v * s * gn); }, static_cast<const T*>(out),
        d, w, in);
  });
}

template <class T>
void body(ops::row_sum_squares, team& workers, std::int64_t rows, std::int64_t columns, const T* x,
          sum_of_type<T>* sum) {
  using S = sum_of_type<T>;
  workers.split(rows, row_grain(columns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      sum[i] = sum_lanes<S>(columns, [](S v) { return v * v; }, x + i * columns);
  });
}
template <class T>
void body(ops::rms_norm_of_sums, team& workers, std::int64_t rows, std::int64_t columns, const T* x, const T* w,
          const sum_of_type<T>* sum, sum_of_type<T> count, sum_of_type<T> eps, T* y, sum_of_type<T>* rstd) {
  using S = sum_of_type<T>;
  each_normed_row<S>(workers, rows, columns, [&](std::int64_t i, S) {
    const S s = S(1) / std::sqrt(sum[i] / count + eps);
    map_lanes(columns, y + i * columns, [s](S v, S g) { return v * s * g; }, x + i * columns, w);
    rstd[i] = s;
  });
}
template <class T>
void body(ops::rms_norm_row_dot, team& workers, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
          const T* w, sum_of_type<T>* sum) {
  using S = sum_of_type<T>;
  workers.split(rows, row_grain(columns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      sum[i] = sum_lanes<S>(columns, [](S a, S c, S v) { return a * c * v; }, dy + i * columns, w, x + i * columns);
  });
}
template <class T>
void body(ops::rms_norm_backward_of_sums, team& workers, std::int64_t rows, std::int64_t columns, const T* dy,
          const T* x, const T* w, const sum_of_type<T>* rstd, const sum_of_type<T>* sum, sum_of_type<T> count, T* dx) {
  using S = sum_of_type<T>;
  each_normed_row<S>(workers, rows, columns, [&](std::int64_t i, S) {
    const S s = rstd[i], back = s * s * sum[i] / count;
    T* const out = dx + i * columns;
    map_lanes(
        columns, out, [=](S old, S a, S c, S v) { return old + s * (a * c - v * back); }, static_cast<const T*>(out),
        dy + i * columns, w, x + i * columns);
  });
}

template <class T>
void body(ops::rms_norm_backward_weight, team& workers, std::int64_t rows, std::int64_t columns, const T* dy,
          const T* x, const sum_of_type<T>* rstd, sum_of_type<T>* dw) {
  using S = sum_of_type<T>;
  workers.split(columns, column_grain(rows), block_size<S>, [&](std::int64_t begin, std::int64_t end) {
    sum_columns(rows, columns, begin, end, dw, [=](std::int64_t i, S d, S v) { return d * (v * rstd[i]); }, dy, x);
  });
}

}  // namespace heddle::inline v0::compute::detail
