// heddle/compute/host/products.hpp: matrix products of the host's backend, shared by threads.
#pragma once

#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/host/gemm.hpp>
#include <heddle/compute/host/half_products.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/ops/products.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

/// Threads, and what their library multiplies by itself on this processor.
template <class Gemm>
struct product_team : team {
  using team::team;
  bool multiplies_bf16 = has_bf16_products<Gemm>();
  bool in_tiles = multiplies_in_tiles<Gemm>();
};

template <class G, transpose TA, transpose TB, class A, class B, class C>
void multiply_by(team& on, std::int64_t m, std::int64_t n, std::int64_t k, const A* a, const B* b, C* c,
                 sum_of_type<C> beta) {
  if (m == 0 || n == 0) return;
  if (k > 0)
    return multiply_shared<G, TA, TB>(on, m, n, k, a, TA == transpose::yes ? m : k, b, TB == transpose::yes ? k : n,
                                      beta, c, n);
  if (beta == 0) return body(ops::fill{}, on, m * n, c, sum_of_type<C>(0));
  if constexpr (is_half_precision<C>)
    for (std::int64_t i = 0; i < m * n; ++i) c[i] = C(beta * static_cast<float>(c[i]));
  else
    body(ops::scale{}, on, m * n, c, beta);
}
template <transpose TA, transpose TB, bool Sums, class Gemm, class T>
void body(ops::matmul<TA, TB, Sums>, product_team<Gemm>& on, std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
          const T* b, product_result<T, Sums>* c, sum_of_type<T> beta) {
  if constexpr (!is_half_precision<T>) {
    multiply_by<Gemm, TA, TB>(on, m, n, k, a, b, c, beta);
  } else {
    if constexpr (bf16_gemm_library<Gemm> && std::is_same_v<T, bf16>)
      if (on.multiplies_bf16 && !converts_bf16_products<Gemm>(m))
        return multiply_by<half_products<Gemm, true>, TA, TB>(on, m, n, k, a, b, c, beta);
    multiply_by<half_products<Gemm, false>, TA, TB>(on, m, n, k, a, b, c, beta);
  }
}
template <transpose TA, transpose TB, class W, class Gemm>
  requires requires { Gemm::has_tile_products(); }
void body(ops::matmul_rounded<TA, TB, W>, product_team<Gemm>& on, std::int64_t m, std::int64_t n, std::int64_t k,
          const float* a, const W* b, float* c, float beta) {
  multiply_by<tile_products, TA, TB>(on, m, n, k, a, b, c, beta);
}
template <transpose TB, bool Sums, class Gemm, class T>
void body(ops::grouped_matmul<TB, Sums>, product_team<Gemm>& on, std::int64_t, std::int64_t n, std::int64_t k,
          std::int64_t experts, std::int64_t, const T* x, const std::int64_t* offsets, const T* w,
          product_result<T, Sums>* y, sum_of_type<T> beta) {
  for (std::int64_t e = 0; e < experts; ++e)
    body(ops::matmul<transpose::no, TB, Sums>{}, on, offsets[e + 1] - offsets[e], n, k, x + offsets[e] * k,
         w + e * k * n, y + offsets[e] * n, beta);
}
template <class Gemm, class T>
void body(ops::grouped_matmul_backward_weight, product_team<Gemm>& on, std::int64_t, std::int64_t n, std::int64_t k,
          std::int64_t experts, std::int64_t, const T* x, const T* dy, const std::int64_t* offsets, sum_of_type<T>* dw,
          sum_of_type<T> beta) {
  for (std::int64_t e = 0; e < experts; ++e)
    body(ops::matmul<transpose::yes, transpose::no, is_half_precision<T>>{}, on, k, n, offsets[e + 1] - offsets[e],
         x + offsets[e] * k, dy + offsets[e] * n, dw + e * k * n, beta);
}

}  // namespace heddle::inline v0::compute::detail
