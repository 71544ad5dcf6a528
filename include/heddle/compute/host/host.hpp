// heddle/compute/host/host.hpp: the host backend: every kernel in C++ and threads, products by a chosen library.
#pragma once

#include <heddle/compute/facets.hpp>
#include <heddle/compute/host/adamw.hpp>
#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/host/attention.hpp>
#include <heddle/compute/host/cached_rows.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/host/cross_entropy.hpp>
#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/host/embedding.hpp>
#include <heddle/compute/host/expert_choice.hpp>
#include <heddle/compute/host/gated.hpp>
#include <heddle/compute/host/gemm.hpp>
#include <heddle/compute/host/half_attention.hpp>
#include <heddle/compute/host/half_products.hpp>
#include <heddle/compute/host/head_parts.hpp>
#include <heddle/compute/host/images.hpp>
#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/host/rotary.hpp>
#include <heddle/compute/host/routing.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::compute {

/// The host backend: `compute::host<compute::onednn> backend{threads}` serves one rank with that many cores, the
/// calling thread among them. Kernels are described in kernels.hpp; all are deterministic for a given number of
/// threads, and all but the library's products do not depend on that number at all (the portable ones neither).
/// Errors: `config_error` for fewer than one thread, `layout_error` if the arguments of a kernel do not fit together.
template <class Gemm = portable>
  requires gemm_library<Gemm, float> && gemm_library<Gemm, double>
class host : detail::argument_checks {
 public:
  using kind = backend_kind;
  using gemm = Gemm;
  using space = host_memory;

  explicit host(int threads = 1) : team_(threads) {}
  /// On so many threads that somebody else lends; on its own where `lent` has none.
  host(int threads, const lent_threads& lent) : team_(threads, lent) {}

  int threads() const noexcept { return team_.size(); }
  const char* gemm_name() const noexcept { return Gemm::name(); }
  /// Whether bf16 operands go to the library as they are; if not they are converted to float, block by block, as f16
  /// operands always are. And whether heddle's tiles multiply floats that are rounded to bf16 (`rounds_operands()`).
  const char* half_product_name() const noexcept {
    if (tiles_) return "bf16 of the library, rounded floats in heddle's tile registers (AMX)";
    if constexpr (bf16_gemm_library<Gemm>)
      if (native_bf16_)
        return detail::converts_bf16_products<Gemm>((std::numeric_limits<std::int64_t>::max)())
                   ? "bf16 of the library for few rows, float after conversion for others"
                   : "bf16 of the library";
    return "float after conversion";
  }
  /// Whether `matmul_rounded` may be called: products that round floats to bf16 themselves, in tile registers (AMX).
  bool rounds_operands() const noexcept { return tiles_; }
  /// The host's queue, an empty object: kernels have run when their call returns.
  host_memory::queue& queue() noexcept { return queue_; }
  /// The threads themselves, for work that has no kernel here.
  team& workers() noexcept { return team_; }
  /// On which bodies of operations run: the threads.
  team& launcher() noexcept { return team_; }
  /// On which those of attention run: the threads with the library.
  detail::library_team<Gemm> launcher(const ops::attention_operation&) noexcept { return {team_}; }

  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires(!is_half_precision<T>)
  void matmul(input_matrix<T> a, input_matrix<T> b, matrix_view<T> c, std::type_identity_t<T> beta = T(0)) {
    product<Gemm, TA, TB, T, T, T>(a, b, beta, c);
  }
  /// Of bf16 and f16, added up in float and rounded once.
  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires is_half_precision<T>
  void matmul(input_matrix<T> a, input_matrix<T> b, matrix_view<T> c, float beta = 0) {
    half_product<TA, TB, T, T>(a, b, beta, c);
  }
  template <transpose TA = transpose::no, transpose TB = transpose::no, class A, class B>
    requires(is_half_precision<std::remove_const_t<A>> &&
             std::is_same_v<std::remove_const_t<A>, std::remove_const_t<B>>)
  void matmul(matrix_view<A> a, matrix_view<B> b, matrix_view<float> c, float beta = 0) {
    half_product<TA, TB, std::remove_const_t<A>, float>(a, b, beta, c);
  }

  /// Of a in float and b in float or bf16, both rounded to the nearest bf16, added up in float in an order that depends on k alone. Subnormal
  /// numbers are zero. Requires `rounds_operands()`.
  template <transpose TA = transpose::no, transpose TB = transpose::no, class B>
    requires(std::is_same_v<std::remove_const_t<B>, float> || std::is_same_v<std::remove_const_t<B>, bf16>) &&
            requires { Gemm::has_tile_products(); }
  void matmul_rounded(input_matrix<float> a, matrix_view<B> b, matrix_view<float> c, float beta = 0) {
    product<detail::tile_products, TA, TB, float, float, float, std::remove_const_t<B>>(a, b, beta, c);
  }

