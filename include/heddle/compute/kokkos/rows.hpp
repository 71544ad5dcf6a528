// heddle/compute/kokkos/rows.hpp: norms and softmax cross-entropy of rows on Kokkos.
#pragma once

#include <heddle/compute/host/cross_entropy.hpp>
#include <heddle/compute/kokkos/launch.hpp>

#include <cstdint>
#include <limits>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

/// f(i, 1 / columns) for each row i; rows without elements have no norm.
template <class T, class Exec, class F>
void each_normed_row(const on<Exec>& exec, const char* label, std::int64_t rows, std::int64_t columns, const F& f) {
  if (columns == 0) return;
  const T inverse = T(1) / static_cast<T>(columns);
  each(exec, label, rows, rows * columns, KOKKOS_LAMBDA(const std::int64_t i) { f(i, inverse); });
}
template <class Exec, class T>
void body(ops::layer_norm, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* x, const T* w,
          const T* b, T eps, T* y, T* mean, T* rstd) {
  each_normed_row<T>(
      exec, "heddle::layer_norm", rows, columns, KOKKOS_LAMBDA(const std::int64_t i, const T inverse) {
        const T* const in = x + i * columns;
        const T rough = sum_of_block<Exec, T>(columns, [](T v) { return v; }, in) * inverse;
        // What rounding left of the mean would be multiplied by 1 / deviation: take it off, for rows far from zero.
        const T mu = rough + sum_of_block<Exec, T>(columns, [rough](T v) { return v - rough; }, in) * inverse;
        const T variance = sum_of_block<Exec, T>(columns, [mu](T v) { return (v - mu) * (v - mu); }, in) * inverse;
        const T s = T(1) / square_root(variance + eps);
        map_block<Exec>(columns, y + i * columns, [mu, s](T v, T g, T c) { return (v - mu) * s * g + c; }, in, w, b);
        mean[i] = mu;
        rstd[i] = s;
      });
}
/// dx += s (g - mean(g) - n mean(g n)) with g = w dy and n = (x - mu) s.
template <class Exec, class T>
void body(ops::layer_norm_backward_input, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* dy,
          const T* x, const T* w, const T* mean, const T* rstd, T* dx) {
  each_normed_row<T>(
      exec, "heddle::layer_norm_backward_input", rows, columns, KOKKOS_LAMBDA(const std::int64_t i, const T inverse) {
        const T *const d = dy + i * columns, *const in = x + i * columns;
        T* const out = dx + i * columns;
        const T mu = mean[i], s = rstd[i];
        const T g = sum_of_block<Exec, T>(columns, [](T a, T c) { return a * c; }, d, w) * inverse;
        const T gn = sum_of_block<Exec, T>(
                         columns, [mu, s](T a, T c, T v) { return a * c * ((v - mu) * s); }, d, w, in) *
                     inverse;
        map_block<Exec>(
            columns, out, [=](T old, T a, T c, T v) { return old + s * (a * c - g - (v - mu) * s * gn); },
            static_cast<const T*>(out), d, w, in);
      });
}
template <class Exec, class T>
void body(ops::layer_norm_backward_weight, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* dy,
          const T* x, const T* mean, const T* rstd, T* dw, T* db) {
  each_block<columns_of_item<Exec, T>>(
      exec, "heddle::layer_norm_backward_weight", columns, rows,
      KOKKOS_LAMBDA(const std::int64_t begin, const std::int64_t count) {
        add_columns<Exec>(
            rows, columns, begin, count, dw, [=](std::int64_t i, T d, T v) { return d * ((v - mean[i]) * rstd[i]); },
            dy, x);
        add_columns<Exec>(rows, columns, begin, count, db, [](std::int64_t, T d) { return d; }, dy);
      });
}

