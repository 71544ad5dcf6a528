// heddle/tensor/watched_queue.hpp: waits for a queue while looking for failed ranks.
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

// One of a queue's watches: it looks out by a communicator's channel, which `Hold` owns, or (`std::weak_ptr`) does not keep.
template <class Queue, class Hold>
struct channel_watch final : std::remove_cvref_t<decltype(*std::declval<const Queue&>().watches())>::watch {
  explicit channel_watch(Hold of) : channel(std::move(of)) {}
  // Calls of a group that is open are not on the stream yet, and its communicator cannot look out.
  bool wait(decltype(std::declval<const Queue&>().stream()) stream) override {
    const auto here = held();
    if (here == nullptr || here->grouped()) return false;
    here->wait(stream);
    return true;
  }
  const void* looks_out_by() const noexcept override { return held().get(); }
  auto held() const noexcept {
    if constexpr (requires { channel.lock(); })
      return channel.lock();
    else
      return channel;
  }
  Hold channel;
};

// While it lives, the waits of this thread for the queue and for queues beside it, and before copies between them and memory of the host that is
// not pinned, look out for failures of other ranks. They throw what the communicator's `wait` throws. Made and ended by the thread that waits.
template <class Communicator, class Queue>
class queue_watch {
 public:
  queue_watch(Communicator& comm, const Queue& queue) : watches_(queue.watches()), seen_(comm.channel()) {
    watches_->add(seen_);
  }
  queue_watch(const queue_watch&) = delete;
  queue_watch& operator=(const queue_watch&) = delete;
  ~queue_watch() { watches_->remove(seen_); }

 private:
  std::remove_cvref_t<decltype(std::declval<const Queue&>().watches())> watches_;
  channel_watch<Queue, std::remove_cvref_t<decltype(std::declval<Communicator&>().channel())>> seen_;
};

// The same from now on, as long as both live, for those who return before the queue has done what they gave it; once for a communicator. Nothing
// where a world's communicators do not watch queues of this kind.
template <class World, class Queue>
void watch_from_now_on([[maybe_unused]] World& world, [[maybe_unused]] const Queue& queue) {
  if constexpr (requires { requires watches_queue<std::remove_cvref_t<decltype(world.all())>, Queue>; }) {
    using channel = typename std::remove_cvref_t<decltype(world.all().channel())>::element_type;
    queue.watches()->keep(std::make_unique<channel_watch<Queue, std::weak_ptr<channel>>>(world.all().channel()));
  }
}

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
