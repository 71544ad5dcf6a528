// heddle/compute/host/layer_norm.hpp: normalisation of each row, forward and backward.
#pragma once

#include <heddle/compute/host/elementwise.hpp>

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
void layer_norm(team& workers, std::int64_t rows, std::int64_t columns, const T* x, const T* w, const T* b, T eps, T* y,
                T* mean, T* rstd) {
  each_normed_row<T>(workers, rows, columns, [&](std::int64_t i, T inverse) {
    const T* in = x + i * columns;
    const T rough = sum_lanes<T>(columns, [](T v) { return v; }, in) * inverse;
    // What rounding left of the mean would be multiplied by 1 / deviation: take it off, for rows far from zero.
    const T mu = rough + sum_lanes<T>(columns, [rough](T v) { return v - rough; }, in) * inverse;
    const T variance = sum_lanes<T>(columns, [mu](T v) { return (v - mu) * (v - mu); }, in) * inverse;
    const T s = T(1) / std::sqrt(variance + eps);
    map_lanes(columns, y + i * columns, [mu, s](T v, T g, T c) { return (v - mu) * s * g + c; }, in, w, b);
    mean[i] = mu;
    rstd[i] = s;
  });
}

/// dx += s (g - mean(g) - n mean(g n)) with g = w dy and n = (x - mu) s.
template <class T>
void layer_norm_backward_input(team& workers, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                               const T* w, const T* mean, const T* rstd, T* dx) {
  each_normed_row<T>(workers, rows, columns, [&](std::int64_t i, T inverse) {
    const T *d = dy + i * columns, *in = x + i * columns;
    T* out = dx + i * columns;
    const T mu = mean[i], s = rstd[i];
    const T g = sum_lanes<T>(columns, [](T a, T c) { return a * c; }, d, w) * inverse;
    const T gn = sum_lanes<T>(columns, [mu, s](T a, T c, T v) { return a * c * ((v - mu) * s); }, d, w, in) * inverse;
    map_lanes(
        columns, out, [=](T old, T a, T c, T v) { return old + s * (a * c - g - (v - mu) * s * gn); },
        static_cast<const T*>(out), d, w, in);
  });
}

template <class T>
void layer_norm_backward_weight(team& workers, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                                const T* mean, const T* rstd, T* dw, T* db) {
  workers.split(columns, column_grain(rows), block_size<T>, [&](std::int64_t begin, std::int64_t end) {
    sum_columns(
        rows, columns, begin, end, dw, [=](std::int64_t i, T d, T v) { return d * ((v - mean[i]) * rstd[i]); }, dy, x);
    sum_columns(rows, columns, begin, end, db, [](std::int64_t, T d) { return d; }, dy);
  });
}

}  // namespace heddle::inline v0::compute::detail
