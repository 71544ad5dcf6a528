// heddle/schedule/impl/generate/automatic.hpp: bodies of heddle/schedule/generate/automatic.hpp.
#pragma once

#include <heddle/schedule/generate/automatic.hpp>
#include <heddle/core/text.hpp>
#include <heddle/schedule/generate/hanayo.hpp>
#include <heddle/schedule/generate/interleaved.hpp>
#include <heddle/schedule/generate/list_scheduling.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/generate/placed_scheduler.hpp>
#include <heddle/schedule/stage_cost.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/schedule/generate/v_half.hpp>
#include <heddle/schedule/generate/v_min.hpp>
#include <heddle/schedule/generate/zb_h1.hpp>
#include <heddle/schedule/generate/zb_h2.hpp>
#include <heddle/schedule/generate/zb_v.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::schedule {
namespace detail {

HEDDLE_INLINE rank_lists zero_bubble_scheduler::lists(scheduler_choices choices) {
  start(choices);
  const std::size_t p = cost_.size();
  warm_up();
  for (int i = 1; i < m_; ++i) {
    forwards();
    for (std::size_t r = p; r-- > 0;) {
      state& s = ranks_[r];
      fill(r, input_arrival(r));
      if (r == 0 && s.forwards == m_)  // nobody waits for rank 0
        while (s.weights < s.inputs) weight(r);
      input(r);
    }
  }
  return finish();
}

HEDDLE_INLINE rank_lists zero_bubble_scheduler::lists_by_clock(scheduler_choices choices) {
  start(choices);
  for (std::size_t left = lists_.size(); left > 0; --left) {
    next_action first;
    for (std::size_t r = 0; r < cost_.size(); ++r) {
      const next_action next = next_of(r);
      if (next.start < first.start) first = next;
    }
    if (first.kind == action_kind::forward) forward(first.rank);
    if (first.kind == action_kind::backward_input) input(first.rank);
    if (first.kind == action_kind::backward_weight) weight(first.rank);
  }
  return finish();
}

HEDDLE_INLINE void zero_bubble_scheduler::put(std::size_t r, action_kind kind, int i, double ready, double time) {
  state& s = ranks_[r];
  lists_[cell(r, 0) * 3 + at(s.forwards + s.inputs + s.weights)] = {kind, static_cast<int>(r), i};
  if (ready > s.clock) {
    if (s.forwards > 0) s.waited += ready - s.clock;
    s.clock = ready;
  }
  s.clock += time;
}

HEDDLE_INLINE void zero_bubble_scheduler::start(scheduler_choices choices) {
  choices_ = choices;
  ranks_.assign(cost_.size(), state{});
  forward_end_.assign(cost_.size() * at(m_), 0.0);
  input_end_.assign(cost_.size() * at(m_), 0.0);
  lists_.assign(cost_.size() * 3 * at(m_), action{});
}

HEDDLE_INLINE rank_lists zero_bubble_scheduler::finish() {
  rank_lists out;
  out.offsets.assign(cost_.size() + 1, 0);
  for (std::size_t r = 0; r < cost_.size(); ++r) {
    while (ranks_[r].weights < m_) weight(r);
    out.offsets[r + 1] = out.offsets[r] + 3 * m_;
  }
  out.actions = lists_;
  return out;
}

HEDDLE_INLINE void zero_bubble_scheduler::fill(std::size_t r, double arrival) {
  state& s = ranks_[r];
  while (s.weights < s.inputs && s.clock + cost_[r].backward_weight <= arrival) weight(r);
  if (s.weights == s.inputs || s.clock >= arrival) return;
  const bool others_wait_longer = arrival - s.clock <= most_waited() - s.waited;
  if (!others_wait_longer || choices_.fill_greedily) weight(r);
}

HEDDLE_INLINE void zero_bubble_scheduler::warm_up() {
  const std::size_t p = ranks_.size();
  for (std::size_t r = 0; r < p; ++r) forward(r);
  std::vector<int> more(p, 0);
  double arrival = 0;  // of the first I
  for (std::size_t r = p; r-- > 0;) {
    double clock = ranks_[r].clock;
    arrival = r + 1 == p ? clock : arrival;
    for (; 1 + more[r] < m_ && cost_[r].held(2 + more[r], 0) <= limit_[r]; ++more[r]) {
      if (choices_.bubble_before_input ? clock + cost_[r].forward > arrival : clock >= arrival) break;
      clock += cost_[r].forward;
    }
    arrival = (clock > arrival ? clock : arrival) + cost_[r].backward_input + link_;
  }
  for (std::size_t r = 0; r < p; ++r) {
    const int behind = choices_.staggered ? 1 : 0;
    if (r > 0 && more[r] > more[r - 1] - behind) more[r] = more[r - 1] > behind ? more[r - 1] - behind : 0;
    for (int k = 0; k < more[r]; ++k) forward(r);
  }
  for (std::size_t r = p; r-- > 0;) input(r);
}

HEDDLE_INLINE void zero_bubble_scheduler::forwards() {
  const std::size_t p = ranks_.size();
  std::size_t first = 0;
  for (std::size_t r = 0; r < p; ++r)
    if (ranks_[r].forwards == m_ || leaves_out(r)) first = r + 1;
  for (std::size_t r = first; r < p; ++r) {
    while (!has_room(r, ranks_[r].weights)) weight(r);
    fill(r, forward_arrival(r));
    forward(r);
  }
}

HEDDLE_INLINE bool zero_bubble_scheduler::leaves_out(std::size_t r) const {
  if (!choices_.prefer_input || r + 1 == ranks_.size()) return false;
  const state &s = ranks_[r], &next = ranks_[r + 1];
  if (s.forwards < next.forwards + 2) return false;
  const double arrival = next.clock + cost_[r + 1].forward + cost_[r + 1].backward_input + link_;
  if (s.clock >= arrival) return true;
  double clock = s.clock + cost_[r].forward;
  for (int w = s.weights; w < s.inputs && !has_room(r, w); ++w) clock += cost_[r].backward_weight;
  return clock > arrival && arrival - s.clock <= most_waited() - s.waited;
}

HEDDLE_INLINE schedule_outcome run_lists(const rank_lists& lists, std::span<const stage_cost> cost,
                                         std::span<const int> rank_of_stage, double link, int m) {
  const std::size_t p = lists.offsets.size() - 1, stages = cost.size(), count = static_cast<std::size_t>(m);
  schedule_outcome out{0, std::vector<double>(p, 0.0)};
  std::vector<double> up(stages * count, -1.0), down(stages * count, -1.0), clock(p, 0.0);
  std::vector<int> head(lists.offsets.begin(), lists.offsets.end() - 1), whole(stages, 0), rest(stages, 0);
  std::vector<std::vector<std::size_t>> own(p);
  for (std::size_t s = 0; s < stages; ++s) own[static_cast<std::size_t>(rank_of_stage[s])].push_back(s);
  const auto step = [&](std::size_t r) {
    const action& a = lists.actions[static_cast<std::size_t>(head[r])];
    const std::size_t s = static_cast<std::size_t>(a.stage), i = static_cast<std::size_t>(a.microbatch);
    double ready = 0;  // negative: not yet computed
    std::size_t from = s;
    if (a.kind == action_kind::forward && s > 0) {
      from = s - 1;
      ready = up[from * count + i];
    } else if (a.kind == action_kind::backward || a.kind == action_kind::backward_input) {
      from = s + 1 != stages ? s + 1 : s;
      ready = from != s ? down[from * count + i] : up[s * count + i];
    }
    if (ready < 0) return false;
    if (rank_of_stage[from] != rank_of_stage[s]) ready += link;
    double& now = clock[r] = ready > clock[r] ? ready : clock[r];
    if (a.kind == action_kind::forward) {
      up[s * count + i] = now += cost[s].forward;
      ++whole[s];
      double bytes = 0;
      for (const std::size_t k : own[r]) bytes += cost[k].held(whole[k], rest[k]);
      if (bytes > out.peak_bytes[r]) out.peak_bytes[r] = bytes;
    } else if (a.kind == action_kind::backward_weight) {
      now += cost[s].backward_weight;
      --rest[s];
    } else {
      now += cost[s].backward_input + (a.kind == action_kind::backward ? cost[s].backward_weight : 0.0);
      down[s * count + i] = now;
      --whole[s];
      rest[s] += a.kind == action_kind::backward_input ? 1 : 0;
    }
    ++head[r];
    if (now > out.makespan) out.makespan = now;
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t k = 0; k < 2 * p; ++k) {
      const std::size_t r = k < p ? k : 2 * p - 1 - k;
      while (head[r] < lists.offsets[r + 1] && step(r)) progress = true;
    }
  }
  return out;
}

}  // namespace detail
}  // namespace heddle::inline v0::schedule

