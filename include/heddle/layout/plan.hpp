// heddle/layout/plan.hpp: the steps of a redistribution as data, and the search that finds them.
#pragma once

#include <heddle/core/static_vector.hpp>
#include <heddle/layout/box.hpp>
#include <heddle/layout/placement.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace heddle::inline v0 {

/// What one step does among the ranks along one axis. Bytes sent per rank, with T the bytes that are local to the other
/// axes and p the ranks along this one (even sizes):
enum class step_kind : unsigned char {
  none,
  slice,              ///< replicated to split: keep the own part; 0
  reduce_scatter,     ///< partial to split; (p-1)/p T
  all_to_all,         ///< split along one dimension to split along another; (p-1)/p^2 T
  all_reduce,         ///< partial to replicated; 2(p-1)/p T
  keep_on_owner,      ///< replicated to partial: the first rank keeps the values, the others hold the identity; 0
  all_gather,         ///< split to replicated; (p-1)/p T
  pad_with_identity,  ///< split to partial: the own part, surrounded by the identity; 0
};

constexpr std::string_view to_string(step_kind kind) {
  constexpr std::string_view names[]{"none",       "slice",         "reduce_scatter", "all_to_all",
                                     "all_reduce", "keep_on_owner", "all_gather",     "pad_with_identity"};
  return names[static_cast<unsigned>(kind)];
}

/// One step of a redistribution.
struct redistribution_step {
  step_kind kind = step_kind::none;
  int axis = -1;                 ///< position of the axis in the mesh
  std::string_view axis_name{};  ///< its tag
  int from_dim = -1;             ///< the dimension that stops being split over the axis, or -1
  int to_dim = -1;               ///< the dimension that becomes split over it, or -1
  int op = -1;                   ///< position of the operator in the plan's list `ops`, or -1
  std::string_view op_name{};
};

namespace detail {

template <std::size_t Axes>
inline constexpr std::size_t max_steps = 2 * Axes + 1;

// The steps, the layout before each of them and after the last, and the first axis for which there is no step.
template <std::size_t Axes>
struct step_list {
  static_vector<redistribution_step, max_steps<Axes>> steps{};
  static_vector<axis_table<Axes>, max_steps<Axes> + 1> tables{};
  bool complete = true;
  std::size_t stuck = 0;
};

// An axis of one rank does nothing: whatever a layout says about it, the local part is the same.
template <std::size_t Axes>
constexpr axis_table<Axes> without_unit_axes(axis_table<Axes> table, const std::array<int, Axes>& fixed_extents) {
  for (std::size_t a = 0; a < Axes; ++a) {
    if (fixed_extents[a] != 1) continue;
    const axis_use gone = table.use[a];
    table.use[a] = {};
    if (gone.role != axis_role::sharded) continue;
    for (axis_use& u : table.use)
      if (u.role == axis_role::sharded && u.dim == gone.dim && u.level > gone.level) --u.level;
  }
  return table;
}

// The move that brings one axis closer to its target, or none if it cannot move yet. An axis can leave a dimension only as
// its last cut, and can only become the last cut of a dimension whose other cuts are final: everything else would
// interleave the elements. So a legal move never makes another illegal, and taking any of them is a complete search.
template <std::size_t Axes>
constexpr redistribution_step next_move(const axis_table<Axes>& now, const axis_table<Axes>& target, std::size_t axis) {
  const axis_use& u = now.use[axis];
  const axis_use& t = target.use[axis];
  redistribution_step step;
  if (u == t) return step;
  step.axis = static_cast<int>(axis);
  step.from_dim = u.dim;
  if (u.role == axis_role::sharded) {
    if (t.role == axis_role::sharded && t.dim == u.dim) return {};
    for (const axis_use& other : now.use)
      if (other.role == axis_role::sharded && other.dim == u.dim && other.level > u.level) return {};
  }
  if (u.role == axis_role::partial) {
    step.op = u.op;
    step.kind = step_kind::all_reduce;
  }
  if (t.role == axis_role::sharded) {
    int final_cuts = 0;
    for (std::size_t b = 0; b < Axes; ++b) {
      if (now.use[b].role != axis_role::sharded || now.use[b].dim != t.dim) continue;
      if (!(now.use[b] == target.use[b])) return {};
      ++final_cuts;
    }
    if (final_cuts != t.level) return {};
    step.to_dim = t.dim;
    step.kind = u.role == axis_role::partial   ? step_kind::reduce_scatter
                : u.role == axis_role::sharded ? step_kind::all_to_all
                                               : step_kind::slice;
  } else if (t.role == axis_role::partial && u.role != axis_role::partial) {
    for (const axis_use& other : now.use)
      if (other.role == axis_role::partial && other.op != t.op) return {};
    step.op = t.op;
    step.kind = u.role == axis_role::sharded ? step_kind::pad_with_identity : step_kind::keep_on_owner;
  } else if (u.role == axis_role::sharded) {
    step.kind = step_kind::all_gather;
  }
  return step;
}

// Steps in the order of `step_kind`: what shrinks the local part comes first, what grows it last.
template <std::size_t Axes>
constexpr step_list<Axes> find_steps(axis_table<Axes> now, const axis_table<Axes>& target) {
  step_list<Axes> out;
  out.tables.push_back(now);
  while (!(now == target)) {
    redistribution_step best;
    for (std::size_t a = 0; a < Axes; ++a) {
      const redistribution_step move = next_move(now, target, a);
      if (move.kind != step_kind::none && (best.kind == step_kind::none || move.kind < best.kind)) best = move;
    }
    if (best.kind == step_kind::none) {
      out.complete = false;
      out.steps.clear();
      while (now.use[out.stuck] == target.use[out.stuck]) ++out.stuck;
      return out;
    }
    const auto axis = static_cast<std::size_t>(best.axis);
    now.use[axis] = best.kind == step_kind::all_reduce ? axis_use{} : target.use[axis];
    out.steps.push_back(best);
    out.tables.push_back(now);
  }
  return out;
}

// Elements that one rank sends in one step; `box` is what it holds before.
template <std::size_t Rank, std::size_t Axes>
constexpr std::int64_t elements_sent(const redistribution_step& step, const tensor_box<Rank>& box,
                                     const mesh_numbers<Axes>& mesh, int rank) {
  const auto axis = static_cast<std::size_t>(step.axis);
  const std::int64_t parts = mesh.extents[axis];
  const int part = mesh.coordinate(axis, rank);
  const std::int64_t all = box.size();
  switch (step.kind) {
    case step_kind::all_gather:
      return (parts - 1) * all;
    case step_kind::all_reduce: {  // reduce-scatter and all-gather of the elements in memory order
      const std::int64_t own = balanced_split{all, parts}.size(part);
      return all - own + (parts - 1) * own;
    }
    case step_kind::all_to_all:
    case step_kind::reduce_scatter: {
      const auto dim = static_cast<std::size_t>(step.to_dim);
      std::int64_t others = 1;
      for (std::size_t d = 0; d < Rank; ++d) others *= d == dim ? 1 : box.extent[d];
      return all - others * balanced_split{box.extent[dim], parts}.size(part);
    }
    default:
      return 0;
  }
}

}  // namespace detail
}  // namespace heddle::inline v0
