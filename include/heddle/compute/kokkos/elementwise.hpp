// heddle/compute/kokkos/elementwise.hpp: GELU, gated activations, biases, casts and look-ups in tables as Kokkos kernels.
#pragma once

#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/launch.hpp>

#include <cstdint>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

template <class Exec, class T>
KOKKOS_INLINE_FUNCTION T sigmoid(T x) {
  return T(1) / (T(1) + exponential<Exec>(-x));
}
/// 1 - sigmoid(x) without cancellation, and without inf * 0, from e = e^-x and s = sigmoid(x).
template <class T>
KOKKOS_INLINE_FUNCTION T rest_of_sigmoid(T e, T s) {
  return e < T(1) ? e * s : T(1) - s;
}

template <class Exec, class T>
KOKKOS_INLINE_FUNCTION T activation(silu, T x) {
  return x * sigmoid<Exec>(x);
}
template <class Exec, class T>
KOKKOS_INLINE_FUNCTION T activation_derivative(silu, T x) {
  const T e = exponential<Exec>(-x), s = T(1) / (T(1) + e);
  return s + x * s * rest_of_sigmoid(e, s);
}
template <class Exec, class T>
KOKKOS_INLINE_FUNCTION T activation(gelu_tanh, T x) {
  constexpr T twice_root = gelu_twice_root<T>, cubic = gelu_cubic<T>;
  return x * sigmoid<Exec>(twice_root * (x + cubic * x * x * x));
}
template <class Exec, class T>
KOKKOS_INLINE_FUNCTION T activation_derivative(gelu_tanh, T x) {
  constexpr T twice_root = gelu_twice_root<T>, cubic = gelu_cubic<T>;
  const T e = exponential<Exec>(-twice_root * (x + cubic * x * x * x)), s = T(1) / (T(1) + e);
  return s + x * s * rest_of_sigmoid(e, s) * (twice_root * (T(1) + T(3) * cubic * x * x));
}
template <class Exec, class T>
KOKKOS_INLINE_FUNCTION T activation(relu, T x) {
  return x < T(0) ? T(0) : x;  // NaN goes through
}
template <class Exec, class T>
KOKKOS_INLINE_FUNCTION T activation_derivative(relu, T x) {
  return x > T(0) ? T(1) : T(0);
}

template <class Exec, class T>
void gelu(const Exec& exec, std::int64_t n, const T* x, T* y) {
  each(exec, "heddle::gelu", n, KOKKOS_LAMBDA(const std::int64_t i) { y[i] = activation<Exec>(gelu_tanh{}, x[i]); });
}
template <class Exec, class T>
void gelu_backward(const Exec& exec, std::int64_t n, const T* x, const T* dy, T* dx) {
  each(
      exec, "heddle::gelu_backward", n,
      KOKKOS_LAMBDA(const std::int64_t i) { dx[i] = dy[i] * activation_derivative<Exec>(gelu_tanh{}, x[i]); });
}
template <class A, class Exec, class T>
void gated(const Exec& exec, std::int64_t n, const T* gate, const T* up, T* h) {
  each(
      exec, "heddle::gated", n, KOKKOS_LAMBDA(const std::int64_t i) { h[i] = activation<Exec>(A{}, gate[i]) * up[i]; });
}
template <class A, class Exec, class T>
void gated_backward(const Exec& exec, std::int64_t n, const T* gate, const T* up, const T* dh, T* dgate, T* dup) {
  each(
      exec, "heddle::gated_backward", n, KOKKOS_LAMBDA(const std::int64_t i) {
        const T g = gate[i], u = up[i], d = dh[i];  // outputs may be the same memory
        dgate[i] = d * u * activation_derivative<Exec>(A{}, g);
        dup[i] = d * activation<Exec>(A{}, g);
      });
}

template <class Exec, class T>
void add(const Exec& exec, std::int64_t n, const T* a, const T* b, T* c) {
  each(exec, "heddle::add", n, KOKKOS_LAMBDA(const std::int64_t i) { c[i] = a[i] + b[i]; });
}
template <class Exec, class T>
void scale(const Exec& exec, std::int64_t n, T* x, T factor) {
  each(exec, "heddle::scale", n, KOKKOS_LAMBDA(const std::int64_t i) { x[i] *= factor; });
}
template <class Exec, class T>
void fill(const Exec& exec, std::int64_t n, T* x, T value) {
  each(exec, "heddle::fill", n, KOKKOS_LAMBDA(const std::int64_t i) { x[i] = value; });
}
template <class Exec, class From, class To>
void cast(const Exec& exec, std::int64_t n, const From* x, To* y) {
  each(exec, "heddle::cast", n, KOKKOS_LAMBDA(const std::int64_t i) { y[i] = converted<To>(x[i]); });
}

template <class Exec, class T>
void add_bias(const Exec& exec, std::int64_t rows, std::int64_t columns, T* y, const T* bias) {
  each(
      exec, "heddle::add_bias", rows, KOKKOS_LAMBDA(const std::int64_t i) {
        T* const row = y + i * columns;
        for (std::int64_t j = 0; j < columns; ++j) row[j] += bias[j];
      });
}
template <class Exec, class T>
void add_bias_backward(const Exec& exec, std::int64_t rows, std::int64_t columns, const T* dy, T* db) {
  sum_columns(
      exec, "heddle::add_bias_backward", rows, columns, db,
      KOKKOS_LAMBDA(std::int64_t, const std::int64_t at) { return dy[at]; });
}

template <class Exec, class T>
void embedding(const Exec& exec, std::int64_t tokens, const std::int32_t* ids, std::int64_t vocabulary,
               std::int64_t width, const T* table, std::int64_t first_id, T* out) {
  each(
      exec, "heddle::embedding", tokens, KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t row = ids[i] - first_id;
        const bool here = row >= 0 && row < vocabulary;
        for (std::int64_t j = 0; j < width; ++j) out[i * width + j] = here ? table[row * width + j] : T(0);
      });
}
/// Columns are shared, and each walks the tokens in order, so that repeated tokens add up in that order.
template <class Exec, class T>
void embedding_backward(const Exec& exec, std::int64_t tokens, const std::int32_t* ids, std::int64_t vocabulary,
                        std::int64_t width, const T* dout, std::int64_t first_id, T* dtable) {
  each_columns(
      exec, "heddle::embedding_backward", width, KOKKOS_LAMBDA(const std::int64_t begin, const int count) {
        for (std::int64_t i = 0; i < tokens; ++i) {
          const std::int64_t row = ids[i] - first_id;
          if (row < 0 || row >= vocabulary) continue;
          for (int l = 0; l < count; ++l) dtable[row * width + begin + l] += dout[i * width + begin + l];
        }
      });
}
template <class Exec, class T>
void add_positions(const Exec& exec, std::int64_t rows, std::int64_t width, std::int64_t sequence, T* x, const T* wpe) {
  each(
      exec, "heddle::add_positions", rows, KOKKOS_LAMBDA(const std::int64_t i) {
        const T* const position = wpe + i % sequence * width;
        for (std::int64_t j = 0; j < width; ++j) x[i * width + j] += position[j];
      });
}
template <class Exec, class T>
void add_positions_backward(const Exec& exec, std::int64_t rows, std::int64_t width, std::int64_t sequence, const T* dx,
                            T* dwpe) {
  each(
      exec, "heddle::add_positions_backward", rows < sequence ? rows : sequence, KOKKOS_LAMBDA(const std::int64_t s) {
        for (std::int64_t i = s; i < rows; i += sequence)
          for (std::int64_t j = 0; j < width; ++j) dwpe[s * width + j] += dx[i * width + j];
      });
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
