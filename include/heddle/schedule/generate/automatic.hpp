// heddle/schedule/generate/automatic.hpp: a schedule for measured times and a limit of memory.
#pragma once

#include <heddle/core/config.hpp>
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

// Choices that the scheduler has no better means to make than to try both ways.
struct scheduler_choices {
  bool bubble_before_input = false;  // wait for the first I rather than begin one forward more in front of it
  bool prefer_input = false;         // leave a forward out for now if it would hold up the next I
  bool fill_greedily = false;        // a W in a gap that is too short for it, even if others wait for longer
  bool staggered = false;            // each rank begins at least one forward fewer than the one before it

  static constexpr int count = 16;
  static constexpr scheduler_choices number(int n) noexcept {
    return {n % 2 != 0, n / 2 % 2 != 0, n / 4 % 2 != 0, n / 8 % 2 != 0};
  }
};

// One stage per rank. `lists` goes from microbatch to microbatch: a forward on every rank from the first to the last,
// then an I on every rank from the last to the first; so that it is known when an input will arrive before anything is
// put in front.
class zero_bubble_scheduler {
 public:
  // `costs`, `limits`: one per rank, of bytes.
  zero_bubble_scheduler(std::span<const stage_cost> costs, std::span<const double> limits, double link,
                        int microbatches)
      : cost_(costs), limit_(limits), link_(link), m_(microbatches) {}

  rank_lists lists(scheduler_choices choices);

  // Goes by the clock: whichever rank can begin something first begins the best it has. Better than the other where
  // memory is so short that ranks cannot take turns between F and I. Looks at `prefer_input` and `fill_greedily` only.
  rank_lists lists_by_clock(scheduler_choices choices);

 private:
  struct state {
    double clock = 0, waited = 0;
    int forwards = 0, inputs = 0, weights = 0;
  };

  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }
  std::size_t cell(std::size_t rank, int i) const noexcept { return rank * at(m_) + at(i); }

  void put(std::size_t r, action_kind kind, int i, double ready, double time);
  void forward(std::size_t r) {
    state& s = ranks_[r];
    put(r, action_kind::forward, s.forwards, forward_arrival(r), cost_[r].forward);
    forward_end_[cell(r, s.forwards++)] = s.clock;
  }
  void input(std::size_t r) {
    state& s = ranks_[r];
    put(r, action_kind::backward_input, s.inputs, input_arrival(r), cost_[r].backward_input);
    input_end_[cell(r, s.inputs++)] = s.clock;
  }
  void weight(std::size_t r) {
    state& s = ranks_[r];
    put(r, action_kind::backward_weight, s.weights, 0, cost_[r].backward_weight);
    ++s.weights;
  }

  void start(scheduler_choices choices);
  rank_lists finish();

  struct next_action {
    action_kind kind = action_kind::backward_weight;
    std::size_t rank = 0;
    double start = (std::numeric_limits<double>::max)();
  };
  // What a rank begins next, and when, as far as what has begun elsewhere tells.
  next_action next_of(std::size_t r) const {
    const state& s = ranks_[r];
    next_action best;
    best.rank = r;
    const auto offer = [&](action_kind kind, double arrival, bool at_a_tie) {
      const double begin = arrival > s.clock ? arrival : s.clock;
      if (begin < best.start || (at_a_tie && begin == best.start)) {
        best.start = begin;
        best.kind = kind;
      }
    };
    if (s.inputs < s.forwards && (r + 1 == cost_.size() || ranks_[r + 1].inputs > s.inputs))
      offer(action_kind::backward_input, input_arrival(r), false);
    if (s.forwards < m_ && (r == 0 || ranks_[r - 1].forwards > s.forwards) && has_room(r, s.weights))
      offer(action_kind::forward, forward_arrival(r), !choices_.prefer_input);
    if (s.weights < s.inputs && s.clock < best.start &&
        (choices_.fill_greedily || s.clock + cost_[r].backward_weight <= best.start)) {
      best.start = s.clock;
      best.kind = action_kind::backward_weight;
    }
    return best;
  }

  // When the input of a rank's next forward or I is there.
  double forward_arrival(std::size_t r) const {
    return r == 0 ? 0 : forward_end_[cell(r - 1, ranks_[r].forwards)] + link_;
  }
  double input_arrival(std::size_t r) const {
    const int i = ranks_[r].inputs;
    return r + 1 == ranks_.size() ? forward_end_[cell(r, i)] : input_end_[cell(r + 1, i)] + link_;
  }
  double most_waited() const {
    double most = 0;
    for (const state& s : ranks_) most = s.waited > most ? s.waited : most;
    return most;
  }

  // Whether a rank may keep one microbatch more once its W up to `weights` are done.
  bool has_room(std::size_t r, int weights) const {
    const state& s = ranks_[r];
    return cost_[r].held(s.forwards + 1 - s.inputs, s.inputs - weights) <= limit_[r];
  }
  // W while the rank waits until `arrival`.
  void fill(std::size_t r, double arrival);

  // The first forward and the first I of every rank, and as many forwards in between as there is room and time for.
  void warm_up();

  // A forward more on every rank that has one left, or only on the last ranks.
  void forwards();

  // Whether a rank that is two forwards ahead of the next had better wait for its I.
  bool leaves_out(std::size_t r) const;

  std::span<const stage_cost> cost_;
  std::span<const double> limit_;
  double link_;
  int m_;
  scheduler_choices choices_{};
  std::vector<state> ranks_;
  std::vector<double> forward_end_, input_end_;
  std::vector<action> lists_;
};

