// heddle/schedule/impl/generate/placed_scheduler.hpp: bodies of the scheduler.
#pragma once

#include <heddle/schedule/generate/placed_scheduler.hpp>
#include <heddle/schedule/stage_cost.hpp>
#include <heddle/schedule/table.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace heddle::inline v0::schedule::detail {

HEDDLE_INLINE placed_scheduler::placed_scheduler(std::span<const stage_cost> costs, std::span<const int> rank_of_stage,
                                                 std::span<const double> limits, double link, int microbatches)
    : cost_(costs), rank_of_(rank_of_stage), limit_(limits), link_(link), m_(microbatches), own_(limits.size()) {
  for (std::size_t s = 0; s < costs.size(); ++s) own_[at(rank_of_stage[s])].push_back(s);
  // As many as fit on every rank at the same time.
  for (int n = 64; n > 0; --n) {
    bool all = true;
    for (std::size_t r = 0; r < own_.size(); ++r) {
      double bytes = 0;
      for (const std::size_t s : own_[r]) bytes += most_under_way(s, n / 32.0) * cost_[s].bytes;
      all = all && bytes <= limit_[r];
    }
    if (!all) continue;
    fits_ = n / 32.0;
    break;
  }
}

HEDDLE_INLINE rank_lists placed_scheduler::lists(const placed_choices& choices) {
  choices_ = choices;
  const std::size_t p = limit_.size();
  stages_.assign(cost_.size(), stage_state{});
  ranks_.assign(p, rank_state{});
  forward_end_.assign(cost_.size() * at(m_), 0.0);
  input_end_.assign(cost_.size() * at(m_), 0.0);
  for (std::size_t r = 0; r < p; ++r) ranks_[r].list.reserve(own_[r].size() * 3 * at(m_));
  for (std::size_t left = cost_.size() * 3 * at(m_); left > 0; --left) {
    std::size_t first = 0;
    for (std::size_t r = 0; r < p; ++r) {
      if (ranks_[r].stale) ranks_[r].next = next_of(r);
      ranks_[r].stale = false;
      if (ranks_[r].next.start < ranks_[first].next.start) first = r;
    }
    if (ranks_[first].next.start == never) return {};
    begin(first, ranks_[first].next);
  }
  rank_lists out;
  out.offsets.assign(1, 0);
  for (const rank_state& r : ranks_) {
    out.actions.insert(out.actions.end(), r.list.begin(), r.list.end());
    out.offsets.push_back(static_cast<int>(out.actions.size()));
  }
  return out;
}

HEDDLE_INLINE double placed_scheduler::held(std::size_t r, std::size_t stage, int oldest) const noexcept {
  const bool others = stages_[stage].forwards > oldest;
  double bytes = 0;
  for (const std::size_t s : own_[r]) {
    const stage_state& here = stages_[s];
    const int more = s == stage || (others && here.forwards <= oldest) ? 1 : 0;
    bytes += cost_[s].held(here.forwards - here.inputs + more, here.inputs - here.weights);
  }
  return bytes;
}

HEDDLE_INLINE void placed_scheduler::begin(std::size_t r, const next_action& next) {
  rank_state& rank = ranks_[r];
  const std::size_t s = next.stage;
  stage_state& here = stages_[s];
  int& done = next.kind == action_kind::forward          ? here.forwards
              : next.kind == action_kind::backward_input ? here.inputs
                                                         : here.weights;
  rank.list.push_back({next.kind, static_cast<int>(s), done});
  rank.clock = next.start;
  rank.stale = true;
  if (next.kind == action_kind::forward) {
    forward_end_[cell(s, done)] = rank.clock += cost_[s].forward;
    if (s + 1 < cost_.size()) ranks_[at(rank_of_[s + 1])].stale = true;
  } else if (next.kind == action_kind::backward_input) {
    input_end_[cell(s, done)] = rank.clock += cost_[s].backward_input;
    rank.inputs.push_back(s);
    if (s > 0) ranks_[at(rank_of_[s - 1])].stale = true;
  } else {
    rank.clock += cost_[s].backward_weight;
    ++rank.weights;
  }
  ++done;
}

}  // namespace heddle::inline v0::schedule::detail
