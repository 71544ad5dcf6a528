// heddle/train/observed_world.hpp: a world that reports the collectives of layers.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/tensor/space_collectives.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::train {

namespace detail {
// A communicator whose calls can be put in the order of a queue: on its stream, or in the memory of a device that ranks share.
template <class C, class Queue>
concept can_follow = heddle::detail::goes_on_stream_of<C, Queue> || heddle::detail::shares_device_of<C, Queue>;
// One number for all members of the next collective of a group: who leads it, its axes, how many calls there were. 0 where nobody
// else is in it, or its transport does not say.
template <class C>
std::uint64_t flow_of(C& group) {
  if constexpr (requires { group.world_rank(0), group.name(), group.counters().collectives(); }) {
    if (group.size() < 2) return 0;
    std::uint64_t number = static_cast<std::uint64_t>(group.counters().collectives()) * 0x9e3779b97f4a7c15u;
    for (const char c : group.name()) number = (number ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return (number ^ static_cast<std::uint64_t>(group.world_rank(0) + 1)) * 0x100000001b3u | 1u;
  } else {
    return 0;
  }
}
template <class C>
struct request_of {
  using type = void;
};
template <class C>
  requires requires { typename C::request; }
struct request_of<C> {
  using type = typename C::request;
};
}  // namespace detail

/// Passes calls on to a communicator and reports the collectives to an observer: all that a layer or a stage uses.
/// `now` gives rank and step. `Communicator`: a reference, or a communicator that is kept.
template <class Communicator, observer Observer>
class observed_communicator {
 public:
  using communicator = std::remove_reference_t<Communicator>;

  observed_communicator(Communicator to, Observer& observer, const event& now)
      : to_(std::forward<Communicator>(to)), observer_(observer), now_(now) {}

  int rank() const noexcept { return to_.rank(); }
  int size() const noexcept { return to_.size(); }
  using request = typename detail::request_of<communicator>::type;
  /// Reports what a layer has done by itself, on this rank in the step at work: messages along an axis, say.
  void record(event e) {
    e.rank = now_.rank;
    e.step = now_.step;
    observer_.record(e);
  }

  /// The same communicator in the order of a queue of a device, where it can have its calls there. Units of what is then reported: the
  /// time that the host takes to put the call in the queue.
  template <class Queue>
    requires detail::can_follow<communicator, Queue>
  auto in_order_of(Queue& queue) {
    if constexpr (heddle::detail::goes_on_stream_of<communicator, Queue>)
      return observed_communicator<communicator, Observer>(to_.on(queue.stream()), observer_, now_);
    else
      return observed_communicator<decltype(to_.in_order_of(queue)), Observer>(to_.in_order_of(queue), observer_, now_);
  }

  /// Whether the communicator takes memory that the host cannot use: see `mpi_communicator`.
  template <class... Arguments>
    requires requires(communicator& c, Arguments... a) { c.takes_memory_of(a...); }
  bool takes_memory_of(Arguments... arguments) const {
    return to_.takes_memory_of(arguments...);
  }
  /// Whether it folds such memory by this operator: see `mpi_communicator`.
  template <class T, class Op>
    requires requires { communicator::template folds_memory_of_devices<T, Op>; }
  static constexpr bool folds_memory_of_devices = communicator::template folds_memory_of_devices<T, Op>;

