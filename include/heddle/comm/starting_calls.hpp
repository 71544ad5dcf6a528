// heddle/comm/starting_calls.hpp: the calls that start a collective, as communicators of all transports have them.
#pragma once

#include <heddle/comm/communicator.hpp>

#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::detail {

template <class T>
std::int64_t elements_in(std::span<T> x) {
  return static_cast<std::int64_t>(x.size());
}

/// Base of a communicator that starts collectives: checks what the arguments say, and passes spans on to
/// `started_all_reduce`, `started_broadcast`, `started_reduce_scatter(_v)` and `started_all_gather(_v)` of `Comm`. `C` is left
/// out: `Comm`, which is not complete before it is used. With the type of the result written out a concept can ask for a
/// call without instantiating it.
template <class Comm>
class starting_calls {
 public:
  /// Started now, waited for later: until `wait` has returned, or `test` has said true, the buffers belong to the call. All
  /// ranks start their collectives in one order with all other collectives of the communicator, and wait in any.
  template <class InOut, class Op, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_all_reduce(
      InOut&& inout, Op op) {
    using started = typename C::started;
    if constexpr (!outlives_the_call<InOut>()) {
      return started();
    } else if constexpr (can_reduce_in_place<InOut>()) {
      using T = reduced_element<InOut>;
      const std::span<T> x = elements_of(inout);
      return all_reduce_of<T>(std::span<const T>(x), x, op);
    } else {
      return started();
    }
  }
  template <spannable In, spannable Out, class Op, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_all_reduce(
      In&& in, Out&& out, Op op) {
    using started = typename C::started;
    if constexpr (!outlives_the_call<In>() || !outlives_the_call<Out>()) {
      return started();
    } else if constexpr (same_elements<In, Out>()) {
      using T = comm_element<In>;
      return all_reduce_of<T>(std::span<const T>(std::span(in)), std::span<T>(std::span(out)), op);
    } else {
      return started();
    }
  }
  template <spannable InOut, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_broadcast(
      InOut&& inout, int root) {
    using started = typename C::started;
    if constexpr (!outlives_the_call<InOut>()) {
      return started();
    } else if constexpr (can_receive<InOut>()) {
      using T = comm_element<InOut>;
      const std::span<T> x = std::span(inout);
      self().require_root(root);
      return self().template started_broadcast<T>(x, root);
    } else {
      return started();
    }
  }
  /// `in` holds a block per rank; `out` gets the fold of the own blocks.
  template <spannable In, spannable Out, class Op, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_reduce_scatter(
      In&& input, Out&& output, Op op) {
    using started = typename C::started;
    if constexpr (!outlives_the_call<In>() || !outlives_the_call<Out>()) {
      return started();
    } else if constexpr (same_elements<In, Out>()) {
      using T = comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      self().require_length("start_reduce_scatter", "in", elements_in(x), self().size() * elements_in(y));
      self().template require_overlap<T>("start_reduce_scatter", x, y, self().rank() * elements_in(y), 0);
      if constexpr (Comm::template can_fold<T, Op>())
        return self().template started_reduce_scatter<T>(x, y, op);
      else
        return started();
    } else {
      return started();
    }
  }
  /// `counts[r]` elements for rank r, the same on every rank; they are copied.
  template <spannable In, spannable Out, class Op, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_reduce_scatter_v(
      In&& input, Out&& output, counts_span counts, Op op) {
    using started = typename C::started;
    if constexpr (!outlives_the_call<In>() || !outlives_the_call<Out>()) {
      return started();
    } else if constexpr (same_elements<In, Out>()) {
      using T = comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      const auto blocks = self().require_counts("start_reduce_scatter_v", counts);
      self().require_length("start_reduce_scatter_v", "in", elements_in(x), blocks.offset(self().size()));
      self().require_length("start_reduce_scatter_v", "out", elements_in(y), blocks.count(self().rank()));
      self().template require_overlap<T>("start_reduce_scatter_v", x, y, blocks.offset(self().rank()), 0);
      if constexpr (Comm::template can_fold<T, Op>())
        return self().template started_reduce_scatter_v<T>(x, y, counts, op);
      else
        return started();
    } else {
      return started();
    }
  }
  /// `out` gets a block per rank.
  template <spannable In, spannable Out, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_all_gather(
      In&& input, Out&& output) {
    using started = typename C::started;
    if constexpr (!outlives_the_call<In>() || !outlives_the_call<Out>()) {
      return started();
    } else if constexpr (same_elements<In, Out>()) {
      using T = comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      self().require_length("start_all_gather", "out", elements_in(y), self().size() * elements_in(x));
      self().template require_overlap<T>("start_all_gather", x, y, 0, self().rank() * elements_in(x));
      return self().template started_all_gather<T>(x, y);
    } else {
      return started();
    }
  }
  /// `counts[r]` elements of rank r, the same on every rank; they are copied.
  template <spannable In, spannable Out, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_all_gather_v(
      In&& input, Out&& output, counts_span counts) {
    using started = typename C::started;
    if constexpr (!outlives_the_call<In>() || !outlives_the_call<Out>()) {
      return started();
    } else if constexpr (same_elements<In, Out>()) {
      using T = comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      const auto blocks = self().require_counts("start_all_gather_v", counts);
      self().require_length("start_all_gather_v", "in", elements_in(x), blocks.count(self().rank()));
      self().require_length("start_all_gather_v", "out", elements_in(y), blocks.offset(self().size()));
      self().template require_overlap<T>("start_all_gather_v", x, y, 0, blocks.offset(self().rank()));
      return self().template started_all_gather_v<T>(x, y, counts);
    } else {
      return started();
    }
  }

 private:
  Comm& self() { return static_cast<Comm&>(*this); }
  template <class T, class Op>
  auto all_reduce_of(std::span<const T> x, std::span<T> y, const Op& op) {
    self().require_length("start_all_reduce", "out", elements_in(y), elements_in(x));
    self().template require_overlap<T>("start_all_reduce", x, y, 0, 0);
    if constexpr (Comm::template can_fold<T, Op>())
      return self().template started_all_reduce<T>(x, y, op);
    else
      return typename Comm::started();
  }
};

}  // namespace heddle::inline v0::detail