  template <transpose TB = transpose::no, class X, class W, class Y>
  void grouped_matmul(matrix_view<X> x, std::span<const std::int64_t> offsets, stack_view<W> w, matrix_view<Y> y,
                      std::type_identity_t<sum_of_type<Y>> beta = 0) {
    constexpr bool tb = TB == transpose::yes;
    groups("grouped_matmul", offsets, w.extent(0), x.extent(0));
    detail::expect("grouped_matmul", "rows of y", x.extent(0), y.extent(0));
    detail::expect("grouped_matmul", "rows of op(w)", x.extent(1), w.extent(tb ? 2 : 1));
    detail::expect("grouped_matmul", "columns of op(w)", y.extent(1), w.extent(tb ? 1 : 2));
    for (std::int64_t e = 0; e < w.extent(0); ++e)
      matmul<transpose::no, TB>(group(x, offsets, e), matrix_of(w, e), group(y, offsets, e), beta);
  }
  template <class X, class D, class W>
  void grouped_matmul_backward_weight(matrix_view<X> x, matrix_view<D> dy, std::span<const std::int64_t> offsets,
                                      stack_view<W> dw, std::type_identity_t<sum_of_type<W>> beta = 0) {
    groups("grouped_matmul_backward_weight", offsets, dw.extent(0), x.extent(0));
    detail::expect("grouped_matmul_backward_weight", "rows of dy", x.extent(0), dy.extent(0));
    detail::expect("grouped_matmul_backward_weight", "rows of dw", x.extent(1), dw.extent(1));
    detail::expect("grouped_matmul_backward_weight", "columns of dw", dy.extent(1), dw.extent(2));
    for (std::int64_t e = 0; e < dw.extent(0); ++e)
      matmul<transpose::yes, transpose::no>(group(x, offsets, e), group(dy, offsets, e), matrix_of(dw, e), beta);
  }

 private:
  template <class G, transpose TA, transpose TB, class A, class Beta, class C, class B = A>
  void product(matrix_view<const A> a, matrix_view<const B> b, Beta beta, matrix_view<C> c) {
    constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
    const auto [m, n, k] = product_size_of<ta, tb>("matmul", a, b, c);
    if (m == 0 || n == 0) return;
    if (k == 0) {
      if (beta == Beta(0)) return body(ops::fill{}, team_, m * n, c.data(), sum_of_type<C>(0));
      if constexpr (is_half_precision<C>) {
        for (C& x : c.elements()) x = C(beta * static_cast<float>(x));
        return;
      } else {
        return body(ops::scale{}, team_, m * n, c.data(), beta);
      }
    }
    detail::multiply_shared<G, TA, TB>(team_, m, n, k, a.data(), a.extent(1), b.data(), b.extent(1), beta, c.data(), n);
  }
  template <transpose TA, transpose TB, class A, class C>
  void half_product(matrix_view<const A> a, matrix_view<const A> b, float beta, matrix_view<C> c) {
    if constexpr (bf16_gemm_library<Gemm> && std::is_same_v<A, bf16>)
      if (native_bf16_ && !detail::converts_bf16_products<Gemm>(c.extent(0)))
        return product<detail::half_products<Gemm, true>, TA, TB>(a, b, beta, c);
    product<detail::half_products<Gemm, false>, TA, TB>(a, b, beta, c);
  }
  template <class T>
  static matrix_view<T> group(matrix_view<T> x, std::span<const std::int64_t> offsets, std::int64_t e) {
    const std::int64_t first = offsets[static_cast<std::size_t>(e)], end = offsets[static_cast<std::size_t>(e) + 1];
    T* const data = x.data() == nullptr ? nullptr : x.data() + first * x.extent(1);
    return {data, dynamic_shape<2>(end - first, x.extent(1))};
  }
  template <class T>
  static matrix_view<T> matrix_of(stack_view<T> w, std::int64_t e) {
    T* const data = w.data() == nullptr ? nullptr : w.data() + e * w.extent(1) * w.extent(2);
    return {data, dynamic_shape<2>(w.extent(1), w.extent(2))};
  }

  team team_;
  [[no_unique_address]] host_memory::queue queue_;
  bool native_bf16_ = detail::has_bf16_products<Gemm>();
  bool tiles_ = detail::multiplies_in_tiles<Gemm>();
};

static_assert(backend_queue<host<>>);
static_assert(kernel_set<host<>, float> && kernel_set<host<>, double>);
static_assert(rotary_facet::offered<host<>, float> && gated_facet<silu>::offered<host<>, float>);
static_assert(reduction_facet::offered<host<>, float> && routing_facet::offered<host<>, float> &&
              choice_limit_facet::offered<host<>, float> && expert_balance_facet::offered<host<>, float> &&
              expert_choice_facet::offered<host<>, float> && head_part_facet::offered<host<>, float> &&
              grouped_product_kernels<host<>, float> && half_product_kernels<host<>> &&
              cast_facet<bf16>::offered<host<>, float> && stochastic_cast_facet::offered<host<>, float> &&
              master_optimizer_facet<bf16, bf16>::offered<host<>, float> &&
              offered<ops::stochastic_adamw<float>, host<>, float>);
static_assert(product_kernels<host<>, bf16> && elementwise_facet::offered<host<>, bf16> &&
              layer_norm_facet::offered<host<>, bf16> && rotary_facet::offered<host<>, bf16> &&
              gated_facet<silu>::offered<host<>, bf16> && embedding_facet::offered<host<>, bf16> &&
              cross_entropy_facet::offered<host<>, bf16> && loss_facet::offered<host<>, bf16> &&
              routing_facet::offered<host<>, bf16> && choice_limit_facet::offered<host<>, bf16> &&
              expert_balance_facet::offered<host<>, bf16> && grouped_product_kernels<host<>, bf16> &&
              reduction_facet::offered<host<>, bf16> && master_optimizer_facet<bf16, float>::offered<host<>, float>);

}  // namespace heddle::inline v0::compute

#if defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/compute/impl/host_kernels.hpp>
#endif
