// heddle/compute/kokkos/images.hpp: neighbourhoods of pixels and means of rows as Kokkos kernels.
#pragma once

#include <heddle/compute/host/argument_checks.hpp>
#include <heddle/compute/host/check.hpp>
#include <heddle/compute/host/images.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/launch.hpp>

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

template <class Exec, class T>
void launch_unfold(const on<Exec>& exec, std::int64_t rows, std::int64_t channels, const image_window& w, const T* x,
                   T* y) {
  const std::int64_t pixels = w.pixels(), taps = w.taps();
  each(
      exec, "heddle::unfold", rows, rows * taps * channels, KOKKOS_LAMBDA(const std::int64_t r) {
        const T* const image = x + (r - r % pixels) * channels;
        T* const out = y + r * taps * channels;
        for (std::int64_t c = 0; c < taps * channels; ++c) out[c] = T(0);
        for_each_neighbour(w, r % pixels, [=](std::int64_t tap, std::int64_t other) {
          for (std::int64_t c = 0; c < channels; ++c) out[tap * channels + c] = image[other * channels + c];
        });
      });
}
/// A pixel is to its neighbour through one tap what the neighbour is to it through the opposite one.
template <class Exec, class T>
void launch_unfold_backward(const on<Exec>& exec, std::int64_t rows, std::int64_t channels, const image_window& w,
                            const T* dy, T* dx) {
  const std::int64_t pixels = w.pixels(), taps = w.taps();
  each(
      exec, "heddle::unfold_backward", rows, rows * taps * channels, KOKKOS_LAMBDA(const std::int64_t r) {
        const std::int64_t image = r - r % pixels;
        T* const out = dx + r * channels;
        for (std::int64_t c = 0; c < channels; ++c) out[c] = T(0);
        for_each_neighbour(w, r % pixels, [=](std::int64_t tap, std::int64_t other) {
          const T* const from = dy + ((image + other) * taps + (taps - 1 - tap)) * channels;
          for (std::int64_t c = 0; c < channels; ++c) out[c] += from[c];
        });
      });
}
template <class Exec, class T>
void launch_mean_of_rows(const on<Exec>& exec, std::int64_t groups, std::int64_t group, std::int64_t columns,
                         const T* x, T* y) {
  each(
      exec, "heddle::mean_of_rows", groups, groups * group * columns, KOKKOS_LAMBDA(const std::int64_t s) {
        T* const out = y + s * columns;
        for (std::int64_t c = 0; c < columns; ++c) out[c] = T(0);
        for (std::int64_t r = s * group; r < (s + 1) * group; ++r)
          for (std::int64_t c = 0; c < columns; ++c) out[c] += x[r * columns + c];
        for (std::int64_t c = 0; c < columns; ++c) out[c] /= static_cast<T>(group);
      });
}
template <class Exec, class T>
void launch_mean_of_rows_backward(const on<Exec>& exec, std::int64_t rows, std::int64_t group, std::int64_t columns,
                                  const T* dy, T* dx) {
  each(
      exec, "heddle::mean_of_rows_backward", rows, rows * columns, KOKKOS_LAMBDA(const std::int64_t r) {
        for (std::int64_t c = 0; c < columns; ++c)
          dx[r * columns + c] = dy[r / group * columns + c] / static_cast<T>(group);
      });
}

/// The kernels of `image_kernels` as members of `Backend`, whose tensors lie in `Space`.
template <class Backend, class Space>
class image_members {
  using checks = argument_checks;
  template <class T>
  using matrix = matrix_view<T, Space>;
  template <class T>
  using in_matrix = std::type_identity_t<matrix<const T>>;

 public:
  template <class T>
  void unfold(in_matrix<T> x, const image_window& w, matrix<T> y) {
    checks::unfolded("unfold", w, x, "rows of y", "columns of y (taps times channels)", y);
    launch_unfold(on(), x.extent(0), x.extent(1), w, x.address(), y.address());
  }
  template <class T>
  void unfold_backward(in_matrix<T> dy, const image_window& w, matrix<T> dx) {
    checks::unfolded("unfold_backward", w, dx, "rows of dy", "columns of dy (taps times channels)", dy);
    launch_unfold_backward(on(), dx.extent(0), dx.extent(1), w, dy.address(), dx.address());
  }
  template <class T>
  void mean_of_rows(in_matrix<T> x, std::int64_t group, matrix<T> y) {
    checks::grouped_rows("mean_of_rows", group, x.extent(0), y.extent(0), x.extent(1), y.extent(1));
    launch_mean_of_rows(on(), y.extent(0), group, x.extent(1), x.address(), y.address());
  }
  template <class T>
  void mean_of_rows_backward(in_matrix<T> dy, std::int64_t group, matrix<T> dx) {
    checks::grouped_rows("mean_of_rows_backward", group, dx.extent(0), dy.extent(0), dx.extent(1), dy.extent(1));
    launch_mean_of_rows_backward(on(), dx.extent(0), group, dx.extent(1), dy.address(), dx.address());
  }

 private:
  auto on() noexcept { return static_cast<Backend&>(*this).launcher(); }
};

}  // namespace heddle::inline v0::compute::detail::on_kokkos