// Runs lists of computations in time. B is I and W, and keeps all until it ends.
HEDDLE_INLINE schedule_outcome run_lists(const rank_lists& lists, std::span<const stage_cost> cost,
                                         std::span<const int> rank_of_stage, double link, int m);

}  // namespace detail

/// A zero-bubble schedule for measured times and a limit of memory: of the known schedules on this map and of what a
/// greedy scheduler finds in its variants the one that is done first; never over the limit. `costs` has one entry per
/// stage; `link` is the time of a message between ranks; `limits` are bytes of saved activations per rank, or one for all.
/// Without a map there is one stage per rank; with one (`v_shape{}`, `loop<2>{}`, your own) as many ranks as have so many
/// stages on it. Made when constructed: `outcome` says what to expect.
/// - One stage per rank: 1F1B, ZB-H1, ZB-H2 and 20 variants.
/// - Several: on `v_shape` ZB-V, V-Half, V-Min and Hanayo, on `loop<v>` interleaved 1F1B and ZB-H1, and on every map
///   96 variants.
/// Errors: `schedule_error` without ranks or microbatches, for times or bytes that make no sense or add up to more than
/// a double holds, for a map that has other numbers of stages, or several chains, and where a limit does not even hold
/// one microbatch.
/// Source: Qi et al. 2023, arXiv:2401.10241, section 3.1 (heuristic scheduling).
class automatic : public detail::run_time_schedule {
 public:
  static constexpr double unlimited = (std::numeric_limits<double>::max)();

  automatic(microbatches<> m, std::vector<stage_cost> costs, double link = 0, double limit = unlimited)
      : automatic(m, std::move(costs), link, std::vector<double>(), limit) {}
  automatic(microbatches<> m, std::vector<stage_cost> costs, double link, std::vector<double> limits)
      : automatic(m, std::move(costs), link, std::move(limits), unlimited) {}
  automatic(int m, std::vector<stage_cost> costs, double link = 0, double limit = unlimited)
      : automatic(microbatches<>{m}, std::move(costs), link, limit) {}
  automatic(int m, std::vector<stage_cost> costs, double link, std::vector<double> limits)
      : automatic(microbatches<>{m}, std::move(costs), link, std::move(limits)) {}
  template <stage_map_value Map>
  automatic(int m, const Map& map, std::vector<stage_cost> costs, double link = 0, double limit = unlimited)
      : automatic(map, microbatches<>{m}, std::move(costs), link, std::vector<double>(), limit) {}
  template <stage_map_value Map>
  automatic(int m, const Map& map, std::vector<stage_cost> costs, double link, std::vector<double> limits)
      : automatic(map, microbatches<>{m}, std::move(costs), link, std::move(limits), unlimited) {}

