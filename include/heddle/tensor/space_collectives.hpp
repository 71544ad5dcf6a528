// heddle/tensor/space_collectives.hpp: messages and collectives in any memory space.
#pragma once

#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/staged_rows.hpp>
#include <heddle/tensor/view.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

template <class Queue>
inline constexpr bool is_host_queue = std::is_same_v<std::remove_cvref_t<Queue>, host_memory::queue>;

template <class T, class Space>
constexpr vector_view<T, Space> as_row(const vector_view<T, Space>& x) noexcept {
  return x;
}
template <class T, std::int64_t... E, class Space>
constexpr vector_view<T, Space> as_row(const view<T, shape<E...>, Space>& x) noexcept {
  return {x.address(), row_shape(x.size())};
}
template <class X>
  requires requires(X& x) { x.view(); }
constexpr auto as_row(X& x) noexcept {
  return x.view();
}
template <class X>
  requires std::same_as<space_of<X>, host_memory> && (!requires(X& x) { x.view(); }) && requires(X& x) { std::span(x); }
constexpr auto as_row(X&& x) noexcept {
  return row_of(std::span(x));
}

// What a call only reads, also where the caller may write it: `communicate_by_host` goes by the type.
template <class T, class Space>
constexpr vector_view<const T, Space> read_only(const vector_view<T, Space>& x) noexcept {
  return x;
}
template <class X>
constexpr auto input_row(const X& x) noexcept {
  return read_only(as_row(x));
}

template <bool Ok, class Queue, class Communicator>
inline constexpr bool transport_keeps_queue_order = Ok;

// A communicator that puts its calls on a stream, which may be that of a queue: `comm.on(queue.stream())` is the same one there.
template <class C, class Queue>
concept goes_on_stream_of = requires(const C& c, const Queue& q) {
  requires !C::host_memory;
  { c.on(q.stream()) } -> std::same_as<C>;
};

// A communicator of ranks that share a device, or are on several that reach each other's memory, and read that there: `comm.in_order_of(queue)` has its calls.
template <class C, class Queue>
concept shares_device_of = requires(C& c, Queue& q) { c.in_order_of(q); };

// `work(comm, spans...)` in the order of the queue: on the host's thread at once, on the queue's thread or on its stream, or by a host
// that waits for the queue.
template <class Queue, class Comm, class Work, class... Rows>
void communicate(Queue& queue, Comm& comm, Work&& work, const Rows&... rows) {
  if constexpr (is_host_queue<Queue>) {
    work(comm, rows.elements()...);
  } else if constexpr (runs_host_code<Queue>) {
    queue.run([&comm, work = std::forward<Work>(work)](const auto&... x) { work(comm, x.elements()...); }, rows...);
  } else if constexpr (goes_on_stream_of<Comm, Queue>) {
    Comm there = comm.on(queue.stream());
    work(there, std::span(rows.address(), static_cast<std::size_t>(rows.size()))...);
  } else if constexpr (shares_device_of<Comm, Queue>) {
    auto there = comm.in_order_of(queue);
    work(there, std::span(rows.address(), static_cast<std::size_t>(rows.size()))...);
  } else if constexpr (stages_messages<Comm>) {
    communicate_by_host(queue, comm, std::forward<Work>(work), rows...);
  } else {
    static_assert(
        transport_keeps_queue_order<runs_host_code<Queue>, Queue, Comm>,
        "heddle: this queue runs no host code, so the communicator must have the call itself, with the queue "
        "as its first argument, or be put on the queue's stream by on(queue.stream()); that of threads has the "
        "calls where the queue has record() and after() and launches kernels, as one of a CUDA device does in files "
        "that nvcc compiles");
  }
}

// The number of elements of each rank, kept until the call runs; groups of usual size need no allocation.
class kept_counts {
 public:
  explicit kept_counts(std::span<const std::int64_t> counts) : size_(counts.size()) {
    if (size_ > few_.size()) many_.assign(counts.begin(), counts.end());
    for (std::size_t i = 0; i < size_ && many_.empty(); ++i) few_[i] = counts[i];
  }
  std::span<const std::int64_t> span() const noexcept { return {many_.empty() ? few_.data() : many_.data(), size_}; }

 private:
  std::size_t size_;
  std::array<std::int64_t, 16> few_{};
  std::vector<std::int64_t> many_;
};
inline std::span<const std::int64_t> span_of(const kept_counts& c) noexcept {
  return c.span();
}
inline std::span<const std::int64_t> span_of(std::span<const std::int64_t> c) noexcept {
  return c;
}

