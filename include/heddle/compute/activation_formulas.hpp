// heddle/compute/activation_formulas.hpp: activations and derivatives at one number.
#pragma once

#include <heddle/compute/host/math.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/config.hpp>

namespace heddle::inline v0::compute::detail {

// `Math::exponential(x)` and `Math::select(condition, yes, no)` are those of whoever calls. Declared inline, although templates: g++ -O2
// else calls them for each number in loops that would be vectorised.
template <class Math, class T>
HEDDLE_HD inline T sigmoid(T x) {
  return T(1) / (T(1) + Math::exponential(-x));
}
/// 1 - sigmoid(x) without cancellation, and without inf * 0, from e = e^-x and s = sigmoid(x).
template <class Math, class T>
HEDDLE_HD inline T rest_of_sigmoid(T e, T s) {
  return Math::select(e < T(1), e * s, T(1) - s);
}

template <class Math, class T>
HEDDLE_HD inline T activation(silu, T x) {
  return x * sigmoid<Math>(x);
}
template <class Math, class T>
HEDDLE_HD inline T activation_derivative(silu, T x) {
  const T e = Math::exponential(-x), s = T(1) / (T(1) + e);
  return s + x * s * rest_of_sigmoid<Math>(e, s);
}
template <class Math, class T>
HEDDLE_HD inline T activation(gelu_tanh, T x) {
  constexpr T twice_root = gelu_twice_root<T>, cubic = gelu_cubic<T>;
  return x * sigmoid<Math>(twice_root * (x + cubic * x * x * x));
}
template <class Math, class T>
HEDDLE_HD inline T activation_derivative(gelu_tanh, T x) {
  constexpr T twice_root = gelu_twice_root<T>, cubic = gelu_cubic<T>;
  const T e = Math::exponential(-twice_root * (x + cubic * x * x * x)), s = T(1) / (T(1) + e);
  const T slope = twice_root * (T(1) + T(3) * cubic * x * x);
  return s + x * s * rest_of_sigmoid<Math>(e, s) * slope;
}
template <class Math, class T>
HEDDLE_HD inline T activation(relu, T x) {
  return Math::select(x < T(0), T(0), x);  // NaN goes through
}
template <class Math, class T>
HEDDLE_HD inline T activation_derivative(relu, T x) {
  return Math::select(x > T(0), T(1), T(0));
}

template <class Math, class T>
HEDDLE_HD inline T activation(clamped_swiglu, T x) {
  constexpr T alpha = T(clamped_swiglu::alpha), limit = T(clamped_swiglu::limit);
  const T m = Math::select(x > limit, limit, x);  // NaN goes through
  return m * sigmoid<Math>(alpha * m);
}
template <class Math, class T>
HEDDLE_HD inline T activation_derivative(clamped_swiglu, T x) {
  constexpr T alpha = T(clamped_swiglu::alpha), limit = T(clamped_swiglu::limit);
  const T e = Math::exponential(-alpha * x), s = T(1) / (T(1) + e);
  return Math::select(x > limit, T(0), s + alpha * x * s * rest_of_sigmoid<Math>(e, s));
}

/// What a gated unit multiplies its activation with, and the derivative of it: up itself.
template <class Math, class A, class T>
HEDDLE_HD inline T factor_of_unit(A, T up) {
  return up;
}
template <class Math, class A, class T>
HEDDLE_HD inline T times_factor_derivative(A, T d, T /*up*/) {
  return d;
}
template <class Math, class T>
HEDDLE_HD inline T factor_of_unit(clamped_swiglu, T up) {
  constexpr T limit = T(clamped_swiglu::limit);
  return Math::select(up > limit, limit, Math::select(up < -limit, -limit, up)) + T(1);
}
template <class Math, class T>
HEDDLE_HD inline T times_factor_derivative(clamped_swiglu, T d, T up) {
  constexpr T limit = T(clamped_swiglu::limit);
  return Math::select(up > limit, T(0), Math::select(up < -limit, T(0), d));
}

}  // namespace heddle::inline v0::compute::detail
