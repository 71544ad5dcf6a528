// heddle/layout/plan.hpp: the steps of a redistribution as data: layouts as numbers.
#pragma once

#include <heddle/core/static_vector.hpp>
#include <heddle/layout/exchange.hpp>
#include <heddle/layout/search.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace heddle::inline v0 {

/// One step of a redistribution.
struct redistribution_step {
  step_kind kind = step_kind::none;
  int axis = -1;                 ///< position of the axis in the mesh; of several, the first
  std::string_view axis_name{};  ///< its tag
  int from_dim = -1;             ///< the dimension that stops being split over the axis, or -1
  int to_dim = -1;               ///< the dimension that becomes split over it, or -1
  int op = -1;                   ///< position of the operator in the plan's list `ops`, or -1
  std::string_view op_name{};
  unsigned axes = 0;  ///< all the axes it talks along, a bit each: `all_reduce` and `exchange` may have several
};

namespace detail {

// The steps, and the layout before each of them and after the last.
template <std::size_t Axes, std::size_t Capacity = 3 * Axes + 2>
struct step_list {
  static_vector<redistribution_step, Capacity> steps{};
  static_vector<axis_table<Axes>, Capacity + 1> tables{};
  bool proven = true;
};

// An axis of one rank does nothing: whatever a layout says about it, the local part is the same.
template <std::size_t Axes>
constexpr axis_table<Axes> without_unit_axes(axis_table<Axes> table, const std::array<int, Axes>& extents) {
  for (std::size_t a = 0; a < Axes; ++a) {
    if (extents[a] != 1) continue;
    const axis_use gone = table.use[a];
    table.use[a] = {};
    if (gone.role != axis_role::sharded) continue;
    for (axis_use& u : table.use)
      if (u.role == axis_role::sharded && u.dim == gone.dim && u.level > gone.level) --u.level;
  }
  return table;
}

// The first axis of one rank that does something all the same, along a dimension that a redistribution changes; or
// `Axes`.
template <std::size_t Axes>
constexpr std::size_t axis_that_reorders_one_rank(const axis_table<Axes>& from, const axis_table<Axes>& to,
                                                  const std::array<int, Axes>& extents) {
  for (std::size_t a = 0; a < Axes; ++a) {
    if (extents[a] != 1) continue;
    for (const axis_use* u : {&from.use[a], &to.use[a]}) {
      if (!reorders_one_rank(*u)) continue;
      for (std::size_t b = 0; b < Axes; ++b)
        if ((from.use[b].dim == u->dim || to.use[b].dim == u->dim) && !(from.use[b] == to.use[b])) return a;
    }
  }
  return Axes;
}

constexpr bool is_copy(axis_role role) {
  return role == axis_role::replicated || role == axis_role::identical;
}

// Which axes a redistribution changes: not those that do the same before and after, if all cuts above them do too.
template <std::size_t Axes>
struct changed_axes {
  bool changes[Axes == 0 ? 1 : Axes]{};
  std::size_t count = 0;
  std::size_t varying = Axes;  // the first axis with values that have no other layout
};
template <std::size_t Axes>
constexpr changed_axes<Axes> changes_between(const axis_table<Axes>& from, const axis_table<Axes>& to,
                                             bool idle_axes = false) {
  changed_axes<Axes> out;
  for (std::size_t a = 0; a < Axes; ++a) {
    const axis_use &f = from.use[a], &t = to.use[a];
    const bool f_varies = f.role == axis_role::varying, t_varies = t.role == axis_role::varying;
    if (f_varies != t_varies && out.varying == Axes) out.varying = a;
    if (f_varies || t_varies) continue;
    bool same = (is_copy(f.role) && is_copy(t.role)) || f == t;
    if (same && idle_axes && f.role != axis_role::sharded) same = false;
    if (same && f.role == axis_role::sharded)
      for (std::size_t b = 0; b < Axes; ++b) {
        const axis_use &g = from.use[b], &u = to.use[b];
        const bool above = (g.role == axis_role::sharded && g.dim == f.dim && g.level < f.level) ||
                           (u.role == axis_role::sharded && u.dim == f.dim && u.level < f.level);
        if (above && !(g == u)) same = false;
      }
    if (same) continue;
    out.changes[a] = true;
    ++out.count;
  }
  return out;
}

// A redistribution as a problem for the search, and what its numbers stand for.
struct plan_names {
  plan_problem problem{};
  std::size_t axis[planned_axes]{};
  int dim[planned_dims]{};
  unsigned above[planned_dims]{};    // cuts that stay, above those that change
  const split_functions* how[16]{};  // by number of the policy
  int op = -1, other_op = -1;
};

constexpr unsigned planned_dim(plan_names& names, int dim) {
  unsigned d = 0;
  while (d < names.problem.dims && names.dim[d] != dim) ++d;
  return d;
}

template <std::size_t Axes>
constexpr planned_use planned_use_of(plan_names& names, const axis_use& u, bool other_op) {
  planned_use out;
  if (u.role == axis_role::partial) out.role = other_op ? planned_other_partial : planned_partial;
  if (u.role == axis_role::sharded) {
    out.role = planned_sharded;
    out.dim = planned_dim(names, u.dim);
    out.level = static_cast<unsigned>(u.level) - names.above[out.dim];
    if (u.split >= 16) throw layout_error("heddle: a redistribution between more than 15 split policies; do it in two");
    out.split = static_cast<unsigned>(u.split);
    names.how[out.split] = u.how;
    if (!u.how->contiguous) names.problem.intervals &= ~(std::uint64_t{1} << out.split);
  }
  return out;
}

template <std::size_t Axes>
constexpr plan_names problem_between(const axis_table<Axes>& from, const axis_table<Axes>& to,
                                     const std::array<int, Axes>& extents, const objective_numbers<Axes>& objective) {
  plan_names names;
  plan_problem& p = names.problem;
  const auto changed = changes_between(from, to, objective.idle_axes);
  if (changed.count > planned_axes)
    throw layout_error("heddle: a redistribution changes more than 8 axes at once; do it in two");
  names.how[0] = &functions_of<split::balanced>;
  // Dimensions in order; those that only unchanging axes split come last, if there is room, and after them what nothing
  // splits but every tensor has, if axes that stay as they are may help.
  int highest = objective.idle_axes ? objective.dimensions - 1 : -1;
  for (std::size_t a = 0; a < Axes; ++a) {
    if (from.use[a].dim > highest) highest = from.use[a].dim;
    if (to.use[a].dim > highest) highest = to.use[a].dim;
  }
  for (const int round : {0, 1, 2})
    for (int dim = 0; dim <= highest && p.dims < planned_dims; ++dim) {
      bool used = round == 2 && objective.idle_axes;
      for (std::size_t a = 0; a < Axes; ++a)
        if (changed.changes[a] || round > 0) used = used || from.use[a].dim == dim || to.use[a].dim == dim;
      if (!used || planned_dim(names, dim) != p.dims) continue;
      names.dim[p.dims] = dim;
      for (std::size_t a = 0; a < Axes; ++a)
        if (!changed.changes[a] && from.use[a].dim == dim) ++names.above[p.dims];
      ++p.dims;
    }
  for (std::size_t a = 0; a < Axes; ++a) {
    if (from.use[a].role == axis_role::partial) names.op = from.use[a].op;
    if (to.use[a].role == axis_role::partial) names.other_op = to.use[a].op;
  }
  const bool two_ops = names.op >= 0 && names.other_op >= 0 && names.op != names.other_op;
  if (names.op < 0) names.op = names.other_op;
  p.mode = objective.mode;
  p.tensor_bytes = objective.tensor_bytes;
  for (std::size_t a = 0; a < Axes; ++a) {
    if (!changed.changes[a]) continue;
    names.axis[p.axes] = a;
    p.extents[p.axes] = extents[a];
    p.from.set(p.axes, planned_use_of<Axes>(names, from.use[a], false));
    p.to.set(p.axes, planned_use_of<Axes>(names, to.use[a], two_ops));
    p.seconds_per_message[p.axes] = objective.links[a].seconds_per_message;
    p.bytes_per_second[p.axes] = objective.links[a].bytes_per_second;
    ++p.axes;
  }
  return names;
}

template <std::size_t Axes, std::size_t Capacity, std::size_t Tags>
constexpr step_list<Axes, Capacity> steps_of(const plan_names& names, const planned_path& path,
                                             const axis_table<Axes>& from, const axis_table<Axes>& to,
                                             const std::array<std::string_view, Tags>& axis_names) {
  step_list<Axes, Capacity> out;
  out.proven = path.proven;
  axis_table<Axes> now = from;
  for (const planned_step& planned : path.steps) {
    out.tables.push_back(now);
    redistribution_step step;
    step.kind = planned.kind;
    if (planned.from_dim >= 0) step.from_dim = names.dim[planned.from_dim];
    if (planned.to_dim >= 0) step.to_dim = names.dim[planned.to_dim];
    if (step.kind == step_kind::all_reduce || step.kind == step_kind::reduce_scatter ||
        step.kind == step_kind::keep_on_owner || step.kind == step_kind::pad_with_identity)
      step.op = planned.other_op ? names.other_op : names.op;
    for (unsigned i = 0; i < names.problem.axes; ++i) {
      const std::size_t a = names.axis[i];
      if (planned.axes >> i & 1u) {
        step.axes |= 1u << a;
        if (step.axis < 0) step.axis = static_cast<int>(a);
      }
      axis_use& u = now.use[a];
      u = {};
      const planned_state& s = planned.after;
      if (s.role(i) >= planned_partial) {
        u.role = axis_role::partial;
        u.op = s.role(i) == planned_other_partial ? names.other_op : names.op;
      } else if (s.role(i) == planned_sharded) {
        u.role = axis_role::sharded;
        u.dim = names.dim[s.dim(i)];
        u.level = static_cast<int>(s.level(i) + names.above[s.dim(i)]);
        u.split = static_cast<int>(s.split(i));
        u.how = names.how[s.split(i)];
      }
    }
    if (step.axis >= 0 && static_cast<std::size_t>(step.axis) < Tags)
      step.axis_name = axis_names[static_cast<std::size_t>(step.axis)];
    out.steps.push_back(step);
  }
  out.tables.push_back(to);
  return out;
}

// The cheapest steps between two layouts as values; axes of one rank are already gone.
template <std::size_t Axes>
constexpr step_list<Axes> find_steps(const axis_table<Axes>& from, const axis_table<Axes>& to,
                                     const std::array<int, Axes>& extents,
                                     const objective_numbers<Axes>& objective = {}) {
  const plan_names names = problem_between(from, to, extents, objective);
  return steps_of<Axes, 3 * Axes + 2>(names, cheapest_path(names.problem), from, to,
                                      std::array<std::string_view, Axes>{});
}

// Elements that one rank sends in one step, from what is cut before it to what is cut after it; may be `uncountable`.
template <std::size_t Rank, std::size_t Axes>
constexpr std::int64_t elements_sent(const redistribution_step& step, const cut_list<Axes>& before,
                                     const cut_list<Axes>& after, const mesh_numbers<Axes>& mesh,
                                     const std::array<std::int64_t, Rank>& extents, int rank) {
  std::int64_t parts = 1, part = 0;
  for (std::size_t a = 0; a < Axes; ++a)
    if (step.axes >> a & 1u) {
      parts *= mesh.extents[a];
      part = part * mesh.extents[a] + mesh.coordinate(a, rank);
    }
  if (parts == 1) return 0;
  switch (step.kind) {
    case step_kind::all_gather:
      return product_of_counts(parts - 1, part_of(before, mesh, extents, rank).size());
    case step_kind::all_reduce: {  // reduce-scatter and all-gather of the elements in memory order
      const std::int64_t all = part_of(before, mesh, extents, rank).size();
      const std::int64_t own = balanced_split{all, parts}.size(part);
      return sum_of_counts(all - own, product_of_counts(parts - 1, own));
    }
    case step_kind::all_to_all:
    case step_kind::reduce_scatter: {
      const auto held = part_of(before, mesh, extents, rank);
      return held.size() - common_size(held, part_of(after, mesh, extents, rank));
    }
    case step_kind::exchange:
      return exchanged_size(before, after, mesh, extents, rank);
    default:
      return 0;
  }
}

}  // namespace detail
}  // namespace heddle::inline v0
