// heddle/compute/host/images.hpp: neighbourhoods of pixels, means of pixels and squared errors on the host.
#pragma once

#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/kernels.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

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

template <class T>
void unfold(team& workers, std::int64_t rows, std::int64_t channels, const image_window& w, const T* x, T* y) {
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
template <class T>
void unfold_backward(team& workers, std::int64_t rows, std::int64_t channels, const image_window& w, const T* dy,
                     T* dx) {
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

/// The members of the host backend for images and squared errors. `Host` gives its team.
template <class Host>
class image_members {
 public:
  template <std::floating_point T>
  void unfold(input_matrix<T> x, const image_window& w, matrix_view<T> y) {
    argument_checks::unfolded("unfold", w, x, "rows of y", "columns of y (taps times channels)", y);
    detail::unfold(team_of_host(), x.extent(0), x.extent(1), w, x.data(), y.data());
  }
  template <std::floating_point T>
  void unfold_backward(input_matrix<T> dy, const image_window& w, matrix_view<T> dx) {
    argument_checks::unfolded("unfold_backward", w, dx, "rows of dy", "columns of dy (taps times channels)", dy);
    detail::unfold_backward(team_of_host(), dx.extent(0), dx.extent(1), w, dy.data(), dx.data());
  }
  template <std::floating_point T>
  void mean_of_rows(input_matrix<T> x, std::int64_t group, matrix_view<T> y) {
    argument_checks::grouped_rows("mean_of_rows", group, x.extent(0), y.extent(0), x.extent(1), y.extent(1));
    const std::int64_t columns = x.extent(1);
    for (std::int64_t s = 0; s < y.extent(0); ++s) {
      T* out = y.data() + s * columns;
      std::fill_n(out, columns, T(0));
      for (std::int64_t r = s * group; r < (s + 1) * group; ++r)
        for (std::int64_t c = 0; c < columns; ++c) out[c] += x.data()[r * columns + c];
      for (std::int64_t c = 0; c < columns; ++c) out[c] /= static_cast<T>(group);
    }
  }
  template <std::floating_point T>
  void mean_of_rows_backward(input_matrix<T> dy, std::int64_t group, matrix_view<T> dx) {
    argument_checks::grouped_rows("mean_of_rows_backward", group, dx.extent(0), dy.extent(0), dx.extent(1),
                                  dy.extent(1));
    const std::int64_t columns = dx.extent(1);
    for (std::int64_t r = 0; r < dx.extent(0); ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        dx.data()[r * columns + c] = dy.data()[r / group * columns + c] / static_cast<T>(group);
  }

 private:
  team& team_of_host() noexcept { return static_cast<Host*>(this)->workers(); }
};

}  // namespace heddle::inline v0::compute::detail
