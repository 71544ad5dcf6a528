// heddle/comm/communicator.hpp: the communicator concept: messages and collectives of ranks.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// The calls of a communicator, as counters and error messages name them.
enum class comm_operation : std::uint8_t {
  barrier,
  broadcast,
  all_reduce,
  reduce,
  reduce_scatter,
  reduce_scatter_v,
  all_gather,
  all_gather_v,
  all_to_all,
  all_to_all_v,
  gather,
  gather_v,
  scatter,
  scatter_v,
  scan,
  exclusive_scan,
  split,
  send,
  recv
};

/// How many kinds of calls there are.
inline constexpr std::size_t comm_operations = 19;

/// `"all_reduce"` for `comm_operation::all_reduce`.
constexpr std::string_view to_string(comm_operation what) noexcept {
  constexpr std::array<std::string_view, comm_operations> names{
      "barrier",          "broadcast",  "all_reduce",   "reduce",     "reduce_scatter",
      "reduce_scatter_v", "all_gather", "all_gather_v", "all_to_all", "all_to_all_v",
      "gather",           "gather_v",   "scatter",      "scatter_v",  "scan",
      "exclusive_scan",   "split",      "send",         "recv"};
  return names[static_cast<std::size_t>(what)];
}

/// What one rank did through one communicator, since the communicator was made. Units: calls and bytes.
struct comm_counters {
  struct per_operation {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;  ///< what this rank gave to the calls: its input (recv: its output)
  };
  std::array<per_operation, comm_operations> by_operation{};
  std::int64_t bytes_moved = 0;  ///< what this rank wrote while it worked on collectives, for itself and for others

  constexpr const per_operation& operator[](comm_operation what) const noexcept {
    return by_operation[static_cast<std::size_t>(what)];
  }
  constexpr per_operation& operator[](comm_operation what) noexcept {
    return by_operation[static_cast<std::size_t>(what)];
  }
  constexpr std::int64_t messages_sent() const noexcept { return (*this)[comm_operation::send].calls; }
  constexpr std::int64_t bytes_sent() const noexcept { return (*this)[comm_operation::send].bytes; }
  constexpr std::int64_t messages_received() const noexcept { return (*this)[comm_operation::recv].calls; }
  constexpr std::int64_t bytes_received() const noexcept { return (*this)[comm_operation::recv].bytes; }
  /// Calls in which the whole group takes part.
  constexpr std::int64_t collectives() const noexcept {
    std::int64_t n = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(comm_operation::send); ++i) n += by_operation[i].calls;
    return n;
  }
};

/// Element types that can travel between ranks: their bytes are their value.
template <class T>
concept transferable = std::is_trivially_copyable_v<T> && std::is_object_v<T>;

/// A started send or receive. `wait` returns when the buffer is free again (send) or filled (receive).
template <class R>
concept comm_request = std::movable<R> && !std::copyable<R> && requires(R r) {
  r.wait();
  { r.test() } -> std::same_as<bool>;
};

