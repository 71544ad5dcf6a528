// heddle/sim/actor_graph.hpp: an actor graph in virtual time.
#pragma once

#include <heddle/schedule/actor/actor_queue.hpp>
#include <heddle/core/text.hpp>

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::sim {

/// Every kernel takes the same time.
struct actor_time {
  double each = 1;
  constexpr double operator()(int /*actor*/, int /*round*/) const noexcept { return each; }
};

/// When each actor acted. Units: those of the durations.
struct actor_timeline {
  int actors = 0;
  int rounds = 0;
  std::vector<double> start;  ///< of actor a in round i: [a * rounds + i]
  std::vector<double> end;
  std::vector<double> busy;    ///< per queue
  std::vector<int> in_flight;  ///< per register: the most slots that were taken at once
  double makespan = 0;

  constexpr double start_of(int actor, int round) const noexcept {
    return start[static_cast<std::size_t>(actor * rounds + round)];
  }
  constexpr double end_of(int actor, int round) const noexcept {
    return end[static_cast<std::size_t>(actor * rounds + round)];
  }
  constexpr double idle(int queue) const noexcept { return makespan - busy[static_cast<std::size_t>(queue)]; }
};

namespace detail {

template <class Duration>
class actor_simulation {
 public:
  constexpr actor_simulation(schedule::actor_graph_view g, int rounds, const Duration& duration)
      : g_(g),
        duration_(duration),
        ends_(schedule::detail::filled(at(g.queues()), -1.0)),
        taken_(schedule::detail::filled(at(g.registers()), 0)),
        unread_(schedule::detail::filled(at(g.registers()), std::vector<int>{})) {
    for (int q = 0; q < g.queues(); ++q) queues_.emplace_back(g, q, rounds);
    line_.actors = g.actors();
    line_.rounds = rounds;
    line_.start = schedule::detail::filled(at(g.actors()) * at(rounds), 0.0);
    line_.end = line_.start;
    line_.busy = schedule::detail::filled(at(g.queues()), 0.0);
    line_.in_flight = taken_;
    for (int r = 0; r < g.registers(); ++r) {
      const int full = g.readers(r).empty() ? 0 : g.reg(r).initial;
      line_.in_flight[at(r)] = taken_[at(r)] = full;
      unread_[at(r)] = schedule::detail::filled(at(g.reg(r).slots), 0);
      for (int slot = 0; slot < full; ++slot) unread_[at(r)][at(slot)] = static_cast<int>(g.readers(r).size());
    }
  }

  constexpr actor_timeline run() {
    const auto post = [this](const schedule::actor_message& m) { mail_.push_back(m); };
    for (auto& q : queues_) q.start(post);
    double now = 0;
    for (;;) {
      deliver(post);
      begin(now);
      int first = -1;
      for (int q = 0; q < g_.queues(); ++q)
        if (ends_[at(q)] >= 0 && (first < 0 || ends_[at(q)] < ends_[at(first)])) first = q;
      if (first < 0) break;
      now = ends_[at(first)];
      // All that ends now, before anything begins.
      for (int q = 0; q < g_.queues(); ++q)
        if (ends_[at(q)] == now) {
          ends_[at(q)] = -1;
          queues_[at(q)].finish(post);
        }
    }
    for (int q = 0; q < g_.queues(); ++q)
      if (!queues_[at(q)].done()) stopped(q);
    line_.makespan = now;
    return line_;
  }

 private:
  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

  [[noreturn]] void stopped(int q) const {
    throw schedule_error(
        text_of({"heddle: the simulated actors of queue '", g_.queue_name(q), "' stop before they are done"}));
  }

  [[noreturn]] void wrong_duration(int a, int round) const {
    throw schedule_error(text_of({"heddle: simulate: the duration of actor '", g_.actor(a).name, "' in round ", round,
                                  " is negative or not a number"}));
  }

  template <class Post>
  constexpr void deliver(const Post& post) {
    while (!mail_.empty()) {
      const std::vector<schedule::actor_message> now = mail_;
      mail_.clear();
      for (const schedule::actor_message& m : now) {
        if (m.kind == schedule::actor_message_kind::acknowledge && --unread_[at(m.reg)][at(m.slot)] == 0)
          --taken_[at(m.reg)];
        queues_[at(g_.actor(m.actor).queue)].receive(m, post);
      }
    }
  }

  constexpr void begin(double now) {
    for (int q = 0; q < g_.queues(); ++q) {
      if (ends_[at(q)] >= 0) continue;
      const int a = queues_[at(q)].next();
      if (a < 0) continue;
      const int i = queues_[at(q)].round();
      const double d = duration_(a, i);
      if (!(d >= 0)) wrong_duration(a, i);
      ends_[at(q)] = now + d;
      line_.busy[at(q)] += d;
      line_.start[at(a) * at(line_.rounds) + at(i)] = now;
      line_.end[at(a) * at(line_.rounds) + at(i)] = now + d;
      for (std::size_t o = 0; o < g_.outputs(a).size(); ++o) {
        const int r = g_.outputs(a)[o];
        if (g_.readers(r).empty()) continue;
        unread_[at(r)][at(queues_[at(q)].output_slots()[o])] = static_cast<int>(g_.readers(r).size());
        if (++taken_[at(r)] > line_.in_flight[at(r)]) line_.in_flight[at(r)] = taken_[at(r)];
      }
    }
  }

  schedule::actor_graph_view g_;
  const Duration& duration_;
  std::vector<schedule::actor_queue> queues_;
  std::vector<schedule::actor_message> mail_;
  std::vector<double> ends_;  // when each queue's kernel is done, -1 if it has none
  std::vector<int> taken_;
  std::vector<std::vector<int>> unread_;
  actor_timeline line_;
};

}  // namespace detail

/// Runs a graph for `rounds` rounds in virtual time: every actor acts as soon as its queue, its inputs and a free slot of
/// each output are there. `duration(actor, round)` gives times; messages take none. Of the actors of a queue the one that
/// has been ready the longest goes first.
/// A chain of k >= 2 actors of unit time takes k + 2(n - 1) for n rounds with one slot per register, n + k - 1 with two.
/// Errors: `schedule_error` if the graph is wrong, `rounds` negative, or a duration negative or not a number.
/// Source: Yuan et al. 2021, arXiv:2110.15032, section 5.
template <class Duration = actor_time>
  requires std::convertible_to<std::invoke_result_t<const Duration&, int, int>, double>
constexpr actor_timeline simulate(const schedule::actor_graph_view& graph, int rounds, const Duration& duration = {}) {
  if (rounds < 0) throw schedule_error("heddle: simulate: the number of rounds is negative");
  if (!schedule::check_actors(graph).ok()) schedule::require_actors(graph);
  return detail::actor_simulation<Duration>(graph, rounds, duration).run();
}

}  // namespace heddle::inline v0::sim
