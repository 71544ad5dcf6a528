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

template <std::size_t Axes, std::size_t Count>
struct repair_result {
  std::array<axis_table<Axes>, Count> tables{};
  bool found = false;
  double cost = 0;
};

// Tries for one axis everything that is legal: replicated in all operands; one letter split alike in all that have it;
// one linear slot partial. The cheapest is kept, of equal ones the one that changes the fewest operands.
template <class Evaluate, std::size_t Axes, std::size_t Count>
struct axis_repair {
  using tables_type = std::array<axis_table<Axes>, Count>;
  const Evaluate& evaluate;
  const tables_type& given;  // before any repair
  const tables_type& start;
  const std::array<int, Axes>& extents;
  const std::array<int, Count>& dims;
  std::size_t axis;
  const rule_outcome<Axes>& before;
  repair_result<Axes, Count> best{};
  int changes = 0;

  constexpr const axis_use& now(std::size_t o) const { return start[o].use[axis]; }
  constexpr int find(std::size_t o, char letter) const {
    for (int d = 0; d < dims[o]; ++d)
      if (evaluate.letter(o, d) == letter) return d;
    return -1;
  }

  // Whether operand o's split by axis a is one that an operand had from the start: of that letter, behind the same cuts.
  constexpr bool was_given(const axis_table<Axes>& table, std::size_t o, std::size_t a) const {
    const axis_use& u = table.use[a];
    for (std::size_t q = 0; q < Count; ++q) {
      const axis_use& v = given[q].use[a];
      if (v.role != axis_role::sharded || v.split != u.split || v.level != u.level) continue;
      const bool same_letter =
          u.dim < dims[o] && v.dim < dims[q] && evaluate.letter(o, u.dim) == evaluate.letter(q, v.dim);
      if (q == o ? u.dim != v.dim : !same_letter) continue;
      bool same = true;
      for (std::size_t b = 0; b < Axes; ++b) {
        const axis_use& s = table.use[b];
        const axis_use& t = given[q].use[b];
        const bool here = s.role == axis_role::sharded && s.dim == u.dim && s.level < u.level;
        const bool there = t.role == axis_role::sharded && t.dim == v.dim && t.level < v.level;
        same = same && here == there && (!here || (s.level == t.level && s.split == t.split));
      }
      if (same) return true;
    }
    return false;
  }
  // Policies that fit one extent only stay where that extent is; elsewhere parts become balanced.
  constexpr void keep_what_fits(axis_table<Axes>& table, std::size_t o) const {
    for (int level = 0; level < static_cast<int>(Axes); ++level)
      for (std::size_t a = 0; a < Axes; ++a) {
        axis_use u = table.use[a];
        if (u.role != axis_role::sharded || u.level != level || u.how->any_extent) continue;
        if (was_given(table, o, a)) continue;
        u.split = 0;
        u.how = &functions_of<split::balanced>;
        table.use[a] = u;
      }
  }
  constexpr axis_table<Axes> changed(std::size_t o, const axis_use& use) const {
    axis_table<Axes> table = with_use(start[o], axis, use);
    keep_what_fits(table, o);
    return table;
  }

  constexpr void consider(const std::array<axis_use, Count>& uses) {
    tables_type next = start;
    double cost = 0;
    int count = 0;
    for (std::size_t o = 0; o < Count; ++o) {
      if (uses[o] == now(o)) continue;
      next[o] = changed(o, uses[o]);
      if (next[o] == start[o]) continue;
      ++count;
      for (std::size_t a = 0; a < Axes; ++a)
        if (!(start[o].use[a] == next[o].use[a]))
          cost += repair_cost(start[o].use[a], next[o].use[a], extents[a], parts_of_others(start[o], extents, a));
      if (best.found && cost > best.cost + 1e-9) return;
    }
    if (best.found && cost > best.cost - 1e-9 && count >= changes) return;
    const auto after = evaluate(next);
    for (std::size_t a = 0; a < Axes; ++a)
      if (after.bad[a] && (a == axis || !before.bad[a])) return;
    best = {next, true, cost};
    changes = count;
  }

