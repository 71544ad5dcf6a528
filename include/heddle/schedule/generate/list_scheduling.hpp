// heddle/schedule/generate/list_scheduling.hpp: each rank begins the best ready action.
#pragma once

#include <heddle/schedule/constexpr_scratch.hpp>
#include <heddle/schedule/stage_map.hpp>

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>

namespace heddle::inline v0::schedule {

/// A stage map as a value: every type that is one (`loop<2>{}`), or one whose numbers are known at run time.
template <class M>
concept stage_map_value = requires(const M map, int n) {
  { map.chains } -> std::convertible_to<int>;
  { map.stages(n) } -> std::same_as<int>;
  { map.rank_of(n, n) } -> std::same_as<int>;
};

/// How list scheduling chooses. Times are whole numbers of one unit. Of what is ready at the same time a rank begins
/// the computation with the lowest `order`; `part` is the stage's place in its chain, `microbatch` counts from 0 in
/// each chain. A stage keeps the activations of at most `most_live` microbatches, and everything takes at least one unit.
template <class R>
concept list_rule = requires(const R rule, action_kind kind, int n) {
  { rule.forward_time } -> std::convertible_to<int>;
  { rule.backward_time } -> std::convertible_to<int>;
  { rule.most_live(n) } -> std::same_as<int>;
  { rule.order(kind, n, n) } -> std::convertible_to<std::int64_t>;
};

namespace detail {

// Time goes from one end of a computation to the next; at each, every rank that is free begins the best computation
// whose inputs are there.
template <stage_map_value Map, list_rule Rule>
class list_scheduler {
 public:
  constexpr list_scheduler(const Map& map, int ranks, int microbatches, const Rule& rule)
      : map_(map),
        rule_(rule),
        ranks_(ranks),
        stages_(map.stages(ranks)),
        parts_(stages_ / map.chains),
        m_(microbatches),
        stages_memory_(stages_),
        own_memory_(stages_),
        first_own_memory_(ranks + 1),
        forward_end_memory_(stages_ * m_),
        backward_end_memory_(stages_ * m_),
        free_memory_(ranks),
        at_memory_(ranks),
        stages_of_(stages_memory_.data()),
        own_(own_memory_.data()),
        first_own_(first_own_memory_.data()),
        forward_end_(forward_end_memory_.data()),
        backward_end_(backward_end_memory_.data()) {}

  constexpr rank_lists run() {
    rank_lists out;
    out.offsets.assign(static_cast<std::size_t>(ranks_) + 1, 0);
    const int left = prepare(out.offsets.data());
    out.actions.assign(static_cast<std::size_t>(left), action{});
    action* const actions = out.actions.data();
    std::int64_t* const free = free_memory_.data();
    int* const at = at_memory_.data();
    for (int r = 0; r < ranks_; ++r) at[r] = out.offsets.data()[r];
    constexpr std::int64_t never = (std::numeric_limits<std::int64_t>::max)();
    std::int64_t now = 0;
    for (int done = 0; done < left;) {
      for (int r = 0; r < ranks_; ++r) {
        if (free[r] > now) continue;
        const action best = choose(r, now);
        if (best.stage < 0) continue;
        free[r] = begin(best, now);
        actions[at[r]++] = best;
        ++done;
      }
      std::int64_t next = never;
      for (const std::int64_t *end = free, *last = free + ranks_; end != last; ++end)
        if (*end > now && *end < next) next = *end;
      if (done < left && next == never)
        throw schedule_error("heddle: list scheduling stops: no rank may begin anything; let more be alive at a time");
      now = next;
    }
    return out;
  }

 private:
  // Where a stage stands: its next forward and its next backward.
  struct progress {
    int part = 0;
    int first = 0;  // microbatch of its chain
    int count = 0;
    int most_live = 0;
    int forwards = 0;
    int backwards = 0;
  };

  // Returns the number of actions of all ranks.
  constexpr int prepare(int* offsets) {
    if (rule_.forward_time < 1 || rule_.backward_time < 1)
      throw schedule_error("heddle: list scheduling: a forward and a backward take at least one unit of time");
    for (int s = 0; s < stages_; ++s) {
      progress& p = stages_of_[s];
      const int rank = map_.rank_of(s, ranks_);
      if (rank < 0 || rank >= ranks_)
        throw schedule_error("heddle: list scheduling: stage " + std::to_string(s) + " lives on rank " +
                             std::to_string(rank) + ", there are " + std::to_string(ranks_));
      const int chain = s / parts_;
      p.part = s % parts_;
      p.first = chain * m_ / map_.chains;
      p.count = (chain + 1) * m_ / map_.chains - p.first;
      p.most_live = rule_.most_live(p.part);
      offsets[rank + 1] += 2 * p.count;
    }
    for (int r = 0, n = 0; r < ranks_; ++r) {
      for (int s = 0; s < stages_; ++s)
        if (map_.rank_of(s, ranks_) == r) own_[n++] = s;
      first_own_[r + 1] = n;
      offsets[r + 1] += offsets[r];
    }
    return offsets[ranks_];
  }

