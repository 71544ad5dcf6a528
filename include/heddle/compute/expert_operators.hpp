// heddle/compute/expert_operators.hpp: expert choice and gated experts on tensors of tokens.
#pragma once

#include <heddle/compute/operator_kernel.hpp>
#include <heddle/compute/token_operators.hpp>
#include <heddle/layout/token_operations.hpp>
#include <heddle/tensor/buffer.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>

namespace heddle::inline v0 {
namespace op {

/// The weights of the `K` experts that each row of logits chooses: x [..., experts] gives [..., K], in descending order of the logits.
/// `Rule`: `compute::softmax_of_chosen` or `compute::softmax_of_all`.
template <int Dim, int K, class Rule = compute::softmax_of_chosen>
struct top_k_weights : chosen_of<Dim, K> {};
/// The numbers of these experts, `std::int32_t`, which have no gradient.
template <int Dim, int K>
struct top_k_ids : chosen_of<Dim, K> {};
/// `expert_layers` with gated units: the sum over the chosen experts of weight * down(A(gate x) * up x), by grouped products of
/// the tokens that chose an expert. No token is dropped.
/// Source: Gale et al. 2022, arXiv:2211.15841.
template <class A = compute::silu>
struct experts : expert_layers {};

}  // namespace op
namespace compute {
namespace detail {

template <int Dim, int K>
struct choice_kernel : kernel_base {
  template <std::size_t R>
  static constexpr std::size_t rank = R;
  template <std::size_t R>
  static constexpr bool fits = Dim + 1 == static_cast<int>(R);
  template <class B, class T>
  static constexpr bool runs_on = offered<routing_facet, B, T>;
  template <class Op, class X>
  static auto shape(const X& x) {
    expect_unpadded<Op>(x);
    auto extents = x.shape().extents();
    if (extents[Dim] < K)
      throw layout_error(std::string("heddle: apply<") + std::string(short_type_name<Op>()) +
                         ">: " + std::to_string(K) + " experts should be chosen of " + std::to_string(extents[Dim]));
    extents[Dim] = K;
    return make_shape(extents);
  }
};
template <class T>
matrix_view<T> choices_in(buffer<T>& memory, std::int64_t rows, std::int64_t k) {
  memory = buffer<T>(rows * k);
  return {memory.data(), {rows, k}};
}

}  // namespace detail

template <int Dim, int K, class Rule>
struct operator_kernel<op::top_k_weights<Dim, K, Rule>> : detail::choice_kernel<Dim, K> {
  static constexpr unsigned reads = 1;
  static constexpr bool reads_result = true;
  template <class T>
  struct state {
    buffer<std::int32_t> ids{};
  };
  template <class C, class S, class Y, class X>
  static void forward(C& c, S& s, Y& y, const X& x) {
    run<ops::top_k<Rule>>(c.backend, detail::as_rows(x), detail::choices_in(s.ids, detail::rows_count(x), K),
                          detail::as_rows(y));
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S& s, const auto& dy, const Y& y, G& g, const X& x) {
    if constexpr (detail::is_wanted<0, G>)
      run<ops::top_k_backward<Rule>>(c.backend, detail::as_rows(x),
                                     matrix_view<const std::int32_t>(s.ids.data(), {detail::rows_count(x), K}),
                                     detail::as_rows(y), detail::as_rows(dy), detail::as_rows(std::get<0>(g)));
  }
};

template <int Dim, int K>
struct operator_kernel<op::top_k_ids<Dim, K>> : detail::choice_kernel<Dim, K> {
  static constexpr bool differentiable = false;
  template <class T, class... Ts>
  using result_type = std::int32_t;
  template <class C, class S, class Y, class X>
  static void forward(C& c, S&, Y& y, const X& x) {
    buffer<typename X::value_type> weights;
    run<ops::top_k<softmax_of_chosen>>(c.backend, detail::as_rows(x), detail::as_rows(y),
                                       detail::choices_in(weights, detail::rows_count(x), K));
  }
};

template <class A>
struct operator_kernel<op::experts<A>> : detail::kernel_base {
  static constexpr unsigned reads = 0x3f;
  template <class T>
  struct state {
    buffer<std::int64_t> offsets{};
    buffer<std::int32_t> places{};
    buffer<T> rows{}, gate{}, up{}, hidden{}, out{};  // of all choices, sorted by expert
  };
  template <std::size_t...>
  static constexpr std::size_t rank = 2;
  template <std::size_t X, std::size_t Ids, std::size_t Weights, std::size_t... Stacks>
  static constexpr bool fits = X == 2 && Ids == 2 && Weights == 2 && ((Stacks == 3) && ...);
  template <class T, class Id, class... Ts>
  static constexpr bool takes =
      std::floating_point<T> && std::is_same_v<Id, std::int32_t> && (std::is_same_v<T, Ts> && ...);
  template <class B, class T>
  static constexpr bool runs_on = offered<routing_facet, B, T> && offered<grouped_product_facet, B, T> &&
                                  offered<gated_facet<A>, B, T> && offered<elementwise_facet, B, T>;
  template <class Op, class X>
  static auto shape(const X& x, const auto& ids, const auto& weights, const auto& gate, const auto& up,
                    const auto& down) {
    const std::int64_t tokens = x.shape().extent(0), features = x.shape().extent(1);
    const std::int64_t experts = gate.shape().extent(0), inner = gate.shape().extent(2);
    detail::expect_shape<Op>(1, make_shape(std::array{tokens, ids.shape().extent(1)}), ids);
    detail::expect_shape<Op>(2, ids.shape(), weights);
    detail::expect_shape<Op>(3, make_shape(std::array{experts, features, inner}), gate);
    detail::expect_shape<Op>(4, gate.shape(), up);
    detail::expect_shape<Op>(5, make_shape(std::array{experts, inner, down.shape().extent(2)}), down);
    const auto unpadded = [](const auto&... all) { (detail::expect_unpadded<Op>(all), ...); };
    unpadded(x, ids, weights, gate, up, down);
    detail::expect_numbers<Op>(ids, false, experts);
    return make_shape(std::array{tokens, down.shape().extent(2)});
  }