template <class Exec, class T>
void body(ops::rms_norm, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* x, const T* w, T eps,
          T* y, T* rstd) {
  each_normed_row<T>(
      exec, "heddle::rms_norm", rows, columns, KOKKOS_LAMBDA(const std::int64_t i, const T inverse) {
        const T* const in = x + i * columns;
        const T squares = sum_of_block<Exec, T>(columns, [](T v) { return v * v; }, in);
        const T s = T(1) / square_root(squares * inverse + eps);
        map_block<Exec>(columns, y + i * columns, [s](T v, T g) { return v * s * g; }, in, w);
        rstd[i] = s;
      });
}
/// dx += s (g - n mean(g n)) with g = w dy and n = x s.
template <class Exec, class T>
void body(ops::rms_norm_backward_input, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* dy,
          const T* x, const T* w, const T* rstd, T* dx) {
  each_normed_row<T>(
      exec, "heddle::rms_norm_backward_input", rows, columns, KOKKOS_LAMBDA(const std::int64_t i, const T inverse) {
        const T *const d = dy + i * columns, *const in = x + i * columns;
        T* const out = dx + i * columns;
        const T s = rstd[i];
        const T gn = sum_of_block<Exec, T>(columns, [s](T a, T c, T v) { return a * c * (v * s); }, d, w, in) * inverse;
        map_block<Exec>(
            columns, out, [=](T old, T a, T c, T v) { return old + s * (a * c - v * s * gn); },
            static_cast<const T*>(out), d, w, in);
      });
}
template <class Exec, class T>
void body(ops::row_sum_squares, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* x, T* sum) {
  each(
      exec, "heddle::row_sum_squares", rows, rows * columns, KOKKOS_LAMBDA(const std::int64_t i) {
        sum[i] = sum_of_block<Exec, T>(columns, [](T v) { return v * v; }, x + i * columns);
      });
}
template <class Exec, class T>
void body(ops::rms_norm_of_sums, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* x, const T* w,
          const T* sum, T count, T eps, T* y, T* rstd) {
  if (columns == 0) return;
  each(
      exec, "heddle::rms_norm_of_sums", rows, rows * columns, KOKKOS_LAMBDA(const std::int64_t i) {
        const T s = T(1) / square_root(sum[i] / count + eps);
        map_block<Exec>(columns, y + i * columns, [s](T v, T g) { return v * s * g; }, x + i * columns, w);
        rstd[i] = s;
      });
}
template <class Exec, class T>
void body(ops::rms_norm_row_dot, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* dy, const T* x,
          const T* w, T* sum) {
  each(
      exec, "heddle::rms_norm_row_dot", rows, rows * columns, KOKKOS_LAMBDA(const std::int64_t i) {
        sum[i] = sum_of_block<Exec, T>(
            columns, [](T a, T c, T v) { return a * c * v; }, dy + i * columns, w, x + i * columns);
      });
}
template <class Exec, class T>
void body(ops::rms_norm_backward_of_sums, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* dy,
          const T* x, const T* w, const T* rstd, const T* sum, T count, T* dx) {
  each(
      exec, "heddle::rms_norm_backward_of_sums", rows, rows * columns, KOKKOS_LAMBDA(const std::int64_t i) {
        const T s = rstd[i], back = s * s * sum[i] / count;
        T* const out = dx + i * columns;
        map_block<Exec>(
            columns, out, [=](T old, T a, T c, T v) { return old + s * (a * c - v * back); },
            static_cast<const T*>(out), dy + i * columns, w, x + i * columns);
      });
}
template <class Exec, class T>
void body(ops::rms_norm_backward_weight, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* dy,
          const T* x, const T* rstd, T* dw) {
  each_block<columns_of_item<Exec, T>>(
      exec, "heddle::rms_norm_backward_weight", columns, rows,
      KOKKOS_LAMBDA(const std::int64_t begin, const std::int64_t count) {
        add_columns<Exec>(
            rows, columns, begin, count, dw, [=](std::int64_t i, T d, T v) { return d * (v * rstd[i]); }, dy, x);
      });
}

