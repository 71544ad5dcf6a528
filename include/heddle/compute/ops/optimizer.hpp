// heddle/compute/ops/optimizer.hpp: operations that are steps of AdamW, and those taken back.
#pragma once

#include <heddle/compute/adamw_scalars.hpp>
#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/compute/ops/sums.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>

namespace heddle::inline v0::compute {
namespace detail {
struct step_at_element {
  template <class T>
  using of = adamw_step_at<T>;
};
}  // namespace detail

namespace ops {
/// The base of steps of AdamW, on weights p, gradients g and moments m and v.
struct adamw_operation : element_operation {
  static constexpr const char* arguments[] = {"p", "g", "m", "v", "step"};
  static constexpr std::int64_t flops(const dims& n) { return 16 * n.product(); }
};
/// A step (`adamw_step`). Errors: `config_error` for steps that are not counted from 1.
struct adamw : adamw_operation {
  static constexpr const char* name = "adamw";
  using takes = signature<inout<elements>, in<elements>, inout<elements>, inout<elements>, value<adamw_step>>;
};
/// Takes the last step with the same arguments back, up to rounding. Errors: `config_error` where decay has left nothing.
/// Source: Qi et al. 2023, arXiv:2401.10241, appendix C.
struct undo_adamw : adamw_operation {
  static constexpr const char* name = "undo_adamw";
  using takes = adamw::takes;
};
/// A step whose numbers are in the backend's memory (`adamw_step_at`).
struct adamw_at : adamw_operation {
  static constexpr const char* name = "adamw";
  using takes = signature<inout<elements>, in<elements>, inout<elements>, inout<elements>,
                          detail::number_argument<detail::step_at_element>>;
};

/// The base of steps on master weights and moments of type T with gradients of type G; `weights` become the masters in type W, to the
/// nearest.
struct master_adamw_operation : element_operation {
  static constexpr const char* name = "adamw";
  static constexpr const char* arguments[] = {"master", "weights", "g", "m", "v", "step", "rounding"};
  static constexpr std::int64_t flops(const dims& n) { return 16 * n.product(); }
};
/// A step of AdamW on master weights, of which weights of type W are rounded; gradients are of type G.
template <class W, class G>
struct master_adamw : master_adamw_operation {
  using takes = signature<inout<elements>, out_of<W, elements>, in_of<G, elements>, inout<elements>, inout<elements>,
                          value<adamw_step>>;
};
/// With numbers in the backend's memory.
template <class W, class G>
struct master_adamw_at : master_adamw_operation {
  using takes = signature<inout<elements>, out_of<W, elements>, in_of<G, elements>, inout<elements>, inout<elements>,
                          detail::number_argument<detail::step_at_element>>;
};
/// Into weights of bf16 that are rounded stochastically.
template <class G>
struct stochastic_adamw : master_adamw_operation {
  using takes = signature<inout<elements>, out_of<bf16, elements>, in_of<G, elements>, inout<elements>, inout<elements>,
                          value<adamw_step>, value<stochastic>>;
};
}  // namespace ops

/// Steps of AdamW.
struct optimizer_facet : operations<ops::adamw, ops::sum_of_squares, ops::count_nonfinite> {};
/// Steps of AdamW, taken back.
struct reversible_optimizer_facet : operations<ops::adamw, ops::undo_adamw, ops::sum_of_squares, ops::count_nonfinite> {
};
/// AdamW on master weights and moments of type T, with weights of type W and gradients of type G.
template <class W, class G>
struct master_optimizer_facet : operations<ops::master_adamw<W, G>> {};

}  // namespace heddle::inline v0::compute
