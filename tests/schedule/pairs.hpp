// tests/schedule/pairs.hpp: valid tables with overlapped pairs, made at random from valid tables without.
#pragma once

#include <heddle/schedule/lower/lower.hpp>

#include <random>

namespace schedules {

/// Marks neighbouring computations of the lists as pairs, each with this probability where the table can still be
/// executed and the two do not add to one weight gradient.
inline heddle::schedule::action_table with_pairs(heddle::schedule::table_view t, std::mt19937& random,
                                                 double probability = 0.5) {
  namespace sc = heddle::schedule;
  sc::action_table out = sc::like(t);
  out.actions.assign(t.actions().begin(), t.actions().end());
  for (int r = 0; r <= t.ranks(); ++r) out.offsets[static_cast<std::size_t>(r)] = t.offset(r);
  const auto draw = [&] { return static_cast<double>(random()) / 4294967296.0 < probability; };
  for (int r = 0; r < t.ranks(); ++r)
    for (int k = t.offset(r); k + 1 < t.offset(r + 1); ++k) {
      if (t[k].overlaps_next) ++k;  // a pair already
      if (k + 1 >= t.offset(r + 1) || t[k].overlaps_next || t[k + 1].overlaps_next) continue;
      if (k > t.offset(r) && t[k - 1].overlaps_next) continue;
      if (!sc::is_compute(t[k].kind) || !sc::is_compute(t[k + 1].kind) || !draw()) continue;
      const auto adds = [](const sc::action& a) {
        return a.kind == sc::action_kind::backward || a.kind == sc::action_kind::backward_weight;
      };
      if (t[k].stage == t[k + 1].stage && adds(t[k]) && adds(t[k + 1])) continue;
      sc::action& first = out.actions[static_cast<std::size_t>(k)];
      first.overlaps_next = true;
      try {
        (void)sc::lower(out);
        ++k;  // the second of a pair is not the first of another
      } catch (const heddle::schedule_error&) {
        first.overlaps_next = false;
      }
    }
  return out;
}

}  // namespace schedules
