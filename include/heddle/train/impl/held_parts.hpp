// heddle/train/impl/held_parts.hpp: bodies of heddle/train/held_parts.hpp.
#pragma once

#include <heddle/train/held_parts.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/schedule/table.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

HEDDLE_INLINE held_parts::held_parts(schedule::table_view table, const stage_parts& of_model, int rank)
    : parts_(of_model), rank_(rank), place_of_(static_cast<std::size_t>(table.stages()), -1) {
  std::vector<int> stage_of_part(static_cast<std::size_t>(parts_.parts()), -1);
  for (int s = 0; s < table.stages(); ++s) {
    if (table.rank_of(s) != rank) continue;
    int& other = stage_of_part[static_cast<std::size_t>(parts_.part_of(s))];
    if (other >= 0) {
      throw schedule_error(text_of({"heddle: stages ", other, " and ", s,
                                    " are replicas of one part of the model and both on pipeline rank ", rank,
                                    "; a trainer keeps one on a rank: use more ranks or one chain"}));
    }
    other = s;
    place_of_[static_cast<std::size_t>(s)] = static_cast<int>(stages_.size());
    stages_.push_back(s);
    to_make_.insert(parts_.part_of(s) == 0 ? to_make_.begin() : to_make_.end(), s);
  }
  for (int s = 0; s < table.stages(); ++s)
    if (const int x = parts_.part_of(s); x == 0 || x == parts_.parts() - 1) tied_ranks_.push_back(table.rank_of(s));
  std::sort(tied_ranks_.begin(), tied_ranks_.end());
  tied_ranks_.erase(std::unique(tied_ranks_.begin(), tied_ranks_.end()), tied_ranks_.end());
  for (int x = 0; x < parts_.parts(); ++x) {
    if (!parts_.has_replicas(x)) continue;
    replicated all{-1, {}};
    for (const int s : parts_.stages_of(x)) {
      all.ranks.push_back(table.rank_of(s));
      if (has(s)) all.stage = s;
    }
    if (all.stage >= 0) replicas_.push_back(all);
  }
  find_sharers(table);
}

HEDDLE_INLINE int held_parts::lender_of(int stage) const noexcept {
  const int last = parts_.parts() - 1;
  if (last == 0 || parts_.part_of(stage) != last) return -1;
  for (const int s : stages_)
    if (parts_.part_of(s) == 0) return s;
  return -1;
}

HEDDLE_INLINE bool held_parts::ties_two_ranks() const noexcept {
  const int last = parts_.parts() - 1;
  return last > 0 && !parts_.has_replicas(0) && !parts_.has_replicas(last) && tied_ranks_.size() == 2;
}

HEDDLE_INLINE bool held_parts::shares() const noexcept {
  return !replicas_.empty() ||
         (parts_.parts() > 1 && std::find(tied_ranks_.begin(), tied_ranks_.end(), rank_) != tied_ranks_.end());
}

// Each rank gets the lowest number of those that share weights with it, or with one of those.
HEDDLE_INLINE void held_parts::find_sharers(schedule::table_view table) {
  std::vector<int> group(static_cast<std::size_t>(table.ranks()));
  std::iota(group.begin(), group.end(), 0);
  const auto join = [&](int a, int b) {
    const int from = group[static_cast<std::size_t>(a)], to = group[static_cast<std::size_t>(b)];
    std::replace(group.begin(), group.end(), (std::max)(from, to), (std::min)(from, to));
  };
  if (parts_.parts() > 1)
    for (const int r : tied_ranks_) join(tied_ranks_[0], r);
  for (int x = 0; x < parts_.parts(); ++x)
    for (const int s : parts_.stages_of(x)) join(table.rank_of(parts_.stages_of(x).front()), table.rank_of(s));
  for (int r = 0; r < table.ranks(); ++r)
    if (r != rank_ && group[static_cast<std::size_t>(r)] == group[static_cast<std::size_t>(rank_)])
      sharers_.push_back(r);
}

}  // namespace heddle::inline v0::train
