// heddle/layout/repair.hpp: the cheapest redistribution of operands that makes a refused operator legal.
#pragma once

#include <heddle/layout/factor_rule.hpp>

#include <array>
#include <cstddef>

namespace heddle::inline v0 {

/// Asks an operator to redistribute its operands where their layouts do not fit: `repaired<Op, layouts...>` says how,
/// and `propagate_through<Op, auto_redistribute, layouts...>` what comes out. Without it a misfit does not compile.
struct auto_redistribute {};

/// In error messages: what would repair the call. "Redistribute operand `Number` to `Layout` first."
template <int Number, class Layout>
struct redistribute_operand;

namespace detail {

// What changing one axis of one operand makes a rank send, in units of the operand's bytes; `others` are the parts that
// the other axes cut it into. Of axes known only at start-up two ranks are assumed.
constexpr double repair_cost(const axis_use& from, const axis_use& to, int extent, double others) {
  if (from == to || extent == 1) return 0;
  const double p = extent > 0 ? extent : 2;
  const double t = 1 / others;
  const bool split = from.role == axis_role::sharded, sum = from.role == axis_role::partial;
  if (to.role == axis_role::sharded) return split ? (p - 1) / p / p * t : sum ? (p - 1) / p * t : 0;
  if (to.role == axis_role::partial) return sum ? 2 * (p - 1) / p * t : 0;
  return split ? (p - 1) / p * t : sum ? 2 * (p - 1) / p * t : 0;
}

template <std::size_t Axes>
constexpr double parts_of_others(const axis_table<Axes>& table, const std::array<int, Axes>& extents,
                                 std::size_t axis) {
  double parts = 1;
  for (std::size_t b = 0; b < Axes; ++b)
    if (b != axis && table.use[b].role == axis_role::sharded) parts *= extents[b] > 0 ? extents[b] : 2;
  return parts;
}

// The table with one axis doing something else; a split is put in at its level.
template <std::size_t Axes>
constexpr axis_table<Axes> with_use(axis_table<Axes> table, std::size_t axis, axis_use use) {
  forget_axis(table, axis);
  if (use.role == axis_role::sharded) {
    int depth = 0;
    for (const axis_use& u : table.use)
      if (u.role == axis_role::sharded && u.dim == use.dim) ++depth;
    if (use.level < 0 || use.level > depth) use.level = depth;
    for (axis_use& u : table.use)
      if (u.role == axis_role::sharded && u.dim == use.dim && u.level >= use.level) ++u.level;
  }
  table.use[axis] = use;
  return table;
}

inline constexpr std::size_t max_candidates = 40;
struct candidate_list {
  axis_use use[max_candidates]{};
  std::size_t count = 0;

  constexpr void add(const axis_use& u) {
    for (std::size_t i = 0; i < count; ++i)
      if (use[i] == u) return;
    if (count < max_candidates) use[count++] = u;
  }
};

// Everything worth trying for one axis of operand `o`; the first candidate is what it does now.
template <std::size_t Axes, std::size_t Count>
constexpr candidate_list candidates_for(const std::array<axis_table<Axes>, Count>& tables, std::size_t axis,
                                        std::size_t o, int dims) {
  candidate_list list;
  const axis_use now = tables[o].use[axis];
  list.add(now);
  if (now.role == axis_role::varying) return list;  // nothing converts these
  list.add(axis_use{});
  for (const auto& t : tables) {
    const axis_use& u = t.use[axis];
    if (u.role == axis_role::partial) list.add(u);
    if (u.role != axis_role::sharded) continue;
    for (int d = 0; d < dims; ++d) {  // as the others split it
      axis_use same = u;
      same.dim = d;
      list.add(same);
    }
  }
  for (int d = 0; d < dims; ++d) {
    axis_use last;
    last.role = axis_role::sharded;
    last.dim = d;
    list.add(last);
  }
  return list;
}

template <std::size_t Axes, std::size_t Count>
struct repair_result {
  std::array<axis_table<Axes>, Count> tables{};
  bool found = false;
  double cost = 0;
};

// Tries all changes of one axis in at most `most` operands, cheapest kept.
template <class Evaluate, std::size_t Axes, std::size_t Count>
struct axis_repair {
  const Evaluate& evaluate;
  const std::array<axis_table<Axes>, Count>& start;
  const std::array<int, Axes>& extents;
  std::size_t axis;
  rule_outcome<Axes> before;
  candidate_list candidates[Count]{};
  repair_result<Axes, Count> best{};

  constexpr void search(std::size_t o, std::array<axis_table<Axes>, Count> now, double cost, std::size_t changes) {
    if (best.found && cost > best.cost - 1e-9) return;
    if (o == Count) {
      const auto after = evaluate(now);
      for (std::size_t a = 0; a < Axes; ++a)
        if (after.bad[a] && (a == axis || !before.bad[a])) return;
      best = {now, true, cost};
      return;
    }
    search(o + 1, now, cost, changes);
    if (changes == 0) return;
    for (std::size_t c = 1; c < candidates[o].count; ++c) {
      auto next = now;
      next[o] = with_use(start[o], axis, candidates[o].use[c]);
      search(o + 1, next,
             cost + repair_cost(start[o].use[axis], next[o].use[axis], extents[axis],
                                parts_of_others(start[o], extents, axis)),
             changes - 1);
    }
  }
};

// Repairs one axis after the other: each with the fewest bytes, operands taken as equally large, then the fewest
// operands.
template <class Evaluate, std::size_t Axes, std::size_t Count>
constexpr repair_result<Axes, Count> find_repair(const Evaluate& evaluate, std::array<axis_table<Axes>, Count> tables,
                                                 const std::array<int, Axes>& extents,
                                                 const std::array<int, Count>& dims) {
  repair_result<Axes, Count> out{tables, false, 0};
  for (std::size_t turn = 0; turn <= Axes; ++turn) {
    const auto outcome = evaluate(out.tables);
    if (outcome.legal()) {
      out.found = true;
      return out;
    }
    axis_repair<Evaluate, Axes, Count> one{evaluate, out.tables, extents, outcome.axis, outcome};
    for (std::size_t o = 0; o < Count; ++o) one.candidates[o] = candidates_for(out.tables, outcome.axis, o, dims[o]);
    for (std::size_t most = 1; most <= Count; ++most) one.search(0, out.tables, 0, most);
    if (!one.best.found) return out;
    const auto next = one.best;
    out.tables = next.tables;
    out.cost += next.cost;
  }
  return out;
}

}  // namespace detail
}  // namespace heddle::inline v0
