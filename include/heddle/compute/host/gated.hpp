// heddle/compute/host/gated.hpp: gated activations (SwiGLU, GEGLU, ReGLU, clamped SwiGLU), forward and backward.
#pragma once

#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>

namespace heddle::inline v0::compute::detail {

template <class T>
inline T activation_lane(silu, T x) noexcept {
  return x * sigmoid_lane(x);
}
/// sigmoid(x) (1 + x (1 - sigmoid(x))), without cancellation for large x and without inf * 0 for small ones.
template <class T>
inline T activation_derivative_lane(silu, T x) noexcept {
  const T e = exp_lane(-x);
  const T s = T(1) / (T(1) + e);
  const T rest = choose(e < T(1), e * s, T(1) - s);
  return s + x * s * rest;
}
template <class T>
inline T activation_lane(gelu_tanh, T x) noexcept {
  return gelu_lane(x);
}
template <class T>
inline T activation_derivative_lane(gelu_tanh, T x) noexcept {
  return gelu_derivative_lane(x);
}
template <class T>
inline T activation_lane(relu, T x) noexcept {
  return choose(x < T(0), T(0), x);  // NaN goes through
}
template <class T>
inline T activation_derivative_lane(relu, T x) noexcept {
  return choose(x > T(0), T(1), T(0));
}

template <class T>
inline T activation_lane(clamped_swiglu, T x) noexcept {
  constexpr T alpha = T(clamped_swiglu::alpha), limit = T(clamped_swiglu::limit);
  const T m = choose(x > limit, limit, x);  // NaN goes through
  return m * sigmoid_lane(alpha * m);
}
template <class T>
inline T activation_derivative_lane(clamped_swiglu, T x) noexcept {
  constexpr T alpha = T(clamped_swiglu::alpha), limit = T(clamped_swiglu::limit);
  const T e = exp_lane(-alpha * x);
  const T s = T(1) / (T(1) + e);
  const T rest = choose(e < T(1), e * s, T(1) - s);
  return choose(x > limit, T(0), s + alpha * x * s * rest);
}

/// What a gated unit multiplies its activation with, and d times the derivative of that.
template <class A, class T>
inline T factor_lane(A, T up) noexcept {
  return up;
}
template <class A, class T>
inline T factor_derivative_lane(A, T d, T /*up*/) noexcept {
  return d;
}
template <class T>
inline T factor_lane(clamped_swiglu, T up) noexcept {
  constexpr T limit = T(clamped_swiglu::limit);
  return choose(up > limit, limit, choose(up < -limit, -limit, up)) + T(1);
}
template <class T>
inline T factor_derivative_lane(clamped_swiglu, T d, T up) noexcept {
  constexpr T limit = T(clamped_swiglu::limit);
  return choose(up > limit, T(0), choose(up < -limit, T(0), d));
}

template <class A, class T>
void body(ops::gated<A>, team& workers, std::int64_t n, const T* gate, const T* up, T* h) {
  using S = sum_of_type<T>;
  map_shared(workers, n, h, [](S g, S u) { return activation_lane(A{}, g) * factor_lane(A{}, u); }, gate, up);
}

/// Block by block, both results from one reading, so that each output may be an input's memory.
template <class A, class T>
void body(ops::gated_backward<A>, team& workers, std::int64_t n, const T* gate, const T* up, const T* dh, T* dgate,
          T* dup) {
  using S = sum_of_type<T>;
  workers.split(n, elementwise_grain, block_size<T>, [&](std::int64_t begin, std::int64_t end) {
    constexpr int width = block_size<T>;
    for (std::int64_t i = begin; i < end; i += width) {
      const std::int64_t count = (std::min)(std::int64_t{width}, end - i);
      T to_up[width];
      map_lanes(
          count, to_up, [](S g, S u, S d) { return factor_derivative_lane(A{}, d * activation_lane(A{}, g), u); },
          gate + i, up + i, dh + i);
      map_lanes(
          count, dgate + i, [](S g, S u, S d) { return d * factor_lane(A{}, u) * activation_derivative_lane(A{}, g); },
          gate + i, up + i, dh + i);
      std::copy(to_up, to_up + count, dup + i);
    }
  });
}

}  // namespace heddle::inline v0::compute::detail
