// heddle/layout/halo_steps.hpp: the steps of a redistribution from or to a layout with halos.
#pragma once

#include <heddle/layout/plan.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace heddle::inline v0 {
namespace detail {

template <std::size_t Axes>
constexpr bool table_has_halo(const axis_table<Axes>& table) {
  for (const axis_use& u : table.use)
    if (u.halo != 0) return true;
  return false;
}
template <std::size_t Axes>
constexpr axis_table<Axes> without_halos(axis_table<Axes> table) {
  for (axis_use& u : table.use) u.halo = 0;
  return table;
}

// The search knows no halos: one step goes before its steps, and one after them.
template <std::size_t Axes>
using halo_step_list = step_list<Axes, 3 * Axes + 4>;

// What an axis of one dimension does there; nothing where it does something else.
constexpr axis_use use_in(const axis_use& u, int dim) {
  return u.role == axis_role::sharded && u.dim == dim ? u : axis_use{};
}
// Whether each rank holds before, of one dimension, what it holds after, whatever the sizes: the cuts go on those before, and
// the halo is not wider.
template <std::size_t Axes>
constexpr bool dimension_stays(const axis_table<Axes>& from, const axis_table<Axes>& to, int dim) {
  std::int64_t before = 0, after = 0;
  bool cut = false;
  for (std::size_t a = 0; a < Axes; ++a) {
    const axis_use f = use_in(from.use[a], dim), t = use_in(to.use[a], dim);
    if (t.role == axis_role::sharded) after = t.halo;
    if (f.role != axis_role::sharded) continue;
    cut = true;
    before = f.halo;
    if (t.role != axis_role::sharded || t.level != f.level || t.split != f.split) return false;
  }
  return !cut || after <= before;
}

// Whether partial axes stay as they are, so that elements only have to be where they are needed.
template <std::size_t Axes>
constexpr bool partial_axes_stay(const axis_table<Axes>& from, const axis_table<Axes>& to) {
  for (std::size_t a = 0; a < Axes; ++a)
    if ((from.use[a].role == axis_role::partial || to.use[a].role == axis_role::partial) && !(from.use[a] == to.use[a]))
      return false;
  return true;
}
template <std::size_t Axes>
constexpr bool same_parts_in(const axis_table<Axes>& from, const axis_table<Axes>& to) {
  for (std::size_t a = 0; a < Axes; ++a)
    if (!(from.use[a] == to.use[a]) && !(is_copy(from.use[a].role) && is_copy(to.use[a].role))) return false;
  return true;
}

// The step that gives every rank what it lacks of its part after it: none if it lacks nothing but has too much (`slice`), an
// exchange among the axes that cut the dimensions of which it lacks something.
template <std::size_t Axes, std::size_t Tags>
constexpr redistribution_step step_between(const axis_table<Axes>& from, const axis_table<Axes>& to,
                                           const std::array<std::string_view, Tags>& axis_names) {
  redistribution_step step;
  step.kind = step_kind::slice;
  int dims = 0;
  unsigned cutting = 0;
  for (std::size_t a = 0; a < Axes; ++a) {
    const axis_use &f = from.use[a], &t = to.use[a];
    if (f.role == axis_role::sharded || t.role == axis_role::sharded) cutting |= 1u << a;
    if (f.role != axis_role::sharded || dimension_stays(from, to, f.dim)) continue;
    step.kind = step_kind::exchange;
    step.axes |= 1u << a;
    if (step.to_dim != f.dim) ++dims;
    step.to_dim = f.dim;
  }
  if (dims != 1) step.to_dim = -1;
  if (step.kind == step_kind::slice) step.axes = cutting;
  for (std::size_t a = Axes; a-- > 0;)
    if (step.axes >> a & 1u) step.axis = static_cast<int>(a);
  if (step.axis >= 0) step.axis_name = axis_names[static_cast<std::size_t>(step.axis)];
  return step;
}

// Where each rank holds already what it is to hold, it keeps that. Otherwise halos are dropped first, and come last, each element
// straight from the rank in whose block it is; between the two the search does what it does without them, unless that exchange
// can do all of it. Axes of one rank are already gone.
template <std::size_t Axes, std::size_t Tags>
constexpr halo_step_list<Axes> steps_with_halos(const axis_table<Axes>& from, const axis_table<Axes>& to,
                                                const std::array<int, Axes>& extents,
                                                const objective_numbers<Axes>& objective,
                                                const std::array<std::string_view, Tags>& axis_names) {
  halo_step_list<Axes> out;
  axis_table<Axes> now = from;
  const auto go = [&](const axis_table<Axes>& next) {
    if (same_parts_in(now, next)) return;
    out.tables.push_back(now);
    out.steps.push_back(step_between(now, next, axis_names));
    now = next;
  };
  const bool places_only = partial_axes_stay(from, to);
  const bool local = places_only && step_between(from, to, axis_names).kind == step_kind::slice;
  // No plan sends less than an exchange of what is missing; by time or by memory another may be cheaper.
  const bool exchanged = places_only && table_has_halo(to);
  if (!local) {
    out.proven = exchanged && !table_has_halo(from) && objective.mode == objective_mode::bytes;
    go(without_halos(from));
  }
  if (!local && !exchanged) {
    const axis_table<Axes> core = without_halos(to);
    const plan_names names = problem_between(now, core, extents, objective);
    const auto list = steps_of<Axes, 3 * Axes + 2>(names, cheapest_path(names.problem), now, core, axis_names);
    for (std::size_t i = 0; i < list.steps.size(); ++i) {
      out.tables.push_back(list.tables[i]);
      out.steps.push_back(list.steps[i]);
    }
    if (!table_has_halo(from) && !table_has_halo(to)) out.proven = list.proven;
    now = core;
  }
  go(to);
  out.tables.push_back(to);
  return out;
}

}  // namespace detail
}  // namespace heddle::inline v0
