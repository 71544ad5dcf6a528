// heddle/compute/cuda/images.hpp: neighbourhoods of pixels on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/host/images.hpp>
#include <heddle/compute/ops/images.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

template <class T>
struct unfolded_element {
  image_window window;
  std::int64_t channels, pixels, taps;
  const T* x;
  T* y;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t c = i % channels, tap = i / channels % taps, r = i / channels / taps;
    const std::int64_t side = 2 * window.radius + 1, at = r % pixels;
    const std::int64_t row = at / window.width + tap / side - window.radius;
    const std::int64_t column = at % window.width + tap % side - window.radius;
    const bool inside = row >= 0 && row < window.height && column >= 0 && column < window.width;
    y[i] = inside ? x[(r - at + row * window.width + column) * channels + c] : T(0);
  }
};
template <launcher L, class T>
void body(ops::unfold, const L& on, std::int64_t rows, std::int64_t channels, std::int64_t, const T* x,
          const image_window& w, T* y) {
  on.each(rows * w.taps() * channels, unfolded_element<T>{w, channels, w.pixels(), w.taps(), x, y});
}
/// A pixel is to its neighbour through one tap what the neighbour is to it through the opposite one.
template <class T>
struct folded_element {
  image_window window;
  std::int64_t channels, pixels, taps;
  const T* dy;
  T* dx;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t c = i % channels, r = i / channels, image = r - r % pixels;
    T sum = 0;
    for_each_neighbour(window, r % pixels, [&](std::int64_t tap, std::int64_t other) {
      sum += dy[((image + other) * taps + (taps - 1 - tap)) * channels + c];
    });
    dx[i] = sum;
  }
};
template <launcher L, class T>
void body(ops::unfold_backward, const L& on, std::int64_t rows, std::int64_t channels, std::int64_t, const T* dy,
          const image_window& w, T* dx) {
  on.each(rows * channels, folded_element<T>{w, channels, w.pixels(), w.taps(), dy, dx});
}
template <class T>
struct mean_element {
  std::int64_t group, columns;
  const T* x;
  T* y;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t s = i / columns, c = i % columns;
    T sum = 0;
    for (std::int64_t r = s * group; r < (s + 1) * group; ++r) sum += x[r * columns + c];
    y[i] = sum / static_cast<T>(group);
  }
};
template <launcher L, class T>
void body(ops::mean_of_rows, const L& on, std::int64_t, std::int64_t groups, std::int64_t columns, const T* x,
          std::int64_t group, T* y) {
  on.each(groups * columns, mean_element<T>{group, columns, x, y});
}
template <class T>
struct share_of_mean_element {
  std::int64_t group, columns;
  const T* dy;
  T* dx;
  HEDDLE_HD void operator()(std::int64_t i) const {
    dx[i] = dy[i / columns / group * columns + i % columns] / static_cast<T>(group);
  }
};
template <launcher L, class T>
void body(ops::mean_of_rows_backward, const L& on, std::int64_t rows, std::int64_t, std::int64_t columns, const T* dy,
          std::int64_t group, T* dx) {
  on.each(rows * columns, share_of_mean_element<T>{group, columns, dy, dx});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
