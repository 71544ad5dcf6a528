// heddle/compute/kokkos/images.hpp: neighbourhoods of pixels and means of rows as Kokkos kernels.
#pragma once

#include <heddle/compute/host/images.hpp>
#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/ops/images.hpp>

#include <cstdint>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

template <class Exec, class T>
void body(ops::unfold, const on<Exec>& exec, std::int64_t rows, std::int64_t channels, std::int64_t, const T* x,
          const image_window& w, T* y) {
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
void body(ops::unfold_backward, const on<Exec>& exec, std::int64_t rows, std::int64_t channels, std::int64_t,
          const T* dy, const image_window& w, T* dx) {
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
void body(ops::mean_of_rows, const on<Exec>& exec, std::int64_t, std::int64_t groups, std::int64_t columns, const T* x,
          std::int64_t group, T* y) {
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
void body(ops::mean_of_rows_backward, const on<Exec>& exec, std::int64_t rows, std::int64_t, std::int64_t columns,
          const T* dy, std::int64_t group, T* dx) {
  each(
      exec, "heddle::mean_of_rows_backward", rows, rows * columns, KOKKOS_LAMBDA(const std::int64_t r) {
        for (std::int64_t c = 0; c < columns; ++c)
          dx[r * columns + c] = dy[r / group * columns + c] / static_cast<T>(group);
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
