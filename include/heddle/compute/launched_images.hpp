// heddle/compute/launched_images.hpp: neighbourhoods of pixels and means of rows, of backends whose kernels are launched in the order of a queue.
#pragma once

#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

/// The kernels of `image_kernels` as members of `Backend`, whose tensors lie in `Space`.
template <class Backend, class Space>
class launched_images {
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

}  // namespace heddle::inline v0::compute::detail
