// heddle/comm/threads/device_calls.hpp: collectives between threads as kernels on devices.
#pragma once

#include <heddle/comm/argument_checks.hpp>
#include <heddle/comm/blocks.hpp>
#include <heddle/comm/collective_calls.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/threads/block_calls.hpp>
#include <heddle/comm/threads/group_state.hpp>
#include <heddle/comm/threads/request.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/launch_each.hpp>
#include <heddle/core/type_name.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::detail {

/// A queue whose memory the host does not touch, and beside which others work: `after(record())` of another one.
template <class Q>
concept queue_of_device = launches_kernels<Q> && !requires(Q& q) { q.run([] {}); } && requires(Q& q) {
  q.after(q.record());
  q.wait();
};

/// Ranks that one kernel can read from: their addresses are among its arguments.
inline constexpr int most_device_ranks = 64;

// The bodies of those kernels. An element is folded in the order of the ranks, ((x0 op x1) op x2) ..., as in comm/threads/fold.hpp, and has
// been read on all ranks before it is written on any: outputs may be inputs.

template <class T, class Op>
struct device_fold {
  Op op;
  int ranks;
  const T* in[most_device_ranks];
  HEDDLE_HD T operator()(std::int64_t i) const {
    T value = in[0][i];
    for (int r = 1; r < ranks; ++r) value = static_cast<T>(op(value, in[r][i]));
    return value;
  }
};
/// To all ranks.
template <class T, class Op>
struct fold_to_all {
  device_fold<T, Op> fold;
  T* out[most_device_ranks];
  HEDDLE_HD void operator()(std::int64_t i) const {
    const T value = fold(i);
    for (int r = 0; r < fold.ranks; ++r) out[r][i] = value;
  }
};
template <class T, class Op>
struct fold_to_one {
  device_fold<T, Op> fold;
  T* out;
  HEDDLE_HD void operator()(std::int64_t i) const { out[i] = fold(i); }
};
/// To the rank in whose block it is; `begin`: of each block.
template <class T, class Op>
struct fold_to_owner {
  device_fold<T, Op> fold;
  T* out[most_device_ranks];
  std::int64_t begin[most_device_ranks];
  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t owner = last_not_above(begin, fold.ranks, 1, i);
    out[owner][i - begin[owner]] = fold(i);
  }
};
/// Many copies; `begin`: the elements of those before.
template <class T>
struct copy_pieces {
  static constexpr int most = 128;
  int pieces;
  const T* from[most];
  T* to[most];
  std::int64_t begin[most];
  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t piece = last_not_above(begin, pieces, 1, i), at = i - begin[piece];
    to[piece][at] = from[piece][at];
  }
};

