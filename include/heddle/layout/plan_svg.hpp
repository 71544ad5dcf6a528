// heddle/layout/plan_svg.hpp: draws a redistribution plan step by step, as SVG.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/draw/svg.hpp>
#include <heddle/layout/describe_plan.hpp>
#include <heddle/layout/describe_svg.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0 {
namespace detail {

// `"1.5 KiB"`, `"12 bytes"`.
HEDDLE_INLINE std::string bytes_text(std::int64_t bytes);

HEDDLE_INLINE std::string plan_svg(const described_plan& p);

}  // namespace detail

/// An SVG picture of a plan: what each rank holds before the first step and after each, with an arrow per step that says what
/// it does, the bytes it sends and the memory it needs, and the total.
/// Shapes: 1 to 4 dimensions. Errors: `layout_error` for another number of dimensions, or one that lacks a dimension the plan
/// splits.
template <layout_like From, layout_like To, plan_objective Objective, std::int64_t... E>
std::string describe_svg(const redistribution_plan<From, To, Objective>& plan, const shape<E...>& s,
                         std::size_t element_size = sizeof(float)) {
  return detail::plan_svg(detail::described(plan, s, element_size));
}

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/layout/impl/plan_svg.hpp>
#endif
