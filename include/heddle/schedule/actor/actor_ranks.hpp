// heddle/schedule/actor/actor_ranks.hpp: an actor graph on ranks, by messages.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/schedule/actor/actor_queue.hpp>

#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::schedule {

/// One call of a kernel on ranks: the bytes of the slots of its inputs and outputs, in the order of the graph's lists.
struct rank_actor_call {
  int actor = 0;
  int round = 0;
  std::span<const std::span<const std::byte>> inputs;
  std::span<const std::span<std::byte>> outputs;
};

namespace detail {

// Actors of one rank, their slots, and the messages to and from other ranks. Tags: 2 r for what register r holds and
// its end, 2 r + 1 for its acknowledgements.
template <class Comm>
class actors_of_rank {
 public:
  actors_of_rank(Comm& comm, const actor_graph_view& graph, int rounds, std::span<const std::size_t> bytes)
      : comm_(comm), graph_(graph), bytes_(bytes), me_(comm.rank()), queue_(graph, comm.rank(), rounds) {
    slots_.resize(at(graph.registers()));
    for (int r = 0; r < graph.registers(); ++r) {
      bool here = owner(r) == me_;
      std::vector<int> readers;  // other ranks, once each
      for (const int a : graph.readers(r)) {
        const int q = graph.actor(a).queue;
        here = here || q == me_;
        if (q == owner(r) || contains(readers, q)) continue;
        readers.push_back(q);
        if (q == me_) links_.push_back({owner(r), r, true, std::vector<std::byte>(head + bytes[at(r)]), {}});
        if (owner(r) == me_)
          links_.push_back({q, r, false, std::vector<std::byte>(head), {}, graph.reg(r).initial * readers_on(r, q)});
      }
      if (here) slots_[at(r)].assign(at(graph.reg(r).slots), std::vector<std::byte>(bytes[at(r)]));
    }
  }

  template <class Begin, class Kernel>
  void run(Begin& begin, Kernel& kernel) {
    for (int r = 0; r < graph_.registers(); ++r)
      for (int slot = 0; slot < graph_.reg(r).initial && !slots_[at(r)].empty(); ++slot)
        begin(r, slot, std::span<std::byte>(slots_[at(r)][at(slot)]));
    for (link& l : links_) receive(l);
    const auto post = [this](const actor_message& m) { send(m); };
    queue_.start(post);
    std::vector<std::span<const std::byte>> in;
    std::vector<std::span<std::byte>> out;
    for (;;) {
      while (!local_.empty()) {
        const actor_message m = local_.front();
        local_.pop_front();
        queue_.receive(m, post);
      }
      if (queue_.done()) break;
      const int a = queue_.next();
      if (a >= 0) {
        in.clear();
        out.clear();
        for (std::size_t i = 0; i < graph_.inputs(a).size(); ++i)
          in.push_back(slots_[at(graph_.inputs(a)[i])][at(queue_.input_slots()[i])]);
        for (std::size_t o = 0; o < graph_.outputs(a).size(); ++o)
          out.push_back(slots_[at(graph_.outputs(a)[o])][at(queue_.output_slots()[o])]);
        act(kernel, rank_actor_call{a, queue_.round(), in, out});
        queue_.finish(post);
      }
      const bool any = take(post);
      if (a < 0 && !any && local_.empty() && !queue_.done()) wait();
    }
    for (sent& s : sends_) s.request.wait();
  }

 private:
  using pending = typename Comm::request;
  static constexpr std::size_t head = sizeof(actor_message);
  static_assert(std::is_trivially_copyable_v<actor_message>);
  struct link {
    int peer, reg;
    bool value;
    std::vector<std::byte> buffer;
    pending request;
    int owed = 0;        // acknowledgements that have yet to come
    bool ended = false;  // the register has ended: nothing more will be owed
    bool open = true;    // whether a receive is posted
  };
  struct sent {
    std::vector<std::byte> buffer;
    pending request;
  };
  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }
  static bool contains(const std::vector<int>& all, int x) {
    for (const int y : all)
      if (x == y) return true;
    return false;
  }
  int owner(int r) const { return graph_.actor(graph_.reg(r).producer).queue; }
  // The reader that stands for all of its rank: they share one message.
  int first_reader(int r, int rank) const {
    for (const int a : graph_.readers(r))
      if (graph_.actor(a).queue == rank) return a;
    return -1;
  }

