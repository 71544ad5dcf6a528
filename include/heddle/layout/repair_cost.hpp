// heddle/layout/repair_cost.hpp: bytes of the cheapest redistribution of one operand.
#pragma once

#include <heddle/layout/placement.hpp>
#include <heddle/layout/plan_sizes.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0 {
namespace detail {

// Bytes that a rank sends on average, in units of the operand's bytes, by the rules of the planner: cuts that cost
// nothing come first, contributions are reduced to parts, and what is lacking then is exchanged or gathered. Of axes
// known only at start-up two ranks are assumed; identical values count as replicated.
template <std::size_t Axes>
class repair_costs : plan_sizes {
 public:
  static constexpr bool possible = Axes <= planned_axes;

  template <std::size_t Count>
  constexpr repair_costs(const std::array<int, Axes>& extents, const std::array<axis_table<Axes>, Count>& operands,
                         int dims)
      : plan_sizes(problem_of(extents, operands, dims)) {}

  constexpr double operator()(const axis_table<Axes>& from, const axis_table<Axes>& to) {
    bool spreads = false, cuts_anew = false;
    int sums = 0;
    std::uint64_t used = 0;  // dimensions that the planner knows: those that something splits
    for (unsigned a = 0; a < Axes; ++a) {
      const axis_use &f = from.use[a], &t = to.use[a];
      sums += is_reduced(f, t) ? 1 : 0;
      cuts_anew = cuts_anew || is_spread(f, t) ||
                  (t.role == axis_role::sharded && f.role != axis_role::sharded && f.role != axis_role::partial);
      spreads = spreads || is_spread(f, t);
      if (f.role == axis_role::sharded) used |= std::uint64_t{1} << f.dim;
      if (t.role == axis_role::sharded) used |= std::uint64_t{1} << t.dim;
    }
    const int dims = static_cast<int>(p_.dims);
    const auto skipped = [&](int d) { return d >= 0 && (used >> d & 1u) == 0; };
    double least = -1;
    for (int spread = spreads ? -2 : -1; spread < (spreads ? dims : 0); ++spread) {
      if (skipped(spread)) continue;
      // Of two reduced axes each has a place of its own, of more all have the same.
      for (int reduced = 0; reduced < (sums == 2 ? (dims + 1) * (dims + 1) : sums > 0 ? dims + 1 : 1); ++reduced) {
        if (skipped(reduced % (dims + 1) - 1) || skipped(reduced / (dims + 1) - 1)) continue;
        for (int cuts = -3; cuts < (sums > 0 && cuts_anew ? dims : -2); ++cuts) {
          if (skipped(cuts)) continue;
          const double bytes = one_way(from, to, spread, reduced % (dims + 1) - 1,
                                       sums == 2 ? reduced / (dims + 1) - 1 : reduced - 1, cuts);
          if (bytes >= 0 && (least < 0 || bytes < least)) least = bytes;
        }
      }
    }
    return least / whole_;
  }
  constexpr std::int64_t take_work() {
    const std::int64_t done = work_;
    work_ = 0;
    return done;
  }