  int microbatch_count() const noexcept { return microbatches_.count(); }
  int ranks() const noexcept { return static_cast<int>(limits_.size()); }
  int stages(int /*ranks*/ = 0) const noexcept { return static_cast<int>(costs_.size()); }
  int rank_of(int stage, int /*ranks*/ = 0) const noexcept { return rank_of_stage_[static_cast<std::size_t>(stage)]; }
  bool fits(int ranks) const noexcept { return ranks == this->ranks(); }
  /// What the chosen schedule comes to with the times it was made for.
  const schedule_outcome& outcome() const noexcept { return outcome_; }

  rank_lists lists(int /*ranks*/) const { return best_; }

 private:
  automatic(microbatches<> m, std::vector<stage_cost> costs, double link, std::vector<double> limits, double limit);

  template <class Map>
  automatic(const Map& map, microbatches<> m, std::vector<stage_cost> costs, double link, std::vector<double> limits,
            double limit)
      : microbatches_(m), costs_(std::move(costs)), limits_(std::move(limits)), link_(link) {
    const int stages = static_cast<int>(costs_.size());
    // The number of ranks may be in where stages live, not in how many there are.
    const auto too_few = [&](int ranks) {
      bool beyond = false;
      for (int s = 0; s < stages && map.stages(ranks) == stages; ++s) beyond = beyond || map.rank_of(s, ranks) >= ranks;
      return map.stages(ranks) < stages || beyond;
    };
    int p = 1;
    while (p < stages && too_few(p)) ++p;
    if (stages > 0 && (map.stages(p) != stages || map.chains != 1))
      throw schedule_error("heddle: automatic schedule: the map has " + std::to_string(map.stages(p)) + " stages on " +
                           std::to_string(p) + " ranks in " + std::to_string(map.chains) +
                           " chains; give the cost of each of them, in one chain: there are " + std::to_string(stages));
    for (int s = 0; s < stages; ++s) rank_of_stage_.push_back(map.rank_of(s, p));
    require_arguments(p, limit);
    consider(one_by_one());
    const int v = stages / p;
    if (is_map(v_shape{})) {
      consider(detail::lists_of(zb_v<>{m}, p));
      consider(detail::lists_of(v_half<>{m}, p));
      consider(detail::lists_of(v_min<>{m}, p));
      consider(detail::lists_of(hanayo<>{m}, p));
    }
    if (stages == v * p && is_loop()) {
      const interleaved<heddle::microbatches<>, dynamic> in_turn{m, v};
      const zb_h1<heddle::microbatches<>, dynamic> split{m, v};
      if (detail::fits(in_turn, p)) consider(detail::lists_of(in_turn, p));
      if (detail::fits(split, p)) consider(detail::lists_of(split, p));
    }
    detail::placed_scheduler scheduler(costs_, rank_of_stage_, limits_, link_, m.count());
    for (int n = 0; n < detail::placed_choices::count; ++n)
      consider(scheduler.lists(detail::placed_choices::number(n)));
  }

  template <class Map>
  bool is_map(const Map& map) const {
    if (map.stages(ranks()) != stages()) return false;
    for (int s = 0; s < stages(); ++s)
      if (map.rank_of(s, ranks()) != rank_of(s)) return false;
    return true;
  }
  bool is_loop() const {
    for (int s = 0; s < stages(); ++s)
      if (rank_of(s) != s % ranks()) return false;
    return true;
  }

  // One microbatch behind the other: fits wherever anything does.
  rank_lists one_by_one() const;

  void consider(rank_lists candidate);

  void require_arguments(int ranks, double limit);

  microbatches<> microbatches_;
  std::vector<stage_cost> costs_;
  std::vector<int> rank_of_stage_;
  std::vector<double> limits_;
  double link_;
  rank_lists best_;
  schedule_outcome outcome_;
};

}  // namespace heddle::inline v0::schedule

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/schedule/impl/generate/automatic.hpp>
#endif
