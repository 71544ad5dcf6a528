// heddle/schedule/actor/actor_threads.hpp: an actor graph on threads, one per queue.
#pragma once

#include <heddle/core/type_list.hpp>
#include <heddle/schedule/actor/actor_queue.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// Here and not in comm/: a mailbox carries only slot numbers between threads of one process; it is no transport, needs no
// mesh, and the payloads never move.
namespace heddle::inline v0::schedule {

/// One call of a kernel: which actor, in which round, on which slots of its inputs and outputs.
struct actor_call {
  int actor = 0;
  int round = 0;
  std::span<const int> inputs;
  std::span<const int> outputs;
};

namespace detail {

// Messages for one queue. Never grows: both vectors hold what can be under way at most.
class actor_mailbox {
 public:
  explicit actor_mailbox(std::size_t capacity) { inside_.reserve(capacity); }

  void put(const actor_message& m) {
    {
      const std::lock_guard lock(mutex_);
      inside_.push_back(m);
    }
    filled_.notify_one();
  }
  /// Moves all messages into `taken`, which must be empty; waits for one if `wait`. False after `stop`.
  bool take(std::vector<actor_message>& taken, bool wait) {
    std::unique_lock lock(mutex_);
    if (wait) filled_.wait(lock, [this] { return stopped_ || !inside_.empty(); });
    if (stopped_) return false;
    taken.swap(inside_);
    return true;
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    filled_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<actor_message> inside_;
  bool stopped_ = false;
};

// Who failed first.
class actor_failure {
 public:
  void set(std::exception_ptr problem, int actor, int round) {
    const std::lock_guard lock(mutex_);
    if (problem_) return;
    problem_ = std::move(problem);
    actor_ = actor;
    round_ = round;
  }
  void rethrow(const actor_graph_view& g) const {
    if (!problem_) return;
    if (actor_ < 0) std::rethrow_exception(problem_);
    std::string text = "heddle: actor '";
    text += g.actor(actor_).name;
    text += "', round ";
    text += std::to_string(round_);
    text += ": ";
    try {
      std::rethrow_exception(problem_);
    } catch (const std::exception& e) {
      text += e.what();
      std::throw_with_nested(schedule_error(text));
    } catch (...) {
      text += "an exception that is not a std::exception";
      std::throw_with_nested(schedule_error(text));
    }
  }

 private:
  std::mutex mutex_;
  std::exception_ptr problem_;
  int actor_ = -1;
  int round_ = 0;
};

}  // namespace detail

/// Runs a graph for `rounds` rounds, one thread per queue (the first queue on the calling thread): calls
/// `kernel(actor_call)` for every actor and round, for actors of different queues at the same time. Threads without work
/// sleep. Nothing is allocated once the threads run.
/// Errors: `schedule_error` if the graph is wrong or `rounds` negative; if a kernel throws, all queues stop after the
/// kernel they are in, and a `schedule_error` names the actor and the round and nests the exception.
template <class Kernel>
void run_actors(const actor_graph_view& graph, int rounds, Kernel&& kernel) {
  if (rounds < 0) throw schedule_error("heddle: run_actors: the number of rounds is negative");
  require_actors(graph);
  std::vector<actor_queue> queues;
  std::vector<std::unique_ptr<detail::actor_mailbox>> boxes;
  std::vector<std::vector<actor_message>> taken(static_cast<std::size_t>(graph.queues()));
  queues.reserve(taken.size());
  for (int q = 0; q < graph.queues(); ++q) {
    queues.emplace_back(graph, q, rounds);
    boxes.push_back(std::make_unique<detail::actor_mailbox>(queues.back().message_capacity()));
    taken[static_cast<std::size_t>(q)].reserve(queues.back().message_capacity());
  }
  const auto post = [&](const actor_message& m) {
    boxes[static_cast<std::size_t>(graph.actor(m.actor).queue)]->put(m);
  };
  detail::actor_failure failure;
  const auto stop_all = [&] {
    for (const auto& box : boxes) box->stop();
  };
  const auto work = [&](std::size_t q) {
    actor_queue& queue = queues[q];
    std::vector<actor_message>& mail = taken[q];
    queue.start(post);
    while (!queue.done()) {
      const int a = queue.next();
      if (a >= 0) {
        try {
          kernel(actor_call{a, queue.round(), queue.input_slots(), queue.output_slots()});
        } catch (...) {
          failure.set(std::current_exception(), a, queue.round());
          stop_all();
          return;
        }
        queue.finish(post);
      }
      if (!boxes[q]->take(mail, a < 0)) return;
      for (const actor_message& m : mail) queue.receive(m, post);
      mail.clear();
    }
  };
  std::vector<std::thread> others;
  try {
    others.reserve(queues.size());
    for (std::size_t q = 1; q < queues.size(); ++q) others.emplace_back(work, q);
    if (!queues.empty()) work(0);
  } catch (...) {  // a thread could not be started
    failure.set(std::current_exception(), -1, 0);
    stop_all();
  }
  for (std::thread& other : others) other.join();
  failure.rethrow(graph);
}

/// The payload of registers that name none: their readers only learn that it is their turn.
struct signal {};

namespace detail {
template <class Register>
using value_type_member = typename Register::value_type;
template <class Register>
using payload_of = member_or<signal, value_type_member, Register>;

template <bool Ok, class... Names>
inline constexpr bool kernel_is_callable = Ok;
}  // namespace detail

/// A static graph with its slots, ready to run on threads. The slots are made once, with the object; kernels get
/// references into them.
/// ```
/// hd::schedule::actor_threads<graph> actors;
/// actors.each_slot<batch>([](std::vector<float>& b) { b.resize(1024); });
/// actors.run(8, load, multiply, print);    // one kernel per actor, in the order of the graph
/// ```
template <class Graph>
class actor_threads {
 public:
  /// The slots of a register.
  template <class Register>
  auto& slots() noexcept {
    return std::get<static_cast<std::size_t>(number_of<Register>())>(*slots_);
  }
  /// Prepares a register: `set(slot)` for each slot, also those that hold the initial values.
  template <class Register, class Set>
  void each_slot(Set&& set) {
    for (auto& slot : slots<Register>()) set(slot);
  }
  /// Runs all actors for `rounds` rounds. A kernel is called with the round (if it takes one), its inputs as const
  /// references, then its outputs as references, in the order in which the actor names them; never twice at once.
  /// A second run goes on where the first one ended: what feedback registers still hold comes first among their slots.
  /// Errors: as `run_actors`; after one, what feedback registers hold is open. `schedule_error` for another run where a
  /// feedback register's slots cannot be moved.
  template <class... Kernels>
  void run(int rounds, Kernels&&... kernels) {
    static_assert(sizeof...(Kernels) == Graph::actors::size,
                  "heddle: actor_threads::run: give one kernel per actor, in the order of the graph");
    auto all = std::forward_as_tuple(kernels...);
    if (out_of_turn_)
      throw schedule_error(
          "heddle: actor_threads::run: a feedback register's values cannot be moved to its first slots");
    run_actors(Graph::view(), rounds, [&](const actor_call& call) { dispatch(call, all, typename Graph::actors{}); });
    turn(rounds, typename Graph::outs{});
  }

