// heddle/compute/ops/elementwise.hpp: operations element by element, and biases of rows.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>

namespace heddle::inline v0::compute {
namespace ops {

/// The base of descriptions of operations element by element, whose outputs may be the same memory as an input.
struct element_operation : operation {
  using dims = sizes<elements>;
};
/// y = GELU(x), in its tanh form.
struct gelu : element_operation {
  static constexpr const char* name = "gelu";
  static constexpr const char* arguments[] = {"x", "y"};
  using takes = signature<in<elements>, out<elements>>;
  static constexpr std::int64_t flops(const dims& n) { return 10 * n.product(); }
};
/// dx = dy GELU'(x).
struct gelu_backward : element_operation {
  static constexpr const char* name = "gelu_backward";
  static constexpr const char* arguments[] = {"x", "dy", "dx"};
  using takes = signature<in<elements>, in<elements>, out<elements>>;
  static constexpr std::int64_t flops(const dims& n) { return 19 * n.product(); }
};
/// y = cap tanh(x / cap), which keeps logits below a cap.
/// Source: Gemma Team 2024, arXiv:2408.00118, section 2 (logit soft-capping).
struct soft_cap : element_operation {
  static constexpr const char* name = "soft_cap";
  static constexpr const char* arguments[] = {"x", "cap", "y"};
  using takes = signature<in<elements>, number, out<elements>>;
  static constexpr std::int64_t flops(const dims& n) { return 3 * n.product(); }
};
/// dx = dy (1 - tanh(x / cap)^2).
struct soft_cap_backward : element_operation {
  static constexpr const char* name = "soft_cap_backward";
  static constexpr const char* arguments[] = {"x", "dy", "cap", "dx"};
  using takes = signature<in<elements>, in<elements>, number, out<elements>>;
  static constexpr std::int64_t flops(const dims& n) { return 5 * n.product(); }
};
/// c = a + b.
struct add : element_operation {
  static constexpr const char* name = "add";
  static constexpr const char* arguments[] = {"a", "b", "c"};
  using takes = signature<in<elements>, in<elements>, out<elements>>;
  static constexpr std::int64_t flops(const dims& n) { return n.product(); }
};
/// x *= factor.
struct scale : element_operation {
  static constexpr const char* name = "scale";
  static constexpr const char* arguments[] = {"x", "factor"};
  using takes = signature<inout<elements>, number>;
  static constexpr std::int64_t flops(const dims& n) { return n.product(); }
};
/// x = value.
struct fill : element_operation {
  static constexpr const char* name = "fill";
  static constexpr const char* arguments[] = {"x", "value"};
  using takes = signature<out<elements>, number>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
};
/// y = x.
struct copy : element_operation {
  static constexpr const char* name = "copy";
  static constexpr const char* arguments[] = {"x", "y"};
  using takes = signature<in<elements>, out<elements>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
};
/// y = x in the element type `To`, to the nearest, ties to even.
template <class To>
struct cast : element_operation {
  static constexpr const char* name = "cast";
  static constexpr const char* arguments[] = {"x", "y"};
  using takes = signature<in<elements>, out_of<To, elements>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
};
/// From float to bf16 with `stochastic` rounding, whose mean is the number itself.
struct stochastic_cast : element_operation {
  static constexpr const char* name = "cast";
  static constexpr const char* arguments[] = {"x", "y", "rounding"};
  using takes = signature<in<elements>, out_of<bf16, elements>, value<stochastic>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
};

/// h = A(gate) * up, with an activation A such as `silu`; one that changes up, too, has a function of it in its place (`clamped_swiglu`).
/// Source: Shazeer 2020, arXiv:2002.05202.
template <class A>
struct gated : element_operation {
  static constexpr const char* name = "gated";
  static constexpr const char* arguments[] = {"gate", "up", "h"};
  using takes = signature<in<elements>, in<elements>, out<elements>>;
  static constexpr std::int64_t flops(const dims& n) { return 6 * n.product(); }
};
/// dgate = dh up A'(gate), dup = dh A(gate), times the derivative of what an activation makes of up.
template <class A>
struct gated_backward : element_operation {
  static constexpr const char* name = "gated_backward";
  static constexpr const char* arguments[] = {"gate", "up", "dh", "dgate", "dup"};
  using takes = signature<in<elements>, in<elements>, in<elements>, out<elements>, out<elements>>;
  static constexpr std::int64_t flops(const dims& n) { return 12 * n.product(); }
};

/// y += b in every row.
struct add_bias : row_operation {
  static constexpr const char* name = "add_bias";
  static constexpr const char* arguments[] = {"y", "b"};
  using takes = signature<inout<rows, columns>, in<columns>>;
  static constexpr std::int64_t flops(const dims& n) { return n.product(); }
};
/// db += the sums of the columns of dy.
struct add_bias_backward : row_operation {
  static constexpr const char* name = "add_bias_backward";
  static constexpr const char* arguments[] = {"dy", "db"};
  using takes = signature<in<rows, columns>, inout_sums<columns>>;
  static constexpr std::int64_t flops(const dims& n) { return n.product(); }
};
}  // namespace ops

/// Runs `ops::cast` from the element type of x to that of y.
template <class B, class X, class Y>
constexpr void cast(B& backend, const X& x, const Y& y) {
  run<ops::cast<typename Y::value_type>>(backend, x, y);
}

/// Operations element by element.
struct elementwise_facet : operations<ops::gelu, ops::gelu_backward, ops::add, ops::scale, ops::fill, ops::copy> {};
/// Soft caps of logits.
struct soft_cap_facet : operations<ops::soft_cap, ops::soft_cap_backward> {};
/// Gated activations with activation A.
template <class A>
struct gated_facet : operations<ops::gated<A>, ops::gated_backward<A>> {};
/// Casts from T to `To`.
template <class To>
struct cast_facet : operations<ops::cast<To>> {};
/// Casts from float to bf16 with stochastic rounding; T is what the optimizer computes in.
struct stochastic_cast_facet {
  template <class B, class>
  static constexpr bool offered = compute::offered<ops::stochastic_cast, B, float>;
};

}  // namespace heddle::inline v0::compute
