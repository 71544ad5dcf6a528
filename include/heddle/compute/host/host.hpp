// heddle/compute/host/host.hpp: the host backend: every kernel in C++ and threads, products by a chosen library.
#pragma once

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
#include <cmath>
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
class host : detail::argument_checks, public detail::expert_choice_members<host<Gemm>> {
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

  template <class T>
  void attention(input_heads<T> q, input_heads<T> k, input_heads<T> v, std::span<const attention_slice> slices,
                 sum_of_type<T> scale, head_rows<T> out, std::span<sum_of_type<T>> lse, key_pages pages = {}) {
    attention_arguments<T>("attention", q, k, v, slices, scale, out, lse.size(), pages);
    detail::attention<Gemm>(team_, q, k, v, slices, scale, out, lse.data(), pages);
  }
  template <class T>
  void attention_backward(input_heads<T> dout, input_heads<T> q, input_heads<T> k, input_heads<T> v, input_heads<T> out,
                          input_vector<sum_of_type<T>> lse, std::span<const attention_slice> slices,
                          sum_of_type<T> scale, head_rows<T> dq, std::type_identity_t<head_rows<T>> dk,
                          std::type_identity_t<head_rows<T>> dv, key_pages pages = {}) {
    attention_arguments<T>("attention_backward", q, k, v, slices, scale, out, lse.size(), pages);
    same_heads<T>("attention_backward", "dout", out, dout);
    same_heads<T>("attention_backward", "dq", q, dq);
    same_heads<T>("attention_backward", "dk", k, dk);
    same_heads<T>("attention_backward", "dv", v, dv);
    detail::attention_backward<Gemm>(team_, dout, q, k, v, out, lse.data(), slices, scale, dq, dk, dv, pages);
  }

  template <class T>
  void attention(input_matrix<T> qkv, attention_shape s, matrix_view<T> out, std::span<sum_of_type<T>> lse) {
    attention_sizes<T>("attention", s, qkv, out, lse.size());
    const auto slices = causal_sequences(s.batch, s.sequence);
    detail::attention<Gemm>(team_, third<T>(qkv, s, 0), third<T>(qkv, s, 1), third<T>(qkv, s, 2),
                            std::span<const attention_slice>(slices), score_scale<T>(s),
                            heads_of(out, s.heads, s.head_dim), lse.data(), key_pages{});
  }
  template <class T>
  void attention_backward(input_matrix<T> dout, input_matrix<T> qkv, input_matrix<T> out,
                          input_vector<sum_of_type<T>> lse, attention_shape s, matrix_view<T> dqkv) {
    attention_sizes<T>("attention_backward", s, qkv, out, lse.size());
    same_shape<T>("attention_backward", "dout", out, dout);
    same_shape<T>("attention_backward", "dqkv", qkv, dqkv);
    const auto slices = causal_sequences(s.batch, s.sequence);
    const auto third_of = [&](std::int64_t i) { return heads_of(dqkv, s.heads, s.head_dim, i * s.width()); };
    detail::attention_backward<Gemm>(team_, heads_of(dout, s.heads, s.head_dim), third<T>(qkv, s, 0),
                                     third<T>(qkv, s, 1), third<T>(qkv, s, 2), heads_of(out, s.heads, s.head_dim),
                                     lse.data(), std::span<const attention_slice>(slices), score_scale<T>(s),
                                     third_of(0), third_of(1), third_of(2), key_pages{});
  }

