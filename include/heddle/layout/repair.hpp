// heddle/layout/repair.hpp: the cheapest redistribution that makes an operator legal.
#pragma once

#include <heddle/layout/factor_rule.hpp>
#include <heddle/layout/repair_cost.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

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
  double cost = 0;     // bytes sent per rank, in units of an operand's bytes
  bool proven = true;  // whether the search showed that no other repair is cheaper
};

// Whether operand o's split by axis a is one that an operand had from the start: of that letter, behind the same cuts.
template <class Evaluate, std::size_t Axes, std::size_t Count>
constexpr bool split_was_given(const Evaluate& evaluate, const std::array<axis_table<Axes>, Count>& given,
                               const std::array<int, Count>& dims, const axis_table<Axes>& table, std::size_t o,
                               std::size_t a) {
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

// The dimension of operand o that has the letter; -1 if none has.
template <class Evaluate, std::size_t Count>
constexpr int find_letter(const Evaluate& evaluate, const std::array<int, Count>& dims, std::size_t o, char letter) {
  for (int d = 0; d < dims[o]; ++d)
    if (evaluate.letter(o, d) == letter) return d;
  return -1;
}
// Whether no operand before o has the letter.
template <class Evaluate, std::size_t Count>
constexpr bool is_new_letter(const Evaluate& evaluate, const std::array<int, Count>& dims, std::size_t o, char letter) {
  for (std::size_t q = 0; q < o; ++q)
    if (find_letter(evaluate, dims, q, letter) >= 0) return false;
  return true;
}

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
  constexpr int find(std::size_t o, char letter) const { return find_letter(evaluate, dims, o, letter); }

  // Policies that fit one extent only stay where that extent is; elsewhere parts become balanced.
  constexpr void keep_what_fits(axis_table<Axes>& table, std::size_t o) const {
    for (int level = 0; level < static_cast<int>(Axes); ++level)
      for (std::size_t a = 0; a < Axes; ++a) {
        axis_use u = table.use[a];
        if (u.role != axis_role::sharded || u.level != level || u.how->any_extent) continue;
        if (split_was_given(evaluate, given, dims, table, o, a)) continue;
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
        if (!is_new_letter(evaluate, dims, o, letter)) continue;
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

// Repairs one axis after the other, each as cheaply as it can be while it does no harm to another. Where every way
// does, the axis is replicated in all operands, which no operator refuses; so there always is a repair.
template <class Evaluate, std::size_t Axes, std::size_t Count>
constexpr repair_result<Axes, Count> repair_axis_by_axis(const Evaluate& evaluate,
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
  }
  return out;
}

// clang allows 1048576 steps of evaluation for one constant; a running program has time.
inline constexpr std::int64_t repair_work = 400'000, repair_work_at_run_time = std::int64_t{1} << 32;

// The cheapest repair of all refused axes together: everything the operator takes is tried, as what each of them does
// for all operands at once (one letter split, one slot partial, all replicated) and the order of the axes that split a
// letter; what cannot become cheaper than the best known is left out. Other axes keep what they do: to cut over them as
// well would often send less, but nobody asked for it.
template <class Evaluate, std::size_t Axes, std::size_t Count>
class joint_repair {
 public:
  using tables_type = std::array<axis_table<Axes>, Count>;

  constexpr joint_repair(const Evaluate& evaluate, const tables_type& given, const std::array<int, Axes>& extents,
                         const std::array<int, Count>& dims, const repair_result<Axes, Count>& known,
                         std::int64_t most_work)
      : evaluate_(evaluate),
        given_(given),
        fallback_(given),
        extents_(extents),
        dims_(dims),
        costs_(extents, given, highest_dim(given, dims) + 1),
        best_(known),
        max_work_(most_work) {
    for (std::size_t a = 0; a < Axes; ++a) {
      bool reorders = extents[a] != 1;
      for (const auto& t : given) reorders = reorders || reorders_one_rank(t.use[a]);
      if (reorders) continue;  // otherwise an axis of one rank does nothing
      inert_ |= 1u << a;
      for (auto& t : given_) forget_axis(t, a);
    }
    for (auto& t : best_.tables)
      for (std::size_t a = 0; a < Axes; ++a)
        if (inert_ >> a & 1u) forget_axis(t, a);
    best_.cost = cost_of(best_.tables);
    changes_ = changes_of(best_.tables);
    list_choices();
  }

  constexpr repair_result<Axes, Count> run(const repair_result<Axes, Count>& known) {
    extend(tables_type{}, 0);
    best_.proven = !gave_up_;
    if (!improved_) {
      best_.tables = known.tables;
      return best_;
    }
    for (std::size_t o = 0; o < Count; ++o)
      if (best_.tables[o] == given_[o]) best_.tables[o] = fallback_[o];
    return best_;
  }

 private:
  struct choice {
    axis_use uses[Count]{};
    char letter = ' ';  // of a split
  };
  static constexpr std::size_t most_choices = 48;

  static constexpr int highest_dim(const tables_type& tables, const std::array<int, Count>& dims) {
    int most = 0;
    for (const int d : dims) most = d > most ? d - 1 : most;
    for (const auto& t : tables)
      for (const axis_use& u : t.use) most = u.dim > most ? u.dim : most;
    return most;
  }
  constexpr double ranks(std::size_t a) const { return extents_[a] > 0 ? extents_[a] : 2; }
  constexpr double cost_of(const tables_type& tables) {
    double cost = 0;
    for (std::size_t o = 0; o < Count; ++o)
      if (!(tables[o] == given_[o])) cost += costs_(given_[o], tables[o]);
    return cost;
  }
  constexpr int changes_of(const tables_type& tables) const {
    int changes = 0;
    for (std::size_t o = 0; o < Count; ++o) changes += tables[o] == given_[o] ? 0 : 1;
    return changes;
  }
  constexpr int find(std::size_t o, char letter) const { return find_letter(evaluate_, dims_, o, letter); }

  // What an axis may do, if it alone did anything.
  constexpr void offer(std::size_t axis, const choice& c) {
    work_ += static_cast<int>(Count * Axes) * 40;
    tables_type alone{};
    for (std::size_t o = 0; o < Count; ++o) alone[o].use[axis] = c.uses[o];
    if (evaluate_(alone).bad[axis]) return;
    if (counts_[axis] == most_choices)
      gave_up_ = true;
    else
      choices_[axis][counts_[axis]++] = c;
  }
  constexpr void offer_split(std::size_t axis, char letter, const axis_use& policy) {
    choice c;
    c.letter = letter;
    for (std::size_t o = 0; o < Count; ++o)
      if (const int d = find(o, letter); d >= 0) c.uses[o] = {axis_role::sharded, d, 0, -1, policy.split, policy.how};
    offer(axis, c);
  }
  constexpr void offer_changes(std::size_t axis) {
    choice same;
    bool varies = false, splits = false;
    for (std::size_t o = 0; o < Count; ++o) {
      const axis_use& u = given_[o].use[axis];
      same.uses[o] = u;
      splits = splits || u.role == axis_role::sharded;
      varies = varies || u.role == axis_role::varying;
    }
    if (varies) {  // nothing converts varying values, which go with copies
      for (axis_use& u : same.uses)
        if (u.role != axis_role::varying) u = {};
      return offer(axis, same);
    }
    if (!splits) offer(axis, same);
    for (std::size_t o = 0; o < Count; ++o)
      for (int d = 0; d < dims_[o]; ++d) {
        const char letter = evaluate_.letter(o, d);
        if (!is_new_letter(evaluate_, dims_, o, letter)) continue;
        for (std::size_t q = o; q < Count; ++q) {  // the policies by which operands split it already
          const axis_use& u = given_[q].use[axis];
          bool fresh = u.role == axis_role::sharded && u.split != 0 && u.dim == find(q, letter);
          for (std::size_t r = o; r < q; ++r)
            fresh = fresh && !(given_[r].use[axis].role == axis_role::sharded && given_[r].use[axis].split == u.split &&
                               given_[r].use[axis].dim == find(r, letter));
          if (fresh) offer_split(axis, letter, u);
        }
        offer_split(axis, letter, axis_use{});
      }
    for (std::size_t p = 0; p < Count; ++p) {
      const axis_use& u = given_[p].use[axis];
      const int slot = evaluate_.slot(p);
      if (u.role != axis_role::partial || slot == 0) continue;
      choice sum;
      bool known = true;
      for (std::size_t o = 0; o < Count; ++o)
        if (evaluate_.slot(o) == slot) sum.uses[o] = u;
      for (std::size_t o = 0; o < Count; ++o) known = known && sum.uses[o] == same.uses[o];
      if (!known) offer(axis, sum);
    }
    bool copies = true;
    for (std::size_t o = 0; o < Count; ++o) copies = copies && same.uses[o] == axis_use{};
    if (!copies) offer(axis, choice{});
  }
  // An axis that nothing refuses does what it did; sizes that fit one extent only may become balanced.
  constexpr void keep_axis(std::size_t axis) {
    choice same;
    const axis_use* sized = nullptr;
    for (std::size_t o = 0; o < Count; ++o) {
      const axis_use& u = same.uses[o] = given_[o].use[axis];
      if (u.role != axis_role::sharded) continue;
      same.letter = evaluate_.letter(o, u.dim);
      if (!u.how->any_extent) sized = &u;
    }
    choices_[axis][counts_[axis]++] = same;
    if (sized != nullptr) offer_split(axis, same.letter, axis_use{});
  }
  constexpr void list_choices() {
    const auto outcome = evaluate_(given_);
    for (const bool refused : {false, true})
      for (std::size_t a = 0; a < Axes; ++a) {
        if (outcome.bad[a] != refused || (inert_ >> a & 1u)) continue;
        order_[depth_++] = a;
        refused ? offer_changes(a) : keep_axis(a);
      }
  }

  // The least that all can cost and change, whatever the axes after the first `chosen` do.
  constexpr bool is_hopeless(const tables_type& tables, std::size_t chosen) {
    work_ += static_cast<int>(Count * (Axes * 12 + 12));
    double least = 0;
    int changes = 0;
    for (std::size_t o = 0; o < Count; ++o) {
      double local = 1, held = 1, largest = 1, contributions = 1;
      bool changed = false;
      for (std::size_t i = 0; i < depth_; ++i) {
        const double p = ranks(order_[i]);
        const axis_use &f = given_[o].use[order_[i]], &t = tables[o].use[order_[i]];
        const bool split = f.role == axis_role::sharded;
        if (i >= chosen) {
          local /= p;
          if (split || f.role != axis_role::partial) held /= p;
          continue;
        }
        const bool sum = f.role == axis_role::partial && !(t.role == axis_role::partial && t.op == f.op);
        if (t.role == axis_role::sharded || (t.role == axis_role::partial && !(t.op == f.op && f.role == t.role)))
          local /= p;
        if (split || (f.role != axis_role::partial && t.role == axis_role::sharded)) held /= p;
        if (sum) contributions *= p;
        const bool moved = split ? t.role != axis_role::partial && (t.role != f.role || t.dim != f.dim)
                                 : sum && t.role != axis_role::sharded && t.role != axis_role::partial;
        if (moved && p > largest) largest = p;
        changed = changed || t.role != f.role || t.dim != f.dim || t.split != f.split || t.op != f.op;
      }
      least += local * (1 - 1 / largest) + held * (1 - 1 / contributions);
      changes += changed ? 1 : 0;
    }
    return least > best_.cost + 1e-9 || (least > best_.cost - 1e-9 && changes >= changes_);
  }
  constexpr void consider(const tables_type& tables) {
    for (std::size_t o = 0; o < Count; ++o)
      for (std::size_t a = 0; a < Axes; ++a) {
        const axis_use& u = tables[o].use[a];
        if (u.role == axis_role::sharded && !u.how->any_extent &&
            !split_was_given(evaluate_, given_, dims_, tables[o], o, a))
          return;
      }
    const double cost = cost_of(tables);
    work_ += 2 * costs_.take_work();
    const int changes = changes_of(tables);
    if (cost > best_.cost + 1e-9 || (cost > best_.cost - 1e-9 && changes >= changes_)) return;
    work_ += static_cast<int>(Count * Axes) * 40;
    if (!evaluate_(tables).legal()) return;
    best_ = {tables, true, cost};
    changes_ = changes;
    improved_ = true;
  }
  constexpr void extend(const tables_type& tables, std::size_t chosen) {
    if (gave_up_ || is_hopeless(tables, chosen)) return;
    if (work_ > max_work_) {
      gave_up_ = true;
      return;
    }
    if (chosen == depth_) return consider(tables);
    const std::size_t axis = order_[chosen];
    for (std::size_t i = 0; i < counts_[axis]; ++i) {
      const choice& c = choices_[axis][i];
      int deepest = 0;
      if (c.letter != ' ')
        for (std::size_t o = 0; o < Count; ++o) {
          if (c.uses[o].role != axis_role::sharded) continue;
          int depth = 0;
          for (const axis_use& u : tables[o].use)
            if (u.role == axis_role::sharded && u.dim == c.uses[o].dim) ++depth;
          deepest = depth;
        }
      for (int level = deepest; level >= 0; --level) {
        work_ += static_cast<int>(Count * Axes) * 8;
        tables_type next = tables;
        for (std::size_t o = 0; o < Count; ++o) {
          axis_use u = c.uses[o];
          if (u.role == axis_role::sharded) u.level = level;
          next[o] = with_use(next[o], axis, u);
        }
        extend(next, chosen + 1);
      }
    }
  }

  const Evaluate& evaluate_;
  tables_type given_, fallback_;  // without axes of one rank, and with them
  const std::array<int, Axes>& extents_;
  const std::array<int, Count>& dims_;
  repair_costs<Axes> costs_;
  repair_result<Axes, Count> best_;
  int changes_ = 0;
  bool improved_ = false, gave_up_ = false;
  unsigned inert_ = 0;
  std::size_t order_[Axes == 0 ? 1 : Axes]{}, depth_ = 0;
  choice choices_[Axes == 0 ? 1 : Axes][most_choices]{};
  std::size_t counts_[Axes == 0 ? 1 : Axes]{};
  std::int64_t work_ = 0, max_work_;
};

// The cheapest redistributions of the operands that make the operator legal; of equal ones those that change the fewest
// operands. There always are some.
template <class Evaluate, std::size_t Axes, std::size_t Count>
constexpr repair_result<Axes, Count> find_repair(const Evaluate& evaluate,
                                                 const std::array<axis_table<Axes>, Count>& tables,
                                                 const std::array<int, Axes>& extents,
                                                 const std::array<int, Count>& dims) {
  const auto known = repair_axis_by_axis(evaluate, tables, extents, dims);
  if constexpr (!repair_costs<Axes>::possible) {
    return known;
  } else {
    std::int64_t most = repair_work;
    if (!std::is_constant_evaluated()) most = repair_work_at_run_time;
    return joint_repair<Evaluate, Axes, Count>(evaluate, tables, extents, dims, known, most).run(known);
  }
}

}  // namespace detail
}  // namespace heddle::inline v0
