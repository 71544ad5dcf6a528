// heddle/compute/host/images.hpp: neighbourhoods of pixels and means of pixels on the host.
#pragma once

#include <heddle/compute/host/team.hpp>
#include <heddle/compute/ops/images.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>

namespace heddle::inline v0::compute::detail {

// Calls `f(tap, other)` for each neighbour of pixel `at` that lies in the image; `other` is its pixel.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // f is a function of the host where the host calls this
#endif
template <class F>
HEDDLE_HD void for_each_neighbour(const image_window& w, std::int64_t at, F&& f) {
  const std::int64_t row = at / w.width, column = at % w.width, side = 2 * w.radius + 1;
  for (std::int64_t i = 0; i < side; ++i)
    for (std::int64_t j = 0; j < side; ++j) {
      const std::int64_t y = row + i - w.radius, x = column + j - w.radius;
      if (y >= 0 && y < w.height && x >= 0 && x < w.width) f(i * side + j, y * w.width + x);
    }
}

template <std::floating_point T>
void body(ops::unfold, team& workers, std::int64_t rows, std::int64_t channels, std::int64_t, const T* x,
          image_window w, T* y) {
  const std::int64_t pixels = w.pixels(), taps = w.taps();
  workers.split(rows, 1, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* image = x + (r - r % pixels) * channels;
      T* out = y + r * taps * channels;
      std::fill_n(out, taps * channels, T(0));
      for_each_neighbour(w, r % pixels, [&](std::int64_t tap, std::int64_t other) {
        std::copy_n(image + other * channels, channels, out + tap * channels);
      });
    }
  });
}

// What pixel p is to its neighbour through one tap, the neighbour is to p through the opposite one.
template <std::floating_point T>
void body(ops::unfold_backward, team& workers, std::int64_t rows, std::int64_t channels, std::int64_t, const T* dy,
          image_window w, T* dx) {
  const std::int64_t pixels = w.pixels(), taps = w.taps();
  workers.split(rows, 1, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t image = r - r % pixels;
      T* out = dx + r * channels;
      std::fill_n(out, channels, T(0));
      for_each_neighbour(w, r % pixels, [&](std::int64_t tap, std::int64_t other) {
        const T* from = dy + ((image + other) * taps + (taps - 1 - tap)) * channels;
        for (std::int64_t c = 0; c < channels; ++c) out[c] += from[c];
      });
    }
  });
}

template <std::floating_point T>
void body(ops::mean_of_rows, team&, std::int64_t, std::int64_t groups, std::int64_t columns, const T* x,
          std::int64_t group, T* y) {
  for (std::int64_t s = 0; s < groups; ++s) {
    T* out = y + s * columns;
    std::fill_n(out, columns, T(0));
    for (std::int64_t r = s * group; r < (s + 1) * group; ++r)
      for (std::int64_t c = 0; c < columns; ++c) out[c] += x[r * columns + c];
    for (std::int64_t c = 0; c < columns; ++c) out[c] /= static_cast<T>(group);
  }
}
template <std::floating_point T>
void body(ops::mean_of_rows_backward, team&, std::int64_t rows, std::int64_t, std::int64_t columns, const T* dy,
          std::int64_t group, T* dx) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      dx[r * columns + c] = dy[r / group * columns + c] / static_cast<T>(group);
}

}  // namespace heddle::inline v0::compute::detail
