// heddle/compute/host/rms_norm.hpp: root mean square norm of each row, forward and backward.
#pragma once

#include <heddle/compute/host/layer_norm.hpp>

#include <cmath>

namespace heddle::inline v0::compute::detail {

template <class T>
void rms_norm(team& workers, std::int64_t rows, std::int64_t columns, const T* x, const T* w, T eps, T* y, T* rstd) {
  each_normed_row<T>(workers, rows, columns, [&](std::int64_t i, T inverse) {
    const T* in = x + i * columns;
    const T s = T(1) / std::sqrt(sum_lanes<T>(columns, [](T v) { return v * v; }, in) * inverse + eps);
    map_lanes(columns, y + i * columns, [s](T v, T g) { return v * s * g; }, in, w);
    rstd[i] = s;
  });
}

/// dx += s (g - n mean(g n)) with g = w dy and n = x s.
template <class T>
void rms_norm_backward_input(team& workers, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                             const T* w, const T* rstd, T* dx) {
  each_normed_row<T>(workers, rows, columns, [&](std::int64_t i, T inverse) {
    const T *d = dy + i * columns, *in = x + i * columns;
    T* out = dx + i * columns;
    const T s = rstd[i];
    const T gn = sum_lanes<T>(columns, [s](T a, T c, T v) { return a * c * (v * s); }, d, w, in) * inverse;
    map_lanes(
        columns, out, [=](T old, T a, T c, T v) { return old + s * (a * c - v * s * gn); }, static_cast<const T*>(out),
        d, w, in);
  });
}

template <class T>
void rms_norm_backward_weight(team& workers, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                              const T* rstd, T* dw) {
  workers.split(columns, column_grain(rows), block_size<T>, [&](std::int64_t begin, std::int64_t end) {
    sum_columns(rows, columns, begin, end, dw, [=](std::int64_t i, T d, T v) { return d * (v * rstd[i]); }, dy, x);
  });
}

}  // namespace heddle::inline v0::compute::detail
