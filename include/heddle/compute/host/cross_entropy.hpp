// heddle/compute/host/cross_entropy.hpp: pieces of softmax cross-entropy over a slice.
#pragma once

#include <heddle/compute/check.hpp>
#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

/// The largest element, -inf for none; NaN if there is one.
template <class T>
sum_of_type<T> largest(std::int64_t n, const T* x) {
  using S = sum_of_type<T>;
  constexpr int width = block_size<S>;
  S top[width];
  for (int l = 0; l < width; ++l) top[l] = -(std::numeric_limits<S>::infinity)();
  // A NaN compares false with everything: `top < v` would lose it, `!(v <= top)` takes it, and the sum of the block's
  // comparisons keeps it, because nothing but a larger number or a NaN replaces a value and a NaN is never replaced.
  const auto larger = [](S a, S b) { return a != a || !(b > a || b != b) ? a : b; };
  std::int64_t i = 0;
  for (; i + width <= n; i += width)
    for (int l = 0; l < width; ++l) top[l] = larger(top[l], x[i + l]);
  for (int l = 0; i + l < n; ++l) top[l] = larger(top[l], x[i + l]);
  for (int half = width / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) top[l] = larger(top[l], top[l + half]);
  return top[0];
}

template <class T>
void body(ops::row_max, team& workers, std::int64_t rows, std::int64_t columns, const T* logits, sum_of_type<T>* m) {
  workers.split(rows, row_grain(columns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) m[i] = largest(columns, logits + i * columns);
  });
}

template <class T>
void body(ops::row_sum_exp, team& workers, std::int64_t rows, std::int64_t columns, const T* logits,
          const sum_of_type<T>* m, sum_of_type<T>* sum) {
  using S = sum_of_type<T>;
  workers.split(rows, row_grain(columns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const S top = m[i];
      sum[i] = sum_lanes<S>(columns, [top](S v) { return exp_lane(v - top); }, logits + i * columns);
    }
  });
}

template <class T>
void body(ops::pick_target, team&, std::int64_t rows, std::int64_t columns, const T* logits,
          const std::int32_t* targets, std::int64_t first_id, sum_of_type<T>* picked) {
  using S = sum_of_type<T>;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t target = targets[i];
    const std::int64_t column = target - first_id;
    picked[i] = target >= 0 && column >= 0 && column < columns ? S(logits[i * columns + column]) : S(0);
  }
}

/// Adds a chunk of columns to the greatest logit and the sum of exponentials of each row, and picks the targets that are in it.
template <class T>
void body(ops::add_to_softmax, team& workers, std::int64_t rows, std::int64_t columns, const T* logits,
          const std::int32_t* targets, std::int64_t first_id, sum_of_type<T>* m, sum_of_type<T>* sum,
          sum_of_type<T>* picked) {
  using S = sum_of_type<T>;
  constexpr S lowest = -(std::numeric_limits<S>::infinity)();
  workers.split(rows, row_grain(columns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T* const row = logits + i * columns;
      const S before[2] = {m[i], largest(columns, row)}, top = largest(2, before);
      // Nothing has been added, or -inf alone: exp(-inf + inf) would be NaN.
      if (sum[i] != S(0)) sum[i] *= std::exp(before[0] - top);
      if (top != lowest) sum[i] += sum_lanes<S>(columns, [top](S v) { return exp_lane(v - top); }, row);
      m[i] = top;
      const std::int64_t target = targets[i], column = target - first_id;
      if (target >= 0 && column >= 0 && column < columns) picked[i] = row[column];
    }
  });
}

/// Sums in units of exp(before) become sums in units of exp(m).
template <class T>
void body(ops::rescale_softmax, team&, std::int64_t rows, const T* before, const T* m, T* sum) {
  for (std::int64_t i = 0; i < rows; ++i)
    if (sum[i] != T(0)) sum[i] *= std::exp(before[i] - m[i]);
}

/// Added up row by row.
template <class T>
void body(ops::cross_entropy_loss, team&, std::int64_t rows, const T* m, const T* sum, const T* picked,
          const std::int32_t* targets, double* out) {
  double loss = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    if (targets[i] < 0) continue;
    const double below = static_cast<double>(m[i]) - static_cast<double>(picked[i]);
    loss += std::log(static_cast<double>(sum[i])) + below;
  }
  *out += loss;
}

/// `scales`: one for all rows, or the address of one for each.
template <class T, class Scale>
void softmax_gradient(team& workers, std::int64_t rows, std::int64_t columns, T* logits, const sum_of_type<T>* m,
                      const sum_of_type<T>* sum, const std::int32_t* targets, std::int64_t first_id, Scale scales) {
  using S = sum_of_type<T>;
  workers.split(rows, row_grain(columns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T* row = logits + i * columns;
      const std::int64_t target = targets[i];
      if (target < 0) {
        std::fill_n(row, columns, T(0));
        continue;
      }
      const S scale = of_row(scales, i), top = m[i], factor = scale / sum[i];
      const std::int64_t column = target - first_id;
      const bool here = column >= 0 && column < columns;
      const auto gradient = [=](S v) { return exp_lane(v - top) * factor; };
      const S of_target = is_half_precision<T> && here ? gradient(row[column]) : S(0);  // before it is rounded
      map_lanes(columns, row, gradient, static_cast<const T*>(row));
      if constexpr (is_half_precision<T>) {
        if (here) row[column] = T(of_target - scale);
      } else {
        if (here) row[column] -= scale;
      }
    }
  });
}

template <class T>
void body(ops::cross_entropy_backward, team& workers, std::int64_t rows, std::int64_t columns, T* logits,
          const sum_of_type<T>* m, const sum_of_type<T>* sum, const std::int32_t* targets, std::int64_t first_id,
          sum_of_type<T> scale) {
  softmax_gradient(workers, rows, columns, logits, m, sum, targets, first_id, scale);
}
template <class T>
void body(ops::weighted_cross_entropy_backward, team& workers, std::int64_t rows, std::int64_t columns, T* logits,
          const sum_of_type<T>* m, const sum_of_type<T>* sum, const std::int32_t* targets, std::int64_t first_id,
          const sum_of_type<T>* scales) {
  softmax_gradient(workers, rows, columns, logits, m, sum, targets, first_id, scales);
}

template <class T>
void body(ops::capped_cross_entropy_backward, team& workers, std::int64_t rows, std::int64_t columns, T* logits,
          const sum_of_type<T>* m, const sum_of_type<T>* sum, const std::int32_t* targets, std::int64_t first_id,
          sum_of_type<T> scale, sum_of_type<T> cap) {
  using S = sum_of_type<T>;
  workers.split(rows, row_grain(columns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T* const row = logits + i * columns;
      if (targets[i] < 0) {
        std::fill_n(row, columns, T(0));
        continue;
      }
      const S top = m[i], factor = scale / sum[i];
      const auto slope = [=](S v) { return (S(1) - v / cap) * (S(1) + v / cap); };
      const std::int64_t column = targets[i] - first_id;
      const bool here = column >= 0 && column < columns;
      const S of_target = here ? static_cast<S>(row[column]) : S(0);
      map_lanes(columns, row, [=](S v) { return exp_lane(v - top) * factor * slope(v); }, static_cast<const T*>(row));
      if (here) row[column] = T((exp_lane(of_target - top) * factor - scale) * slope(of_target));
    }
  });
}

}  // namespace heddle::inline v0::compute::detail