 private:
  // Axes that become partial cost nothing for it. Before, they are cuts: of the dimension `spread` or (-1) of the one
  // they split, if any; or (-2) they are partial from the start. Axes that are reduced become cuts of the dimension
  // `place`, the second one of `other_place`, or (-1) of the one that they split in the end. Other new cuts are made by
  // the exchange (-3), before it in the target's order (-2), before all else (-1), or so but of the dimension
  // `new_cuts` first, where they are behind a reduced one in the end.
  constexpr double one_way(const axis_table<Axes>& from, const axis_table<Axes>& to, int spread, int place,
                           int other_place, int new_cuts) {
    work_ += 80 * static_cast<int>(Axes);
    planned_state now = state_of(from), target = state_of(to);
    lists after = lists_of(target);
    const lists before = lists_of(now);
    for (unsigned a = 0; a < Axes; ++a) {
      const axis_use& f = from.use[a];
      if (!is_spread(f, to.use[a])) continue;
      target.set(a, {});
      const bool splits = f.role == axis_role::sharded;
      if (spread == -2 && splits) {
        const unsigned d = now.dim(a);
        if (now.level(a) + 1 != before.length[d]) return -1;  // only the innermost cut can be undone so
        now.set(a, {});
      }
      if (spread == -2 || (spread == -1 && !splits)) continue;
      const unsigned d = spread >= 0 ? static_cast<unsigned>(spread) : static_cast<unsigned>(f.dim);
      target.set(a, {planned_sharded, d, after.length[d]++,
                     splits && f.dim == static_cast<int>(d) ? static_cast<unsigned>(f.split) : 0});
    }
    lists cuts = lists_of(now);
    double held = local(now), bytes = 0;
    const auto cut = [&](unsigned a, unsigned d, unsigned split) {
      if (is_reduced(from.use[a], to.use[a])) bytes += held * (1 - 1 / extent(a));
      held /= extent(a);
      now.set(a, {planned_sharded, d, cuts.length[d]++, split});
    };
    unsigned any = 0;  // a dimension that is cut, or the first
    for (unsigned d = p_.dims; d-- > 0;)
      if (before.length[d] + after.length[d] > 0) any = d;
    unsigned reduced = 0, second = planned_axes;
    unsigned due = 0, behind = 0;  // new cuts; those of them that are behind a reduced one
    unsigned first[planned_dims]{};
    for (unsigned d = 0; d < p_.dims; ++d) first[d] = planned_axes;
    for (unsigned a = 0; a < Axes; ++a) {
      if (target.role(a) == planned_sharded && now.role(a) != planned_sharded) due |= 1u << a;
      if (!is_reduced(from.use[a], to.use[a])) continue;
      due |= 1u << a;
      if (reduced++ == 1) second = a;
      if (target.role(a) == planned_sharded && target.level(a) < first[target.dim(a)])
        first[target.dim(a)] = target.level(a);
    }
    for (unsigned a = 0; a < Axes; ++a)
      if (target.role(a) == planned_sharded && target.level(a) > first[target.dim(a)]) behind |= 1u << a;
    for (const bool sums : {false, true})
      for (unsigned level = 0; level < Axes; ++level)
        for (unsigned a = 0; a < Axes; ++a) {
          if ((due >> a & 1u) == 0) continue;
          const bool stays = target.role(a) == planned_sharded, sum = is_reduced(from.use[a], to.use[a]);
          if (!stays && !sum) continue;
          if (stays ? target.level(a) != level : level + 1 != Axes) continue;
          if (!sum && new_cuts == -3) continue;
          if (!sums && (sum || (new_cuts == -2 && (behind >> a & 1u) != 0))) continue;
          due &= ~(1u << a);
          const int elsewhere = sum ? (a == second ? other_place : place) : (behind >> a & 1u) != 0 ? new_cuts : -1;
          if (elsewhere >= 0 || !stays)
            cut(a, elsewhere >= 0 ? static_cast<unsigned>(elsewhere) : any, 0);
          else
            cut(a, target.dim(a), target.split(a));
        }
    const double lacking = local(target) - kept(now, target, false);
    return bytes + (lacking > whole_ * 1e-12 ? lacking : 0);
  }
  static constexpr bool same_sum(const axis_use& a, const axis_use& b) {
    return a.role == axis_role::partial && b.role == axis_role::partial && a.op == b.op;
  }
  static constexpr bool is_reduced(const axis_use& from, const axis_use& to) {
    return from.role == axis_role::partial && !same_sum(from, to);
  }
  static constexpr bool is_spread(const axis_use& from, const axis_use& to) {
    return to.role == axis_role::partial && !same_sum(from, to);
  }
  static constexpr planned_state state_of(const axis_table<Axes>& table) {
    planned_state s;
    for (unsigned a = 0; a < Axes; ++a) {
      const axis_use& u = table.use[a];
      if (u.role == axis_role::partial) s.set(a, {planned_partial});
      if (u.role == axis_role::sharded)
        s.set(a, {planned_sharded, static_cast<unsigned>(u.dim), static_cast<unsigned>(u.level),
                  static_cast<unsigned>(u.split)});
    }
    return s;
  }
  template <std::size_t Count>
  static constexpr plan_problem problem_of(const std::array<int, Axes>& extents,
                                           const std::array<axis_table<Axes>, Count>& operands, int dims) {
    plan_problem p;
    p.axes = static_cast<unsigned>(Axes);
    p.dims = static_cast<unsigned>(dims);
    for (std::size_t a = 0; a < Axes; ++a) p.extents[a] = extents[a] > 0 ? extents[a] : 2;
    for (const auto& table : operands)
      for (const axis_use& u : table.use) {
        if (u.role != axis_role::sharded || u.how->contiguous) continue;
        p.intervals &= ~(std::uint64_t{1} << u.split);
      }
    return p;
  }
};

}  // namespace detail
}  // namespace heddle::inline v0
