// heddle/schedule/automatic.hpp: a schedule for measured times and a limit of memory.
#pragma once

#include <heddle/schedule/one_f_one_b.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/schedule/zb_h1.hpp>
#include <heddle/schedule/zb_h2.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::schedule {

/// What one microbatch costs on one stage. Times in any one unit. A forward keeps `bytes`; of these I lets go
/// `released_by_input`, W the rest. By default one activation is one byte: limits then count microbatches.
struct stage_cost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double bytes = 1;
  double released_by_input = 0;

  /// Bytes of `whole` microbatches between F and I, and of `rest` between I and W. From counts, so that it is exact.
  constexpr double held(int whole, int rest) const noexcept {
    return (whole + rest) * bytes - rest * released_by_input;
  }
};

/// What a plan comes to: `makespan` in the unit of the times, `peak_bytes` per rank.
struct plan_outcome {
  double makespan = 0;
  std::vector<double> peak_bytes;
};

namespace detail {

// Choices that the planner has no better means to make than to try both ways.
struct planner_choices {
  bool bubble_before_input = false;  // wait for the first I rather than begin one forward more in front of it
  bool prefer_input = false;         // leave a forward out for now if it would hold up the next I
  bool fill_greedily = false;        // a W in a gap that is too short for it, even if others wait for longer
  bool staggered = false;            // each rank begins at least one forward fewer than the one before it

  static constexpr int count = 16;
  static constexpr planner_choices number(int n) noexcept {
    return {n % 2 != 0, n / 2 % 2 != 0, n / 4 % 2 != 0, n / 8 % 2 != 0};
  }
};

// One stage per rank. `plan` goes from microbatch to microbatch: a forward on every rank from the first to the last,
// then an I on every rank from the last to the first; so that it is known when an input will arrive before anything is
// put in front.
class zero_bubble_planner {
 public:
  // `costs`, `limits`: one per rank, of bytes.
  zero_bubble_planner(std::span<const stage_cost> costs, std::span<const double> limits, double link, int microbatches)
      : cost_(costs), limit_(limits), link_(link), m_(microbatches) {}

