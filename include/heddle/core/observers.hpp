// heddle/core/observers.hpp: several observers as one.
#pragma once

#include <heddle/core/observer.hpp>

#include <cstddef>
#include <exception>
#include <tuple>
#include <type_traits>

namespace heddle::inline v0 {

namespace detail {
template <class O, class Queue>
concept follows_queues_like = requires(O& o, int rank, Queue& queue) { o.follow(rank, queue); };
template <class O, class Queue>
concept times_messages_of = requires(O& o, const event& e, Queue& queue) {
  o.follow_messages(0, 0, queue);
  o.begin_message(e, queue);
  o.end_message(e, queue);
};
template <class O, class Work>
concept runs_work =
    O::enabled && requires(O& o, const event& e, Work&& work) { o.around(e, static_cast<Work&&>(work)); };
}  // namespace detail

/// Several observers as one: each is told of all events, in the order in which they are named, and of ends in the reverse of that.
/// It refers to them, so they must live as long. `hd::observers watch{recorder, ranges}; hd::strategy<mesh, ..., decltype(watch)>`.
/// Observers that are off are passed over; where all are, this one is. Errors: what `begin` of one throws, when all have been told.
template <observer... Observers>
class observers {
 public:
  using kind = observer_kind;
  static constexpr bool enabled = (Observers::enabled || ...);

  explicit constexpr observers(Observers&... each) noexcept : each_(each...) {}

  void record(const event& e) {
    for_each([&](auto& o) { o.record(e); });
  }
  void begin(const event& e) {
    std::exception_ptr first;  // the end is told to all
    for_each([&](auto& o) {
      if constexpr (requires { o.begin(e); }) {
        if constexpr (noexcept(o.begin(e))) {
          o.begin(e);
        } else {
          try {
            o.begin(e);
          } catch (...) {
            if (first == nullptr) first = std::current_exception();
          }
        }
      }
    });
    if (first != nullptr) std::rethrow_exception(first);
  }
  void end(const event& e) {
    for_each_backwards<sizeof...(Observers)>([&](auto& o) {
      if constexpr (requires { o.end(e); }) o.end(e);
    });
  }
  /// Runs the work through those that do so (`around`), the first outermost.
  template <class Work>
    requires(detail::runs_work<Observers, Work> || ...)
  decltype(auto) around(const event& e, Work&& work) {
    return run_from<0>(e, static_cast<Work&&>(work));
  }
  /// Tells those that follow queues (`cuda_device_times`) which one is this rank's.
  template <class Queue>
    requires(detail::follows_queues_like<Observers, Queue> || ...)
  void follow(int rank, Queue& queue) {
    for_each([&](auto& o) {
      if constexpr (detail::follows_queues_like<decltype(o), Queue>) o.follow(rank, queue);
    });
  }
  /// Tells those that measure messages between stages on their queues (`cuda_device_times`) which queue has the rank's in a direction,
  /// and when the queue is given one.
  template <class Queue>
    requires(detail::times_messages_of<Observers, Queue> || ...)
  void follow_messages(int rank, int way, Queue& queue) {
    for_each([&](auto& o) {
      if constexpr (detail::times_messages_of<decltype(o), Queue>) o.follow_messages(rank, way, queue);
    });
  }
  template <class Queue>
    requires(detail::times_messages_of<Observers, Queue> || ...)
  void begin_message(const event& e, Queue& queue) {
    for_each([&](auto& o) {
      if constexpr (detail::times_messages_of<decltype(o), Queue>) o.begin_message(e, queue);
    });
  }
  template <class Queue>
    requires(detail::times_messages_of<Observers, Queue> || ...)
  void end_message(const event& e, Queue& queue) {
    for_each_backwards<sizeof...(Observers)>([&](auto& o) {
      if constexpr (detail::times_messages_of<decltype(o), Queue>) o.end_message(e, queue);
    });
  }

 private:
  template <std::size_t Next, class Work>
  decltype(auto) run_from(const event& e, Work&& work) {
    if constexpr (Next == sizeof...(Observers)) {
      return static_cast<Work&&>(work)();
    } else {
      using observer_type = std::remove_reference_t<decltype(std::get<Next>(each_))>;
      auto inner = [&]() -> decltype(auto) { return run_from<Next + 1>(e, static_cast<Work&&>(work)); };
      if constexpr (detail::runs_work<observer_type, decltype(inner)&>)
        return std::get<Next>(each_).around(e, inner);
      else
        return inner();
    }
  }
  template <class F>
  void for_each(const F& f) {
    std::apply([&](auto&... o) { (call(o, f), ...); }, each_);
  }
  template <std::size_t N, class F>
  void for_each_backwards(const F& f) {
    if constexpr (N > 0) {
      call(std::get<N - 1>(each_), f);
      for_each_backwards<N - 1>(f);
    }
  }
  template <class O, class F>
  static void call(O& o, const F& f) {
    if constexpr (O::enabled) f(o);
  }
  std::tuple<Observers&...> each_;
};

}  // namespace heddle::inline v0
