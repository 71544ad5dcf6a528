// heddle/compute/host/elementwise.hpp: GELU, biases, sums, copies and checks over whole vectors.
#pragma once

#include <heddle/compute/host/lanes.hpp>
#include <heddle/compute/host/math.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/compute/ops/sums.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

// Kernels of 16-bit elements compute in float (`sum_of_type`) and round what they write once.
namespace heddle::inline v0::compute::detail {

/// Elements below which sharing simple work among threads costs more than it saves.
inline constexpr std::int64_t elementwise_grain = 16384;

template <class T, class Op, class... In>
void map_shared(team& workers, std::int64_t n, T* out, Op op, const In*... in) {
  workers.split(n, elementwise_grain, block_size<T>, [&](std::int64_t begin, std::int64_t end) {
    map_lanes(end - begin, out + begin, op, (in + begin)...);
  });
}

template <class T>
void body(ops::gelu, team& workers, std::int64_t n, const T* x, T* y) {
  map_shared(workers, n, y, [](sum_of_type<T> v) { return gelu_lane(v); }, x);
}

template <class T>
void body(ops::gelu_backward, team& workers, std::int64_t n, const T* x, const T* dy, T* dx) {
  using S = sum_of_type<T>;
  map_shared(workers, n, dx, [](S v, S d) { return d * gelu_derivative_lane(v); }, x, dy);
}

template <class T>
void body(ops::soft_cap, team& workers, std::int64_t n, const T* x, sum_of_type<T> cap, T* y) {
  map_shared(workers, n, y, [cap](sum_of_type<T> v) { return cap * std::tanh(v / cap); }, x);
}
template <class T>
void body(ops::soft_cap_backward, team& workers, std::int64_t n, const T* x, const T* dy, sum_of_type<T> cap, T* dx) {
  using S = sum_of_type<T>;
  const auto gradient = [cap](S v, S d) {
    const S t = std::tanh(v / cap);
    return d * (S(1) - t * t);
  };
  map_shared(workers, n, dx, gradient, x, dy);
}

template <class T>
void body(ops::fill, team& workers, std::int64_t n, T* x, sum_of_type<T> value) {
  workers.split(
      n, elementwise_grain, block_size<T>,
      [x, v = converted<T>(value)](std::int64_t begin, std::int64_t end) { std::fill(x + begin, x + end, v); });
}

template <class T>
void body(ops::copy, team& workers, std::int64_t n, const T* x, T* y) {
  workers.split(n, elementwise_grain, block_size<T>, [&](std::int64_t begin, std::int64_t end) {
    if (x != y) std::memmove(y + begin, x + begin, static_cast<std::size_t>(end - begin) * sizeof(T));
  });
}

template <class T>
void body(ops::add, team& workers, std::int64_t n, const T* x, const T* y, T* sum) {
  using S = sum_of_type<T>;
  map_shared(workers, n, sum, [](S a, S b) { return a + b; }, x, y);
}

template <class T>
void body(ops::scale, team& workers, std::int64_t n, T* x, sum_of_type<T> factor) {
  map_shared(workers, n, x, [factor](sum_of_type<T> v) { return v * factor; }, static_cast<const T*>(x));
}

template <class T>
void body(ops::add_bias, team& workers, std::int64_t rows, std::int64_t columns, T* y, const T* bias) {
  using S = sum_of_type<T>;
  const std::int64_t grain = (std::max)(elementwise_grain / (std::max)(columns, std::int64_t{1}), std::int64_t{1});
  workers.split(rows, grain, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T* row = y + i * columns;
      map_lanes(columns, row, [](S v, S b) { return v + b; }, static_cast<const T*>(row), bias);
    }
  });
}

/// sums[j] += sum over rows i, in order, of op(x[i][j], rest[i][j]..., i). Threads share the columns, so that nothing is
/// added in an order that depends on them.
template <class T, class Op, class... In>
void sum_columns(std::int64_t rows, std::int64_t columns, std::int64_t begin, std::int64_t end, T* sums, Op op,
                 const In*... in) {
  constexpr int width = block_size<T>;
  for (std::int64_t j = begin; j < end; j += width) {
    T block[width] = {};
    const std::int64_t count = (std::min)(std::int64_t{width}, end - j);
    if (count == width)
      for (std::int64_t i = 0; i < rows; ++i)
        for (int l = 0; l < width; ++l) block[l] += op(i, in[i * columns + j + l]...);
    else
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t l = 0; l < count; ++l) block[l] += op(i, in[i * columns + j + l]...);
    for (std::int64_t l = 0; l < count; ++l) sums[j + l] += block[l];
  }
}

/// The fewest columns a thread should take when threads share columns of a matrix with this many rows.
inline std::int64_t column_grain(std::int64_t rows) {
  return (std::max)(elementwise_grain / (std::max)(rows, std::int64_t{1}), std::int64_t{1});
}

template <class T>
void body(ops::add_bias_backward, team& workers, std::int64_t rows, std::int64_t columns, const T* dy,
          sum_of_type<T>* db) {
  using S = sum_of_type<T>;
  workers.split(columns, column_grain(rows), block_size<S>, [&](std::int64_t begin, std::int64_t end) {
    sum_columns(rows, columns, begin, end, db, [](std::int64_t, S d) { return d; }, dy);
  });
}

/// In double, over blocks of `sum_block` elements whose sums are added in order: the result depends on n alone.
template <class T>
void body(ops::sum_of_squares, team& workers, std::int64_t n, const T* x, double* out) {
  const auto squares = [](const T* from, std::int64_t count) {
    return sum_lanes<double>(
        count,
        [](T v) {
          const double d = static_cast<double>(v);
          return d * d;
        },
        from);
  };
  std::vector<double> parts(static_cast<std::size_t>(sum_blocks(n)));
  workers.split(n, elementwise_grain, sum_block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += sum_block)
      parts[static_cast<std::size_t>(i / sum_block)] = squares(x + i, (std::min)(sum_block, end - i));
  });
  double sum = 0;
  for (const double part : parts) sum += part;
  *out += sum;
}

/// Looks at exponent bits, so that it also holds in programs compiled with -ffinite-math-only.
template <class T>
void body(ops::count_nonfinite, team& workers, std::int64_t n, const T* x, double* out) {
  using bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
  constexpr bits exponent = std::bit_cast<bits>((std::numeric_limits<T>::infinity)());
  std::atomic<std::int64_t> count{0};
  workers.split(n, elementwise_grain, block_size<T>, [&](std::int64_t begin, std::int64_t end) {
    constexpr int width = block_size<T>;
    std::int64_t mine = 0, i = begin;
    for (; i + width <= end; i += width) {
      bits some = 0;
      for (int l = 0; l < width; ++l)
        some = static_cast<bits>(some + ((std::bit_cast<bits>(x[i + l]) & exponent) == exponent ? 1 : 0));
      mine += static_cast<std::int64_t>(some);
    }
    for (; i < end; ++i) mine += (std::bit_cast<bits>(x[i]) & exponent) == exponent ? 1 : 0;
    count.fetch_add(mine, std::memory_order_relaxed);
  });
  *out += static_cast<double>(count.load(std::memory_order_relaxed));
}

template <class T>
void body(ops::squared_error, team&, std::int64_t n, const T* x, const T* target, double* out) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double off = static_cast<double>(x[i]) - static_cast<double>(target[i]);
    sum += off * off;
  }
  *out += sum;
}
template <std::floating_point T>
void body(ops::squared_error_backward, team&, std::int64_t n, T* x, const T* target, T scale) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = T(2) * scale * (x[i] - target[i]);
}

}  // namespace heddle::inline v0::compute::detail