namespace detail {

template <class R>
inline constexpr bool is_vector_of_bool = false;
template <class Allocator>
inline constexpr bool is_vector_of_bool<std::vector<bool, Allocator>> = true;

// Whatever std::span can be made of without naming its type: spans, vectors, arrays, buffers. A vector<bool> counts, so
// that the sentence of `can_travel` refuses it, and not a list of overloads.
template <class R>
concept spannable =
    is_vector_of_bool<std::remove_cvref_t<R>> || requires(std::remove_reference_t<R>& r) { std::span(r); };

struct packed_bit {};  // stands for the element of a vector<bool>
template <class R>
struct span_element_of {
  using type = typename decltype(std::span(std::declval<R&>()))::element_type;
};
template <class R>
  requires(is_vector_of_bool<std::remove_cv_t<R>>)
struct span_element_of<R> {
  using type = packed_bit;
};
template <class R>
using span_element = typename span_element_of<std::remove_reference_t<R>>::type;

template <class R>
using comm_element = std::remove_cv_t<span_element<R>>;

// The compile-time refusals of every transport. Each stops at its first sentence.
template <class T>
consteval bool can_travel() {
  constexpr bool has_address = !std::is_same_v<T, packed_bit>;
  static_assert(has_address,
                "heddle: the elements of a std::vector<bool> are bits without an address; "
                "use a std::vector<char> or std::vector<unsigned char>");
  static_assert(
      transferable<T>,
      "heddle: only trivially copyable elements can travel between ranks; send the bytes of a flat struct instead");
  return has_address && transferable<T>;
}

template <class Out>
consteval bool can_receive() {
  static_assert(!std::is_const_v<span_element<Out>>,
                "heddle: a call writes its result here; pass a span of non-const elements");
  if constexpr (std::is_const_v<span_element<Out>>)
    return false;
  else
    return can_travel<comm_element<Out>>();
}

template <class R>
inline constexpr bool is_span = false;
template <class T, std::size_t N>
inline constexpr bool is_span<std::span<T, N>> = true;

// A message that is started outlives the call, and so must its buffer: no vector that ends with the line.
template <class Buffer>
consteval bool outlives_the_call() {
  constexpr bool ok = std::is_lvalue_reference_v<Buffer> || is_span<std::remove_cvref_t<Buffer>>;
  static_assert(ok,
                "heddle: the buffer of a started message or collective must live until it is waited for; pass a named "
                "one or a span");
  return ok;
}

// What all_reduce takes in place: a range of elements, or one variable.
template <class R>
consteval bool can_reduce_in_place() {
  if constexpr (spannable<R>) {
    return can_receive<R>();
  } else {
    using T = std::remove_reference_t<R>;
    constexpr bool is_value = transferable<std::remove_cv_t<T>> && !std::is_pointer_v<T>;
    constexpr bool is_variable = !is_value || (std::is_lvalue_reference_v<R> && !std::is_const_v<T>);
    static_assert(is_value,
                  "heddle: all_reduce takes a span, a vector, an array or one variable, of a trivially copyable type");
    static_assert(is_variable,
                  "heddle: all_reduce writes its result where its input is; pass a variable that is not const");
    return is_value && is_variable;
  }
}
template <class R>
constexpr auto elements_of(R& r) {
  if constexpr (spannable<R&>)
    return std::span(r);
  else
    return std::span<R, 1>(std::addressof(r), 1);
}
// Of `R` as all_reduce got it.
template <class R>
using reduced_element =
    std::remove_cv_t<typename decltype(elements_of(std::declval<std::remove_reference_t<R>&>()))::element_type>;

template <class In, class Out>
consteval bool same_elements() {
  constexpr bool has_addresses =
      !std::is_same_v<comm_element<In>, packed_bit> && !std::is_same_v<comm_element<Out>, packed_bit>;
  if constexpr (!has_addresses) return can_travel<std::conditional_t<has_addresses, In, packed_bit>>();
  constexpr bool same = std::is_same_v<comm_element<In>, comm_element<Out>>;
  static_assert(same || !has_addresses, "heddle: input and output of a collective must have the same element type");
  if constexpr (same && has_addresses)
    return can_receive<Out>();
  else
    return false;
}

template <class T, class Op>
consteval bool can_reduce() {
  static_assert(monoid<Op, T>,
                "heddle: a reduction needs an associative operator with its identity on the element type: "
                "T operator()(const T&, const T&) const and template <class T> static T identity()");
  return monoid<Op, T>;
}

// Whether the host can read and write the buffers that a communicator's spans name.
template <class C>
inline constexpr bool has_host_memory = !requires { requires !C::host_memory; };

// For what is done with those buffers outside the communicator's own calls.
template <class C>
consteval bool computes_in_buffers() {
  static_assert(has_host_memory<C>,
                "heddle: the rounds of an algorithm fold and copy in the host's memory, and the buffers of this "
                "communicator are a device's: call the communicator's own collective (algo::built_in, or none named)");
  return has_host_memory<C>;
}

// The counts of a `_v` call as a span.
template <class R>
constexpr std::span<const std::int64_t> counts_in(R& r) {
  constexpr bool fits = std::is_convertible_v<R&, std::span<const std::int64_t>>;
  static_assert(fits,
                "heddle: counts of elements are std::int64_t, next to each other in memory: pass a "
                "std::vector<std::int64_t>, an array or a span of them");
  if constexpr (fits)
    return r;
  else
    return {};
}

}  // namespace detail

/// The counts that a `_v` call takes: a range of `std::int64_t` in one piece. Ranks read each other's counts where they
/// lie, so those of another type are refused, not converted. Units: elements.
class counts_span : public std::span<const std::int64_t> {
 public:
  constexpr counts_span() = default;
  constexpr counts_span(const std::int64_t* first, std::size_t count) : span(first, count) {}
  template <class R>
    requires(detail::spannable<R> && !std::is_same_v<std::remove_cvref_t<R>, counts_span>)
  constexpr counts_span(R&& counts) : span(detail::counts_in(counts)) {}
};

