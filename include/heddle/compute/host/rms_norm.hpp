// heddle/compute/host/rms_norm.hpp: root mean square norm of each row, forward and backward.
#pragma once

#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/core/half_precision.hpp>

#include <cmath>

namespace heddle::inline v0::compute::detail {

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
void body(ops::rms_norm_backward_weight, team& workers, std::int64_t rows, std::int64_t columns, const T* dy,
          const T* x, const sum_of_type<T>* rstd, sum_of_type<T>* dw) {
  using S = sum_of_type<T>;
  workers.split(columns, column_grain(rows), block_size<S>, [&](std::int64_t begin, std::int64_t end) {
    sum_columns(rows, columns, begin, end, dw, [=](std::int64_t i, S d, S v) { return d * (v * rstd[i]); }, dy, x);
  });
}

}  // namespace heddle::inline v0::compute::detail
