// tests/schedule/mutants.hpp: tables with one or two small mistakes.
#pragma once

#include <heddle/schedule/table.hpp>

#include <cstddef>
#include <random>
#include <utility>
#include <vector>

namespace schedules {

/// A table with one or two actions swapped, dropped, repeated, moved or changed. Not every change is a mistake.
inline heddle::schedule::action_table mutant(heddle::schedule::table_view t, std::mt19937& random) {
  namespace sc = heddle::schedule;
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<std::vector<sc::action>> lists;
  for (int r = 0; r < t.ranks(); ++r) lists.emplace_back(t.list(r).begin(), t.list(r).end());
  for (std::size_t changes = 1 + below(2); changes > 0; --changes) {
    auto& list = lists[below(lists.size())];
    if (list.empty()) continue;
    const std::size_t at = below(list.size());
    switch (below(10)) {
      case 0:
        std::swap(list[at], list[below(list.size())]);
        break;
      case 1:
      case 2:
        std::swap(list[at], list[at + 1 < list.size() ? at + 1 : 0]);
        break;
      case 3:
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 4:
        list.insert(list.begin() + static_cast<std::ptrdiff_t>(below(list.size() + 1)), sc::action(list[at]));
        break;
      case 5:
        list[at].microbatch = static_cast<int>(below(static_cast<std::size_t>(t.microbatches())));
        break;
      case 6:
        list[at].kind = static_cast<sc::action_kind>(below(sc::action_kinds));
        break;
      case 7:
        list[at].peer = static_cast<int>(below(static_cast<std::size_t>(t.ranks())));
        break;
      case 8: {  // to another place, perhaps of another rank
        const sc::action moved = list[at];
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
        auto& other = below(2) ? list : lists[below(lists.size())];
        other.insert(other.begin() + static_cast<std::ptrdiff_t>(below(other.size() + 1)), moved);
        break;
      }
      case 9:
        list[at].overlaps_next = !list[at].overlaps_next;
    }
  }
  sc::action_table out = sc::like(t);
  out.offsets = {0};
  for (const auto& list : lists) {
    out.actions.insert(out.actions.end(), list.begin(), list.end());
    out.offsets.push_back(static_cast<int>(out.actions.size()));
  }
  return out;
}

}  // namespace schedules
