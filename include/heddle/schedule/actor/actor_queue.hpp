// heddle/schedule/actor/actor_queue.hpp: the protocol of actors: requests and credits.
#pragma once

#include <heddle/schedule/actor/actor_graph.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::schedule {

/// What actors tell each other.
enum class actor_message_kind : std::uint8_t {
  request,      ///< to a reader: this slot can be read
  acknowledge,  ///< to the producer: this slot has been read
  end           ///< to a reader: nothing more will come in this register
};

/// What queues send each other: `reg` is the register, `slot` one of its slots.
struct actor_message {
  actor_message_kind kind = actor_message_kind::request;
  int actor = 0;  ///< who gets it
  int reg = 0;
  int slot = 0;
};

namespace detail {

// Not vector(n): clang 19 cannot evaluate that of libstdc++ 12 at compile time.
template <class T>
constexpr std::vector<T> filled(std::size_t n, const T& value) {
  std::vector<T> all;
  all.reserve(n);
  for (std::size_t i = 0; i < n; ++i) all.push_back(value);
  return all;
}

// Slots in the order they came; never more than the register has.
class slot_fifo {
 public:
  constexpr explicit slot_fifo(int capacity) : slots_(filled(static_cast<std::size_t>(capacity), 0)) {}
  constexpr bool empty() const noexcept { return size_ == 0; }
  constexpr std::size_t size() const noexcept { return size_; }
  constexpr void push(int slot) noexcept { slots_[(head_ + size_++) % slots_.size()] = slot; }
  constexpr int pop() noexcept {
    const int slot = slots_[head_];
    head_ = (head_ + 1) % slots_.size();
    --size_;
    return slot;
  }

 private:
  std::vector<int> slots_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace detail

/// The actors of one queue and the state of their registers: what every executor drives, and all that it needs.
///
/// An actor is ready when each input has a slot to read and each output a free one. `next` gives the actor that has been
/// ready the longest and takes its slots; when its kernel is done, `finish` tells the readers and gives the slots it read
/// back to their producers. A source ends after `rounds` rounds, any other actor when an input has ended and is empty. It
/// says so to its readers, gives back what it will not read, and is gone when its own slots have all come home.
/// All memory is allocated by the constructor. `post(message)` delivers to whatever queue the receiver is on; it must not
/// deliver at once into this queue. Not thread safe: one thread per queue.
class actor_queue {
 public:
  constexpr actor_queue(actor_graph_view graph, int queue, int rounds)
      : graph_(graph), rounds_(rounds), ready_(graph.actors() + 1) {
    index_ = detail::filled(static_cast<std::size_t>(graph.actors()), -1);
    for (int a = 0; a < graph.actors(); ++a) {
      if (graph.actor(a).queue != queue) continue;
      index_[at(a)] = static_cast<int>(states_.size());
      states_.emplace_back();
      state& s = states_.back();
      s.actor = a;
      s.source = graph.is_source(a);
      for (const int r : graph.inputs(a)) {
        s.inputs.emplace_back(graph.reg(r).slots);
        for (int slot = 0; slot < graph.reg(r).initial; ++slot) s.inputs.back().waiting.push(slot);
      }
      s.taken_inputs = detail::filled(s.inputs.size(), 0);
      for (const int r : graph.outputs(a)) {
        const register_entry& e = graph.reg(r);
        const int readers = static_cast<int>(graph.readers(r).size());
        s.outputs.emplace_back(e.slots);
        output& o = s.outputs.back();
        for (int slot = 0; slot < e.slots; ++slot) {
          const bool full = slot < e.initial && readers > 0;
          o.unread[at(slot)] = full ? readers : 0;
          if (!full) o.free.push(slot);
        }
        capacity_ += at(e.slots) * at(readers);
      }
      s.taken_outputs = detail::filled(s.outputs.size(), 0);
      for (const int r : graph.inputs(a)) capacity_ += at(graph.reg(r).slots) + 1;
    }
  }

  /// To be called once, before anything else.
  template <class Post>
  constexpr void start(Post&& post) {
    for (state& s : states_) update(s, post);
  }

  /// Takes a message for an actor of this queue.
  template <class Post>
  constexpr void receive(const actor_message& m, Post&& post) {
    state& s = states_[at(index_[at(m.actor)])];
    if (m.kind == actor_message_kind::acknowledge) {
      output& o = s.outputs[port(graph_.outputs(m.actor), m.reg)];
      if (--o.unread[at(m.slot)] == 0) o.free.push(m.slot);
    } else {
      input& i = s.inputs[port(graph_.inputs(m.actor), m.reg)];
      if (m.kind == actor_message_kind::end)
        i.ended = true;
      else if (s.ended)
        give_back(m.reg, m.slot, post);
      else
        i.waiting.push(m.slot);
    }
    update(s, post);
  }

