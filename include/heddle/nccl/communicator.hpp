// heddle/nccl/communicator.hpp: the communicator of ranks that are GPUs (not run on a GPU).
#pragma once

#include <heddle/comm/argument_checks.hpp>
#include <heddle/comm/collective_calls.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/split_part.hpp>
#include <heddle/nccl/channel.hpp>
#include <heddle/nccl/request.hpp>
#include <heddle/nccl/window_memory.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {
struct nccl_call_of_kernel;  // a collective that is a kernel: nccl/device_all_reduce.hpp
}

/// A group of ranks with a GPU each. Models `starting_communicator`, with NCCL's rules in place of some of its own:
/// - spans are memory that the GPU can reach; calls go to `stream()` and return when the stream has them (see
///   `nccl_settings::complete`); `wait()` waits for the stream and notices failures;
/// - NCCL is connected by the first call that needs it, in which all members take part;
/// - reductions take `plus`, `multiplies`, `maximum` and `minimum` and fold in NCCL's order, the same for all ranks;
///   NCCL's maximum and minimum may lose a NaN;
/// - a started collective is put on the stream; `wait()` returns at once, as the blocking calls do, or with
///   `nccl_settings::complete` when the stream has done it; `test()` says whether the stream has;
/// - messages between two ranks match in the order in which they are started, whatever their tags, and messages and
///   collectives of a communicator are launched in one order on all its ranks;
/// - `barrier` waits for the stream, and compares with `checking::on` which collectives the ranks have called.
///
/// A handle: cheap to move, used by its rank's thread only. Errors: `comm_error` with NCCL's and CUDA's own text; all
/// communicators of the rank are aborted then, and the other ranks get an `aborted_error`.
class nccl_communicator : private detail::argument_checks<nccl_communicator>,
                          public detail::collective_calls<nccl_communicator> {
  friend class detail::argument_checks<nccl_communicator>;
  friend class detail::collective_calls<nccl_communicator>;
  friend struct detail::nccl_call_of_kernel;

 public:
  using request = nccl_request;
  using started = nccl_request;
  static constexpr bool host_memory = false;

  nccl_communicator(std::shared_ptr<detail::nccl_channel> channel, cudaStream_t stream)
      : channel_(std::move(channel)), stream_(stream) {}
  nccl_communicator(nccl_communicator&&) = default;
  nccl_communicator& operator=(nccl_communicator&&) = default;

  /// A communicator that somebody else has made and will destroy.
  static nccl_communicator borrow(ncclComm_t comm, cudaStream_t stream, const launch_options& options = {},
                                  nccl_settings settings = {}) {
    return around(comm, stream, options, settings, false);
  }
  /// A communicator that somebody else has made; it is destroyed with its last handle.
  static nccl_communicator adopt(ncclComm_t comm, cudaStream_t stream, const launch_options& options = {},
                                 nccl_settings settings = {}) {
    return around(comm, stream, options, settings, true);
  }

  int rank() const noexcept { return channel_->rank(); }
  int size() const noexcept { return channel_->size(); }
  /// The axes it runs along, as messages name it: `"dp,tp"`.
  const std::string& name() const noexcept { return channel_->label(); }
  /// The world rank of a member.
  int world_rank(int rank) const { return channel_->world_rank(rank); }
  /// `bytes_moved` is NCCL's own business and stays 0.
  comm_counters counters() const { return std::as_const(*channel_).counters(); }
  cudaStream_t stream() const noexcept { return stream_; }
  /// Whether calls return when their results are there (`nccl_settings::complete`).
  bool completes_calls() const noexcept { return channel_->site().settings.complete; }
  /// The same communicator on another stream.
  nccl_communicator on(cudaStream_t stream) const { return {channel_, stream}; }
  /// Calls in flight files have the mark of this world from now on: `world::mark`.
  void marked_by(detail::call_mark mark) noexcept { channel_->marked_by(std::move(mark)); }
  /// NCCL's handle. Connects. Remains this object's.
  ncclComm_t native() { return channel_->connected(); }
  const std::shared_ptr<detail::nccl_channel>& channel() const noexcept { return channel_; }
  /// Whether its transport asks for memory that is registered (`nccl_settings::windows`), where somebody keeps some for its collectives.
  bool registers_memory() const { return channel_->site().settings.windows; }
  /// So many bytes, rounded up to 4096, registered as a symmetric window where NCCL has them: by all ranks together, which take equally
  /// many. They end when `stream` has done what it was given.
  std::unique_ptr<detail::nccl_window_memory> registered_memory(cudaStream_t stream, std::size_t bytes) {
    constexpr std::size_t page = 4096;
    return std::make_unique<detail::nccl_window_memory>(channel_, stream, (bytes + page - 1) / page * page);
  }
  /// The greatest of all ranks' first numbers, and of their second ones. A collective, which waits for `stream`.
  std::array<std::int64_t, 2> greatest(cudaStream_t stream, std::array<std::int64_t, 2> x) {
    channel_->flush();
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size()));
    channel_->exchange(x, all, stream);
    for (std::size_t i = 0; i < all.size(); ++i) x[i % 2] = (std::max)(x[i % 2], all[i]);
    return x;
  }
  /// Returns when the stream has done everything that was put on it.
  /// Errors: `comm_error` when NCCL reports a failure or the timeout of `launch_options` has passed.
  void wait() {
    if (channel_->grouped()) fail("wait: a group of calls is open; launch it first");
    channel_->flush();
    channel_->wait(stream_);
  }

  /// Returns when all ranks' streams have done what was put on them before.
  void barrier() {
    if (channel_->grouped()) fail("barrier: a group of calls cannot wait");
    begin<void>(comm_operation::barrier, 0, 0);
    const std::int64_t mine[2] = {channel_->number(), static_cast<std::int64_t>(channel_->chain())};
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size()));
    channel_->exchange(mine, all, stream_);
    if (channel_->site().options.check == checking::off) return;
    for (std::size_t r = 0; r < static_cast<std::size_t>(size()); ++r)
      if (all[2 * r] != mine[0] || all[2 * r + 1] != mine[1])
        fail("barrier: the ranks' collectives differ: this rank has made " + std::to_string(mine[0]) + " calls, rank " +
             std::to_string(world_rank(static_cast<int>(r))) + " " + std::to_string(all[2 * r]) +
             (all[2 * r] == mine[0] ? ", of another kind, type or size or in another order" : ""));
  }

  /// The ranks that call with the same color (0 or more) become a communicator, ordered by key, then by rank here, on the
  /// same stream. A collective, which waits for the stream.
  [[nodiscard("heddle: split makes a communicator")]] nccl_communicator split(int color, int key) {
    return split_to(color, key, stream_);
  }
  /// Another communicator of all its ranks, for calls beside those of this one: on a stream of its own, and no order between the two. Used by the same
  /// thread, since NCCL wants calls of communicators that share a GPU in one order on all ranks; an error of one ends both. A collective, which waits for the stream.
  [[nodiscard("heddle: beside makes a communicator")]] nccl_communicator beside() {
    std::shared_ptr<CUstream_st> stream = new_stream();
    nccl_communicator made = split_to(0, rank(), stream.get());
    made.own_stream_ = std::move(stream);
    return made;
  }

 private:
  nccl_communicator split_to(int color, int key, cudaStream_t stream) {
    if (color < 0) fail("split: a color of " + std::to_string(color) + "; NCCL takes 0 and above");
    if (channel_->grouped()) fail("split: a group of calls cannot wait");
    const ncclComm_t comm = begin<void>(comm_operation::split, 0, 0);
    const std::int64_t mine[2] = {color, key};
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size()));
    channel_->exchange(mine, all, stream_);
    auto place = std::make_unique<ncclComm_t>(nullptr);  // a thread of NCCL writes there
    try {
      channel_->require_nccl("ncclCommSplit", ncclCommSplit(comm, color, key, place.get(), nullptr));
    } catch (...) {
      static_cast<void>(place.release());  // that thread may go on where the communicator is borrowed
      throw;
    }
    const ncclComm_t child = *place;  // there since the communicator is no longer in progress
    if (child == nullptr) channel_->give_up("ncclCommSplit: made no communicator");
    detail::split_part members = detail::part_of(*this, all, channel_->number());
    auto part = std::make_shared<detail::nccl_channel>(channel_->shared_site(), std::move(members.label),
                                                       std::move(members.members), members.rank, child, true);
    part->require_nccl("ncclCommSplit", ncclSuccess);  // ready when all its members have it
    return {std::move(part), stream};
  }
  std::shared_ptr<CUstream_st> new_stream() {
    cudaStream_t made = nullptr;
    channel_->require_cuda("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    return {made, [](cudaStream_t s) { static_cast<void>(cudaStreamDestroy(s)); }};
  }

  using equal_blocks = detail::equal_blocks;
  using counted_blocks = detail::counted_blocks;

  static nccl_communicator around(ncclComm_t comm, cudaStream_t stream, const launch_options& options,
                                  nccl_settings settings, bool owned) {
    int rank = 0, size = 0;
    if (ncclCommUserRank(comm, &rank) != ncclSuccess || ncclCommCount(comm, &size) != ncclSuccess)
      throw comm_error("heddle: this is not an NCCL communicator that can be asked for its ranks");
    auto site = std::make_shared<detail::nccl_site>();
    site->options = options;
    site->settings = settings;
    site->rank = rank;
    std::vector<int> members(static_cast<std::size_t>(size));
    std::iota(members.begin(), members.end(), 0);
    return {std::make_shared<detail::nccl_channel>(std::move(site), "nccl", std::move(members), rank, comm, owned),
            stream};
  }

  // `given`: elements this rank gives; `agreed`: a number of elements that is equal on all ranks.
  template <class T>
  ncclComm_t begin(comm_operation what, std::int64_t given, std::int64_t agreed, int root = -1,
                   ncclRedOp_t op = ncclNumOps, std::uint64_t hash = 0) {
    channel_->flush();
    const ncclComm_t comm = channel_->connected();
    std::int64_t width = 0;
    if constexpr (!std::is_void_v<T>) width = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t parts[] = {agreed, width, root, static_cast<std::int64_t>(op), static_cast<std::int64_t>(hash)};
    channel_->begin(what, given * width, detail::hash_of(parts));
    if (channel_->site().flight != nullptr) {
      detail::call_info call;
      call.what = what;
      call.count = agreed;
      call.element_size = static_cast<std::size_t>(width);
      call.root = root;
      if constexpr (!std::is_void_v<T>) call.element = short_type_name<T>();
      if (op != ncclNumOps)
        call.combine = op == ncclSum ? "plus" : op == ncclProd ? "multiplies" : op == ncclMax ? "maximum" : "minimum";
      call.counts_hash = hash;
      call.started = starting_;
      channel_->keep(call, stream_);
    }
    return comm;
  }
  void finish(const char* function, ncclResult_t result) {
    channel_->require_nccl(function, result);
    complete();
  }
  void complete() {
    if (!starting_ && channel_->site().settings.complete && !channel_->grouped()) channel_->wait(stream_);
  }
  template <class Calls>
  void in_group(const Calls& calls) {
    channel_->require_nccl("ncclGroupStart", detail::nccl_open_groups::start());
    channel_->enter();
    try {
      calls();
    } catch (...) {
      channel_->leave();
      static_cast<void>(detail::nccl_open_groups::end());
      throw;
    }
    channel_->leave();
    finish("ncclGroupEnd", detail::nccl_open_groups::end());
  }
  template <class T>
  void put(const T* from, std::int64_t count, int to, ncclComm_t comm) {
    const auto moved = detail::nccl_moved<T>(count);
    if (count > 0) channel_->require_nccl("ncclSend", ncclSend(from, moved.count, moved.type, to, comm, stream_));
  }
  template <class T>
  void take(T* to, std::int64_t count, int from, ncclComm_t comm) {
    const auto moved = detail::nccl_moved<T>(count);
    if (count > 0) channel_->require_nccl("ncclRecv", ncclRecv(to, moved.count, moved.type, from, comm, stream_));
  }

  // Of all ranks: the same answer on each of them.
  static bool all_equal(counts_span counts) noexcept {
    return std::adjacent_find(counts.begin(), counts.end(), [](auto a, auto b) { return a != b; }) == counts.end();
  }

  // --- collectives ---
  template <class T>
  void waiting_broadcast(std::span<T> x, int root) {
    const ncclComm_t comm = begin<T>(comm_operation::broadcast, length(x), length(x), root);
    const auto moved = detail::nccl_moved<T>(length(x));
    finish("ncclBroadcast", ncclBroadcast(x.data(), x.data(), moved.count, moved.type, root, comm, stream_));
  }
  template <class T, class Op>
  void waiting_all_reduce(std::span<const T> x, std::span<T> y, Op) {
    const ncclComm_t comm = begin<T>(comm_operation::all_reduce, length(x), length(x), -1, nccl_operator<Op>);
    finish("ncclAllReduce",
           ncclAllReduce(x.data(), y.data(), x.size(), nccl_type<T>, nccl_operator<Op>, comm, stream_));
  }
  template <class T, class Op>
  void waiting_reduce(std::span<const T> x, std::span<T> y, Op, int root) {
    const ncclComm_t comm = begin<T>(comm_operation::reduce, length(x), length(x), root, nccl_operator<Op>);
    finish("ncclReduce", ncclReduce(x.data(), rank() == root ? y.data() : nullptr, x.size(), nccl_type<T>,
                                    nccl_operator<Op>, root, comm, stream_));
  }
  template <class T, class Op>
  void waiting_reduce_scatter(std::span<const T> x, std::span<T> y, Op) {
    const ncclComm_t comm = begin<T>(comm_operation::reduce_scatter, length(x), length(x), -1, nccl_operator<Op>);
    finish("ncclReduceScatter",
           ncclReduceScatter(x.data(), y.data(), y.size(), nccl_type<T>, nccl_operator<Op>, comm, stream_));
  }
  // Blocks of equal size are one call of NCCL's, others a group of reductions, one per rank.
  template <class T, class Op>
  void waiting_reduce_scatter_v(std::span<const T> x, std::span<T> y, counts_span counts, Op) {
    const counted_blocks blocks{counts.data()};
    const ncclComm_t comm = begin<T>(comm_operation::reduce_scatter_v, length(x), length(x), -1, nccl_operator<Op>,
                                     detail::hash_of(counts));
    if (all_equal(counts))
      return finish("ncclReduceScatter",
                    ncclReduceScatter(x.data(), y.data(), y.size(), nccl_type<T>, nccl_operator<Op>, comm, stream_));
    in_group([&] {
      for (int r = 0; r < size(); ++r)
        if (blocks.count(r) > 0)
          channel_->require_nccl("ncclReduce", ncclReduce(x.data() + blocks.offset(r), r == rank() ? y.data() : nullptr,
                                                          static_cast<std::size_t>(blocks.count(r)), nccl_type<T>,
                                                          nccl_operator<Op>, r, comm, stream_));
    });
  }
  template <class T>
  void waiting_all_gather(std::span<const T> x, std::span<T> y) {
    const ncclComm_t comm = begin<T>(comm_operation::all_gather, length(x), length(x));
    const auto moved = detail::nccl_moved<T>(length(x));
    finish("ncclAllGather", ncclAllGather(x.data(), y.data(), moved.count, moved.type, comm, stream_));
  }
  // Blocks of equal size are one call of NCCL's, others a group of broadcasts, one per rank.
  template <class T>
  void waiting_all_gather_v(std::span<const T> x, std::span<T> y, counts_span counts) {
    const counted_blocks blocks{counts.data()};
    const ncclComm_t comm =
        begin<T>(comm_operation::all_gather_v, length(x), length(y), -1, ncclNumOps, detail::hash_of(counts));
    if (all_equal(counts)) {
      const auto moved = detail::nccl_moved<T>(length(x));
      return finish("ncclAllGather", ncclAllGather(x.data(), y.data(), moved.count, moved.type, comm, stream_));
    }
    in_group([&] {
      for (int r = 0; r < size(); ++r) {
        const auto moved = detail::nccl_moved<T>(blocks.count(r));
        T* const block = y.data() + blocks.offset(r);
        if (moved.count > 0)
          channel_->require_nccl("ncclBroadcast", ncclBroadcast(r == rank() ? x.data() : block, block, moved.count,
                                                                moved.type, r, comm, stream_));
      }
    });
  }
  template <class T>
  void waiting_all_to_all(std::span<const T> x, std::span<T> y) {
    const std::int64_t n = length(x) / size();
    const ncclComm_t comm = begin<T>(comm_operation::all_to_all, length(x), n);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
    const auto moved = detail::nccl_moved<T>(n);
    finish("ncclAlltoAll", ncclAlltoAll(x.data(), y.data(), moved.count, moved.type, comm, stream_));
#else
    in_group([&] {
      for (int r = 0; r < size(); ++r) {
        put<T>(x.data() + r * n, n, r, comm);
        take<T>(y.data() + r * n, n, r, comm);
      }
    });
#endif
  }
  template <class T>
  void waiting_all_to_all_v(std::span<const T> x, counts_span send_counts, std::span<T> y, counts_span recv_counts) {
    const ncclComm_t comm = begin<T>(comm_operation::all_to_all_v, length(x), -1);
    in_group([&] {
      std::int64_t from = 0, to = 0;
      for (int r = 0; r < size(); ++r) {
        const auto at = static_cast<std::size_t>(r);
        put<T>(x.data() + from, send_counts[at], r, comm);
        take<T>(y.data() + to, recv_counts[at], r, comm);
        from += send_counts[at];
        to += recv_counts[at];
      }
    });
  }
  template <class T>
  void waiting_gather(std::span<const T> x, std::span<T> y, int root) {
    gather_spans<T>(comm_operation::gather, x, y, equal_blocks{length(x)}, root, length(x));
  }
  template <class T>
  void waiting_gather_v(std::span<const T> x, std::span<T> y, counts_span counts, int root) {
    gather_spans<T>(comm_operation::gather_v, x, y, counted_blocks{counts.data()}, root, -1);
  }
  template <class T>
  void waiting_scatter(std::span<const T> x, std::span<T> y, int root) {
    scatter_spans<T>(comm_operation::scatter, x, y, equal_blocks{length(y)}, root, length(y));
  }
  template <class T>
  void waiting_scatter_v(std::span<const T> x, counts_span counts, std::span<T> y, int root) {
    scatter_spans<T>(comm_operation::scatter_v, x, y, counted_blocks{counts.data()}, root, -1);
  }
  template <class T, class Blocks>
  void gather_spans(comm_operation what, std::span<const T> x, std::span<T> y, Blocks blocks, int root,
                    std::int64_t agreed) {
    const bool here = rank() == root;
    const ncclComm_t comm = begin<T>(what, length(x), agreed, root);
    in_group([&] {
      if (here)
        for (int r = 0; r < size(); ++r)
          if (r != rank()) take<T>(y.data() + blocks.offset(r), blocks.count(r), r, comm);
      if (!here) put<T>(x.data(), length(x), root, comm);
    });
    if (here) copy_own<T>(x.data(), y.data() + blocks.offset(rank()), length(x));
  }
  template <class T, class Blocks>
  void scatter_spans(comm_operation what, std::span<const T> x, std::span<T> y, Blocks blocks, int root,
                     std::int64_t agreed) {
    const bool here = rank() == root;
    const ncclComm_t comm = begin<T>(what, here ? length(x) : 0, agreed, root);
    in_group([&] {
      if (here)
        for (int r = 0; r < size(); ++r)
          if (r != rank()) put<T>(x.data() + blocks.offset(r), blocks.count(r), r, comm);
      if (!here) take<T>(y.data(), length(y), root, comm);
    });
    if (here) copy_own<T>(x.data() + blocks.offset(rank()), y.data(), length(y));
  }
  template <class T>
  void copy_own(const T* from, T* to, std::int64_t count) {
    if (count == 0 || from == to) return;
    channel_->require_cuda("cudaMemcpyAsync", cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(T),
                                                              cudaMemcpyDeviceToDevice, stream_));
    complete();
  }

  // --- messages ---
  template <class T>
  void waiting_send(std::span<const T> x, int to, int tag) {
    finish_message(send_of(x, to, tag));
  }
  template <class T>
  void waiting_recv(std::span<T> x, int from, int tag) {
    finish_message(recv_of(x, from, tag));
  }
  template <class T>
  request started_send(std::span<const T> x, int to, int tag) {
    return {channel_, send_of(x, to, tag), stream_};
  }
  template <class T>
  request started_recv(std::span<T> x, int from, int tag) {
    return {channel_, recv_of(x, from, tag), stream_};
  }
  template <class In>
  std::int64_t send_of(In& in, int to, int) {
    using T = detail::comm_element<In>;
    const std::span<const T> x = std::span(in);
    return channel_->add({true, x.data(), nullptr, detail::nccl_moved<T>(length(x)), to,
                          static_cast<std::int64_t>(x.size_bytes()), stream_});
  }
  template <class Out>
  std::int64_t recv_of(Out& out, int from, int) {
    using T = detail::comm_element<Out>;
    const std::span<T> x = std::span(out);
    return channel_->add({false, nullptr, x.data(), detail::nccl_moved<T>(length(x)), from,
                          static_cast<std::int64_t>(x.size_bytes()), stream_});
  }
  void finish_message(std::int64_t) {
    channel_->flush();
    complete();
  }

  // --- started collectives: the same calls, which are not waited for ---
  template <class T, class Op>
  static consteval bool can_fold() {
    return detail::nccl_can_reduce<T, Op>();
  }
  template <class Call>
  started start(const Call& call) {
    struct scope {
      bool& flag;
      explicit scope(bool& f) : flag(f) { flag = true; }
      scope(const scope&) = delete;
      scope& operator=(const scope&) = delete;
      ~scope() { flag = false; }
    };
    {
      const scope starting(starting_);
      call();
    }
    return {channel_, -1, stream_};  // launched
  }
  template <class T, class Op>
  started started_all_reduce(std::span<const T> x, std::span<T> y, Op op) {
    return start([&] { waiting_all_reduce<T>(x, y, op); });
  }
  template <class T>
  started started_broadcast(std::span<T> x, int root) {
    return start([&] { waiting_broadcast<T>(x, root); });
  }
  template <class T, class Op>
  started started_reduce_scatter(std::span<const T> x, std::span<T> y, Op op) {
    return start([&] { waiting_reduce_scatter<T>(x, y, op); });
  }
  template <class T, class Op>
  started started_reduce_scatter_v(std::span<const T> x, std::span<T> y, counts_span counts, Op op) {
    return start([&] { waiting_reduce_scatter_v<T>(x, y, counts, op); });
  }
  template <class T>
  started started_all_gather(std::span<const T> x, std::span<T> y) {
    return start([&] { waiting_all_gather<T>(x, y); });
  }
  template <class T>
  started started_all_gather_v(std::span<const T> x, std::span<T> y, counts_span counts) {
    return start([&] { waiting_all_gather_v<T>(x, y, counts); });
  }

  std::shared_ptr<CUstream_st> own_stream_;  // where it is this communicator's; ends last
  std::shared_ptr<detail::nccl_channel> channel_;
  cudaStream_t stream_;
  bool starting_ = false;
};

static_assert(starting_communicator<nccl_communicator>);

}  // namespace heddle::inline v0
