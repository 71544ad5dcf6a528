// heddle/compute/cuda/products.hpp: matrix products on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/elementwise.hpp>
#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/cuda/rows.hpp>
#include <heddle/compute/group/grouped_products.hpp>
#include <heddle/compute/ops/products.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

template <launcher L, transpose TA, transpose TB, bool Sums, class T>
void body(ops::matmul<TA, TB, Sums>, const L& on, std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
          const T* b, product_result<T, Sums>* c, sum_of_type<T> beta) {
  if (m == 0 || n == 0) return;
  if (k > 0)
    on.template multiply<TA == transpose::yes, TB == transpose::yes>(m, n, k, a, b, c, beta);
  else if (beta == 0)
    on.queue.zero(row_at<cuda_memory>(c, m * n));
  else
    body(ops::scale{}, on, m * n, c, beta);
}

// Whether the library has made c with what comes behind it; empty products are left to others.
template <transpose TA, transpose TB, launcher L, class T, class Out>
bool ended(const L& on, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, Out* c,
           sum_of_type<T> beta, const product_ending<Out>& with) {
  return m != 0 && n != 0 && k != 0 && on.template multiply_ending < TA == transpose::yes,
         TB == transpose::yes > (m, n, k, a, b, c, beta, with);
}
template <launcher L, transpose TA, transpose TB, bool Sums, class T>
void body(ops::matmul_add_bias<TA, TB, Sums>, const L& on, std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
          const T* b, const product_result<T, Sums>* bias, product_result<T, Sums>* c) {
  using out = product_result<T, Sums>;
  if (ended<TA, TB>(on, m, n, k, a, b, c, 0, product_ending<out>{.end = product_end::bias, .bias = bias})) return;
  body(ops::matmul<TA, TB, Sums>{}, on, m, n, k, a, b, c, sum_of_type<T>(0));
  body(ops::add_bias{}, on, m, n, c, bias);
}
template <launcher L, transpose TA, transpose TB, bool Sums, class T>
void body(ops::matmul_add_bias_gelu<TA, TB, Sums>, const L& on, std::int64_t m, std::int64_t n, std::int64_t k,
          const T* a, const T* b, const product_result<T, Sums>* bias, product_result<T, Sums>* before,
          product_result<T, Sums>* c) {
  using out = product_result<T, Sums>;
  if (ended<TA, TB>(on, m, n, k, a, b, c, 0,
                    product_ending<out>{.end = product_end::gelu_of_bias, .bias = bias, .before = before}))
    return;
  body(ops::matmul_add_bias<TA, TB, Sums>{}, on, m, n, k, a, b, bias, before);
  body(ops::gelu{}, on, m * n, static_cast<const out*>(before), c);
}
template <launcher L, transpose TA, transpose TB, bool Sums, class T>
void body(ops::matmul_gelu_backward<TA, TB, Sums>, const L& on, std::int64_t m, std::int64_t n, std::int64_t k,
          const T* a, const T* b, const product_result<T, Sums>* before, product_result<T, Sums>* c) {
  using out = product_result<T, Sums>;
  // The library only reads it there.
  if (ended<TA, TB>(on, m, n, k, a, b, c, 0,
                    product_ending<out>{.end = product_end::gelu_derivative, .before = const_cast<out*>(before)}))
    return;
  body(ops::matmul<TA, TB, Sums>{}, on, m, n, k, a, b, c, sum_of_type<T>(0));
  body(ops::gelu_backward{}, on, m * n, before, static_cast<const out*>(c), c);
}
template <launcher L, summed_operand Of, class T>
void body(ops::matmul_add_bias_backward<Of>, const L& on, std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
          const T* b, sum_of_type<T>* c, sum_of_type<T>* db) {
  using sum = sum_of_type<T>;
  constexpr bool left = Of == summed_operand::left;
  const std::int64_t width = left ? m : n;
  auto sums = on.template room<sum>(width);
  if (ended<transpose::yes, transpose::no>(
          on, m, n, k, a, b, c, 1,
          product_ending<sum>{.end = left ? product_end::sums_of_left : product_end::sums_of_right,
                              .sums = sums.address()}))
    // The library overwrites sums, while c is added to.
    return body(ops::add{}, on, width, static_cast<const sum*>(db), static_cast<const sum*>(sums.address()), db);
  body(ops::matmul<transpose::yes, transpose::no, is_half_precision<T>>{}, on, m, n, k, a, b, c, sum(1));
  body(ops::add_bias_backward{}, on, k, width, left ? a : b, db);
}

template <launcher L, transpose TB, bool Sums, class T>
void body(ops::grouped_matmul<TB, Sums>, const L& on, std::int64_t rows, std::int64_t n, std::int64_t k,
          std::int64_t experts, std::int64_t, const T* x, const std::int64_t* offsets, const T* w,
          product_result<T, Sums>* y, sum_of_type<T> beta) {
  in_groups::multiply_groups<TB == transpose::yes>(
      on, in_groups::grouped_product_operands<T, product_result<T, Sums>, sum_of_type<T>>{rows, experts, k, n, x, w,
                                                                                          offsets, y, beta});
}
template <launcher L, class T>
void body(ops::grouped_matmul_backward_weight, const L& on, std::int64_t, std::int64_t n, std::int64_t k,
          std::int64_t experts, std::int64_t, const T* x, const T* dy, const std::int64_t* offsets, sum_of_type<T>* dw,
          sum_of_type<T> beta) {
  in_groups::multiply_groups(on, in_groups::grouped_weight_operands<T, sum_of_type<T>, sum_of_type<T>>{
                                     experts, k, n, x, dy, offsets, dw, beta});
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