  template <class C, class S, class Y, class X>
  static void forward(C& c, S& s, Y& y, const X& x, const auto& ids, const auto& weights, const auto& gate,
                      const auto& up, const auto& down) {
    using T = typename X::value_type;
    const auto choices = detail::as_rows(ids);
    const std::int64_t rows = choices.size(), inner = gate.local_shape().extent(2);
    s.offsets = buffer<std::int64_t>(gate.local_shape().extent(0) + 1);
    buffer<std::int32_t> sources(rows);
    const auto places = detail::choices_in(s.places, choices.extent(0), choices.extent(1));
    run<ops::route>(c.backend, choices, detail::offset_along<0>(gate), std::span<std::int64_t>(s.offsets),
                    std::span<std::int32_t>(sources), places);
    const auto tokens = detail::choices_in(s.rows, rows, detail::columns_of(x));
    run<ops::permute>(c.backend, detail::as_rows(x), std::span<const std::int32_t>(sources), tokens);
    const std::span<const std::int64_t> groups(s.offsets);
    const auto g = detail::choices_in(s.gate, rows, inner), u = detail::choices_in(s.up, rows, inner),
               h = detail::choices_in(s.hidden, rows, inner),
               out = detail::choices_in(s.out, rows, detail::columns_of(y));
    compute::grouped_matmul<transpose::no>(c.backend, constant(tokens), groups, gate.local(), g, T(0));
    compute::grouped_matmul<transpose::no>(c.backend, constant(tokens), groups, up.local(), u, T(0));
    run<ops::gated<A>>(c.backend, std::span<const T>(s.gate), s.up, std::span<T>(s.hidden));
    compute::grouped_matmul<transpose::no>(c.backend, constant(h), groups, down.local(), out, T(0));
    run<ops::unpermute>(c.backend, constant(out), constant(places), detail::as_rows(weights), detail::as_rows(y));
  }

  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S& s, const auto& dy, const Y&, G& to, const X& x, const auto& ids, const auto& weights,
                       const auto& gate, const auto& up, const auto& down) {
    using T = typename X::value_type;
    const std::int64_t rows = detail::as_rows(ids).size(), inner = gate.local_shape().extent(2);
    const std::span<const std::int64_t> groups(s.offsets);
    const matrix_view<const std::int32_t> places(s.places.data(), detail::as_rows(ids).shape());
    const auto of = [&](const buffer<T>& kept, std::int64_t columns) {
      return matrix_view<const T>(kept.data(), {rows, columns});
    };
    buffer<T> dout_memory, dhidden_memory, dgate_memory, dup_memory, drows_memory, unused;
    const auto dout = detail::choices_in(dout_memory, rows, detail::columns_of(dy));
    run<ops::unpermute_backward>(c.backend, detail::as_rows(dy), of(s.out, detail::columns_of(dy)), places,
                                 detail::as_rows(weights), dout,
                                 given<2>(to, unused, detail::as_rows(weights).shape()));
    if constexpr (detail::is_wanted<5, G>)
      compute::run<compute::ops::grouped_matmul_backward_weight>(c.backend, of(s.hidden, inner), constant(dout), groups,
                                                                 std::get<5>(to).local(), T(0));
    if constexpr (detail::is_wanted<0, G> || detail::is_wanted<3, G> || detail::is_wanted<4, G>) {
      const auto dh = detail::choices_in(dhidden_memory, rows, inner),
                 dg = detail::choices_in(dgate_memory, rows, inner), du = detail::choices_in(dup_memory, rows, inner);
      compute::grouped_matmul<transpose::yes>(c.backend, constant(dout), groups, down.local(), dh, T(0));
      run<ops::gated_backward<A>>(c.backend, std::span<const T>(s.gate), s.up, dhidden_memory, dg.elements(),
                                  du.elements());
      const auto tokens = of(s.rows, detail::columns_of(x));
      if constexpr (detail::is_wanted<3, G>)
        compute::run<compute::ops::grouped_matmul_backward_weight>(c.backend, tokens, constant(dg), groups,
                                                                   std::get<3>(to).local(), T(0));
      if constexpr (detail::is_wanted<4, G>)
        compute::run<compute::ops::grouped_matmul_backward_weight>(c.backend, tokens, constant(du), groups,
                                                                   std::get<4>(to).local(), T(0));
      if constexpr (detail::is_wanted<0, G>) {
        const auto drows = detail::choices_in(drows_memory, rows, detail::columns_of(x));
        compute::grouped_matmul<transpose::yes>(c.backend, constant(dg), groups, gate.local(), drows, T(0));
        compute::grouped_matmul<transpose::yes>(c.backend, constant(du), groups, up.local(), drows, T(1));
        run<ops::permute_backward>(c.backend, constant(drows), places, detail::as_rows(std::get<0>(to)));
      }
    }
  }

 private:
  template <class T>
  static matrix_view<const T> constant(matrix_view<T> m) noexcept {
    return m;
  }
  // The elements of a gradient, or memory that nobody looks at.
  template <std::size_t At, class G, class T, class Shape>
  static matrix_view<T> given(G& gradients, buffer<T>& unused, const Shape& shape) {
    if constexpr (detail::is_wanted<At, G>)
      return detail::as_rows(std::get<At>(gradients));
    else
      return detail::choices_in(unused, shape.extent(0), shape.extent(1));
  }
};

}  // namespace compute
}  // namespace heddle::inline v0
