// heddle/layout/describe_plan.hpp: prints a redistribution plan as a table of steps.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/layout/describe.hpp>
#include <heddle/layout/redistribution.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

struct described_step {
  std::string what = {};       // "all_reduce(plus) over tp"
  std::int64_t most_sent = 0;  // bytes, by one rank
  std::int64_t all_sent = 0;   // bytes, by all ranks
  std::int64_t peak = 0;       // bytes that one rank holds, before and after together
};

struct described_plan {
  std::string title = {};
  std::vector<std::int64_t> extents = {};
  std::size_t element_size = 0;
  std::vector<described_step> steps = {};
  std::vector<tensor_holdings> states = {};  // before each step, and after the last
  std::int64_t most_sent = 0, all_sent = 0, peak = 0;
};

// The placements of a table, spelled as a layout is.
HEDDLE_INLINE std::string placements_text(const std::vector<held_axis>& axes);

// Memory of what one rank holds, in elements.
inline std::int64_t stored_size(const held_part& p) {
  std::int64_t n = 1;
  for (const held_dimension& d : p.dims) n = n == 0 || d.stored == 0 ? 0 : product_of_counts(n, d.stored);
  return n;
}
// The extents of the largest part that any rank holds.
HEDDLE_INLINE std::string largest_part_text(const tensor_holdings& h);

template <class From, class To, class Objective, std::int64_t... E>
described_plan described(const redistribution_plan<From, To, Objective>& plan, const shape<E...>& s,
                         std::size_t element_size) {
  constexpr int needed = redistribution_plan<From, To, Objective>::min_tensor_rank;
  require_drawable(sizeof...(E), needed);
  described_plan out;
  if constexpr (static_cast<int>(sizeof...(E)) >= needed) {
    constexpr auto names = short_names(typename From::mesh_type::tags{});
    constexpr auto ops = short_names(typename redistribution_plan<From, To, Objective>::ops{});
    const auto mesh = numbers_of(plan.from().mesh().extents());
    const auto es = static_cast<std::int64_t>(element_size);
    out.title = to_string(plan.from());
    out.title += " -> ";
    out.title += placements_text(static_cast<const To*>(nullptr));
    for (std::size_t d = 0; d < sizeof...(E); ++d) out.extents.push_back(s[d]);
    out.element_size = element_size;
    out.most_sent = plan.bytes_sent_per_rank(s, element_size);
    out.all_sent = plan.bytes_sent_in_total(s, element_size);
    out.peak =
        plan.peak_bytes(s, element_size);  // the steps' numbers below are no larger than these, which are checked
    for (std::size_t i = 0; i <= plan.steps.size(); ++i) {
      out.states.push_back(holdings_in({}, names.data(), ops.data(), plan.tables[i], mesh, s.extents()));
      out.states.back().layout = placements_text(out.states.back().axes);
    }
    out.states.front().layout = placements_text(static_cast<const From*>(nullptr));
    out.states.back().layout = placements_text(static_cast<const To*>(nullptr));
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      described_step step;
      step.what = step_text(plan.steps[i], names.data(), names.size() - 1);
      for (int rank = 0; rank < mesh.size; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        const std::int64_t sent =
            es * elements_sent(plan.steps[i], plan.cuts_before(i), plan.cuts_before(i + 1), mesh, s.extents(), rank);
        step.most_sent = (std::max)(step.most_sent, sent);
        step.all_sent += sent;
        step.peak =
            (std::max)(step.peak, es * (stored_size(out.states[i].ranks[r]) + stored_size(out.states[i + 1].ranks[r])));
      }
      out.steps.push_back(std::move(step));
    }
  }
  return out;
}

HEDDLE_INLINE std::string described_text(const described_plan& p);

}  // namespace detail

/// A plan as a table: for each step the most bytes that a rank sends and those that all ranks send, the most memory that a
/// rank needs for its parts before and after it, and what the largest part and the layout are then.
/// Shapes: 1 to 4 dimensions. Units: bytes; parts in elements of memory.
/// Errors: `layout_error` for another number of dimensions, or one that lacks a dimension the plan splits.
template <layout_like From, layout_like To, plan_objective Objective, std::int64_t... E>
std::string describe(const redistribution_plan<From, To, Objective>& plan, const shape<E...>& s,
                     std::size_t element_size = sizeof(float)) {
  return detail::described_text(detail::described(plan, s, element_size));
}

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/layout/impl/describe_plan.hpp>
#endif