 private:
  template <class Register>
  static constexpr int number_of() {
    constexpr int number = detail::place_in<Register, typename Graph::registers>;
    static_assert(detail::kernel_is_callable<(number < static_cast<int>(Graph::registers::size)), Register>,
                  "heddle: actor_threads: the graph has no such register");
    return number;
  }
  // Slots are written in turn, so `rounds` later the values that are left begin that many slots on.
  template <class... Outs>
  void turn(int rounds, type_list<Outs...>) {
    (turn_one<Outs>(rounds), ...);
  }
  template <class Out>
  void turn_one(int rounds) {
    if constexpr (Out::initial > 0 && Out::slots > 1) {
      const auto by = rounds % Out::slots;
      auto& all = slots<typename Out::tag>();
      if (by == 0) return;
      if constexpr (std::movable<typename detail::payload_of<typename Out::tag>::type>)
        std::rotate(all.begin(), all.begin() + by, all.end());
      else
        out_of_turn_ = true;
    }
  }
  template <class List>
  struct storage;
  template <class... Outs>
  struct storage<type_list<Outs...>> {
    using type = std::tuple<
        std::array<typename detail::payload_of<typename Outs::tag>::type, static_cast<std::size_t>(Outs::slots)>...>;
  };

  template <class Tuple, class... Actors>
  void dispatch(const actor_call& call, Tuple& kernels, type_list<Actors...>) {
    [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      (void)((call.actor == static_cast<int>(Is)
                  ? (invoke<Actors>(call, std::get<Is>(kernels), typename Actors::reads{}, typename Actors::writes{}),
                     true)
                  : false) ||
             ...);
    }(std::make_index_sequence<sizeof...(Actors)>{});
  }
  template <class Actor, class Kernel, class... Reads, class... Writes>
  void invoke(const actor_call& call, Kernel& kernel, type_list<Reads...>, type_list<Writes...>) {
    constexpr bool counts = std::is_invocable_v<Kernel&, int, const typename detail::payload_of<Reads>::type&...,
                                                typename detail::payload_of<Writes>::type&...>;
    constexpr bool plain = std::is_invocable_v<Kernel&, const typename detail::payload_of<Reads>::type&...,
                                               typename detail::payload_of<Writes>::type&...>;
    static_assert(detail::kernel_is_callable < counts || plain, detail::at_actor < typename Actor::tag >>,
                  "heddle: actor_threads::run: the kernel of this actor must be callable with its inputs (const "
                  "references) and its "
                  "outputs (references), with or without the round (int) before them");
    [&]<std::size_t... Is, std::size_t... Os>(std::index_sequence<Is...>, std::index_sequence<Os...>) {
      if constexpr (counts)
        kernel(call.round, std::as_const(slots<Reads>()[at(call.inputs[Is])])...,
               slots<Writes>()[at(call.outputs[Os])]...);
      else if constexpr (plain)
        kernel(std::as_const(slots<Reads>()[at(call.inputs[Is])])..., slots<Writes>()[at(call.outputs[Os])]...);
    }(std::index_sequence_for<Reads...>{}, std::index_sequence_for<Writes...>{});
  }
  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

  using slots_type = typename storage<typename Graph::outs>::type;
  bool out_of_turn_ = false;
  std::unique_ptr<slots_type> slots_ = std::make_unique<slots_type>();
};

}  // namespace heddle::inline v0::schedule