/// The largest of a row, -inf for no columns; NaN if there is one: it compares false with everything, and is never replaced.
template <class Exec, class T>
KOKKOS_INLINE_FUNCTION T largest_of_block(std::int64_t n, const T* x, T lowest) {
  if constexpr (runs_on_host<Exec>) {
    return largest(n, x);
  } else {
    T top = lowest;
    for (std::int64_t j = 0; j < n; ++j) top = top != top || !(x[j] > top || x[j] != x[j]) ? top : x[j];
    return top;
  }
}
template <class Exec, class T>
void body(ops::row_max, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* logits, T* m) {
  const T lowest = -(std::numeric_limits<T>::infinity)();
  each(
      exec, "heddle::row_max", rows, rows * columns,
      KOKKOS_LAMBDA(const std::int64_t i) { m[i] = largest_of_block<Exec>(columns, logits + i * columns, lowest); });
}
template <class Exec, class T>
void body(ops::row_sum_exp, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* logits, const T* m,
          T* sum) {
  each(
      exec, "heddle::row_sum_exp", rows, rows * columns, KOKKOS_LAMBDA(const std::int64_t i) {
        const T top = m[i];
        sum[i] =
            sum_of_block<Exec, T>(columns, [top](T v) { return exponential<Exec>(v - top); }, logits + i * columns);
      });
}
template <class Exec, class T>
void body(ops::pick_target, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, const T* logits,
          const std::int32_t* targets, std::int64_t first_id, T* picked) {
  each(
      exec, "heddle::pick_target", rows, rows, KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t target = targets[i], column = target - first_id;
        picked[i] = target >= 0 && column >= 0 && column < columns ? logits[i * columns + column] : T(0);
      });
}
template <class Exec, class T, class Factor>
void softmax_gradient(const on<Exec>& exec, std::int64_t rows, std::int64_t columns, T* logits, const T* m,
                      const T* sum, const std::int32_t* targets, std::int64_t first_id, Factor factors) {
  each(
      exec, "heddle::cross_entropy_backward", rows, rows * columns, KOKKOS_LAMBDA(const std::int64_t i) {
        T* const row = logits + i * columns;
        const std::int64_t target = targets[i], column = target - first_id;
        const T factor = of_row(factors, i), top = m[i], share = factor / sum[i];
        if (target < 0) {
          for (std::int64_t j = 0; j < columns; ++j) row[j] = T(0);
        } else {
          map_block<Exec>(
              columns, row, [=](T v) { return exponential<Exec>(v - top) * share; }, static_cast<const T*>(row));
          if (column >= 0 && column < columns) row[column] -= factor;
        }
      });
}
template <class Exec, class T>
void body(ops::cross_entropy_backward, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, T* logits,
          const T* m, const T* sum, const std::int32_t* targets, std::int64_t first_id, T scale) {
  softmax_gradient(exec, rows, columns, logits, m, sum, targets, first_id, scale);
}
template <class Exec, class T>
void body(ops::weighted_cross_entropy_backward, const on<Exec>& exec, std::int64_t rows, std::int64_t columns,
          T* logits, const T* m, const T* sum, const std::int32_t* targets, std::int64_t first_id, const T* scales) {
  softmax_gradient(exec, rows, columns, logits, m, sum, targets, first_id, scales);
}

template <class Exec, class T>
void body(ops::capped_cross_entropy_backward, const on<Exec>& exec, std::int64_t rows, std::int64_t columns, T* logits,
          const T* m, const T* sum, const std::int32_t* targets, std::int64_t first_id, T scale, T cap) {
  each(
      exec, "heddle::capped_cross_entropy_backward", rows, rows * columns, KOKKOS_LAMBDA(const std::int64_t i) {
        T* const row = logits + i * columns;
        const std::int64_t target = targets[i], column = target - first_id;
        const T top = m[i], share = scale / sum[i];
        if (target < 0) {
          for (std::int64_t j = 0; j < columns; ++j) row[j] = T(0);
          return;
        }
        const auto slope = [=](T v) { return (T(1) - v / cap) * (T(1) + v / cap); };
        const T of_target = column >= 0 && column < columns ? row[column] : T(0);
        map_block<Exec>(
            columns, row, [=](T v) { return exponential<Exec>(v - top) * share * slope(v); },
            static_cast<const T*>(row));
        if (column >= 0 && column < columns)
          row[column] = (exponential<Exec>(of_target - top) * share - scale) * slope(of_target);
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
