// heddle/sim/action_table.hpp: simulates a pipeline schedule in virtual time.
#pragma once

#include <heddle/schedule/text/print.hpp>
#include <heddle/schedule/table.hpp>

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::sim {

/// When each action of a table ran, in the order of `table_view::actions()`. Units: those of the durations.
/// A transfer's `end` is when it no longer holds up its rank.
struct timeline {
  std::vector<double> start;
  std::vector<double> end;
  std::vector<double> busy;  ///< per rank: time in computations; a pair that overlaps counts once
  double makespan = 0;

  /// Time in which a rank computes nothing while the step runs.
  constexpr double idle(int rank) const { return makespan - busy[static_cast<std::size_t>(rank)]; }
  /// Idle time of all ranks over the time of all ranks.
  constexpr double bubble_ratio() const {
    double working = 0;
    for (const double b : busy) working += b;
    return makespan > 0 && !busy.empty() ? 1 - working / (makespan * static_cast<double>(busy.size())) : 0;
  }
};

/// The same times on every stage: F, I, W; B takes I + W, a recomputation F; all others take nothing.
/// An F and a B that overlap take `pair`; if it is negative, and in every other pair, as long as one after the other.
/// Anything callable with an action will do in its place: times per stage, measured times. If it can be called with
/// two actions as well, that is how long two that overlap take; if not, they take the sum.
struct stage_times {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double pair = -1;

  constexpr double operator()(const schedule::action& a) const noexcept {
    switch (a.kind) {
      case schedule::action_kind::forward:
      case schedule::action_kind::recompute:
        return forward;
      case schedule::action_kind::backward:
        return backward_input + backward_weight;
      case schedule::action_kind::backward_input:
        return backward_input;
      case schedule::action_kind::backward_weight:
        return backward_weight;
      default:
        return 0;
    }
  }
  constexpr double operator()(const schedule::action& a, const schedule::action& b) const noexcept {
    using kind = schedule::action_kind;
    const bool both =
        (a.kind == kind::forward && b.kind == kind::backward) || (a.kind == kind::backward && b.kind == kind::forward);
    return both && pair >= 0 ? pair : (*this)(a) + (*this)(b);
  }
};

/// The same time for every message, from its send to its arrival.
struct link_time {
  double seconds = 0;
  constexpr double operator()(const schedule::action& /*send*/) const noexcept { return seconds; }
};

namespace detail {

// Calls of other axes (UNSHARD, REDUCE_GRAD) that a rank enters, and what waits for them: none.
struct no_calls {};

// Walks the lists of a table. `Calls`, unless it is `no_calls`, is asked
// - `enter(a, now)` for each UNSHARD and REDUCE_GRAD: when the rank goes on; -1 if that is not known yet;
// - `may_begin(a, start)` for all that is no transfer: when it may, from `start` on; -1 if that is not known yet.
template <class Duration, class Link, class Calls = const no_calls>
class simulation {
 public:
  constexpr simulation(schedule::table_view table, const Duration& duration, const Link& link, schedule::transfers mode,
                       Calls& calls)
      : t_(table),
        duration_(duration),
        link_(link),
        calls_(calls),
        mode_(mode),
        placed_(table.has_transfers()),
        grouped_(mode == schedule::transfers::grouped && placed_),
        forward_(cells(), -1.0),
        gradient_(cells(), -1.0),
        sent_up_(cells(), -1.0),
        sent_down_(cells(), -1.0) {}

  constexpr timeline run() {
    begin();
    advance();
    return ended();
  }

 protected:
  constexpr void begin() {
    const auto p = static_cast<std::size_t>(t_.ranks());
    head_.assign(p, 0);
    stop_.assign(p, 0);
    clock_.assign(p, 0.0);
    line_.start.assign(t_.actions().size(), 0.0);
    line_.end.assign(t_.actions().size(), 0.0);
    line_.busy.assign(p, 0.0);
    for (int r = 0; r < t_.ranks(); ++r) {
      head_[at(r)] = t_.offset(r);
      stop_[at(r)] = t_.offset(r + 1);
    }
    if (grouped_) prepare_groups();
  }
  // All ranks go on as far as they can, to `stop_`. Whether one did.
  constexpr bool advance() {
    bool moved = false;
    for (bool progress = true; progress;) {
      progress = false;
      for (int r = 0; r < t_.ranks(); ++r)
        while (head_[at(r)] != stop_[at(r)] && step(r)) progress = true;
      moved = moved || progress;
    }
    return moved;
  }
  constexpr const timeline& ended() {
    for (int r = 0; r < t_.ranks(); ++r)
      if (head_[at(r)] != t_.offset(r + 1))
        throw schedule_error("heddle: the simulated schedule stops: rank " + std::to_string(r) + ", position " +
                             std::to_string(head_[at(r)] - t_.offset(r)) + " (" + to_text(t_[head_[at(r)]]) +
                             ") waits for ever; schedule::check_table says for what");
    for (const double end : clock_) line_.makespan = end > line_.makespan ? end : line_.makespan;
    return line_;
  }

  using kind = schedule::action_kind;
  static constexpr bool calls_others = !std::is_same_v<Calls, const no_calls>;
  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }
  constexpr std::size_t cells() const noexcept { return at(t_.stages()) * at(t_.microbatches()); }
  constexpr std::size_t cell(int stage, int microbatch) const noexcept {
    return at(stage) * at(t_.microbatches()) + at(microbatch);
  }

  constexpr void finish(int rank, double start, double end) {
    const auto k = at(head_[at(rank)]++);
    line_.start[k] = start;
    line_.end[k] = end;
    clock_[at(rank)] = end;
  }

  // When the data that `from` computes for `a` are there; -1 if they are not.
  constexpr double input_time(const schedule::action& a, int from, bool up) const {
    if (from < 0) return 0;
    const bool remote = t_.rank_of(from) != t_.rank_of(a.stage);
    if (remote && placed_) return arrival(from, a.microbatch, up);
    const double done = (up ? forward_ : gradient_)[cell(from, a.microbatch)];
    if (done < 0 || !remote) return done;
    return done + link_(send(from, a.microbatch, t_.rank_of(a.stage), up));
  }
  static constexpr schedule::action send(int stage, int microbatch, int peer, bool up) {
    return {up ? kind::send_forward : kind::send_backward, stage, microbatch, peer};
  }
  constexpr double arrival(int from, int microbatch, bool up) const {
    return (up ? sent_up_ : sent_down_)[cell(from, microbatch)];
  }

  static constexpr bool is_down(kind k) noexcept { return k == kind::backward || k == kind::backward_input; }

  // When an action can start that could not before `now`; -1 if its input has not been computed yet.
  constexpr double start_time(const schedule::action& a, double now) const {
    if constexpr (calls_others) {
      now = calls_.may_begin(a, now);
      if (now < 0) return now;
    }
    const bool up = a.kind == kind::forward;
    if (!up && !is_down(a.kind)) return now;
    const double ready = input_time(a, up ? t_.previous(a.stage, a.microbatch) : t_.next(a.stage, a.microbatch), up);
    return ready < 0 || ready > now ? ready : now;
  }
  constexpr void computed(const schedule::action& a, double end) {
    if (a.kind == kind::forward) forward_[cell(a.stage, a.microbatch)] = end;
    if (is_down(a.kind)) gradient_[cell(a.stage, a.microbatch)] = end;
  }
  constexpr double duration_of_pair(const schedule::action& a, const schedule::action& b) const {
    if constexpr (std::is_invocable_r_v<double, const Duration&, const schedule::action&, const schedule::action&>)
      return duration_(a, b);
    else
      return duration_(a) + duration_(b);
  }
  // Whether the next action of a rank overlaps the one behind it.
  constexpr bool at_pair(int r) const {
    const int k = head_[at(r)];
    return t_[k].overlaps_next && k + 1 < t_.offset(r + 1) && schedule::is_compute(t_[k].kind) &&
           schedule::is_compute(t_[k + 1].kind);
  }

  constexpr bool step(int r) {
    const schedule::action& a = t_[head_[at(r)]];
    const double now = clock_[at(r)];
    if (schedule::is_transfer(a.kind)) return grouped_ ? group(r, now) : transfer(r, a, now);
    if constexpr (calls_others) {
      if (a.kind == kind::unshard || a.kind == kind::reduce_gradient) {
        const double end = calls_.enter(a, now);
        if (end >= 0) finish(r, now, end);
        return end >= 0;
      }
    }
    double start = start_time(a, now);
    if (start < 0) return false;
    if (at_pair(r)) {
      const schedule::action& b = t_[head_[at(r)] + 1];
      start = start_time(b, start);
      if (start < 0) return false;
      const double end = start + duration_of_pair(a, b);
      computed(a, end);
      computed(b, end);
      line_.busy[at(r)] += end - start;
      finish(r, start, end);
      finish(r, start, end);
      return true;
    }
    const double end = start + duration_(a);
    computed(a, end);
    if (schedule::is_compute(a.kind) || a.kind == kind::recompute) line_.busy[at(r)] += end - start;
    finish(r, start, end);
    return true;
  }

  constexpr bool transfer(int r, const schedule::action& a, double now) {
    const bool up = a.kind == kind::send_forward || a.kind == kind::recv_forward;
    std::vector<double>& sent = up ? sent_up_ : sent_down_;
    if (mode_ != schedule::transfers::rendezvous) {
      if (schedule::is_send(a.kind)) {
        sent[cell(a.stage, a.microbatch)] = now + link_(a);
      } else if (mode_ == schedule::transfers::buffered) {
        const int from = up ? t_.previous(a.stage, a.microbatch) : t_.next(a.stage, a.microbatch);
        const double there = arrival(from, a.microbatch, up);
        if (there < 0) return false;
        finish(r, now, there > now ? there : now);
        return true;
      }
      finish(r, now, now);
      return true;
    }
    if (head_[at(a.peer)] == stop_[at(a.peer)]) return false;
    const schedule::action& b = t_[head_[at(a.peer)]];
    if (!schedule::is_transfer(b.kind) || !(b == schedule::counterpart(a, t_))) return false;
    const schedule::action& sender = schedule::is_send(a.kind) ? a : b;
    const double other = clock_[at(a.peer)];
    const double end = (now > other ? now : other) + link_(sender);
    sent[cell(sender.stage, sender.microbatch)] = end;
    const int peer = a.peer;
    finish(peer, other, end);
    finish(r, now, end);
    return true;
  }

  // Which action meets a transfer.
  constexpr void prepare_groups() {
    begun_.assign(t_.actions().size(), -1.0);
    met_.assign(4 * cells(), -1);
    for (int k = 0; k < t_.offset(t_.ranks()); ++k)
      if (schedule::is_transfer(t_[k].kind)) met_[place(schedule::counterpart(t_[k], t_))] = k;
  }
  constexpr std::size_t place(const schedule::action& a) const noexcept {
    return 4 * cell(a.stage, a.microbatch) + static_cast<std::size_t>(a.kind) -
           static_cast<std::size_t>(kind::send_forward);
  }
  // The neighbouring transfers of a list begin together; each takes its time from when it has begun on both sides, and
  // the rank goes on when all have ended.
  constexpr bool group(int r, double now) {
    const int first = head_[at(r)];
    int last = first;
    while (last != t_.offset(r + 1) && schedule::is_transfer(t_[last].kind)) ++last;
    const bool begins = begun_[at(first)] < 0;
    double end = now;
    for (int k = first; k < last; ++k) begun_[at(k)] = now;
    for (int k = first; k < last; ++k) {
      const int other = met_[place(t_[k])];
      if (other < 0 || begun_[at(other)] < 0) return begins;
      const schedule::action& sender = schedule::is_send(t_[k].kind) ? t_[k] : t_[other];
      const double there = (now > begun_[at(other)] ? now : begun_[at(other)]) + link_(sender);
      const bool up = sender.kind == kind::send_forward;
      (up ? sent_up_ : sent_down_)[cell(sender.stage, sender.microbatch)] = there;
      line_.start[at(k)] = now;
      line_.end[at(k)] = there;
      end = there > end ? there : end;
    }
    head_[at(r)] = last;
    clock_[at(r)] = end;
    return true;
  }

  schedule::table_view t_;
  const Duration& duration_;
  const Link& link_;
  Calls& calls_;
  schedule::transfers mode_;
  bool placed_;
  bool grouped_;
  std::vector<double> begun_;                // where transfers are grouped: when each began, -1 if it has not
  std::vector<int> met_;                     // and the action that each meets
  std::vector<double> forward_, gradient_;   // when each stage's output and input gradient were computed
  std::vector<double> sent_up_, sent_down_;  // when they arrive
  std::vector<int> head_;
  std::vector<int> stop_;  // where the walk of each rank pauses
  std::vector<double> clock_;
  timeline line_;
};

}  // namespace detail

/// Runs a valid table, lowered or not, in virtual time: each rank takes its actions in order, each as soon as its
/// inputs are there. `duration(action)` and `link(send)` give times; where no transfers are placed, a message leaves
/// when its computation ends. Two actions that overlap start when both have their inputs, and end together.
/// With `transfers::asynchronous` a lowered table takes as long as the one it was made from. With `grouped` neighbouring
/// transfers begin together, each takes its time from when it has begun on both sides, and the rank waits for all.
/// Errors: `schedule_error` if the table stops: it is not valid for this mode of transfers.
template <class Duration = stage_times, class Link = link_time>
  requires std::convertible_to<std::invoke_result_t<const Duration&, const schedule::action&>, double> &&
           std::convertible_to<std::invoke_result_t<const Link&, const schedule::action&>, double>
constexpr timeline simulate(schedule::table_view table, const Duration& duration = {}, const Link& link = {},
                            schedule::transfers mode = schedule::transfers::asynchronous) {
  const detail::no_calls none{};
  return detail::simulation<Duration, Link>(table, duration, link, mode, none).run();
}

}  // namespace heddle::inline v0::sim
