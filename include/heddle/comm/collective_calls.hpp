// heddle/comm/collective_calls.hpp: messages and collectives of communicators on all transports.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/comm/in_flight.hpp>
#include <heddle/core/typestate.hpp>

#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::detail {

/// Base of a communicator, beside `argument_checks`: checks what the arguments of a call say, and passes spans on to a
/// function of `Comm`, which has this class for a friend:
///
///     waiting_send<T>(x, to, tag)  waiting_recv<T>(x, from, tag)  waiting_broadcast<T>(x, root)
///     waiting_all_reduce<T>(x, y, op)  waiting_reduce<T>(x, y, op, root)
///     waiting_reduce_scatter<T>(x, y, op)  waiting_reduce_scatter_v<T>(x, y, counts, op)
///     waiting_all_gather<T>(x, y)  waiting_all_gather_v<T>(x, y, counts)
///     waiting_all_to_all<T>(x, y)  waiting_all_to_all_v<T>(x, send_counts, y, recv_counts)
///     waiting_gather<T>(x, y, root)  waiting_gather_v<T>(x, y, counts, root)
///     waiting_scatter<T>(x, y, root)  waiting_scatter_v<T>(x, counts, y, root)
///     started_send, started_recv, started_broadcast, started_all_reduce, started_reduce_scatter(_v),
///     started_all_gather(_v): the same arguments, for what is waited for later
///
/// `can_fold<T, Op>()` says of `Comm` which operators it takes. One with `quick_calls` is asked first, before anything is
/// checked, whether it does a call as it is: `quick_all_reduce<T, Op>(x)` in place and `(x, y)`, `quick_all_gather<T>(x, y)`,
/// `quick_all_to_all_v<T>(in, send_counts, out, recv_counts)`.
///
/// `C` is left out: `Comm`, which is not complete before it is used. With the type of the result written out a concept can
/// ask for a call without instantiating it.
template <class Comm>
class collective_calls {
 public:
  // --- messages ---
  /// Returns when the buffer may be used again; on `threads` when `to` has the elements. Errors: `comm_error` if the
  /// other side expects another count or type, as far as the transport tells, or if there is no rank `to`.
  template <spannable In>
  [[gnu::always_inline]] void send(In&& in, int to, int tag = 0) {
    if constexpr (can_travel<comm_element<In>>()) {
      self().require_peer("send", "to", to);
      self().template waiting_send<comm_element<In>>(std::span(in), to, tag);
    }
  }
  /// Returns when the elements are here. Errors: as `send`.
  template <spannable Out>
  [[gnu::always_inline]] void recv(Out&& out, int from, int tag = 0) {
    if constexpr (can_receive<Out>()) {
      self().require_peer("recv", "from", from);
      self().template waiting_recv<comm_element<Out>>(std::span(out), from, tag);
    }
  }
  /// Starts a message. The buffer must stay alive and (send) unchanged until the request has been waited for.
  template <spannable In, class C = Comm>
  [[nodiscard("heddle: a message that was started must be waited for"), gnu::always_inline]] typename C::request isend(
      In&& in, int to, int tag = 0) {
    if constexpr (!outlives_the_call<In>()) {
      return typename C::request();
    } else if constexpr (can_travel<comm_element<In>>()) {
      self().require_peer("send", "to", to);
      return self().template started_send<comm_element<In>>(std::span(in), to, tag);
    } else {
      return typename C::request();
    }
  }
  template <spannable Out, class C = Comm>
  [[nodiscard("heddle: a message that was started must be waited for"), gnu::always_inline]] typename C::request irecv(
      Out&& out, int from, int tag = 0) {
    if constexpr (!outlives_the_call<Out>()) {
      return typename C::request();
    } else if constexpr (can_receive<Out>()) {
      self().require_peer("recv", "from", from);
      return self().template started_recv<comm_element<Out>>(std::span(out), from, tag);
    } else {
      return typename C::request();
    }
  }

  // --- collectives ---
  template <spannable InOut>
  void broadcast(InOut&& inout, int root) {
    if constexpr (can_receive<InOut>()) {
      self().require_root(root);
      self().template waiting_broadcast<comm_element<InOut>>(std::span(inout), root);
    }
  }

