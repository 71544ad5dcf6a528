// heddle/plan/elastic_degrees.hpp: a scheduler that merges and splits instances.
#pragma once

#include <heddle/sim/served_load.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline v0::plan {

/// A scheduler of `sim::simulate_load`. A short request goes to the instance of the first degree with fewest tokens, and to a merged one only if that is done
/// earlier and has room. A long
/// one goes to a merged instance with room; where there is none, and fewer than `most_merged` are merged, the neighbours with fewest tokens merge. An instance splits when it has had no long request for
/// `cooldown`, all that it has fits, and computing what waits gains more than the change costs. Units: seconds.
/// Source: Gyges, arXiv:2509.19729, section on its scheduler; the rules are a reconstruction.
struct elastic_degrees {
  double cooldown = 1;
  int most_merged = 1;  ///< instances that are merged at the same time, beyond which long requests wait for room

  sim::served_place place(double, const sim::served_request& r, std::span<const sim::served_instance> all,
                          const sim::served_ranks& of) const {
    const auto load = [&](int i) {
      const sim::served_instance& x = all[static_cast<std::size_t>(i)];
      return x.used + x.waiting;
    };
    const auto free = [&](int i) { return of.degrees[all[static_cast<std::size_t>(i)].degree].tokens - load(i); };
    const bool is_short = r.tokens() <= of.degrees[0].tokens;
    int small = -1, large = -1, merged = 0;
    for (int i = 0; i < static_cast<int>(all.size()); ++i) {
      const std::size_t d = all[static_cast<std::size_t>(i)].degree;
      merged += d > 0 ? 1 : 0;
      if (of.degrees[d].tokens < r.tokens()) continue;
      int& best = d == 0 ? small : large;
      if (best < 0 || load(i) < load(best)) best = i;
    }
    const auto seconds = [&](int i) {  // until it had computed all that it has
      const sim::served_degree& d = of.degrees[all[static_cast<std::size_t>(i)].degree];
      return static_cast<double>(load(i) + r.tokens()) / (d.ranks * d.efficiency);
    };
    if (is_short && small >= 0 && (large < 0 || seconds(small) <= seconds(large) || free(large) < r.tokens()))
      return {small, 0};
    if (large >= 0 && (is_short || merged >= most_merged || free(large) >= r.tokens()))
      return {large, all[static_cast<std::size_t>(large)].degree};
    std::size_t to = 0;
    while (to < of.degrees.size() && of.degrees[to].tokens < r.tokens()) ++to;
    if (to == of.degrees.size()) return {};
    // Of all groups of neighbours that are not merged so far, those with fewest tokens.
    const int ranks = of.degrees[to].ranks;
    int best = -1;
    std::int64_t fewest = 0;
    for (int i = 0; i < static_cast<int>(all.size()); ++i) {
      const int first = all[static_cast<std::size_t>(i)].first_rank / ranks * ranks;
      std::int64_t tokens = 0;
      for (int j = 0; j < static_cast<int>(all.size()); ++j)
        if (all[static_cast<std::size_t>(j)].first_rank / ranks * ranks == first) tokens += load(j);
      if (all[static_cast<std::size_t>(i)].degree < to && (best < 0 || tokens < fewest)) best = i, fewest = tokens;
    }
    if (best < 0) return {large, large < 0 ? 0 : all[static_cast<std::size_t>(large)].degree};
    return {best, to};
  }
  int split(double now, std::span<const sim::served_instance> all, const sim::served_ranks& of) const {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const sim::served_instance& x = all[i];
      if (x.degree == 0 || now - x.last_long < cooldown || x.long_requests > 0) continue;
      const sim::served_degree& d = of.degrees[x.degree];
      if (x.used > d.ranks / of.degrees[0].ranks * of.degrees[0].tokens) continue;
      const double left = static_cast<double>(x.used + x.waiting) * of.row_seconds / d.ranks;
      if (left / d.efficiency - left > of.move_seconds(x.used / d.ranks)) return static_cast<int>(i);
    }
    return -1;
  }
};

}  // namespace heddle::inline v0::plan
