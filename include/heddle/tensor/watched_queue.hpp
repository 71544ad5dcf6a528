// heddle/tensor/watched_queue.hpp: while the host waits for a queue, its communicator looks out for failures of other ranks.
#pragma once

#include <heddle/tensor/space_collectives.hpp>

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::detail {

// A communicator whose calls go on a queue's stream, where they never end when another rank has failed, and which notices that while it waits.
template <class C, class Queue>
concept watches_queue = goes_on_stream_of<C, Queue> && requires(C& c, const Queue& q) {
  q.watches();
  c.channel()->wait(q.stream());
  { c.channel()->grouped() } -> std::same_as<bool>;
};

// While it lives, the waits of this thread for the queue and for queues beside it, and before copies between them and memory of the host that is
// not pinned, look out for failures of other ranks. They throw what the communicator's `wait` throws. Made and ended by the thread that waits.
template <class Communicator, class Queue>
class queue_watch {
 public:
  queue_watch(Communicator& comm, const Queue& queue) : watches_(queue.watches()), seen_(comm) { watches_->add(seen_); }
  queue_watch(const queue_watch&) = delete;
  queue_watch& operator=(const queue_watch&) = delete;
  ~queue_watch() { watches_->remove(seen_); }

 private:
  using base = std::remove_reference_t<decltype(std::declval<const Queue&>().watches()->last())>;
  struct looking_out final : base {
    explicit looking_out(Communicator& comm) : channel(comm.channel()) {}
    // Calls of a group that is open are not on the stream yet, and its communicator cannot look out.
    bool wait(decltype(std::declval<const Queue&>().stream()) stream) override {
      if (channel->grouped()) return false;
      channel->wait(stream);
      return true;
    }
    std::remove_cvref_t<decltype(std::declval<Communicator&>().channel())> channel;
  };
  std::remove_cvref_t<decltype(std::declval<const Queue&>().watches())> watches_;
  looking_out seen_;
};

// `queue_watch` of all ranks of a world, where its communicators watch queues of this kind; else nothing, and no communicator is asked for.
template <class World, class Queue>
class watched_by_world {
 public:
  watched_by_world(World&, const Queue&) noexcept {}
};
template <class World, class Queue>
  requires watches_queue<std::remove_cvref_t<decltype(std::declval<World&>().all())>, Queue>
class watched_by_world<World, Queue> : queue_watch<std::remove_cvref_t<decltype(std::declval<World&>().all())>, Queue> {
 public:
  watched_by_world(World& world, const Queue& queue)
      : queue_watch<std::remove_cvref_t<decltype(std::declval<World&>().all())>, Queue>(world.all(), queue) {}
};

}  // namespace heddle::inline v0::detail
