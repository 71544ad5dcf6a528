// heddle/compute/bf16_products.hpp: a backend whose products of float matrices are of operands rounded to bf16.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::compute {

/// `Backend`, a host's, whose `matmul`, `grouped_matmul` and `grouped_matmul_backward_weight` of floats round both operands
/// to the nearest bf16 and add products up in float: by the library where the processor multiplies bf16
/// (`half_product_name()`), else after conversion back, which saves no time. All other kernels, attention among them, and
/// products of other types are those of `Backend`. An error of a product of k terms is at most
/// (2^-7 + 2^-16 + (k + 2) 2^-24) of the sum of |a b|.
/// Memory: bf16 copies of the operands of the largest product so far.
template <class Backend>
  requires half_product_kernels<Backend, bf16> && cast_kernels<Backend, float, bf16>
class bf16_products : public Backend {
  static_assert(std::is_same_v<typename Backend::space, host_memory>,
                "heddle: bf16_products<Backend> keeps its copies in the host's memory");

 public:
  using Backend::Backend;

  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires(!is_half_precision<T>)
  void matmul(input_matrix<T> a, input_matrix<T> b, matrix_view<T> c, std::type_identity_t<T> beta = T(0)) {
    if constexpr (std::is_same_v<T, float>)
      Backend::template matmul<TA, TB>(rounded(a, left_), rounded(b, right_), c, beta);
    else
      Backend::template matmul<TA, TB>(a, b, c, beta);
  }
  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires is_half_precision<T>
  void matmul(input_matrix<T> a, input_matrix<T> b, matrix_view<T> c, float beta = 0) {
    Backend::template matmul<TA, TB>(a, b, c, beta);
  }
  template <transpose TA = transpose::no, transpose TB = transpose::no, class A, class B>
    requires(is_half_precision<std::remove_const_t<A>> &&
             std::is_same_v<std::remove_const_t<A>, std::remove_const_t<B>>)
  void matmul(matrix_view<A> a, matrix_view<B> b, matrix_view<float> c, float beta = 0) {
    Backend::template matmul<TA, TB>(a, b, c, beta);
  }

  template <transpose TB = transpose::no, class X, class W, class Y, class Beta = Y>
  void grouped_matmul(matrix_view<X> x, std::span<const std::int64_t> offsets, stack_view<W> w, matrix_view<Y> y,
                      Beta beta = Beta(0)) {
    if constexpr (are_floats<X, W>)
      Backend::template grouped_matmul<TB>(rounded(x, left_), offsets, rounded(w, right_), y, beta);
    else
      Backend::template grouped_matmul<TB>(x, offsets, w, y, beta);
  }
  template <class X, class D, class W, class Beta = W>
  void grouped_matmul_backward_weight(matrix_view<X> x, matrix_view<D> dy, std::span<const std::int64_t> offsets,
                                      stack_view<W> dw, Beta beta = Beta(0)) {
    if constexpr (are_floats<X, D>)
      Backend::grouped_matmul_backward_weight(rounded(x, left_), rounded(dy, right_), offsets, dw, beta);
    else
      Backend::grouped_matmul_backward_weight(x, dy, offsets, dw, beta);
  }

 private:
  template <class A, class B>
  static constexpr bool are_floats =
      std::is_same_v<std::remove_const_t<A>, float> && std::is_same_v<std::remove_const_t<B>, float>;

  template <class T, class Shape>
  view<const bf16, Shape> rounded(view<T, Shape> x, buffer<bf16>& room) {
    const auto n = static_cast<std::size_t>(x.shape().size());
    if (room.size() < n) room = buffer<bf16>(static_cast<std::int64_t>(n), "operands of a product in bf16");
    Backend::cast(std::span<const float>(x.data(), n), std::span<bf16>(room.data(), n));
    return {room.data(), x.shape()};
  }

  buffer<bf16> left_{}, right_{};
};

}  // namespace heddle::inline v0::compute