  constexpr bool forward_ready(int s, const progress& p, std::int64_t now) const {
    if (p.forwards == p.count || p.forwards - p.backwards >= p.most_live) return false;
    if (p.part == 0) return true;
    const std::int64_t end = forward_end_[(s - 1) * m_ + p.first + p.forwards];
    return end > 0 && end <= now;
  }
  constexpr bool backward_ready(int s, const progress& p, std::int64_t now) const {
    if (p.backwards == p.forwards) return false;
    const int i = p.first + p.backwards;
    const std::int64_t end = p.part == parts_ - 1 ? forward_end_[s * m_ + i] : backward_end_[(s + 1) * m_ + i];
    return end > 0 && end <= now;
  }

  constexpr action choose(int rank, std::int64_t now) const {
    action best;
    std::int64_t best_order = (std::numeric_limits<std::int64_t>::max)();
    for (const int *s = own_ + first_own_[rank], *end = own_ + first_own_[rank + 1]; s != end; ++s) {
      const progress& p = stages_of_[*s];
      if (backward_ready(*s, p, now)) {
        const std::int64_t order = rule_.order(action_kind::backward, p.part, p.backwards);
        if (order < best_order) {
          best = {action_kind::backward, *s, p.first + p.backwards};
          best_order = order;
        }
      }
      if (forward_ready(*s, p, now)) {
        const std::int64_t order = rule_.order(action_kind::forward, p.part, p.forwards);
        if (order < best_order) {
          best = {action_kind::forward, *s, p.first + p.forwards};
          best_order = order;
        }
      }
    }
    return best;
  }

  constexpr std::int64_t begin(const action& a, std::int64_t now) {
    const bool up = a.kind == action_kind::forward;
    const std::int64_t end = now + (up ? rule_.forward_time : rule_.backward_time);
    (up ? forward_end_ : backward_end_)[a.stage * m_ + a.microbatch] = end;
    ++(up ? stages_of_[a.stage].forwards : stages_of_[a.stage].backwards);
    return end;
  }

  const Map& map_;
  const Rule& rule_;
  int ranks_, stages_, parts_, m_;
  scratch<progress> stages_memory_;
  scratch<int> own_memory_, first_own_memory_;
  scratch<std::int64_t> forward_end_memory_, backward_end_memory_, free_memory_;
  scratch<int> at_memory_;
  progress* stages_of_;
  int* own_;                   // stages rank by rank
  int* first_own_;             // of each rank
  std::int64_t* forward_end_;  // when each ended; 0 where it has not begun
  std::int64_t* backward_end_;
};

// Seconds of work.
inline constexpr std::int64_t most_looks = std::int64_t{1} << 31;

}  // namespace detail

/// The lists that list scheduling finds on a stage map: each rank begins something as soon as anything is ready, so that
/// it waits only where it must.
/// Errors: `schedule_error` if the rule's `most_live` lets nothing go on, for times less than 1, for a stage that lives
/// on no rank, for numbers of ranks, stages, chains and microbatches that no table has, and where actions times stages of a
/// rank are more than 2^31, which takes seconds.
template <stage_map_value Map, list_rule Rule>
constexpr rank_lists list_schedule(const Map& map, int ranks, int microbatches, const Rule& rule) {
  const int stages = ranks < 1 || ranks > detail::most_ranks ? 0 : map.stages(ranks);
  const int chains = map.chains;
  if (stages < 1 || chains < 1 || stages % chains != 0 || microbatches < chains ||
      std::int64_t{stages} * microbatches > detail::most_cells)
    throw schedule_error("heddle: list scheduling: no table has " + std::to_string(microbatches) + " microbatches on " +
                         std::to_string(stages) + " stages in " + std::to_string(chains) + " chains on " +
                         std::to_string(ranks) + " ranks");
  // Each action is chosen among the stages of its rank.
  if (const std::int64_t looks = 2 * std::int64_t{stages} * microbatches * ((stages + ranks - 1) / ranks);
      looks > detail::most_looks)
    throw schedule_error("heddle: list scheduling: " + std::to_string(stages) + " stages and " +
                         std::to_string(microbatches) + " microbatches on " + std::to_string(ranks) +
                         " ranks take too long to schedule; actions times stages of a rank are " +
                         std::to_string(looks) + ", at most " + std::to_string(detail::most_looks));
  return detail::list_scheduler<Map, Rule>(map, ranks, microbatches, rule).run();
}

}  // namespace heddle::inline v0::schedule