  // Nothing converts varying values, which go with copies.
  constexpr std::array<axis_use, Count> copies() const {
    std::array<axis_use, Count> uses{};
    for (std::size_t o = 0; o < Count; ++o)
      if (now(o).role == axis_role::varying) uses[o] = now(o);
    return uses;
  }
  constexpr tables_type replicated() const {
    tables_type next = start;
    const auto uses = copies();
    for (std::size_t o = 0; o < Count; ++o)
      if (!(uses[o] == now(o))) next[o] = changed(o, uses[o]);
    return next;
  }
  // One letter, at the innermost level first, where a part is cut from what the rank has.
  constexpr void split_letter(char letter, const axis_use& policy) {
    std::array<axis_use, Count> uses{};
    int deepest = static_cast<int>(Axes);
    for (std::size_t o = 0; o < Count; ++o) {
      const int d = find(o, letter);
      if (d < 0) continue;
      int depth = 0;
      for (std::size_t a = 0; a < Axes; ++a)
        if (a != axis && start[o].use[a].role == axis_role::sharded && start[o].use[a].dim == d) ++depth;
      deepest = depth < deepest ? depth : deepest;
      uses[o].role = axis_role::sharded;
      uses[o].dim = d;
      uses[o].split = policy.split;
      uses[o].how = policy.how;
    }
    for (int level = deepest; level >= 0; --level) {
      for (auto& u : uses)
        if (u.role == axis_role::sharded) u.level = level;
      consider(uses);
    }
  }
  constexpr void split_each_letter() {
    for (std::size_t o = 0; o < Count; ++o)
      for (int d = 0; d < dims[o]; ++d) {
        const char letter = evaluate.letter(o, d);
        bool first = true;
        for (std::size_t q = 0; q < o; ++q) first = first && find(q, letter) < 0;
        if (!first) continue;
        split_letter(letter, axis_use{});
        for (std::size_t q = o; q < Count; ++q) {  // the policies by which operands split it already
          const axis_use& u = given[q].use[axis];
          bool fresh = u.role == axis_role::sharded && u.split != 0 && u.dim == find(q, letter);
          for (std::size_t r = o; r < q; ++r)
            fresh = fresh && !(given[r].use[axis].split == u.split && given[r].use[axis].dim == find(r, letter));
          if (fresh) split_letter(letter, u);
        }
      }
  }
  constexpr void sum_each_slot() {
    for (std::size_t p = 0; p < Count; ++p) {
      const axis_use& u = now(p);
      const int slot = evaluate.slot(p);
      if (u.role != axis_role::partial || slot == 0) continue;
      std::array<axis_use, Count> uses{};
      for (std::size_t o = 0; o < Count; ++o)
        if (evaluate.slot(o) == slot) uses[o] = u;
      consider(uses);
    }
  }

  constexpr void search() {
    consider(copies());
    for (std::size_t o = 0; o < Count; ++o)
      if (now(o).role == axis_role::varying) return;
    split_each_letter();
    sum_each_slot();
  }
};

// Repairs one axis after the other, each as cheaply as it can be while it does no harm to another. Where every way does,
// the axis is replicated in all operands, which no operator refuses; so there always is a repair.
template <class Evaluate, std::size_t Axes, std::size_t Count>
constexpr repair_result<Axes, Count> find_repair(const Evaluate& evaluate,
                                                 const std::array<axis_table<Axes>, Count>& tables,
                                                 const std::array<int, Axes>& extents,
                                                 const std::array<int, Count>& dims) {
  repair_result<Axes, Count> out{tables, false, 0};
  for (std::size_t turn = 0; turn <= Axes * (Axes + 2); ++turn) {
    const auto outcome = evaluate(out.tables);
    if (outcome.legal()) {
      out.found = true;
      return out;
    }
    const auto start = out.tables;
    axis_repair<Evaluate, Axes, Count> one{evaluate, tables, start, extents, dims, outcome.axis, outcome};
    one.search();
    out.tables = one.best.found ? one.best.tables : one.replicated();
    out.cost += one.best.cost;
  }
  return out;
}

}  // namespace detail
}  // namespace heddle::inline v0