  rank_lists plan(planner_choices choices) {
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

  // Goes by the clock: whichever rank can begin something first begins the best it has. Better than the other where
  // memory is so short that ranks cannot take turns between F and I. Looks at `prefer_input` and `fill_greedily` only.
  rank_lists plan_by_clock(planner_choices choices) {
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

 private:
  struct state {
    double clock = 0;
    double waited = 0;
    int forwards = 0;
    int inputs = 0;
    int weights = 0;
  };

  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }
  std::size_t cell(std::size_t rank, int i) const noexcept { return rank * at(m_) + at(i); }

  void put(std::size_t r, action_kind kind, int i, double ready, double time) {
    state& s = ranks_[r];
    lists_[cell(r, 0) * 3 + at(s.forwards + s.inputs + s.weights)] = {kind, static_cast<int>(r), i};
    if (ready > s.clock) {
      if (s.forwards > 0) s.waited += ready - s.clock;
      s.clock = ready;
    }
    s.clock += time;
  }
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

  void start(planner_choices choices) {
    choices_ = choices;
    ranks_.assign(cost_.size(), state{});
    forward_end_.assign(cost_.size() * at(m_), 0.0);
    input_end_.assign(cost_.size() * at(m_), 0.0);
    lists_.assign(cost_.size() * 3 * at(m_), action{});
  }
  rank_lists finish() {
    rank_lists out;
    out.offsets.assign(cost_.size() + 1, 0);
    for (std::size_t r = 0; r < cost_.size(); ++r) {
      while (ranks_[r].weights < m_) weight(r);
      out.offsets[r + 1] = out.offsets[r] + 3 * m_;
    }
    out.actions = lists_;
    return out;
  }

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
  void fill(std::size_t r, double arrival) {
    state& s = ranks_[r];
    while (s.weights < s.inputs && s.clock + cost_[r].backward_weight <= arrival) weight(r);
    if (s.weights == s.inputs || s.clock >= arrival) return;
    const bool others_wait_longer = arrival - s.clock <= most_waited() - s.waited;
    if (!others_wait_longer || choices_.fill_greedily) weight(r);
  }

  // The first forward and the first I of every rank, and as many forwards in between as there is room and time for.
  void warm_up() {
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

  // A forward more on every rank that has one left, or only on the last ranks.
  void forwards() {
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

  // Whether a rank that is two forwards ahead of the next had better wait for its I.
  bool leaves_out(std::size_t r) const {
    if (!choices_.prefer_input || r + 1 == ranks_.size()) return false;
    const state &s = ranks_[r], &next = ranks_[r + 1];
    if (s.forwards < next.forwards + 2) return false;
    const double arrival = next.clock + cost_[r + 1].forward + cost_[r + 1].backward_input + link_;
    if (s.clock >= arrival) return true;
    double clock = s.clock + cost_[r].forward;
    for (int w = s.weights; w < s.inputs && !has_room(r, w); ++w) clock += cost_[r].backward_weight;
    return clock > arrival && arrival - s.clock <= most_waited() - s.waited;
  }

  std::span<const stage_cost> cost_;
  std::span<const double> limit_;
  double link_;
  int m_;
  planner_choices choices_{};
  std::vector<state> ranks_;
  std::vector<double> forward_end_, input_end_;
  std::vector<action> lists_;
};

// Runs lists of computations, one stage per rank, in time. B is I and W, and keeps all until it ends.
inline plan_outcome run_plan(const rank_lists& lists, std::span<const stage_cost> cost, double link, int m) {
  const std::size_t p = cost.size(), count = static_cast<std::size_t>(m);
  plan_outcome out{0, std::vector<double>(p, 0.0)};
  std::vector<double> up(p * count, -1.0), down(p * count, -1.0), clock(p, 0.0);
  std::vector<int> head(lists.offsets.begin(), lists.offsets.end() - 1), whole(p, 0), rest(p, 0);
  const auto step = [&](std::size_t r) {
    const action& a = lists.actions[static_cast<std::size_t>(head[r])];
    const std::size_t i = static_cast<std::size_t>(a.microbatch);
    double ready = 0;  // negative: not yet computed
    bool from_other = false;
    if (a.kind == action_kind::forward && r > 0) {
      ready = up[(r - 1) * count + i];
      from_other = true;
    } else if (a.kind == action_kind::backward || a.kind == action_kind::backward_input) {
      from_other = r + 1 != p;
      ready = from_other ? down[(r + 1) * count + i] : up[r * count + i];
    }
    if (ready < 0) return false;
    if (from_other) ready += link;
    double& now = clock[r] = ready > clock[r] ? ready : clock[r];
    if (a.kind == action_kind::forward) {
      up[r * count + i] = now += cost[r].forward;
      const double bytes = cost[r].held(++whole[r], rest[r]);
      if (bytes > out.peak_bytes[r]) out.peak_bytes[r] = bytes;
    } else if (a.kind == action_kind::backward_weight) {
      now += cost[r].backward_weight;
      --rest[r];
    } else {
      now += cost[r].backward_input + (a.kind == action_kind::backward ? cost[r].backward_weight : 0.0);
      down[r * count + i] = now;
      --whole[r];
      rest[r] += a.kind == action_kind::backward_input ? 1 : 0;
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

/// A zero-bubble schedule for measured times and a limit of memory, one stage per rank: of 1F1B, ZB-H1, ZB-H2 and what
/// a greedy planner finds in its variants, the one that is done first; never over the limit. `costs` has one entry per
/// rank; `link` is the time of a message; `limits` are bytes of saved activations per rank, or one for all. Planned
/// when constructed: `outcome` says what to expect.
/// Errors: `schedule_error` without ranks or microbatches, for times or bytes that make no sense, and where a limit
/// does not even hold one microbatch.
/// Source: Qi et al. 2023, arXiv:2401.10241, section 3.1 (heuristic scheduling).
class automatic {
 public:
  using kind = schedule_kind;
  static constexpr bool is_static = false;
  static constexpr double unlimited = (std::numeric_limits<double>::max)();

  automatic(microbatches<> m, std::vector<stage_cost> costs, double link = 0, double limit = unlimited)
      : automatic(m, std::move(costs), link, std::vector<double>(), limit) {}
  automatic(microbatches<> m, std::vector<stage_cost> costs, double link, std::vector<double> limits)
      : automatic(m, std::move(costs), link, std::move(limits), unlimited) {}
  automatic(int m, std::vector<stage_cost> costs, double link = 0, double limit = unlimited)
      : automatic(microbatches<>{m}, std::move(costs), link, limit) {}
  automatic(int m, std::vector<stage_cost> costs, double link, std::vector<double> limits)
      : automatic(microbatches<>{m}, std::move(costs), link, std::move(limits)) {}

  int microbatch_count() const noexcept { return microbatches_.count(); }
  int ranks() const noexcept { return static_cast<int>(costs_.size()); }
  static constexpr int stages(int ranks) noexcept { return ranks; }
  static constexpr int rank_of(int stage, int /*ranks*/) noexcept { return stage; }
  bool fits(int ranks) const noexcept { return ranks == this->ranks(); }
  /// What the chosen schedule comes to with the times it was planned for.
  const plan_outcome& outcome() const noexcept { return outcome_; }

  rank_lists lists(int /*ranks*/) const { return best_; }

 private:
  automatic(microbatches<> m, std::vector<stage_cost> costs, double link, std::vector<double> limits, double limit)
      : microbatches_(m), costs_(std::move(costs)), limits_(std::move(limits)), link_(link) {
    if (limits_.empty()) limits_.assign(costs_.size(), limit);
    check_arguments();
    const int p = ranks(), count = m.count();
    consider(detail::lists_of(one_f_one_b<>{m}, p));
    consider(detail::lists_of(zb_h1<>{m}, p));
    if (detail::fits(zb_h2<>{m}, p)) consider(detail::lists_of(zb_h2<>{m}, p));
    detail::zero_bubble_planner planner(costs_, limits_, link_, count);
    for (int n = 0; n < detail::planner_choices::count; ++n) consider(planner.plan(detail::planner_choices::number(n)));
    for (const bool prefer_input : {false, true})
      for (const bool fill_greedily : {false, true})
        consider(planner.plan_by_clock({false, prefer_input, fill_greedily, false}));
  }

  void consider(rank_lists candidate) {
    plan_outcome found = detail::run_plan(candidate, costs_, link_, microbatches_.count());
    for (std::size_t r = 0; r < limits_.size(); ++r)
      if (found.peak_bytes[r] > limits_[r]) return;
    if (!best_.offsets.empty() && found.makespan >= outcome_.makespan) return;
    outcome_ = std::move(found);
    best_ = std::move(candidate);
  }

  void check_arguments() const {
    const auto sound = [](double x) { return x >= 0 && x < unlimited; };
    if (costs_.empty()) throw schedule_error("heddle: automatic schedule: give the cost of at least one stage");
    if (limits_.size() != costs_.size())
      throw schedule_error("heddle: automatic schedule: " + std::to_string(costs_.size()) + " stages, but " +
                           std::to_string(limits_.size()) + " limits of memory; give one for each, or one for all");
    if (std::int64_t{ranks()} * microbatch_count() > detail::most_cells)
      throw schedule_error("heddle: a schedule of " + std::to_string(ranks()) + " stages and " +
                           std::to_string(microbatch_count()) + " microbatches is too large");
    if (!sound(link_))
      throw schedule_error("heddle: automatic schedule: the time of a message is negative or no number");
    for (std::size_t r = 0; r < costs_.size(); ++r) {
      const stage_cost& c = costs_[r];
      if (!sound(c.forward) || !sound(c.backward_input) || !sound(c.backward_weight) || !sound(c.bytes) ||
          !sound(c.released_by_input) || c.released_by_input > c.bytes)
        throw schedule_error("heddle: automatic schedule: a time or a number of bytes of stage " + std::to_string(r) +
                             " is negative or no number, or I releases more than there is");
      if (!(c.bytes <= limits_[r]))
        throw schedule_error("heddle: automatic schedule: one microbatch needs " + std::to_string(c.bytes) +
                             " bytes on rank " + std::to_string(r) + ", the limit is " + std::to_string(limits_[r]));
    }
  }

  microbatches<> microbatches_;
  std::vector<stage_cost> costs_;
  std::vector<double> limits_;
  double link_;
  rank_lists best_;
  plan_outcome outcome_;
};

}  // namespace heddle::inline v0::schedule