/// The calls of a communicator of threads in the memory of a device that its ranks share, or of several devices that reach each other's, in the order of
/// a queue; spans are the memory of its device. Each rank has a queue of its own, and brings the same kind of queue to the same call. `Comm` is the communicator, which says what the calls
/// mean; results have the bits that it gives in the host's memory. There are no `start_` calls, since no call waits for the device.
///
/// What waits for what. On the host a call is a rendezvous, as in the host's memory: it returns when all ranks have made it (a
/// message: both sides), and the last of them has launched its kernel and put it in order. It waits for no queue. On the device the
/// kernel of a collective is in the order of the queue of rank 0, after what all ranks' queues were given before the call; the
/// other queues go on when it is done. That of a message is in the receiver's queue, after what the sender's was given, which goes on
/// when it is done. So memory may be written, or given back in the order of its queue, at once.
///
/// Errors: as the communicator's; `comm_error` for more ranks than `most_device_ranks`, or if the device whose kernel it is does not reach the memory of another
/// (`Queue::reaches`). What the launch throws, the rank
/// that launched throws, and the others a `comm_error` that names it.
template <class Comm, class Queue>
class device_calls : private argument_checks<device_calls<Comm, Queue>>,
                     private block_calls<device_calls<Comm, Queue>>,
                     public collective_calls<device_calls<Comm, Queue>> {
  friend argument_checks<device_calls>;
  friend block_calls<device_calls>;
  friend collective_calls<device_calls>;
  using argument_checks<device_calls>::fail;
  using argument_checks<device_calls>::length;

 public:
  static constexpr bool host_memory = false;

  device_calls(Comm& comm, Queue& queue) : comm_(&comm), queue_(&queue) {}

  int rank() const noexcept { return comm_->rank(); }
  int size() const noexcept { return comm_->size(); }
  const std::string& name() const noexcept { return comm_->name(); }
  int world_rank(int rank) const { return comm_->world_rank(rank); }

  /// `work(queue)` with rank 0's queue, once for all ranks and by the last that makes this call, after what all queues were given before; the other
  /// queues go on when that is done. A collective; each rank brings the same work. Errors: what the work throws, as of other calls here.
  template <class Work>
  void once(const Work& work) {
    begin<void>(comm_operation::barrier, 0);
    run([&work](Queue& q) -> std::int64_t {
      work(q);
      return 0;
    });
  }

 private:
  using event = decltype(std::declval<Queue&>().record());
  // Where the queue of a rank stands as it makes the call.
  struct place {
    const void* kind;  // of queue; first, so that it can be read where the kind is another
    Queue* queue;
    event ready;
    int rank;  // in the world
  };
  static constexpr char kind_of_queue = 0;

  template <class T, class Op>
  static consteval bool can_fold() {
    return can_reduce<T, Op>();
  }

  template <class T>
  const T* in(int r) const {
    return comm_->template in<T>(r);
  }
  template <class T>
  T* out(int r) const {
    return comm_->template out<T>(r);
  }

  template <class T>
  void begin(comm_operation what, std::int64_t count, int root = -1, std::string_view combine = {},
             std::uint64_t hash = 0) {
    if (size() > most_device_ranks)
      fail(std::string(to_string(what)) + ": at most " + std::to_string(most_device_ranks) +
           " ranks that are threads share a device, this communicator has " + std::to_string(size()));
    comm_->template begin<T>(what, count, root, combine, hash);
    comm_->slot(rank()).call.memory = "a device";
  }

  // `launch(queue)` by the rank that comes last; returns the bytes that are written.
  template <class Launch, class Check>
  void run(const Launch& launch, const Check& check) {
    const place here{&kind_of_queue, queue_, queue_->record(), world_rank(rank())};
    comm_->slot(rank()).device = &here;
    const auto work = [this, &launch](std::int64_t) -> std::int64_t { return in_order_of_all(launch); };
    comm_->run(1, work, check);
  }
  template <class Launch>
  void run(const Launch& launch) {
    run(launch, [] { return std::string(); });
  }
  template <class Launch>
  std::int64_t in_order_of_all(const Launch& launch) const {
    Queue& first = *place_of(0).queue;
    for (int r = 1; r < size(); ++r) require_reach(first, world_rank(0), *place_of(r).queue, world_rank(r));
    for (int r = 1; r < size(); ++r) first.after(place_of(r).ready);
    try {
      const std::int64_t bytes = launch(first);
      if (size() == 1) return bytes;
      const event done = first.record();
      for (int r = 1; r < size(); ++r) place_of(r).queue->after(done);
      return bytes;
    } catch (...) {
      finish(first);
      throw;
    }
  }
  const place& place_of(int r) const {
    const void* const at = comm_->slot(r).device;
    if (at == nullptr)  // only where calls are not compared
      fail("rank " + std::to_string(world_rank(r)) + " makes this call in the host's memory");
    if (*static_cast<const void* const*>(at) != &kind_of_queue)
      fail("rank " + std::to_string(world_rank(r)) + " makes this call with another kind of queue");
    return *static_cast<const place*>(at);
  }
  // A kernel in the order of `queue` uses the memory of both.
  static void require_reach(const Queue& queue, int rank, const Queue& other, int other_rank) {
    if constexpr (requires { queue.device(); }) {
      if (queue.device() == other.device()) [[likely]]
        return;
      if constexpr (requires { queue.reaches(other.device()); })
        if (queue.reaches(other.device())) return;
      throw comm_error("heddle: the queue of rank " + std::to_string(rank) + " is of device " +
                       std::to_string(queue.device()) + ", whose kernels cannot use the memory of device " +
                       std::to_string(other.device()) + ", that of rank " + std::to_string(other_rank) +
                       ": ranks that are threads share one device, or are on devices that reach each other's memory; "
                       "on others take the transport nccl");
    }
  }
  // After an error nobody waits for what was launched: it ends before memory is given back.
  static void finish(Queue& queue) noexcept {
    try {
      queue.wait();
    } catch (...) {  // the first error is the one that is thrown
      return;
    }
  }

  template <class T>
  static std::int64_t bytes_of(std::int64_t elements) {
    return elements * static_cast<std::int64_t>(sizeof(T));
  }

  // Copies that go into one kernel, as long as it can name them.
  template <class T>
  class pieces {
   public:
    explicit pieces(Queue& queue) : queue_(queue) {}
    void add(const T* from, T* to, std::int64_t count) {
      if (count <= 0 || from == to) return;
      if (body_.pieces == copy_pieces<T>::most) launch();
      body_.from[body_.pieces] = from;
      body_.to[body_.pieces] = to;
      body_.begin[body_.pieces++] = elements_;
      elements_ += count;
      bytes_ += bytes_of<T>(count);
    }
    std::int64_t launch() {
      if (elements_ > 0) launch_each(queue_, elements_, body_);
      body_.pieces = 0;
      elements_ = 0;
      return bytes_;
    }

   private:
    Queue& queue_;
    copy_pieces<T> body_{};
    std::int64_t elements_ = 0, bytes_ = 0;
  };
  // `name(pieces)` adds the copies.
  template <class T, class Name>
  static auto copies(const Name& name) {
    return [&name](Queue& q) {
      pieces<T> all(q);
      name(all);
      return all.launch();
    };
  }
  template <class T, class Op>
  device_fold<T, Op> folded(const Op& op) const {
    device_fold<T, Op> fold{op, size(), {}};
    for (int r = 0; r < size(); ++r) fold.in[r] = in<T>(r);
    return fold;
  }

  // --- collectives ---
  template <class T>
  void waiting_broadcast(std::span<T> x, int root) {
    begin<T>(comm_operation::broadcast, length(x), root);
    comm_->buffers(std::span<const T>(x), x);
    const auto name = [this, root, n = length(x)](pieces<T>& all) {
      for (int r = 0; r < size(); ++r) all.add(in<T>(root), out<T>(r), n);
    };
    run(copies<T>(name));
  }
  template <class T, class Op>
  void waiting_all_reduce(std::span<const T> x, std::span<T> y, const Op& op) {
    begin<T>(comm_operation::all_reduce, length(x), -1, short_type_name<Op>());
    comm_->buffers(x, y);
    run([this, &op, n = length(x)](Queue& q) {
      fold_to_all<T, Op> body{folded<T>(op), {}};
      for (int r = 0; r < size(); ++r) body.out[r] = out<T>(r);
      launch_each(q, n, body);
      return bytes_of<T>(n * size());
    });
  }
  template <class T, class Op>
  void waiting_reduce(std::span<const T> x, std::span<T> y, const Op& op, int root) {
    begin<T>(comm_operation::reduce, length(x), root, short_type_name<Op>());
    comm_->buffers(x, y);
    run([this, &op, root, n = length(x)](Queue& q) {
      launch_each(q, n, fold_to_one<T, Op>{folded<T>(op), out<T>(root)});
      return bytes_of<T>(n);
    });
  }
  template <class T, class Blocks, class Op>
  void reduce_scatter_blocks(comm_operation what, std::span<const T> x, std::span<T> y, Blocks blocks, const Op& op,
                             std::uint64_t hash) {
    begin<T>(what, length(x), -1, short_type_name<Op>(), hash);
    comm_->buffers(x, y);
    run([this, &op, blocks, n = length(x)](Queue& q) {
      fold_to_owner<T, Op> body{folded<T>(op), {}, {}};
      for (int r = 0; r < size(); ++r) {
        body.out[r] = out<T>(r);
        body.begin[r] = blocks.offset(r);
      }
      launch_each(q, n, body);
      return bytes_of<T>(n);
    });
  }
  template <class T, class Blocks>
  void all_gather_blocks(comm_operation what, std::span<const T> x, std::span<T> y, Blocks blocks, std::int64_t count,
                         std::uint64_t hash) {
    begin<T>(what, count, -1, {}, hash);
    comm_->buffers(x, y);
    const auto name = [this, blocks](pieces<T>& all) {
      for (int from = 0; from < size(); ++from)
        for (int to = 0; to < size(); ++to) all.add(in<T>(from), out<T>(to) + blocks.offset(from), blocks.count(from));
    };
    run(copies<T>(name));
  }
  template <class T>
  void waiting_all_to_all(std::span<const T> x, std::span<T> y) {
    const std::int64_t block = length(x) / size();
    begin<T>(comm_operation::all_to_all, block);
    comm_->buffers(x, y);
    const auto name = [this, block](pieces<T>& all) {
      for (int from = 0; from < size(); ++from)
        for (int to = 0; to < size(); ++to) all.add(in<T>(from) + to * block, out<T>(to) + from * block, block);
    };
    run(copies<T>(name));
  }
  template <class T>
  void waiting_all_to_all_v(std::span<const T> x, counts_span send_counts, std::span<T> y, counts_span recv_counts) {
    begin<T>(comm_operation::all_to_all_v, -1);
    comm_->buffers(x, y, send_counts.data(), recv_counts.data());
    const auto name = [this](pieces<T>& all) {
      for (int from = 0; from < size(); ++from)
        for (int to = 0; to < size(); ++to) {
          const counted_blocks sent{comm_->slot(from).in_counts}, received{comm_->slot(to).out_counts};
          all.add(in<T>(from) + sent.offset(to), out<T>(to) + received.offset(from), sent.count(to));
        }
    };
    run(copies<T>(name), [this] { return comm_->wrong_pair(); });
  }
  template <class T>
  void waiting_gather(std::span<const T> x, std::span<T> y, int root) {
    begin<T>(comm_operation::gather, length(x), root);
    comm_->buffers(x, y);
    const auto name = [this, root, n = length(x)](pieces<T>& all) {
      for (int r = 0; r < size(); ++r) all.add(in<T>(r), out<T>(root) + r * n, n);
    };
    run(copies<T>(name));
  }
  template <class T>
  void waiting_gather_v(std::span<const T> x, std::span<T> y, counts_span counts, int root) {
    begin<T>(comm_operation::gather_v, -1, root);
    comm_->buffers(x, y, counts.data(), counts.data());
    const auto name = [this, root](pieces<T>& all) {
      const counted_blocks blocks{comm_->slot(root).out_counts};
      for (int r = 0; r < size(); ++r) all.add(in<T>(r), out<T>(root) + blocks.offset(r), blocks.count(r));
    };
    run(copies<T>(name), [this, root] { return comm_->wrong_gather(root); });
  }
  template <class T>
  void waiting_scatter(std::span<const T> x, std::span<T> y, int root) {
    begin<T>(comm_operation::scatter, length(y), root);
    comm_->buffers(x, y);
    const auto name = [this, root, n = length(y)](pieces<T>& all) {
      for (int r = 0; r < size(); ++r) all.add(in<T>(root) + r * n, out<T>(r), n);
    };
    run(copies<T>(name));
  }
  template <class T>
  void waiting_scatter_v(std::span<const T> x, counts_span counts, std::span<T> y, int root) {
    begin<T>(comm_operation::scatter_v, -1, root);
    comm_->buffers(x, y, counts.data(), counts.data());
    const auto name = [this, root](pieces<T>& all) {
      const counted_blocks blocks{comm_->slot(root).in_counts};
      for (int r = 0; r < size(); ++r) all.add(in<T>(root) + blocks.offset(r), out<T>(r), blocks.count(r));
    };
    run(copies<T>(name), [this, root] { return comm_->wrong_scatter(root); });
  }

  // --- messages ---
  template <class T>
  void waiting_send(std::span<const T> x, int to, int tag) {
    exchange<T>(Comm::template send_of<T>(x, to, tag));
  }
  template <class T>
  void waiting_recv(std::span<T> x, int from, int tag) {
    exchange<T>(Comm::template recv_of<T>(x, from, tag));
  }
  template <class T>
  void exchange(message_arguments arguments) {
    const place here{&kind_of_queue, queue_, queue_->record(), world_rank(rank())};
    arguments.call.memory = "a device";
    comm_->exchange(arguments, &here, move<T>);
  }
  // By the side that comes second.
  template <class T>
  static void move(const message& sent, const message& received) {
    if (sent.bytes == 0) return;
    const place &from = *static_cast<const place*>(sent.device), &to = *static_cast<const place*>(received.device);
    require_reach(*to.queue, to.rank, *from.queue, from.rank);
    to.queue->after(from.ready);
    try {
      copy_pieces<T> one{};
      one.pieces = 1;
      one.from[0] = static_cast<const T*>(sent.from);
      one.to[0] = static_cast<T*>(received.to);
      launch_each(*to.queue, static_cast<std::int64_t>(sent.bytes / sizeof(T)), one);
      from.queue->after(to.queue->record());
    } catch (...) {
      finish(*to.queue);
      throw;
    }
  }

  Comm* comm_;
  Queue* queue_;
};

}  // namespace heddle::inline v0::detail
