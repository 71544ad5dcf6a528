// heddle/compute/bf16_products.hpp: a backend whose products of float matrices are of operands rounded to bf16.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute {

/// `Backend` whose `matmul`, `grouped_matmul` and `grouped_matmul_backward_weight` of floats round both operands to the nearest bf16
/// and add products up in float: on the host by the library where the processor multiplies bf16 (`half_product_name()`), else
/// after conversion back, which saves no time. All other kernels, attention among them, and products of other types are those of
/// `Backend`. An error of a product of k terms is at most (2^-7 + 2^-16 + (k + 2) 2^-24) of the sum of |a b|.
/// Memory: bf16 copies of the operands of the largest product so far, in the backend's memory, made in the order of its queue.
template <class Backend>
  requires half_product_kernels<Backend, bf16> && cast_kernels<Backend, float, bf16>
class bf16_products : public Backend {
  using memory = space_of<Backend>;
  template <class T>
  using matrix = matrix_view<T, memory>;
  template <class T>
  using input = std::type_identity_t<matrix<const T>>;
  template <class T>
  using stack = view<T, dynamic_shape<3>, memory>;
  using group_offsets = row_view<const std::int64_t, memory>;

 public:
  using Backend::Backend;

  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires(!is_half_precision<T>)
  void matmul(input<T> a, input<T> b, matrix<T> c, std::type_identity_t<T> beta = T(0)) {
    if constexpr (std::is_same_v<T, float>)
      Backend::template matmul<TA, TB>(rounded(a, left_), rounded(b, right_), c, beta);
    else
      Backend::template matmul<TA, TB>(a, b, c, beta);
  }
  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires is_half_precision<T>
  void matmul(input<T> a, input<T> b, matrix<T> c, float beta = 0) {
    Backend::template matmul<TA, TB>(a, b, c, beta);
  }
  template <transpose TA = transpose::no, transpose TB = transpose::no, class A, class B>
    requires(is_half_precision<std::remove_const_t<A>> &&
             std::is_same_v<std::remove_const_t<A>, std::remove_const_t<B>>)
  void matmul(matrix<A> a, matrix<B> b, matrix<float> c, float beta = 0) {
    Backend::template matmul<TA, TB>(a, b, c, beta);
  }

  template <transpose TB = transpose::no, class X, class W, class Y, class Beta = Y>
  void grouped_matmul(matrix<X> x, group_offsets offsets, stack<W> w, matrix<Y> y, Beta beta = Beta(0)) {
    if constexpr (are_floats<X, W>)
      Backend::template grouped_matmul<TB>(rounded(x, left_), offsets, rounded(w, right_), y, beta);
    else
      Backend::template grouped_matmul<TB>(x, offsets, w, y, beta);
  }
  template <class X, class D, class W, class Beta = W>
  void grouped_matmul_backward_weight(matrix<X> x, matrix<D> dy, group_offsets offsets, stack<W> dw,
                                      Beta beta = Beta(0)) {
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
  view<const bf16, Shape, memory> rounded(view<T, Shape, memory> x, buffer<bf16, memory>& room) {
    const std::int64_t n = x.shape().size();
    if (static_cast<std::int64_t>(room.size()) < n)
      room = buffer<bf16, memory>(queue_of(static_cast<Backend&>(*this)), n, "operands of a product in bf16");
    Backend::cast(heddle::v0::detail::row_at<memory>(static_cast<const float*>(x.address()), n),
                  heddle::v0::detail::row_at<memory>(room.address(), n));
    return {room.address(), x.shape()};
  }

  buffer<bf16, memory> left_{}, right_{};
};

}  // namespace heddle::inline v0::compute