/// A group of ranks that can send, receive and call collectives. Ranks are numbers in `[0, size())`.
///
/// Every rank of the group calls the same collectives in the same order. Spans of elements say how much: `count` on
/// every rank where both sides are equal; `size() * count` where one side holds a block per rank, in rank order; the
/// `_v` forms take a count per rank. Elements are any trivially copyable type. Reductions fold in rank order, `((x0 op
/// x1) op x2) ...`, for any associative operator with an identity (`monoid`), commutative or not, and give the same
/// bits on every rank (`mpi` groups operands as MPI likes, and reorders those of operators that commute). In
/// place: the input of `all_reduce` and of `reduce` at the root may be the output; the input of
/// `all_gather` and `gather` may be the own block of the output; the output of `reduce_scatter` and `scatter` may be
/// the own block of the input. No other overlap. `all_reduce(x, op)` also takes one variable.
///
///     send(in, to, tag = 0)  recv(out, from, tag = 0)  isend, irecv -> request   messages of one tag keep their order
///     barrier()  broadcast(inout, root)
///     all_reduce(inout, op)  all_reduce(in, out, op)  reduce(in, out, op, root)       out counts at the root only
///     reduce_scatter(in, out, op)  reduce_scatter_v(in, out, counts, op)
///     all_gather(in, out)  all_gather_v(in, out, counts)
///     all_to_all(in, out)  all_to_all_v(in, send_counts, out, recv_counts)
///     gather(in, out, root)  gather_v(in, out, counts, root)  scatter(in, out, root)  scatter_v(in, counts, out, root)
///     split(color, key) -> communicator over the ranks of one color, ordered by key, then rank
///
/// One whose spans name memory that the host cannot use says so: `static constexpr bool host_memory = false`. Its own
/// calls are all it has then: algorithms made of messages are refused.
///
/// One whose calls may be unchecked says whether they are checked: `bool checked() const`.
///
/// Errors: `comm_error` when ranks disagree, a rank does not arrive or arguments do not fit; `aborted_error` when
/// another rank failed.
template <class C>
concept communicator = std::movable<C> && requires(C c, const C k, std::span<const int> in, std::span<int> out,
                                                   std::span<const std::int64_t> counts, plus op) {
  typename C::request;
  requires comm_request<typename C::request>;
  { k.rank() } -> std::same_as<int>;
  { k.size() } -> std::same_as<int>;
  c.send(in, 0, 0);
  c.recv(out, 0, 0);
  { c.isend(in, 0, 0) } -> std::same_as<typename C::request>;
  { c.irecv(out, 0, 0) } -> std::same_as<typename C::request>;
  c.barrier();
  c.broadcast(out, 0);
  c.all_reduce(out, op);
  c.all_reduce(in, out, op);
  c.reduce(in, out, op, 0);
  c.reduce_scatter(in, out, op);
  c.reduce_scatter_v(in, out, counts, op);
  c.all_gather(in, out);
  c.all_gather_v(in, out, counts);
  c.all_to_all(in, out);
  c.all_to_all_v(in, counts, out, counts);
  c.gather(in, out, 0);
  c.gather_v(in, out, counts, 0);
  c.scatter(in, out, 0);
  c.scatter_v(in, counts, out, 0);
  { c.split(0, 0) } -> std::same_as<C>;
  { k.counters() } -> std::convertible_to<comm_counters>;
};

/// A communicator whose collectives can be started and waited for later, while the rank computes or starts others.
///
/// `started` is a request: `wait()` returns when the result is there, `test()` says whether it is. Until then the buffers
/// belong to the call. Started collectives keep one order with all other collectives of the communicator, on every rank,
/// and are waited for in any order; no rank needs another's `wait` for its own to return. Results are those of the
/// blocking calls: the same bits on `threads` and on control planes; MPI and NCCL may group operands in another way.
///
/// One that nobody waits for is waited for by its destructor; while an exception unwinds the stack it is taken back, as
/// far as the transport can. What `communicator` says of arguments, errors and checks holds here, too.
///
///     start_all_reduce(inout, op)  start_all_reduce(in, out, op)  start_broadcast(inout, root)
///     start_reduce_scatter(in, out, op)  start_reduce_scatter_v(in, out, counts, op)
///     start_all_gather(in, out)  start_all_gather_v(in, out, counts)
template <class C>
concept starting_communicator = communicator<C> && requires(C c, std::span<const int> in, std::span<int> out,
                                                            std::span<const std::int64_t> counts, plus op) {
  typename C::started;
  requires comm_request<typename C::started>;
  { c.start_all_reduce(out, op) } -> std::same_as<typename C::started>;
  { c.start_all_reduce(in, out, op) } -> std::same_as<typename C::started>;
  { c.start_broadcast(out, 0) } -> std::same_as<typename C::started>;
  { c.start_reduce_scatter(in, out, op) } -> std::same_as<typename C::started>;
  { c.start_reduce_scatter_v(in, out, counts, op) } -> std::same_as<typename C::started>;
  { c.start_all_gather(in, out) } -> std::same_as<typename C::started>;
  { c.start_all_gather_v(in, out, counts) } -> std::same_as<typename C::started>;
};

}  // namespace heddle::inline v0