  template <class... Arguments>
  void all_reduce(Arguments&&... arguments) {
    report("all_reduce", first_bytes(arguments...), [&] { to_.all_reduce(std::forward<Arguments>(arguments)...); });
  }
  template <class... Arguments>
  void all_gather(Arguments&&... arguments) {
    report("all_gather", first_bytes(arguments...), [&] { to_.all_gather(std::forward<Arguments>(arguments)...); });
  }
  template <class... Arguments>
  void reduce_scatter(Arguments&&... arguments) {
    report("reduce_scatter", first_bytes(arguments...),
           [&] { to_.reduce_scatter(std::forward<Arguments>(arguments)...); });
  }
  template <class... Arguments>
  void reduce_scatter_v(Arguments&&... arguments) {
    report("reduce_scatter_v", first_bytes(arguments...),
           [&] { to_.reduce_scatter_v(std::forward<Arguments>(arguments)...); });
  }
  template <class... Arguments>
  void all_gather_v(Arguments&&... arguments) {
    report("all_gather_v", first_bytes(arguments...), [&] { to_.all_gather_v(std::forward<Arguments>(arguments)...); });
  }
  template <class... Arguments>
  void broadcast(Arguments&&... arguments) {
    report("broadcast", first_bytes(arguments...), [&] { to_.broadcast(std::forward<Arguments>(arguments)...); });
  }
  /// Other communicators of its ranks, which report nothing: see `communicator`.
  auto split(int color, int key) { return to_.split(color, key); }
  auto beside()
    requires requires(communicator& c) { c.beside(); }
  {
    return to_.beside();
  }
  template <class... Arguments>
  auto isend(Arguments&&... arguments) {
    return to_.isend(std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  auto irecv(Arguments&&... arguments) {
    return to_.irecv(std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  void recv(Arguments&&... arguments) {
    to_.recv(std::forward<Arguments>(arguments)...);
  }

 private:
  template <class First, class... Rest>
  static std::size_t first_bytes(const First& first, const Rest&...) noexcept {
    return std::span(first).size_bytes();
  }
  template <class Work>
  void report(const char* name, std::size_t bytes, Work&& work) {
    event e = now_;
    e.kind = activity::collective;
    e.name = name;
    e.bytes = static_cast<std::int64_t>(bytes);
    e.flow = detail::flow_of(to_);
    observed(observer_, e, std::forward<Work>(work));
  }

  Communicator to_;
  Observer& observer_;
  const event& now_;
};

/// The world a stage is given when somebody observes: the same ranks and mesh, communicators that report.
template <class World, observer Observer>
class observed_world {
 public:
  /// `now` is read at every report: its owner keeps rank and step up to date.
  observed_world(World& to, Observer& observer, const event& now) noexcept : to_(to), observer_(observer), now_(now) {}

  /// The world that does not report.
  World& unobserved() noexcept { return to_; }
  int rank() const noexcept { return to_.rank(); }
  int size() const noexcept { return to_.size(); }
  decltype(auto) mesh() const noexcept { return std::as_const(to_).mesh(); }

  template <class... Tags>
  auto along() {
    return wrap(to_.template along<Tags...>());
  }
  template <class... Tags>
  auto along_if() {
    return wrap(to_.template along_if<Tags...>());
  }
  /// The control planes of the world itself: what the host reads is not reported.
  auto& control() { return to_.control(); }
  template <class... Tags>
  auto& control_along() {
    return to_.template control_along<Tags...>();
  }
  template <class... Tags>
  auto& control_along_if() {
    return to_.template control_along_if<Tags...>();
  }

 private:
  template <class Communicator>
  observed_communicator<Communicator&, Observer> wrap(Communicator& group) noexcept {
    return {group, observer_, now_};
  }

  World& to_;
  Observer& observer_;
  const event& now_;
};

namespace detail {

inline event event_of(activity kind, const char* name, int rank, std::int64_t step) noexcept {
  event e;
  e.kind = kind;
  e.name = name;
  e.rank = rank;
  e.step = static_cast<int>(step);
  return e;
}

template <class World>
auto& unobserved(World& world) noexcept {
  if constexpr (requires { world.unobserved(); })
    return world.unobserved();
  else
    return world;
}

// A trainer's observer and the world that its stages are given: with an observer that is on, one that reports.
template <class World, class Observer, bool On = Observer::enabled>
class watched_ranks {
 public:
  using world_type = observed_world<World, Observer>;
  watched_ranks(World& world, Observer* observer) : observer_(*observer), world_(world, *observer, now_) {
    now_.kind = activity::collective;
    now_.name = "";
    now_.rank = world.rank();
    now_.step = -1;
  }
  watched_ranks(const watched_ranks&) = delete;
  watched_ranks& operator=(const watched_ranks&) = delete;
  Observer& observer() noexcept { return observer_; }
  world_type& world() noexcept { return world_; }
  void set_step(std::int64_t step) noexcept { now_.step = static_cast<int>(step); }

 private:
  Observer& observer_;
  event now_{};  // of the collectives that a stage calls
  world_type world_;
};
// The observer that is off may be the trainer's own: nobody passes one.
template <class World, class Observer>
class watched_ranks<World, Observer, false> {
 public:
  using world_type = World;
  watched_ranks(World& world, Observer*) : world_(world) {}
  Observer& observer() noexcept { return off_; }
  world_type& world() noexcept { return world_; }
  void set_step(std::int64_t) noexcept {}

 private:
  [[no_unique_address]] Observer off_{};
  World& world_;
};

}  // namespace detail

}  // namespace heddle::inline v0::train
