// heddle/compute/kokkos/rows.hpp: layer norm, root-mean-square norm and the pieces of softmax cross-entropy, a row per item of work.
#pragma once

#include <heddle/compute/kokkos/launch.hpp>

#include <cstdint>
#include <limits>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

template <class Exec, class T>
void layer_norm(const Exec& exec, std::int64_t rows, std::int64_t columns, const T* x, const T* w, const T* b, T eps,
                T* y, T* mean, T* rstd) {
  if (columns == 0) return;
  const T inverse = T(1) / static_cast<T>(columns);
  each(
      exec, "heddle::layer_norm", rows, KOKKOS_LAMBDA(const std::int64_t i) {
        const T* const in = x + i * columns;
        T* const out = y + i * columns;
        const T rough = sum_of<T>(columns, [in](std::int64_t j) { return in[j]; }) * inverse;
        // What rounding left of the mean would be multiplied by 1 / deviation: take it off, for rows far from zero.
        const T mu = rough + sum_of<T>(columns, [in, rough](std::int64_t j) { return in[j] - rough; }) * inverse;
        const T variance =
            sum_of<T>(columns, [in, mu](std::int64_t j) { return (in[j] - mu) * (in[j] - mu); }) * inverse;
        const T s = T(1) / square_root(variance + eps);
        for (std::int64_t j = 0; j < columns; ++j) out[j] = (in[j] - mu) * s * w[j] + b[j];
        mean[i] = mu;
        rstd[i] = s;
      });
}
/// dx += s (g - mean(g) - n mean(g n)) with g = w dy and n = (x - mu) s.
template <class Exec, class T>
void layer_norm_backward_input(const Exec& exec, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                               const T* w, const T* mean, const T* rstd, T* dx) {
  if (columns == 0) return;
  const T inverse = T(1) / static_cast<T>(columns);
  each(
      exec, "heddle::layer_norm_backward_input", rows, KOKKOS_LAMBDA(const std::int64_t i) {
        const T *const d = dy + i * columns, *const in = x + i * columns;
        T* const out = dx + i * columns;
        const T mu = mean[i], s = rstd[i];
        const T g = sum_of<T>(columns, [=](std::int64_t j) { return d[j] * w[j]; }) * inverse;
        const T gn = sum_of<T>(columns, [=](std::int64_t j) { return d[j] * w[j] * ((in[j] - mu) * s); }) * inverse;
        for (std::int64_t j = 0; j < columns; ++j) out[j] += s * (d[j] * w[j] - g - (in[j] - mu) * s * gn);
      });
}
template <class Exec, class T>
void layer_norm_backward_weight(const Exec& exec, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                                const T* mean, const T* rstd, T* dw, T* db) {
  sum_columns(
      exec, "heddle::layer_norm_backward_weight", rows, columns, dw,
      KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t at) { return dy[at] * ((x[at] - mean[i]) * rstd[i]); });
  sum_columns(
      exec, "heddle::layer_norm_backward_bias", rows, columns, db,
      KOKKOS_LAMBDA(std::int64_t, const std::int64_t at) { return dy[at]; });
}

template <class Exec, class T>
void rms_norm(const Exec& exec, std::int64_t rows, std::int64_t columns, const T* x, const T* w, T eps, T* y, T* rstd) {
  if (columns == 0) return;
  const T inverse = T(1) / static_cast<T>(columns);
  each(
      exec, "heddle::rms_norm", rows, KOKKOS_LAMBDA(const std::int64_t i) {
        const T* const in = x + i * columns;
        T* const out = y + i * columns;
        const T squares = sum_of<T>(columns, [in](std::int64_t j) { return in[j] * in[j]; });
        const T s = T(1) / square_root(squares * inverse + eps);
        for (std::int64_t j = 0; j < columns; ++j) out[j] = in[j] * s * w[j];
        rstd[i] = s;
      });
}
/// dx += s (g - n mean(g n)) with g = w dy and n = x s.
template <class Exec, class T>
void rms_norm_backward_input(const Exec& exec, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                             const T* w, const T* rstd, T* dx) {
  if (columns == 0) return;
  const T inverse = T(1) / static_cast<T>(columns);
  each(
      exec, "heddle::rms_norm_backward_input", rows, KOKKOS_LAMBDA(const std::int64_t i) {
        const T *const d = dy + i * columns, *const in = x + i * columns;
        T* const out = dx + i * columns;
        const T s = rstd[i];
        const T gn = sum_of<T>(columns, [=](std::int64_t j) { return d[j] * w[j] * (in[j] * s); }) * inverse;
        for (std::int64_t j = 0; j < columns; ++j) out[j] += s * (d[j] * w[j] - in[j] * s * gn);
      });
}
template <class Exec, class T>
void rms_norm_backward_weight(const Exec& exec, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
                              const T* rstd, T* dw) {
  sum_columns(
      exec, "heddle::rms_norm_backward_weight", rows, columns, dw,
      KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t at) { return dy[at] * (x[at] * rstd[i]); });
}

/// The largest of each row, -inf for no columns; NaN if there is one: it compares false with everything, and is never replaced.
template <class Exec, class T>
void row_max(const Exec& exec, std::int64_t rows, std::int64_t columns, const T* logits, T* m) {
  const T lowest = -(std::numeric_limits<T>::infinity)();
  each(
      exec, "heddle::row_max", rows, KOKKOS_LAMBDA(const std::int64_t i) {
        const T* const row = logits + i * columns;
        T top = lowest;
        for (std::int64_t j = 0; j < columns; ++j)
          top = top != top || !(row[j] > top || row[j] != row[j]) ? top : row[j];
        m[i] = top;
      });
}
template <class Exec, class T>
void row_sum_exp(const Exec& exec, std::int64_t rows, std::int64_t columns, const T* logits, const T* m, T* sum) {
  each(
      exec, "heddle::row_sum_exp", rows, KOKKOS_LAMBDA(const std::int64_t i) {
        const T* const row = logits + i * columns;
        const T top = m[i];
        sum[i] = sum_of<T>(columns, [row, top](std::int64_t j) { return exponential<Exec>(row[j] - top); });
      });
}
template <class Exec, class T>
void pick_target(const Exec& exec, std::int64_t rows, std::int64_t columns, const T* logits,
                 const std::int32_t* targets, std::int64_t first_id, T* picked) {
  each(
      exec, "heddle::pick_target", rows, KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t target = targets[i], column = target - first_id;
        picked[i] = target >= 0 && column >= 0 && column < columns ? logits[i * columns + column] : T(0);
      });
}
template <class Exec, class T>
void cross_entropy_backward(const Exec& exec, std::int64_t rows, std::int64_t columns, T* logits, const T* m,
                            const T* sum, const std::int32_t* targets, std::int64_t first_id, T factor) {
  each(
      exec, "heddle::cross_entropy_backward", rows, KOKKOS_LAMBDA(const std::int64_t i) {
        T* const row = logits + i * columns;
        const std::int64_t target = targets[i], column = target - first_id;
        const T top = m[i], share = factor / sum[i];
        if (target < 0) {
          for (std::int64_t j = 0; j < columns; ++j) row[j] = T(0);
        } else {
          for (std::int64_t j = 0; j < columns; ++j) row[j] = exponential<Exec>(row[j] - top) * share;
          if (column >= 0 && column < columns) row[column] -= factor;
        }
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
