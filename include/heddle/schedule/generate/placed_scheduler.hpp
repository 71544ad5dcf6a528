// heddle/schedule/generate/placed_scheduler.hpp: list scheduling by the clock.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/schedule/stage_cost.hpp>
#include <heddle/schedule/table.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace heddle::inline v0::schedule::detail {

// What the scheduler has no better means to choose than to try: of what can begin at the same time, which first; and how
// many forwards are under way.
struct placed_choices {
  bool forward_first = false;  // F rather than I
  bool early_forward = false;  // F of the stage nearest to the input rather than to the loss
  bool early_input = false;    // the same of I
  bool fill_greedily = false;  // W in any gap, not only where it fits in
  double staggered = 0;        // if positive: stage s of S keeps at most S - s microbatches times this times what fits

  static constexpr int count = 96;
  static constexpr placed_choices number(int n) noexcept {
    constexpr double parts[] = {0, 1, 1.15, 1.3, 1.6, 2};
    return {n % 2 != 0, n / 2 % 2 != 0, n / 4 % 2 != 0, n / 8 % 2 != 0, parts[n / 16]};
  }
};

// Goes by the clock: whichever rank can begin something first begins the best it has. A rank keeps room for what the
// oldest microbatch that is under way still needs of it: so that one always comes to its end, unless bytes were rounded:
// then there is no schedule.
class placed_scheduler {
 public:
  // `costs`: one per stage; `limits`: one per rank, of bytes, each enough for one microbatch on all of its stages.
  placed_scheduler(std::span<const stage_cost> costs, std::span<const int> rank_of_stage,
                   std::span<const double> limits, double link, int microbatches);

  rank_lists lists(const placed_choices& choices);

 private:
  static constexpr double never = (std::numeric_limits<double>::max)();

  struct stage_state {
    int forwards = 0, inputs = 0, weights = 0;
  };
  struct next_action {
    action_kind kind = action_kind::backward_weight;
    std::size_t stage = 0;
    double start = never;
  };
  struct rank_state {
    double clock = 0;
    std::vector<action> list{};
    std::vector<std::size_t> inputs{};  // stages of the I that were begun, in this order; W follow it
    std::size_t weights = 0;
    next_action next{};
    bool stale = true;
  };

  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }
  std::size_t cell(std::size_t stage, int i) const noexcept { return stage * at(m_) + at(i); }
  double message(std::size_t from, std::size_t to) const noexcept { return rank_of_[from] == rank_of_[to] ? 0 : link_; }

  // The further from the loss, the longer a microbatch stays.
  int most_under_way(std::size_t s, double part) const noexcept {
    const int n = static_cast<int>(static_cast<double>(cost_.size() - s) * part + 0.999);
    return n > 1 ? n : 1;
  }
  // The oldest microbatch of which this rank has not begun every I.
  int oldest(std::size_t r) const noexcept {
    int i = m_;
    for (const std::size_t s : own_[r]) i = stages_[s].inputs < i ? stages_[s].inputs : i;
    return i;
  }
  // Bytes with a forward more of `stage`, and with those that microbatch `oldest` still needs if it is another one.
  double held(std::size_t r, std::size_t stage, int oldest) const noexcept;

  next_action next_of(std::size_t r) const {
    const rank_state& rank = ranks_[r];
    const std::size_t count = cost_.size();
    next_action best;
    const int oldest = this->oldest(r);
    const auto offer = [&](action_kind kind, std::size_t s, double arrival) {
      const double begin = arrival > rank.clock ? arrival : rank.clock;
      if (begin > best.start || (begin == best.start && !goes_before(kind, s, best))) return;
      best = {kind, s, begin};
    };
    for (const std::size_t s : own_[r]) {
      const stage_state& here = stages_[s];
      if (here.inputs < here.forwards && (s + 1 == count || stages_[s + 1].inputs > here.inputs))
        offer(action_kind::backward_input, s,
              s + 1 == count ? forward_end_[cell(s, here.inputs)]
                             : input_end_[cell(s + 1, here.inputs)] + message(s + 1, s));
      if (here.forwards == m_ || (s > 0 && stages_[s - 1].forwards == here.forwards)) continue;
      if (held(r, s, oldest) > limit_[r]) continue;
      if (choices_.staggered > 0 && here.forwards - here.inputs >= most_under_way(s, choices_.staggered * fits_))
        continue;
      offer(action_kind::forward, s, s == 0 ? 0 : forward_end_[cell(s - 1, here.forwards)] + message(s - 1, s));
    }
    if (rank.weights == rank.inputs.size()) return best;
    const std::size_t s = rank.inputs[rank.weights];
    if (rank.clock < best.start && (choices_.fill_greedily || rank.clock + cost_[s].backward_weight <= best.start))
      best = {action_kind::backward_weight, s, rank.clock};
    return best;
  }
  // Of two that can begin at once; `best` is the one offered before, of this stage or of one nearer to the input.
  bool goes_before(action_kind kind, std::size_t s, const next_action& best) const noexcept {
    if (kind != best.kind) return choices_.forward_first == (kind == action_kind::forward);
    const bool early = kind == action_kind::forward ? choices_.early_forward : choices_.early_input;
    return early == (s < best.stage);
  }

  void begin(std::size_t r, const next_action& next);

  std::span<const stage_cost> cost_;
  std::span<const int> rank_of_;
  std::span<const double> limit_;
  double link_;
  int m_;
  double fits_ = 1.0 / 32;
  std::vector<std::vector<std::size_t>> own_;  // stages of each rank
  placed_choices choices_{};
  std::vector<stage_state> stages_{};
  std::vector<rank_state> ranks_{};
  std::vector<double> forward_end_{}, input_end_{};
};

}  // namespace heddle::inline v0::schedule::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/schedule/impl/generate/placed_scheduler.hpp>
#endif