template <class Queue>
concept allocating = requires(Queue& q) {
  q.template allocate<64>(std::size_t{});
  q.wait();
};
// A communicator that says in the order of which queue it works has the calls with that queue as first argument.
template <class C, class Queue>
concept works_in_order_of = requires { typename C::queue; } && std::same_as<typename C::queue, Queue>;

// The counts of a call, kept where it runs later.
template <class C, class Queue>
auto counts_for(std::span<const std::int64_t> counts) {
  if constexpr (is_host_queue<Queue> || works_in_order_of<C, Queue>)
    return counts;
  else
    return kept_counts(counts);
}

// `call(comm, rows...)` in the order of the queue; by a communicator that works in it `call(comm, queue, rows...)`.
template <class Queue, class C, class Call, class... Rows>
void call_in_order(Queue& queue, C& comm, Call&& call, const Rows&... rows) {
  if constexpr (works_in_order_of<C, Queue>)
    call(comm, queue, rows...);
  else
    communicate(queue, comm, std::forward<Call>(call), rows...);
}

template <class X, class Queue>
concept communicable = allocating<Queue> && requires(X&& x) { as_row(x); };
}  // namespace detail

/// Whether messages of `C` go in the order of `Queue` straight from and to its memory, beside what another queue computes: the
/// communicator works in the order of the queue itself; or it moves memory that the host cannot use (`host_memory = false`) and
/// `beside()` makes another one, which goes on the queue's stream or is called by host code of the queue; or its ranks are
/// threads that share a device, or are on several that reach each other's memory, whose queue launches kernels. `send` and `recv` below are the calls.
template <class C, class Queue>
concept sends_in_order_of =
    (!detail::is_host_queue<Queue>) && concurrent_queue<Queue> &&
    (detail::works_in_order_of<C, Queue> || (!runs_host_code<Queue> && detail::shares_device_of<C, Queue>) ||
     ((runs_host_code<Queue> || detail::goes_on_stream_of<C, Queue>) && requires(C& c) {
       requires !C::host_memory;
       { c.beside() } -> std::same_as<C>;
     }));

/// `comm.all_reduce(x, op)` in the order of `queue`. Here and below: elements are buffers, views or parts' `memory()` of one space, of
/// the host's queue also spans. On the host the call runs at once. Elsewhere it runs in the queue's order, so what it gives is there
/// for what is queued later, and for the host after `queue.wait()`, which also throws what the communicator throws; until
/// then the communicator must live and belongs to the queue: what the host must know goes through another one.
/// A communicator that works in the order of a queue itself says so (`typename C::queue`) and has each of these calls with the
/// queue in front of its rows: `comm.all_reduce(queue, row, op)`. One whose calls go on a stream (NCCL's) is put on that of a
/// queue of a device: `comm.on(queue.stream())`. That of threads, in the memory of a device that they share, reads the other ranks'
/// memory: `comm.in_order_of(queue)`. That of MPI takes memory that the host cannot use where MPI does (`takes_memory_of`) and
/// folds by an operator of MPI's, else copies on the host, pinned where the queue has such memory; the host waits for either.
template <class Queue, class C, class X, class Op>
  requires detail::communicable<X, Queue>
void all_reduce(Queue& queue, C& comm, X&& x, Op op) {
  const auto call = [op](auto& c, auto&&... r) { c.all_reduce(r..., op); };
  detail::call_in_order(queue, comm, detail::folds_by(op, call), detail::as_row(x));
}
template <class Queue, class C, class In, class Out, class Op>
  requires detail::communicable<In, Queue> && detail::communicable<Out, Queue>
void all_reduce(Queue& queue, C& comm, const In& in, Out&& out, Op op) {
  const auto call = [op](auto& c, auto&&... r) { c.all_reduce(r..., op); };
  detail::call_in_order(queue, comm, detail::folds_by(op, call), detail::input_row(in), detail::as_row(out));
}
/// A block per rank in, the fold of the own blocks out. See `all_reduce`.
template <class Queue, class C, class In, class Out, class Op>
  requires detail::communicable<In, Queue> && detail::communicable<Out, Queue>