  /// Errors: `layout_error` for more choices than experts.
  template <class Rule, class T>
  void top_k(input_matrix<T> logits, matrix_view<std::int32_t> ids, matrix_view<T> weights) {
    choices("top_k", logits.extent(0), logits.extent(1), ids, weights.extent(0), weights.extent(1));
    detail::top_k<Rule>(team_, logits.extent(0), logits.extent(1), ids.extent(1), logits.data(), ids.data(),
                        weights.data());
  }
  template <class Rule, class T>
  void top_k_backward(input_matrix<T> logits, matrix_view<const std::int32_t> ids, input_matrix<T> weights,
                      input_matrix<T> dweights, matrix_view<T> dlogits) {
    const std::int64_t experts = logits.extent(1);
    choices("top_k_backward", logits.extent(0), experts, ids, weights.extent(0), weights.extent(1));
    same_shape<T>("top_k_backward", "dweights", weights, dweights);
    same_shape<T>("top_k_backward", "dlogits", logits, dlogits);
    within("top_k_backward", "ids", ids.elements(), 0, experts);
    detail::top_k_backward<Rule>(team_, logits.extent(0), experts, ids.extent(1), logits.data(), ids.data(),
                                 weights.data(), dweights.data(), dlogits.data());
  }
  template <class T>
  void expert_balance(matrix_view<T> logits, matrix_view<const std::int32_t> ids, double* out) {
    detail::expect("expert_balance", "rows of ids", logits.extent(0), ids.extent(0));
    within("expert_balance", "ids", ids.elements(), -1, logits.extent(1));
    detail::expert_balance<std::remove_const_t<T>>(logits.extent(0), logits.extent(1), ids.extent(1), logits.data(),
                                                   ids.data(), out);
  }
  template <class T>
  void expert_balance_backward(input_matrix<T> logits, matrix_view<const std::int32_t> ids,
                               std::type_identity_t<sum_of_type<T>> scale, matrix_view<T> dlogits) {
    same_shape<T>("expert_balance_backward", "dlogits", logits, dlogits);
    detail::expect("expert_balance_backward", "rows of ids", logits.extent(0), ids.extent(0));
    within("expert_balance_backward", "ids", ids.elements(), -1, logits.extent(1));
    const auto counts = detail::choices_of_experts<sum_of_type<T>>(ids.size(), logits.extent(1), ids.data());
    expert_balance_backward(logits, std::span<const sum_of_type<T>>(counts), scale, dlogits);
  }
  /// The same where rows of other ranks have chosen, too: `counts` [experts] are all that have.
  template <class T>
  void expert_balance_backward(input_matrix<T> logits, std::type_identity_t<std::span<const sum_of_type<T>>> counts,
                               std::type_identity_t<sum_of_type<T>> scale, matrix_view<T> dlogits) {
    same_shape<T>("expert_balance_backward", "dlogits", logits, dlogits);
    detail::expect("expert_balance_backward", "elements of counts", logits.extent(1), counts.size());
    detail::expert_balance_backward(logits.extent(0), logits.extent(1), logits.data(), counts, scale, dlogits.data());
  }
  template <class Rule, class T>
  void limit_choices(matrix_view<const std::int32_t> ids, matrix_view<T> weights, std::int64_t experts,
                     std::int64_t most, matrix_view<std::int32_t> kept) {
    detail::expect("limit_choices", "rows of weights", ids.extent(0), weights.extent(0));
    detail::expect("limit_choices", "columns of weights", ids.extent(1), weights.extent(1));
    detail::expect("limit_choices", "elements of kept", ids.size(), kept.size());
    within("limit_choices", "ids", ids.elements(), -1, experts);
    detail::limit_choices<Rule>(ids.size(), experts, most, ids.data(), weights.data(), kept.data());
  }
  void route(matrix_view<const std::int32_t> ids, std::int64_t first_id, std::span<std::int64_t> offsets,
             std::span<std::int32_t> sources, matrix_view<std::int32_t> places) {
    detail::expect("route", "elements of sources (tokens * k)", ids.size(), sources.size());
    detail::expect("route", "rows of places", ids.extent(0), places.extent(0));
    detail::expect("route", "columns of places", ids.extent(1), places.extent(1));
    if (offsets.empty() || ids.size() > (std::numeric_limits<std::int32_t>::max)()) [[unlikely]]
      throw layout_error(
          "heddle: route: offsets should have an element more than there are experts, and choices at most 2^31 - 1, "
          "got " +
          std::to_string(offsets.size()) + " offsets and " + std::to_string(ids.size()) + " choices");
    detail::route(ids.extent(0), ids.extent(1), static_cast<std::int64_t>(offsets.size()) - 1, ids.data(), first_id,
                  offsets.data(), sources.data(), places.data());
  }
  template <class T>
  void permute(input_matrix<T> x, token_ids sources, matrix_view<T> y) {
    detail::expect("permute", "rows of y", static_cast<std::int64_t>(sources.size()), y.extent(0));
    detail::expect("permute", "columns of y", x.extent(1), y.extent(1));
    within("permute", "sources", sources, -1, x.extent(0));
    detail::permute(team_, y.extent(0), y.extent(1), x.data(), sources.data(), y.data());
  }
  template <class T>
  void permute_backward(input_matrix<T> dy, matrix_view<const std::int32_t> places, matrix_view<T> dx) {
    detail::expect("permute_backward", "rows of dx", places.extent(0), dx.extent(0));
    detail::expect("permute_backward", "columns of dx", dy.extent(1), dx.extent(1));
    within("permute_backward", "places", places.elements(), -1, dy.extent(0));
    detail::gather_rows(team_, dx.extent(0), places.extent(1), dx.extent(1), dy.data(), places.data(), dx.data(),
                        [](std::int64_t) { return T(1); });
  }
  template <class T>
  void unpermute(input_matrix<T> y, matrix_view<const std::int32_t> places, input_matrix<T> weights,
                 matrix_view<T> out) {
    moved("unpermute", places, weights.extent(0), weights.extent(1), out.extent(0), y.extent(0));
    detail::expect("unpermute", "columns of out", y.extent(1), out.extent(1));
    const T* w = weights.data();
    detail::gather_rows(team_, out.extent(0), places.extent(1), out.extent(1), y.data(), places.data(), out.data(),
                        [w](std::int64_t i) { return w[i]; });
  }
  template <class T>
  void unpermute_backward(input_matrix<T> dout, input_matrix<T> y, matrix_view<const std::int32_t> places,
                          input_matrix<T> weights, matrix_view<T> dy, std::type_identity_t<matrix_view<T>> dweights) {
    moved("unpermute_backward", places, weights.extent(0), weights.extent(1), dout.extent(0), y.extent(0));
    detail::expect("unpermute_backward", "columns of dout", y.extent(1), dout.extent(1));
    same_shape<T>("unpermute_backward", "dy", y, dy);
    same_shape<T>("unpermute_backward", "dweights", weights, dweights);
    detail::unpermute_backward(team_, dout.extent(0), places.extent(1), y.extent(1), dout.data(), y.data(),
                               places.data(), weights.data(), dy.data(), dweights.data());
    std::vector<bool> used(static_cast<std::size_t>(dy.extent(0)));
    for (const std::int32_t p : places.elements())
      if (p >= 0) used[static_cast<std::size_t>(p)] = true;
    for (std::int64_t r = 0; r < dy.extent(0); ++r)
      if (!used[static_cast<std::size_t>(r)]) std::fill_n(dy.data() + r * dy.extent(1), dy.extent(1), T(0));
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
  /// q, k or v of a fused product.
  template <class T>
  static head_rows<const T> third(matrix_view<const T> qkv, const attention_shape& s, std::int64_t i) {
    return heads_of(qkv, s.heads, s.head_dim, i * s.width());
  }
  template <class T>
  static sum_of_type<T> score_scale(const attention_shape& s) {
    using S = sum_of_type<T>;
    return s.head_dim == 0 ? S(1) : S(1) / std::sqrt(static_cast<S>(s.head_dim));
  }

  team team_;
  [[no_unique_address]] host_memory::queue queue_;
  bool native_bf16_ = detail::has_bf16_products<Gemm>();
  bool tiles_ = detail::multiplies_in_tiles<Gemm>();
};

static_assert(backend_queue<host<>>);
static_assert(kernel_set<host<>, float> && kernel_set<host<>, double>);
static_assert(rms_norm_facet::offered<host<>, float> && rotary_facet::offered<host<>, float> &&
              gated_facet<silu>::offered<host<>, float> && sliced_attention_kernels<host<>, float>);
static_assert(reduction_facet::offered<host<>, float> && routing_kernels<host<>, float> &&
              choice_limit_kernels<host<>, float> && expert_balance_kernels<host<>, float> &&
              expert_choice_kernels<host<>, float> && head_part_facet::offered<host<>, float> &&
              grouped_product_kernels<host<>, float> && half_product_kernels<host<>> &&
              cast_facet<bf16>::offered<host<>, float> && stochastic_cast_facet::offered<host<>, float> &&
              master_optimizer_facet<bf16, bf16>::offered<host<>, float> &&
              offered<ops::stochastic_adamw<float>, host<>, float>);
static_assert(product_kernels<host<>, bf16> && elementwise_facet::offered<host<>, bf16> &&
              layer_norm_facet::offered<host<>, bf16> && rms_norm_facet::offered<host<>, bf16> &&
              rotary_facet::offered<host<>, bf16> && gated_facet<silu>::offered<host<>, bf16> &&
              embedding_facet::offered<host<>, bf16> && cross_entropy_facet::offered<host<>, bf16> &&
              loss_facet::offered<host<>, bf16> && routing_kernels<host<>, bf16> &&
              choice_limit_kernels<host<>, bf16> && expert_balance_kernels<host<>, bf16> &&
              grouped_product_kernels<host<>, bf16> && reduction_facet::offered<host<>, bf16> &&
              master_optimizer_facet<bf16, float>::offered<host<>, float>);

}  // namespace heddle::inline v0::compute

#if defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/compute/impl/host_kernels.hpp>
#endif