  template <class InOut, class Op>
  [[gnu::always_inline]] void all_reduce(InOut&& inout, Op op) {
    if constexpr (can_reduce_in_place<InOut>()) {
      using T = reduced_element<InOut>;
      if constexpr (Comm::template can_fold<T, Op>()) {
        const std::span<T> x = elements_of(inout);
        if constexpr (Comm::quick_calls) {
          if (self().template quick_all_reduce<T, Op>(x)) [[likely]]
            return;
        }
        checked_all_reduce<T>(x, x, op);
      }
    }
  }
  template <spannable In, spannable Out, class Op>
  [[gnu::always_inline]] void all_reduce(In&& in, Out&& out, Op op) {
    if constexpr (same_elements<In, Out>()) {
      using T = comm_element<In>;
      if constexpr (Comm::template can_fold<T, Op>()) {
        const std::span<const T> x = std::span(in);
        const std::span<T> y = std::span(out);
        if constexpr (Comm::quick_calls) {
          if (self().template quick_all_reduce<T, Op>(x, y)) [[likely]]
            return;
        }
        checked_all_reduce<T>(x, y, op);
      }
    }
  }
  /// `out` is used at the root only and may be empty elsewhere.
  template <spannable In, spannable Out, class Op>
  void reduce(In&& in, Out&& out, Op op, int root) {
    with_folded_spans<Op, In, Out>(in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
      if (is_root(root)) self().template require_vectors<T>("reduce", x, y);
      self().template waiting_reduce<T>(x, y, op, root);
    });
  }

  /// `in` holds a block per rank; `out` gets the fold of the own blocks.
  template <spannable In, spannable Out, class Op>
  void reduce_scatter(In&& in, Out&& out, Op op) {
    with_folded_spans<Op, In, Out>(in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
      self().template require_blocks_in<T>("reduce_scatter", x, y);
      self().template waiting_reduce_scatter<T>(x, y, op);
    });
  }
  /// `counts[r]` elements for rank r, the same on every rank.
  template <spannable In, spannable Out, class Op>
  void reduce_scatter_v(In&& in, Out&& out, counts_span counts, Op op) {
    with_folded_spans<Op, In, Out>(in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
      self().template require_blocks_in<T>("reduce_scatter_v", x, y, counts);
      self().template waiting_reduce_scatter_v<T>(x, y, counts, op);
    });
  }

  /// `out` gets a block per rank.
  template <spannable In, spannable Out>
  [[gnu::always_inline]] void all_gather(In&& in, Out&& out) {
    if constexpr (same_elements<In, Out>()) {
      using T = comm_element<In>;
      const std::span<const T> x = std::span(in);
      const std::span<T> y = std::span(out);
      if constexpr (Comm::quick_calls) {
        if (self().template quick_all_gather<T>(x, y)) [[likely]]
          return;
      }
      checked_all_gather<T>(x, y);
    }
  }
  /// `counts[r]` elements of rank r, the same on every rank.
  template <spannable In, spannable Out>
  void all_gather_v(In&& in, Out&& out, counts_span counts) {
    with_spans<In, Out>(in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
      self().template require_blocks_out<T>("all_gather_v", x, y, counts);
      self().template waiting_all_gather_v<T>(x, y, counts);
    });
  }

  /// Block s of `out` is block `rank()` of rank s's `in`.
  template <spannable In, spannable Out>
  void all_to_all(In&& in, Out&& out) {
    with_spans<In, Out>(in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
      self().template require_all_to_all<T>(x, y);
      self().template waiting_all_to_all<T>(x, y);
    });
  }
  /// `send_counts[r]` elements for rank r and `recv_counts[r]` from rank r, in rank order without gaps.
  template <spannable In, spannable Out>
  [[gnu::always_inline]] void all_to_all_v(In&& in, counts_span send_counts, Out&& out, counts_span recv_counts) {
    if constexpr (same_elements<In, Out>()) {
      using T = comm_element<In>;
      if constexpr (Comm::quick_calls) {
        if (self().template quick_all_to_all_v<T>(in, send_counts, out, recv_counts)) [[likely]]
          return;
      }
      checked_all_to_all_v<T>(in, send_counts, out, recv_counts);
    }
  }

  /// The root's `out` gets a block per rank; elsewhere it is not used and may be empty.
  template <spannable In, spannable Out>
  void gather(In&& in, Out&& out, int root) {
    with_spans<In, Out>(in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
      if (is_root(root)) self().template require_blocks_out<T>("gather", x, y);
      self().template waiting_gather<T>(x, y, root);
    });
  }
  /// `counts[r]` elements of rank r; `counts` and `out` are used at the root only and may be empty elsewhere.
  template <spannable In, spannable Out>
  void gather_v(In&& in, Out&& out, counts_span counts, int root) {
    with_spans<In, Out>(in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
      if (is_root(root)) self().template require_blocks_out<T>("gather_v", x, y, counts);
      self().template waiting_gather_v<T>(x, y, counts, root);
    });
  }

  /// Rank r's `out` gets block r of the root's `in`, which elsewhere is not used and may be empty.
  template <spannable In, spannable Out>
  void scatter(In&& in, Out&& out, int root) {
    with_spans<In, Out>(in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
      if (is_root(root)) self().template require_blocks_in<T>("scatter", x, y);
      self().template waiting_scatter<T>(x, y, root);
    });
  }
  /// `counts[r]` elements for rank r; `counts` and `in` are used at the root only and may be empty elsewhere.
  template <spannable In, spannable Out>
  void scatter_v(In&& in, counts_span counts, Out&& out, int root) {
    with_spans<In, Out>(in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
      if (is_root(root)) self().template require_blocks_in<T>("scatter_v", x, y, counts);
      self().template waiting_scatter_v<T>(x, counts, y, root);
    });
  }

  // --- started collectives ---
  /// Started now, waited for later: until `wait` has returned, or `test` has said true, the buffers belong to the call. All
  /// ranks start their collectives in one order with all other collectives of the communicator, and wait in any.
  template <class InOut, class Op, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_all_reduce(
      InOut&& inout, Op op) {
    if constexpr (!outlives_the_call<InOut>()) {
      return typename C::started();
    } else if constexpr (can_reduce_in_place<InOut>()) {
      using T = reduced_element<InOut>;
      const std::span<T> x = elements_of(inout);
      return start_all_reduce_of<T, Op, C>(x, x, op);
    } else {
      return typename C::started();
    }
  }
  /// The same with a buffer that the call owns until it is waited for: `x = start_all_reduce(std::move(x), op).wait()`.
  template <given_away Buffer, class Op, class C = Comm>
  HEDDLE_RETURNS_STATE(unconsumed)
  in_flight<Buffer, typename C::started> start_all_reduce(Buffer&& buffer, Op op) {
    return in_flight<Buffer, typename C::started>(std::move(buffer),
                                                  [&](Buffer& b) { return start_all_reduce(owned_elements(b), op); });
  }
  template <spannable In, spannable Out, class Op, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_all_reduce(
      In&& in, Out&& out, Op op) {
    if constexpr (can_start<In, Out>())
      return start_all_reduce_of<comm_element<In>, Op, C>(std::span(in), std::span(out), op);
    else
      return typename C::started();
  }
  template <spannable InOut, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_broadcast(
      InOut&& inout, int root) {
    if constexpr (!outlives_the_call<InOut>()) {
      return typename C::started();
    } else if constexpr (can_receive<InOut>()) {
      self().require_root(root);
      return self().template started_broadcast<comm_element<InOut>>(std::span(inout), root);
    } else {
      return typename C::started();
    }
  }
  /// `in` holds a block per rank; `out` gets the fold of the own blocks.
  template <spannable In, spannable Out, class Op, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_reduce_scatter(
      In&& in, Out&& out, Op op) {
    return started_if<can_start_fold<In, Out, Op>(), C, In, Out>(
        in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
          self().template require_blocks_in<T>("start_reduce_scatter", x, y);
          return self().template started_reduce_scatter<T>(x, y, op);
        });
  }
  /// `counts[r]` elements for rank r, the same on every rank; they are copied.
  template <spannable In, spannable Out, class Op, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_reduce_scatter_v(
      In&& in, Out&& out, counts_span counts, Op op) {
    return started_if<can_start_fold<In, Out, Op>(), C, In, Out>(
        in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
          self().template require_blocks_in<T>("start_reduce_scatter_v", x, y, counts);
          return self().template started_reduce_scatter_v<T>(x, y, counts, op);
        });
  }
  /// `out` gets a block per rank.
  template <spannable In, spannable Out, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_all_gather(
      In&& in, Out&& out) {
    return started_if<can_start<In, Out>(), C, In, Out>(in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
      self().template require_blocks_out<T>("start_all_gather", x, y);
      return self().template started_all_gather<T>(x, y);
    });
  }
  /// `counts[r]` elements of rank r, the same on every rank; they are copied.
  template <spannable In, spannable Out, class C = Comm>
  [[nodiscard("heddle: a collective that was started must be waited for")]] typename C::started start_all_gather_v(
      In&& in, Out&& out, counts_span counts) {
    return started_if<can_start<In, Out>(), C, In, Out>(in, out, [&]<class T>(std::span<const T> x, std::span<T> y) {
      self().template require_blocks_out<T>("start_all_gather_v", x, y, counts);
      return self().template started_all_gather_v<T>(x, y, counts);
    });
  }

 protected:
  static constexpr bool quick_calls = false;

 private:
  Comm& self() { return static_cast<Comm&>(*this); }
  bool is_root(int root) {
    self().require_root(root);
    return self().rank() == root;
  }

  // f(x, y) with the spans of buffers that a call can take; what it cannot take is refused.
  template <class In, class Out, class F>
  static void with_spans(std::remove_reference_t<In>& in, std::remove_reference_t<Out>& out, const F& f) {
    if constexpr (same_elements<In, Out>()) {
      using T = comm_element<In>;
      f(std::span<const T>(std::span(in)), std::span<T>(std::span(out)));
    }
  }
  template <class Op, class In, class Out, class F>
  static void with_folded_spans(std::remove_reference_t<In>& in, std::remove_reference_t<Out>& out, const F& f) {
    if constexpr (same_elements<In, Out>()) {
      if constexpr (Comm::template can_fold<comm_element<In>, Op>()) with_spans<In, Out>(in, out, f);
    }
  }
  template <bool Can, class C, class In, class Out, class F>
  static typename C::started started_if(std::remove_reference_t<In>& in, std::remove_reference_t<Out>& out,
                                        const F& f) {
    if constexpr (Can) {
      using T = comm_element<In>;
      return f(std::span<const T>(std::span(in)), std::span<T>(std::span(out)));
    } else {
      return typename C::started();
    }
  }

  template <class In, class Out>
  static consteval bool can_start() {
    if constexpr (!outlives_the_call<In>() || !outlives_the_call<Out>())
      return false;
    else
      return same_elements<In, Out>();
  }
  template <class In, class Out, class Op>
  static consteval bool can_start_fold() {
    if constexpr (can_start<In, Out>())
      return Comm::template can_fold<comm_element<In>, Op>();
    else
      return false;
  }

  // The calls that were not quick.
  template <class T, class Op>
  [[gnu::noinline]] void checked_all_reduce(std::span<const T> x, std::span<T> y, const Op& op) {
    self().template require_vectors<T>("all_reduce", x, y);
    self().template waiting_all_reduce<T>(x, y, op);
  }
  template <class T>
  [[gnu::noinline]] void checked_all_gather(std::span<const T> x, std::span<T> y) {
    self().template require_blocks_out<T>("all_gather", x, y);
    self().template waiting_all_gather<T>(x, y);
  }
  // The buffers come by reference, as to `quick_all_to_all_v`, which needs all registers.
  template <class T, class In, class Out>
  [[gnu::noinline]] void checked_all_to_all_v(const In& in, counts_span send_counts, Out& out,
                                              counts_span recv_counts) {
    const std::span<const T> x = std::span(in);
    const std::span<T> y = std::span(out);
    self().template require_all_to_all_v<T>(x, send_counts, y, recv_counts);
    self().template waiting_all_to_all_v<T>(x, send_counts, y, recv_counts);
  }
  template <class T, class Op, class C>
  typename C::started start_all_reduce_of(std::span<const T> x, std::span<T> y, const Op& op) {
    if constexpr (Comm::template can_fold<T, Op>()) {
      self().template require_vectors<T>("start_all_reduce", x, y);
      return self().template started_all_reduce<T>(x, y, op);
    } else {
      return typename C::started();
    }
  }
};

}  // namespace heddle::inline v0::detail