  int readers_on(int r, int rank) const {
    int n = 0;
    for (const int a : graph_.readers(r)) n += graph_.actor(a).queue == rank ? 1 : 0;
    return n;
  }
  // Of a receive from a rank that has nothing to send any more, its transport would say that it waits in vain.
  void receive(link& l) {
    l.open = !l.ended || l.owed > 0;
    if (!l.open) return;
    l.request = comm_.irecv(std::span<std::byte>(l.buffer), l.peer, 2 * l.reg + (l.value ? 0 : 1));
  }
  void send(const actor_message& m) {
    const int to = graph_.actor(m.actor).queue;
    if (to == me_) {
      local_.push_back(m);
      return;
    }
    const bool credit = m.kind == actor_message_kind::acknowledge;
    if (!credit && first_reader(m.reg, to) != m.actor) return;
    if (!credit)
      for (link& l : links_) {
        if (l.value || l.peer != to || l.reg != m.reg) continue;
        if (m.kind == actor_message_kind::request) l.owed += readers_on(m.reg, to);
        l.ended = l.ended || m.kind == actor_message_kind::end;
        if (l.open && l.ended && l.owed == 0) {
          l.request.cancel();
          l.open = false;
        }
      }
    while (!sends_.empty() && sends_.front().request.test()) sends_.pop_front();
    sends_.emplace_back();
    sent& s = sends_.back();
    s.buffer.resize(credit ? head : head + bytes_[at(m.reg)]);
    std::memcpy(s.buffer.data(), &m, head);
    if (m.kind == actor_message_kind::request && bytes_[at(m.reg)] > 0)
      std::memcpy(s.buffer.data() + head, slots_[at(m.reg)][at(m.slot)].data(), bytes_[at(m.reg)]);
    s.request = comm_.isend(std::span<const std::byte>(s.buffer), to, 2 * m.reg + (credit ? 1 : 0));
  }
  // Whatever has arrived.
  template <class Post>
  bool take(Post& post) {
    bool any = false;
    for (link& l : links_)
      while (l.open && l.request.test()) {
        any = true;
        actor_message m;
        std::memcpy(&m, l.buffer.data(), head);
        if (m.kind == actor_message_kind::request && bytes_[at(m.reg)] > 0)
          std::memcpy(slots_[at(m.reg)][at(m.slot)].data(), l.buffer.data() + head, bytes_[at(m.reg)]);
        if (l.value)
          l.ended = m.kind == actor_message_kind::end;
        else
          --l.owed;
        receive(l);
        if (m.kind == actor_message_kind::acknowledge) {
          queue_.receive(m, post);
          continue;
        }
        for (const int a : graph_.readers(m.reg))
          if (graph_.actor(a).queue == me_) {
            actor_message own = m;
            own.actor = a;
            queue_.receive(own, post);
          }
      }
    return any;
  }
  void wait() {
    if constexpr (requires(std::span<pending* const> all) { pending::wait_any(all); }) {
      waiting_.clear();
      for (link& l : links_)
        if (l.open) waiting_.push_back(&l.request);
      pending::wait_any(std::span<pending* const>(waiting_));
    } else {
      std::this_thread::yield();
    }
  }
  template <class Kernel>
  void act(Kernel& kernel, const rank_actor_call& call) {
    const auto where = [&] {
      return "heddle: actor '" + std::string(graph_.actor(call.actor).name) + "', round " + std::to_string(call.round) +
             ", rank " + std::to_string(me_) + ": ";
    };
    try {
      kernel(call);
    } catch (const std::exception& e) {
      std::throw_with_nested(schedule_error(where() + e.what()));
    } catch (...) {
      std::throw_with_nested(schedule_error(where() + "an exception that is not a std::exception"));
    }
  }

  Comm& comm_;
  actor_graph_view graph_;
  std::span<const std::size_t> bytes_;
  int me_;
  actor_queue queue_;
  std::vector<std::vector<std::vector<std::byte>>> slots_;  // register, slot
  std::deque<link> links_;
  std::deque<sent> sends_;
  std::deque<actor_message> local_;
  std::vector<pending*> waiting_;
};

}  // namespace detail

/// Runs a graph over the ranks of a communicator for `rounds` rounds: queue q is rank q, ranks beyond the queues have
/// nothing to do. All ranks call it with the same graph. A register that is read on another rank is sent there by
/// value, once for all its readers on that rank; credits come back as messages, so a rank is never more rounds ahead
/// than the register has slots. `bytes[r]` is the size of a slot of register r; `begin(r, slot, bytes)` fills slots
/// that hold a value from the start, on each rank that has them; `kernel(rank_actor_call)` runs an actor. Tags 0 to
/// twice the number of registers are used.
/// Errors: `schedule_error` if the graph is wrong, `rounds` negative, there are too few ranks or sizes; where a kernel
/// throws, a `schedule_error` names actor, round and rank and nests the exception; the other ranks end as launch ends
/// them.
/// Source: Yuan et al. 2021, arXiv:2110.15032, section 5.
template <class Comm, class Begin, class Kernel>
void run_actors(Comm& comm, const actor_graph_view& graph, int rounds, std::span<const std::size_t> bytes,
                Begin&& begin, Kernel&& kernel) {
  if (rounds < 0) throw schedule_error("heddle: run_actors: the number of rounds is negative");
  require_actors(graph);
  if (graph.queues() > comm.size())
    throw schedule_error("heddle: run_actors: the graph has " + std::to_string(graph.queues()) +
                         " queues, one for each rank; there are " + std::to_string(comm.size()) + " ranks");
  if (bytes.size() != static_cast<std::size_t>(graph.registers()))
    throw schedule_error("heddle: run_actors: the graph has " + std::to_string(graph.registers()) +
                         " registers; got the sizes of " + std::to_string(bytes.size()));
  if (comm.rank() >= graph.queues()) return;
  detail::actors_of_rank<Comm>(comm, graph, rounds, bytes).run(begin, kernel);
}

}  // namespace heddle::inline v0::schedule
