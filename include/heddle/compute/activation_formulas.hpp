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

}  // namespace heddle::inline v0::compute::detail
