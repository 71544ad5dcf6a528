// heddle/compute/apply.hpp: operators on sharded tensors, refused where layouts forbid them.
#pragma once

#include <heddle/compute/application.hpp>
#include <heddle/compute/attention_operator.hpp>
#include <heddle/compute/elementwise_operators.hpp>
#include <heddle/compute/expert_operators.hpp>
#include <heddle/compute/rotary_operator.hpp>
#include <heddle/compute/row_operators.hpp>
#include <heddle/compute/sum_operators.hpp>
#include <heddle/compute/token_operators.hpp>

#include <cstddef>
#include <tuple>
#include <type_traits>

namespace heddle::inline v0 {

/// An operator of `namespace op` on sharded tensors: each rank runs the backend's kernels on the parts it holds. The result's
/// layout is `propagate_through<Op, layouts...>`, and what that refuses (a nonlinear function of partial values, a norm
/// over a split dimension, ...) does not compile. Nothing is sent, but by `op::cross_entropy` of split classes: two sums
/// and a maximum of one number per row.
///
/// `auto h = hd::apply<op::gelu>(backend, world, x);`, `hd::apply<op::scale>(backend, world, x, 0.5)`
///
/// Operators: `gelu`, `silu`, `gated<A>`, `map<F>`, `add`, `multiply`, `scale` (then the factor), `add_of<formula>`,
/// `softmax<d>`, `layer_norm<d>` (x, weight, bias) and `rms_norm<d>` (x, weight; then an epsilon, by default 1e-5),
/// `embedding<r>` (table, ids), `cross_entropy<d>` (logits, labels; a negative label is ignored and its loss is 0),
/// `attention` (q, k, v; then a `slice_mask`, by default causal; several query heads may share a head of keys and values), `rotary<pairs>`
/// (then a `compute::rotary_setting`), `top_k_weights<d, k>` and `top_k_ids<d, k>` (logits), `experts<A>` (x, ids, weights, gate, up, down),
/// `reduce<plus, d...>`, `mean<d...>`, `einsum<formula>`.
/// Shapes: as the operator says; classes, features and what is normalised are the last dimension.
/// Errors: `layout_error` for shapes that do not fit, ids out of range, padded memory where rows are read, a part of another
/// rank or mesh. At compile time, in one error that names the operator: the operand, its layout and the redistribution that
/// repairs it; an operator without kernels; a backend that lacks them; other types and numbers of dimensions; an operand
/// that is no tensor, or is in another memory space than the host's.
template <operation Op, class Backend, class World, class First, class... Args>
  requires requires(World& world) { world.mesh(); }
auto apply(Backend& backend, World& world, const First& first, const Args&... args) {
  if constexpr (compute::detail::takes_operands<Op, First, Args...>()) {
    constexpr bool all_operands = compute::detail::sharded_value<type_at<sizeof...(Args), First, Args...>>;
    return compute::detail::with_setting<all_operands>(
        [&](const auto& setting, const auto&... x) {
          using facts = compute::detail::application<Op, std::remove_cvref_t<decltype(setting)>,
                                                     std::remove_cvref_t<decltype(x)>...>;
          if constexpr (facts::known) {
            typename facts::template state<typename facts::element_type> state;
            return compute::detail::run_operator<Op>(backend, world, setting, state, x...);
          } else {
            return compute::detail::refused_already<typename facts::result>();
          }
        },
        first, args...);
  } else {
    return compute::detail::refused_already<First>();
  }
}

/// `b` added along the last dimension of `y`.
/// Shapes: y [..., columns], b [columns]. Errors: as `apply`; a bias and columns that are not split alike do not compile.
template <class Backend, class World, class Y, class B>
  requires compute::detail::sharded_value<Y>
auto add_bias(Backend& backend, World& world, const Y& y, const B& b) {
  return apply<op::add_of<compute::detail::bias_formula<Y::dimensions>()>>(backend, world, y, b);
}

}  // namespace heddle::inline v0
