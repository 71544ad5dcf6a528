// heddle/comm/in_flight.hpp: a started collective that owns its buffer, with work meanwhile.
#pragma once

#include <heddle/core/typestate.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace detail {
// What a started call can own: it is given away with `std::move`, cannot be copied, and its elements stay where they are when it moves.
template <class Buffer>
concept given_away =
    !std::is_reference_v<Buffer> && !std::is_const_v<Buffer> && std::movable<Buffer> &&
    !std::copy_constructible<Buffer> &&
    (requires(Buffer& b) { std::span(b.data(), b.size()); } || requires(Buffer& b) { std::span(b.elements()); });
template <given_away Buffer>
auto owned_elements(Buffer& b) {
  if constexpr (requires { b.elements(); })
    return std::span(b.elements());
  else
    return std::span(b.data(), b.size());
}
}  // namespace detail

/// A started collective with the buffer that it was given, such as a `buffer` or a `sharded` tensor: nobody else can read or write that
/// until `wait` gives it back.
///
///     auto sum = group.start_all_reduce(std::move(gradients), hd::plus{});
///     ...                                        // other work
///     gradients = std::move(sum).wait();
///
/// One that ends without `wait` waits, as its request does. clang refuses programs that never wait, wait on one branch only or twice, or use
/// the buffer meanwhile (`HEDDLE_CHECK_REQUESTS`).
/// `Buffer`: movable, not copyable; its elements do not move with it.
template <class Buffer, class Started>
class HEDDLE_CONSUMABLE [[nodiscard("heddle: a collective that was started must be waited for")]] in_flight final {
 public:
  /// `start(buffer)` starts the collective on the buffer in its new place.
  template <class Start>
  HEDDLE_RETURNS_STATE(unconsumed)
  in_flight(Buffer&& buffer, Start&& start) : buffer_(std::move(buffer)), started_(start(buffer_)) {}
  HEDDLE_RETURNS_STATE(unconsumed)
  in_flight(in_flight&&) noexcept = default;
  in_flight& operator=(in_flight&&) = delete;
  HEDDLE_CALLABLE_WHEN("consumed") ~in_flight() = default;

  /// The buffer with the result. Errors: as the blocking call; the buffer is lost then.
  HEDDLE_CALLABLE_WHEN("unconsumed", "unknown")
  HEDDLE_SETS_STATE(consumed)
  Buffer wait() && {
    started_.wait();
    return std::move(buffer_);
  }
  /// Whether the result is there; never waits for others.
  bool test() { return started_.test(); }

 private:
  Buffer buffer_;
  Started started_;  // ends first
};

namespace detail {
template <class Started>
auto waited_for(Started& s) {
  if constexpr (std::is_void_v<decltype(std::move(s).wait())>) {
    std::move(s).wait();
    return std::tuple<>();
  } else {
    return std::tuple<decltype(std::move(s).wait())>(std::move(s).wait());
  }
}
template <class... Arguments>
consteval bool gives_all_but_last() {
  constexpr std::array<bool, sizeof...(Arguments)> kept{std::is_lvalue_reference_v<Arguments>...};
  for (std::size_t i = 0; i + 1 < kept.size(); ++i)
    if (kept[i]) return false;
  return kept.size() >= 2;
}
template <class... Results>
auto only_result(std::tuple<Results...>&& all) {
  if constexpr (sizeof...(Results) == 1)
    return std::get<0>(std::move(all));
  else if constexpr (sizeof...(Results) > 1)
    return std::move(all);
}
}  // namespace detail

/// Does `work()` while what was started goes on, and waits for it behind that: `meanwhile(started..., work)`. Where `work` throws nothing is
/// waited for, as when these end. Returns what the started ones give back, in their order, then what `work` returns: alone if it is one, as a
/// `std::tuple` if there are several.
///
///     gradients = hd::meanwhile(group.start_all_reduce(std::move(gradients), hd::plus{}), [&] { forward(next); });
template <class... Arguments>
auto meanwhile(Arguments&&... arguments) {
  static_assert(
      detail::gives_all_but_last<Arguments...>(),
      "heddle: meanwhile takes what was started, with std::move where it has a name, and last a function that is "
      "called meanwhile");
  const auto all = std::forward_as_tuple(arguments...);
  return [&]<std::size_t... K>(std::index_sequence<K...>) {
    auto& work = std::get<sizeof...(K)>(all);
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      return detail::only_result(std::tuple_cat(detail::waited_for(std::get<K>(all))...));
    } else {
      std::tuple<decltype(work())> result(work());
      return detail::only_result(std::tuple_cat(detail::waited_for(std::get<K>(all))..., std::move(result)));
    }
  }(std::make_index_sequence<sizeof...(Arguments) - 1>{});
}

}  // namespace heddle::inline v0