namespace heddle::inline v0::schedule {

HEDDLE_INLINE automatic::automatic(microbatches<> m, std::vector<stage_cost> costs, double link,
                                   std::vector<double> limits, double limit)
    : microbatches_(m), costs_(std::move(costs)), limits_(std::move(limits)), link_(link) {
  for (std::size_t r = 0; r < costs_.size(); ++r) rank_of_stage_.push_back(static_cast<int>(r));
  require_arguments(static_cast<int>(costs_.size()), limit);
  const int p = ranks(), count = m.count();
  consider(detail::lists_of(one_f_one_b<>{m}, p));
  consider(detail::lists_of(zb_h1<>{m}, p));
  if (detail::fits(zb_h2<>{m}, p)) consider(detail::lists_of(zb_h2<>{m}, p));
  detail::zero_bubble_scheduler scheduler(costs_, limits_, link_, count);
  for (int n = 0; n < detail::scheduler_choices::count; ++n)
    consider(scheduler.lists(detail::scheduler_choices::number(n)));
  for (const bool prefer_input : {false, true})
    for (const bool fill_greedily : {false, true})
      consider(scheduler.lists_by_clock({false, prefer_input, fill_greedily, false}));
}

HEDDLE_INLINE rank_lists automatic::one_by_one() const {
  rank_lists all;
  all.offsets.push_back(0);
  for (int r = 0; r < ranks(); ++r) {
    for (int i = 0; i < microbatch_count(); ++i) {
      for (int s = 0; s < stages(); ++s)
        if (rank_of(s) == r) all.actions.push_back({action_kind::forward, s, i});
      for (int s = stages(); s-- > 0;)
        if (rank_of(s) == r) {
          all.actions.push_back({action_kind::backward_input, s, i});
          all.actions.push_back({action_kind::backward_weight, s, i});
        }
    }
    all.offsets.push_back(static_cast<int>(all.actions.size()));
  }
  return all;
}

HEDDLE_INLINE void automatic::consider(rank_lists candidate) {
  if (candidate.offsets.empty()) return;
  schedule_outcome found = detail::run_lists(candidate, costs_, rank_of_stage_, link_, microbatches_.count());
  for (std::size_t r = 0; r < limits_.size(); ++r)
    if (found.peak_bytes[r] > limits_[r]) return;
  if (!best_.offsets.empty() && found.makespan >= outcome_.makespan) return;
  outcome_ = std::move(found);
  best_ = std::move(candidate);
}

HEDDLE_INLINE void automatic::require_arguments(int ranks, double limit) {
  const auto sound = [](double x) { return x >= 0 && x < unlimited; };
  if (costs_.empty()) throw schedule_error("heddle: automatic schedule: give the cost of at least one stage");
  if (limits_.empty()) limits_.assign(static_cast<std::size_t>(ranks), limit);
  if (limits_.size() != static_cast<std::size_t>(ranks))
    throw schedule_error("heddle: automatic schedule: " + std::to_string(ranks) + " ranks, but " +
                         std::to_string(limits_.size()) + " limits of memory; give one for each, or one for all");
  if (std::int64_t{stages()} * microbatch_count() > detail::most_cells)
    throw schedule_error("heddle: a schedule of " + std::to_string(stages()) + " stages and " +
                         std::to_string(microbatch_count()) + " microbatches is too large");
  if (!sound(link_)) throw schedule_error("heddle: automatic schedule: the time of a message is negative or no number");
  std::vector<double> one(limits_.size(), 0.0);
  double time = 0, bytes = 0;  // of one microbatch on all stages
  for (std::size_t s = 0; s < costs_.size(); ++s) {
    const stage_cost& c = costs_[s];
    if (!sound(c.forward) || !sound(c.backward_input) || !sound(c.backward_weight) || !sound(c.bytes) ||
        !sound(c.released_by_input) || c.released_by_input > c.bytes)
      throw schedule_error("heddle: automatic schedule: a time or a number of bytes of stage " + std::to_string(s) +
                           " is negative or no number, or I releases more than there is");
    const int r = rank_of_stage_[s];
    if (r < 0 || r >= ranks)
      throw schedule_error("heddle: automatic schedule: stage " + std::to_string(s) + " lives on rank " +
                           std::to_string(r) + ", there are " + std::to_string(ranks));
    one[static_cast<std::size_t>(r)] += c.bytes;
    time += c.forward + c.backward_input + c.backward_weight + 2 * link_;
    bytes += c.bytes;
  }
  if (!sound(time * microbatch_count()) || !sound(bytes * microbatch_count()))
    throw schedule_error("heddle: automatic schedule: the times or bytes of " + std::to_string(microbatch_count()) +
                         " microbatches are more than a double can hold");
  for (std::size_t r = 0; r < one.size(); ++r)
    if (!(one[r] <= limits_[r]))
      throw schedule_error("heddle: automatic schedule: one microbatch needs " + number_text(one[r]) +
                           " bytes on rank " + std::to_string(r) + ", the limit is " + number_text(limits_[r]));
}

}  // namespace heddle::inline v0::schedule