  /// The actor to run now, with its slots taken; -1 if none is ready. To be followed by `finish`.
  constexpr int next() noexcept {
    if (ready_.empty()) return -1;
    running_ = ready_.pop();
    state& s = states_[at(running_)];
    for (std::size_t i = 0; i < s.inputs.size(); ++i) s.taken_inputs[i] = s.inputs[i].waiting.pop();
    for (std::size_t o = 0; o < s.outputs.size(); ++o) s.taken_outputs[o] = s.outputs[o].free.pop();
    return s.actor;
  }
  /// The round of the running actor, from 0, and the slots of its inputs and outputs, in the order of the graph's lists.
  constexpr int round() const noexcept { return states_[at(running_)].acted; }
  constexpr std::span<const int> input_slots() const noexcept { return states_[at(running_)].taken_inputs; }
  constexpr std::span<const int> output_slots() const noexcept { return states_[at(running_)].taken_outputs; }

  /// The running actor's kernel is done.
  template <class Post>
  constexpr void finish(Post&& post) {
    state& s = states_[at(running_)];
    running_ = -1;
    s.queued = false;
    ++s.acted;
    for (std::size_t o = 0; o < s.outputs.size(); ++o) {
      const int r = graph_.outputs(s.actor)[o];
      const int slot = s.taken_outputs[o];
      s.outputs[o].unread[at(slot)] = static_cast<int>(graph_.readers(r).size());
      if (graph_.readers(r).empty()) s.outputs[o].free.push(slot);
      for (const int reader : graph_.readers(r)) post(actor_message{actor_message_kind::request, reader, r, slot});
    }
    for (std::size_t i = 0; i < s.inputs.size(); ++i) give_back(graph_.inputs(s.actor)[i], s.taken_inputs[i], post);
    update(s, post);
  }

  /// Whether every actor of this queue is gone: no message will come any more.
  constexpr bool done() const noexcept { return gone_ == states_.size(); }
  /// The most messages that can be under way to this queue at once.
  constexpr std::size_t message_capacity() const noexcept { return capacity_; }

 private:
  struct input {
    constexpr explicit input(int slots) : waiting(slots) {}
    detail::slot_fifo waiting;
    bool ended = false;
  };
  struct output {
    constexpr explicit output(int slots) : free{slots}, unread(detail::filled(at(slots), 0)) {}
    detail::slot_fifo free;
    std::vector<int> unread;  // readers that have not yet read each slot
  };
  struct state {
    int actor = 0;
    int acted = 0;
    bool source = false;
    bool queued = false;  // ready or running
    bool ended = false;
    bool gone = false;
    std::vector<input> inputs;
    std::vector<output> outputs;
    std::vector<int> taken_inputs;
    std::vector<int> taken_outputs;
  };

  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }
  static constexpr std::size_t port(std::span<const int> registers, int r) noexcept {
    std::size_t p = 0;
    while (registers[p] != r) ++p;
    return p;
  }
  template <class Post>
  constexpr void give_back(int r, int slot, Post& post) const {
    post(actor_message{actor_message_kind::acknowledge, graph_.reg(r).producer, r, slot});
  }

  // What follows from a change: the actor ends, becomes ready, or is gone.
  template <class Post>
  constexpr void update(state& s, Post& post) {
    if (s.queued || s.gone) return;
    bool over = s.source && s.acted == rounds_;
    bool ready = true;
    for (const input& i : s.inputs) {
      if (i.waiting.empty()) ready = false;
      if (i.waiting.empty() && i.ended) over = true;
    }
    if (!s.ended && over) {
      s.ended = true;
      for (const int r : graph_.outputs(s.actor))
        for (const int reader : graph_.readers(r)) post(actor_message{actor_message_kind::end, reader, r, 0});
      for (std::size_t i = 0; i < s.inputs.size(); ++i)
        while (!s.inputs[i].waiting.empty()) give_back(graph_.inputs(s.actor)[i], s.inputs[i].waiting.pop(), post);
    }
    if (!s.ended) {
      for (const output& o : s.outputs)
        if (o.free.empty()) ready = false;
      if (ready) ready_.push(index_[at(s.actor)]);
      s.queued = ready;
      return;
    }
    for (const input& i : s.inputs)
      if (!i.ended) return;
    for (const output& o : s.outputs)
      if (o.free.size() != o.unread.size()) return;
    s.gone = true;
    ++gone_;
  }

  actor_graph_view graph_;
  int rounds_;
  std::vector<int> index_;  // of each actor among the states, -1 on another queue
  std::vector<state> states_;
  detail::slot_fifo ready_;
  int running_ = -1;
  std::size_t gone_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace heddle::inline v0::schedule
