// heddle/schedule/generate/automatic.hpp: a schedule for measured times and a limit of memory.
#pragma once

#include <heddle/schedule/generate/hanayo.hpp>
#include <heddle/schedule/generate/interleaved.hpp>
#include <heddle/schedule/generate/list_scheduling.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/generate/placed_planner.hpp>
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

// Runs lists of computations in time. B is I and W, and keeps all until it ends.
inline plan_outcome run_plan(const rank_lists& lists, std::span<const stage_cost> cost,
                             std::span<const int> rank_of_stage, double link, int m) {
  const std::size_t p = lists.offsets.size() - 1, stages = cost.size(), count = static_cast<std::size_t>(m);
  plan_outcome out{0, std::vector<double>(p, 0.0)};
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

/// A zero-bubble schedule for measured times and a limit of memory: of the known schedules on this map and of what a
/// greedy planner finds in its variants the one that is done first; never over the limit. `costs` has one entry per
/// stage; `link` is the time of a message between ranks; `limits` are bytes of saved activations per rank, or one for all.
/// Without a map there is one stage per rank; with one (`v_shape{}`, `loop<2>{}`, your own) as many ranks as have so many
/// stages on it. Planned when constructed: `outcome` says what to expect.
/// - One stage per rank: 1F1B, ZB-H1, ZB-H2 and 20 variants.
/// - Several: on `v_shape` ZB-V, V-Half, V-Min and Hanayo, on `loop<v>` interleaved 1F1B and ZB-H1, and on every map
///   96 variants.
/// Errors: `schedule_error` without ranks or microbatches, for times or bytes that make no sense or add up to more than
/// a double holds, for a map that has other numbers of stages, or several chains, and where a limit does not even hold
/// one microbatch.
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
  /// What the chosen schedule comes to with the times it was planned for.
  const plan_outcome& outcome() const noexcept { return outcome_; }

  rank_lists lists(int /*ranks*/) const { return best_; }

 private:
  automatic(microbatches<> m, std::vector<stage_cost> costs, double link, std::vector<double> limits, double limit)
      : microbatches_(m), costs_(std::move(costs)), limits_(std::move(limits)), link_(link) {
    for (std::size_t r = 0; r < costs_.size(); ++r) rank_of_stage_.push_back(static_cast<int>(r));
    require_arguments(static_cast<int>(costs_.size()), limit);
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
    detail::placed_planner planner(costs_, rank_of_stage_, limits_, link_, m.count());
    for (int n = 0; n < detail::placed_choices::count; ++n) consider(planner.plan(detail::placed_choices::number(n)));
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
  rank_lists one_by_one() const {
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

  void consider(rank_lists candidate) {
    if (candidate.offsets.empty()) return;
    plan_outcome found = detail::run_plan(candidate, costs_, rank_of_stage_, link_, microbatches_.count());
    for (std::size_t r = 0; r < limits_.size(); ++r)
      if (found.peak_bytes[r] > limits_[r]) return;
    if (!best_.offsets.empty() && found.makespan >= outcome_.makespan) return;
    outcome_ = std::move(found);
    best_ = std::move(candidate);
  }

  void require_arguments(int ranks, double limit) {
    const auto sound = [](double x) { return x >= 0 && x < unlimited; };
    if (costs_.empty()) throw schedule_error("heddle: automatic schedule: give the cost of at least one stage");
    if (limits_.empty()) limits_.assign(static_cast<std::size_t>(ranks), limit);
    if (limits_.size() != static_cast<std::size_t>(ranks))
      throw schedule_error("heddle: automatic schedule: " + std::to_string(ranks) + " ranks, but " +
                           std::to_string(limits_.size()) + " limits of memory; give one for each, or one for all");
    if (std::int64_t{stages()} * microbatch_count() > detail::most_cells)
      throw schedule_error("heddle: a schedule of " + std::to_string(stages()) + " stages and " +
                           std::to_string(microbatch_count()) + " microbatches is too large");
    if (!sound(link_))
      throw schedule_error("heddle: automatic schedule: the time of a message is negative or no number");
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
        throw schedule_error("heddle: automatic schedule: one microbatch needs " + std::to_string(one[r]) +
                             " bytes on rank " + std::to_string(r) + ", the limit is " + std::to_string(limits_[r]));
  }

  microbatches<> microbatches_;
  std::vector<stage_cost> costs_;
  std::vector<int> rank_of_stage_;
  std::vector<double> limits_;
  double link_;
  rank_lists best_;
  plan_outcome outcome_;
};

}  // namespace heddle::inline v0::schedule