void reduce_scatter(Queue& queue, C& comm, const In& in, Out&& out, Op op) {
  const auto call = [op](auto& c, auto&&... r) { c.reduce_scatter(r..., op); };
  detail::call_in_order(queue, comm, detail::folds_by(op, call), detail::input_row(in), detail::as_row(out));
}
/// As `reduce_scatter`, with a block of `counts[r]` elements for rank r.
template <class Queue, class C, class In, class Out, class Op>
  requires detail::communicable<In, Queue> && detail::communicable<Out, Queue>
void reduce_scatter_v(Queue& queue, C& comm, const In& in, Out&& out, std::span<const std::int64_t> counts, Op op) {
  const auto call = [op, n = detail::counts_for<C, Queue>(counts)](auto& c, auto&&... r) {
    c.reduce_scatter_v(r..., detail::span_of(n), op);
  };
  detail::call_in_order(queue, comm, detail::folds_by(op, call), detail::input_row(in), detail::as_row(out));
}
/// Gives all ranks the blocks of all, in their order. See `all_reduce`.
template <class Queue, class C, class In, class Out>
  requires detail::communicable<In, Queue> && detail::communicable<Out, Queue>
void all_gather(Queue& queue, C& comm, const In& in, Out&& out) {
  detail::call_in_order(
      queue, comm, [](auto& c, auto&&... x) { c.all_gather(x...); }, detail::input_row(in), detail::as_row(out));
}
/// As `all_gather`, with a block of `counts[r]` elements of rank r.
template <class Queue, class C, class In, class Out>
  requires detail::communicable<In, Queue> && detail::communicable<Out, Queue>
void all_gather_v(Queue& queue, C& comm, const In& in, Out&& out, std::span<const std::int64_t> counts) {
  const auto call = [n = detail::counts_for<C, Queue>(counts)](auto& c, auto&&... r) {
    c.all_gather_v(r..., detail::span_of(n));
  };
  detail::call_in_order(queue, comm, call, detail::input_row(in), detail::as_row(out));
}
/// Block s of `out` is the block for this rank of rank s. See `all_reduce`.
template <class Queue, class C, class In, class Out>
  requires detail::communicable<In, Queue> && detail::communicable<Out, Queue>
void all_to_all(Queue& queue, C& comm, const In& in, Out&& out) {
  detail::call_in_order(
      queue, comm, [](auto& c, auto&&... x) { c.all_to_all(x...); }, detail::input_row(in), detail::as_row(out));
}
/// As `all_to_all`, with blocks of `sent[r]` elements to and `received[r]` elements from rank r.
template <class Queue, class C, class In, class Out>
  requires detail::communicable<In, Queue> && detail::communicable<Out, Queue>
void all_to_all_v(Queue& queue, C& comm, const In& in, std::span<const std::int64_t> sent, Out&& out,
                  std::span<const std::int64_t> received) {
  const auto from = detail::input_row(in);
  const auto to = detail::as_row(out);
  if constexpr (detail::works_in_order_of<C, Queue>)
    comm.all_to_all_v(queue, from, sent, to, received);
  else
    detail::communicate(
        queue, comm,
        [s = detail::counts_for<C, Queue>(sent), r = detail::counts_for<C, Queue>(received)](auto& c, auto i, auto o) {
          c.all_to_all_v(i, detail::span_of(s), o, detail::span_of(r));
        },
        from, to);
}
/// Gives all ranks what `root` has. See `all_reduce`.
template <class Queue, class C, class X>
  requires detail::communicable<X, Queue>
void broadcast(Queue& queue, C& comm, X&& x, int root) {
  detail::call_in_order(queue, comm, [root](auto& c, auto&&... r) { c.broadcast(r..., root); }, detail::as_row(x));
}
/// Sends a message to one rank. See `all_reduce`.
template <class Queue, class C, class X>
  requires detail::communicable<X, Queue>
void send(Queue& queue, C& comm, const X& x, int to, int tag = 0) {
  detail::call_in_order(queue, comm, [to, tag](auto& c, auto&&... r) { c.send(r..., to, tag); }, detail::input_row(x));
}
/// Receives a message from one rank.
template <class Queue, class C, class X>
  requires detail::communicable<X, Queue>
void recv(Queue& queue, C& comm, X&& x, int from, int tag = 0) {
  detail::call_in_order(queue, comm, [from, tag](auto& c, auto&&... r) { c.recv(r..., from, tag); }, detail::as_row(x));
}

}  // namespace heddle::inline v0
