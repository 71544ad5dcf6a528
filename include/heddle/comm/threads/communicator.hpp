// heddle/comm/threads/communicator.hpp: the communicator of ranks that are threads.
#pragma once

#include <heddle/comm/argument_checks.hpp>
#include <heddle/comm/call_mark.hpp>
#include <heddle/comm/collective_calls.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/poison.hpp>
#include <heddle/comm/split_part.hpp>
#include <heddle/comm/threads/block_calls.hpp>
#include <heddle/comm/threads/device_calls.hpp>
#include <heddle/comm/threads/fold.hpp>
#include <heddle/comm/threads/group_state.hpp>
#include <heddle/comm/threads/request.hpp>
#include <heddle/comm/threads/started.hpp>
#include <heddle/comm/threads/turns.hpp>
#include <heddle/comm/threads/work.hpp>
#include <heddle/core/type_name.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// A group of threads of one world. Models `starting_communicator`; `communicator` says what the calls mean.
///
/// A handle: cheap to move, tied to its rank. One thread of a rank at a time may use it. Collectives neither copy
/// through staging buffers nor allocate: the last rank to arrive does a small call for all, large ones are shared,
/// chunk by chunk, among the ranks that are awake; one that is started allocates what its ranks share of it. In a
/// message the second side to arrive copies from buffer to buffer.
/// Waiting polls briefly, then sleeps (`launch_options::spin`).
class threads_communicator : private detail::argument_checks<threads_communicator>,
                             private detail::block_calls<threads_communicator>,
                             public detail::collective_calls<threads_communicator> {
 public:
  using request = threads_request;
  using started = threads_started;
  /// Its own collectives beat every algorithm of messages: comm/collectives.hpp takes them where none is named.
  static constexpr bool collectives_in_place = true;
  /// So its reductions have the same bits in each run (core/determinism.hpp).
  static constexpr bool folds_in_rank_order = true;
  /// And operators that are not associative in the aligned tree over the ranks.
  static constexpr bool folds_in_tree = true;

  threads_communicator(std::shared_ptr<detail::world_state> world, std::shared_ptr<detail::group_state> group, int rank,
                       detail::call_mark mark = {})
      : world_(std::move(world)), group_(std::move(group)), rank_(rank), mark_(std::move(mark)) {}
  threads_communicator(threads_communicator&&) = default;
  threads_communicator& operator=(threads_communicator&&) = default;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return group_->size(); }
  /// The axes it runs along, as messages name it: `"dp,tp"`.
  const std::string& name() const noexcept { return group_->label(); }
  /// The world rank of a member.
  int world_rank(int rank) const { return group_->world_rank(rank); }
  comm_counters counters() const { return group_->slot(rank_).counters; }
  /// Whether ranks compare their calls: `launch_options::check`.
  bool checked() const noexcept { return world_->options().check != checking::off; }
  /// 0, 1, 2, ... on each rank, counted by all communicators over the same axes of the same ranks together: a number that
  /// the ranks agree on for what all of them start in the same order.
  std::int64_t ticket() noexcept { return group_->slot(rank_).tickets++; }
  /// Its collectives have the mark of this world from now on: `world::mark`.
  void marked_by(detail::call_mark mark) noexcept { mark_ = std::move(mark); }
  /// One place per rank, for what goes on side by side on all of its communicators.
  std::weak_ptr<void>& work_under_way() noexcept { return world_->rank(group_->world_rank(rank_)).work_under_way; }

  /// The same communicator for elements in the memory of one device, in the order of `queue`, which launches kernels there
  /// (`launches_kernels`, `record`, `after`): see `detail::device_calls`. Both must live as long as it is used.
  template <class Queue>
    requires detail::queue_of_device<Queue>
  detail::device_calls<threads_communicator, Queue> in_order_of(Queue& queue) {
    return {*this, queue};
  }

  void barrier() {
    begin<void>(comm_operation::barrier, 0);
    group_->collective(rank_, {});
  }

  /// What rank 0 gives, on all ranks. A collective.
  template <class X>
  [[nodiscard]] std::shared_ptr<X> shared_with_all(std::shared_ptr<X> x) {
    using pointer = std::shared_ptr<X>;
    begin<pointer>(comm_operation::broadcast, 1, 0);
    buffers(std::span<const pointer>(&x, 1), std::span<pointer>(&x, 1));
    const auto work = [this](std::int64_t) -> std::int64_t {
      for (int r = 1; r < size(); ++r) *out<pointer>(r) = *in<pointer>(0);
      return 0;
    };
    run(1, work);
    return x;
  }

  /// Turns of the ranks of a communicator; all of them have the same, by `shared_with_all`.
  using turns = detail::rank_turns;
  /// `body()` on each rank, of all of which one runs at a time: a rank that waits for another in a call of the world gives its turn away meanwhile.
  /// A collective. Errors: what a body throws ends the world at once; it is thrown when rank 0's body has ended, too.
  template <class Body>
  void by_turns(turns& of_all, Body&& body) {
    detail::rank_turns*& mine = world_->rank(group_->world_rank(rank_)).turns;
    of_all.take();
    mine = &of_all;
    if (rank_ == 0) of_all.open();
    try {
      body();
    } catch (...) {
      mine = nullptr;
      world_->abort(group_->world_rank(rank_), std::current_exception());
      if (rank_ == 0)
        of_all.close();
      else
        of_all.wait_until_closed();
      of_all.give();
      throw;
    }
    mine = nullptr;
    if (rank_ == 0) of_all.close();
    of_all.give();
  }

  /// The ranks that call with the same color become a communicator, ordered by key, then by rank here. A collective.
  [[nodiscard("heddle: split makes a communicator")]] threads_communicator split(int color, int key);

 private:
  friend detail::argument_checks<threads_communicator>;
  friend detail::block_calls<threads_communicator>;
  friend detail::collective_calls<threads_communicator>;
  template <class, class>
  friend class detail::device_calls;
  using equal_blocks = detail::equal_blocks;
  using counted_blocks = detail::counted_blocks;

  detail::member_slot& slot(int r) const { return group_->slot(r); }
  // The ranks' buffers of the current call.
  detail::member_places here() const { return {group_.get()}; }
  template <class T>
  const T* in(int r) const {
    return here().template in<T>(r);
  }
  template <class T>
  T* out(int r) const {
    return here().template out<T>(r);
  }

  template <class T>
  void begin(comm_operation what, std::int64_t count, int root = -1, std::string_view combine = {},
             std::uint64_t hash = 0) {
    detail::call_info call{what, count, {}, combine, 0, root, 0, hash};
    if constexpr (!std::is_void_v<T>) {
      call.element = short_type_name<T>();
      call.element_size = sizeof(T);
    }
    call.mark = mark_.now();
    detail::member_slot& mine = slot(rank_);
    mine.call = call;
    mine.in_count = mine.out_count = 0;
    mine.device = nullptr;
  }
  template <class T>
  void buffers(std::span<const T> in, std::span<T> out, const std::int64_t* in_counts = nullptr,
               const std::int64_t* out_counts = nullptr) {
    detail::member_slot& mine = slot(rank_);
    mine.in = in.data();
    mine.out = out.data();
    mine.in_count = length(in);
    mine.out_count = length(out);
    mine.in_counts = in_counts;
    mine.out_counts = out_counts;
  }

  // Runs a collective of `chunks` independent pieces; `check` says what is wrong with counts that only all ranks know.
  template <class Work>
  void run(std::int64_t chunks, const Work& work) {
    group_->collective(rank_, {chunks, &work,
                               [](const void* context, std::int64_t chunk) -> std::int64_t {
                                 return (*static_cast<const Work*>(context))(chunk);
                               },
                               nullptr});
  }
  template <class Work, class Check>
  void run(std::int64_t chunks, const Work& work, const Check& check) {
    const std::pair<const Work*, const Check*> both(&work, &check);
    using pair = std::pair<const Work*, const Check*>;
    group_->collective(rank_, {chunks, &both,
                               [](const void* c, std::int64_t chunk) -> std::int64_t {
                                 return (*static_cast<const pair*>(c)->first)(chunk);
                               },
                               [](const void* c) -> std::string { return (*static_cast<const pair*>(c)->second)(); }});
  }
  // Runs work(first, last) over [0, count) in chunks of whole cache lines.
  template <class T, class Work>
  void by_range(std::int64_t count, const Work& work) {
    const detail::chunks_of<T> cut(count, size());
    const auto chunk = [&work, cut](std::int64_t c) { return work(cut.first(c), cut.last(c)); };
    run(cut.number(), chunk);
  }

  // What is wrong with counts that only all ranks know, or nothing.
  std::string wrong_pair() const {
    for (int from = 0; from < size(); ++from)
      for (int to = 0; to < size(); ++to)
        if (const auto sent = slot(from).in_counts[to], expected = slot(to).out_counts[from]; sent != expected)
          return "rank " + std::to_string(world_rank(from)) + " sends " + std::to_string(sent) + " elements to rank " +
                 std::to_string(world_rank(to)) + ", which expects " + std::to_string(expected);
    return {};
  }
  std::string wrong_gather(int root) const {
    for (int r = 0; r < size(); ++r)
      if (const auto given = slot(r).in_count, expected = slot(root).out_counts[r]; given != expected)
        return "rank " + std::to_string(world_rank(r)) + " gives " + std::to_string(given) +
               " elements, the root expects " + std::to_string(expected);
    return {};
  }
  std::string wrong_scatter(int root) const {
    for (int r = 0; r < size(); ++r)
      if (const auto given = slot(root).in_counts[r], expected = slot(r).out_count; given != expected)
        return "the root gives rank " + std::to_string(world_rank(r)) + " " + std::to_string(given) +
               " elements, which expects " + std::to_string(expected);
    return {};
  }

  // --- collectives ---
  template <class T>
  [[gnu::noinline]] void waiting_broadcast(std::span<T> x, int root) {
    begin<T>(comm_operation::broadcast, length(x), root);
    buffers(std::span<const T>(x), x);
    const auto work = [this, root](std::int64_t first, std::int64_t last) {
      return detail::broadcast_range<T>(here(), root, first, last);
    };
    by_range<T>(length(x), work);
  }
  template <class T, class Op>
  void waiting_all_reduce(std::span<const T> x, std::span<T> y, const Op& op) {
    begin<T>(comm_operation::all_reduce, length(x), -1, short_type_name<Op>());
    buffers(x, y);
    const auto work = [this, &op](std::int64_t first, std::int64_t last) {
      return detail::all_reduce_range<T>(here(), op, first, last);
    };
    by_range<T>(length(x), work);
  }
  template <class T, class Op>
  void waiting_reduce(std::span<const T> x, std::span<T> y, const Op& op, int root) {
    begin<T>(comm_operation::reduce, length(x), root, short_type_name<Op>());
    buffers(x, y);
    const auto work = [this, root, &op](std::int64_t first, std::int64_t last) {
      std::int64_t bytes = 0;
      detail::fold<T>(
          size(), [this](int r) { return in<T>(r); }, first, last, op,
          [&](std::int64_t at, const T* values, std::int64_t n) {
            bytes += detail::copy_elements(out<T>(root) + at, values, n);
          });
      return bytes;
    };
    by_range<T>(length(x), work);
  }
  template <class T>
  void waiting_all_to_all(std::span<const T> x, std::span<T> y) {
    const std::int64_t block = length(x) / size();
    begin<T>(comm_operation::all_to_all, block);
    buffers(x, y);
    const auto work = [this, block](std::int64_t pair) {
      const int to = static_cast<int>(pair / size()), from = static_cast<int>(pair % size());
      return detail::copy_elements(out<T>(to) + from * block, in<T>(from) + to * block, block);
    };
    run(std::int64_t{size()} * size(), work);
  }
  template <class T>
  void waiting_all_to_all_v(std::span<const T> x, counts_span send_counts, std::span<T> y, counts_span recv_counts) {
    begin<T>(comm_operation::all_to_all_v, -1);
    buffers(x, y, send_counts.data(), recv_counts.data());
    const auto check = [this] { return wrong_pair(); };
    const auto work = [this](std::int64_t pair) {
      const int to = static_cast<int>(pair / size()), from = static_cast<int>(pair % size());
      const counted_blocks sent{slot(from).in_counts}, received{slot(to).out_counts};
      return detail::copy_elements(out<T>(to) + received.offset(from), in<T>(from) + sent.offset(to), sent.count(to));
    };
    run(std::int64_t{size()} * size(), work, check);
  }
  template <class T>
  void waiting_gather(std::span<const T> x, std::span<T> y, int root) {
    begin<T>(comm_operation::gather, length(x), root);
    buffers(x, y);
    const auto work = [this, root, n = length(x)](std::int64_t from) {
      return detail::copy_elements(out<T>(root) + from * n, in<T>(static_cast<int>(from)), n);
    };
    run(size(), work);
  }
  template <class T>
  void waiting_gather_v(std::span<const T> x, std::span<T> y, counts_span counts, int root) {
    begin<T>(comm_operation::gather_v, -1, root);
    buffers(x, y, counts.data(), counts.data());
    const auto work = [this, root](std::int64_t from) {
      const counted_blocks blocks{slot(root).out_counts};
      const int r = static_cast<int>(from);
      return detail::copy_elements(out<T>(root) + blocks.offset(r), in<T>(r), blocks.count(r));
    };
    run(size(), work, [this, root] { return wrong_gather(root); });
  }
  template <class T>
  void waiting_scatter(std::span<const T> x, std::span<T> y, int root) {
    begin<T>(comm_operation::scatter, length(y), root);
    buffers(x, y);
    const auto work = [this, root, n = length(y)](std::int64_t to) {
      return detail::copy_elements(out<T>(static_cast<int>(to)), in<T>(root) + to * n, n);
    };
    run(size(), work);
  }
  template <class T>
  void waiting_scatter_v(std::span<const T> x, counts_span counts, std::span<T> y, int root) {
    begin<T>(comm_operation::scatter_v, -1, root);
    buffers(x, y, counts.data(), counts.data());
    const auto work = [this, root](std::int64_t to) {
      const counted_blocks blocks{slot(root).in_counts};
      const int r = static_cast<int>(to);
      return detail::copy_elements(out<T>(r), in<T>(root) + blocks.offset(r), blocks.count(r));
    };
    run(size(), work, [this, root] { return wrong_scatter(root); });
  }

  template <class T, class Blocks, class Op>
  [[gnu::noinline]] void reduce_scatter_blocks(comm_operation what, std::span<const T> x, std::span<T> y, Blocks blocks,
                                               const Op& op, std::uint64_t hash) {
    begin<T>(what, length(x), -1, short_type_name<Op>(), hash);
    buffers(x, y);
    const auto work = [this, blocks, &op](std::int64_t first, std::int64_t last) {
      return detail::reduce_scatter_range<T>(here(), blocks, op, first, last);
    };
    by_range<T>(length(x), work);
  }
  template <class T, class Blocks>
  [[gnu::noinline]] void all_gather_blocks(comm_operation what, std::span<const T> x, std::span<T> y, Blocks blocks,
                                           std::int64_t count, std::uint64_t hash) {
    begin<T>(what, count, -1, {}, hash);
    buffers(x, y);
    const auto work = [this, blocks](std::int64_t first, std::int64_t last) {
      return detail::all_gather_range<T>(here(), blocks, first, last);
    };
    by_range<T>(length(y), work);
  }

  // --- started collectives ---
  // `work(places, first, last)` for `elements` elements. It is copied: it outlives the call.
  template <class T, class Work>
  started start_call(detail::call_info call, std::span<const T> x, std::span<T> y, std::int64_t elements,
                     const Work& work) {
    call.started = true;
    call.mark = mark_.now();
    struct context {
      Work work;
      detail::chunks_of<T> cut;
      detail::started_places at;
      std::string input;  // a copy, where the result is poisoned that the caller's is part of
    };
    auto mine = std::make_shared<context>(context{work, {elements, size()}, {}, {}});
    started begun(world_, group_, rank_);
    const std::int64_t chunks = mine->cut.number();
    const void* in = x.data();
    if constexpr (detail::has_poison<T>) {
      if (world_->options().check == checking::poison &&
          !(call.what == comm_operation::broadcast && call.root == rank_)) {
        in = detail::kept_input(in, x.size_bytes(), y.data(), y.size_bytes(), mine->input);
        detail::poison(y.data(), y.size_bytes());
      }
    }
    auto all = group_->start(rank_, call, in, y.data(), static_cast<std::int64_t>(x.size_bytes()), chunks);
    mine->at.call = all.get();
    begun.work_ = {chunks, std::move(mine), [](const void* c, std::int64_t chunk) -> std::int64_t {
                     const context& own = *static_cast<const context*>(c);
                     return own.work(own.at, own.cut.first(chunk), own.cut.last(chunk));
                   }};
    begun.call_ = std::move(all);
    return begun;
  }
  template <class T, class Op>
  static consteval bool can_fold() {
    return detail::can_reduce<T, Op>();
  }
  template <class T, class Op>
  static detail::call_info folding(comm_operation what, std::int64_t count, std::uint64_t hash = 0) {
    detail::call_info call = call_of<T>(what, count, -1, 0);
    call.combine = short_type_name<Op>();
    call.counts_hash = hash;
    return call;
  }
  template <class T, class Op>
  started started_all_reduce(std::span<const T> x, std::span<T> y, const Op& op) {
    return start_call<T>(
        folding<T, Op>(comm_operation::all_reduce, length(x)), x, y, length(x),
        [op](const auto& at, auto first, auto last) { return detail::all_reduce_range<T>(at, op, first, last); });
  }
  template <class T>
  started started_broadcast(std::span<T> x, int root) {
    return start_call<T>(
        call_of<T>(comm_operation::broadcast, length(x), root, 0), x, x, length(x),
        [root](const auto& at, auto first, auto last) { return detail::broadcast_range<T>(at, root, first, last); });
  }
  template <class T, class Op>
  started started_reduce_scatter(std::span<const T> x, std::span<T> y, const Op& op) {
    return start_call<T>(folding<T, Op>(comm_operation::reduce_scatter, length(x)), x, y, length(x),
                         [op, blocks = equal_blocks{length(y)}](const auto& at, auto first, auto last) {
                           return detail::reduce_scatter_range<T>(at, blocks, op, first, last);
                         });
  }
  template <class T, class Op>
  started started_reduce_scatter_v(std::span<const T> x, std::span<T> y, counts_span counts, const Op& op) {
    return start_call<T>(folding<T, Op>(comm_operation::reduce_scatter_v, length(x), detail::hash_of(counts)), x, y,
                         length(x), [op, blocks = detail::kept_blocks(counts)](const auto& at, auto first, auto last) {
                           return detail::reduce_scatter_range<T>(at, blocks, op, first, last);
                         });
  }
  template <class T>
  started started_all_gather(std::span<const T> x, std::span<T> y) {
    return start_call<T>(call_of<T>(comm_operation::all_gather, length(x), -1, 0), x, y, length(y),
                         [blocks = equal_blocks{length(x)}](const auto& at, auto first, auto last) {
                           return detail::all_gather_range<T>(at, blocks, first, last);
                         });
  }
  template <class T>
  started started_all_gather_v(std::span<const T> x, std::span<T> y, counts_span counts) {
    detail::call_info call = call_of<T>(comm_operation::all_gather_v, length(y), -1, 0);
    call.counts_hash = detail::hash_of(counts);
    return start_call<T>(call, x, y, length(y),
                         [blocks = detail::kept_blocks(counts)](const auto& at, auto first, auto last) {
                           return detail::all_gather_range<T>(at, blocks, first, last);
                         });
  }

  // --- messages ---
  template <class T>
  void waiting_send(std::span<const T> x, int to, int tag) {
    exchange(send_of<T>(x, to, tag));
  }
  template <class T>
  void waiting_recv(std::span<T> x, int from, int tag) {
    exchange(recv_of<T>(x, from, tag));
  }
  template <class T>
  request started_send(std::span<const T> x, int to, int tag) {
    return start(send_of<T>(x, to, tag));
  }
  template <class T>
  request started_recv(std::span<T> x, int from, int tag) {
    return start(recv_of<T>(x, from, tag));
  }
  template <class T>
  static detail::message_arguments send_of(std::span<const T> x, int to, int tag) {
    return {call_of<T>(comm_operation::send, length(x), to, tag), x.data(), nullptr, x.size_bytes()};
  }
  template <class T>
  static detail::message_arguments recv_of(std::span<T> x, int from, int tag) {
    return {call_of<T>(comm_operation::recv, length(x), from, tag), nullptr, x.data(), x.size_bytes()};
  }
  template <class T>
  static detail::call_info call_of(comm_operation what, std::int64_t count, int peer, int tag) {
    return {what, count, short_type_name<T>(), {}, sizeof(T), peer, tag, 0, false};
  }
  void exchange(const detail::message_arguments& arguments, const void* device = nullptr,
                detail::device_move move = nullptr);
  request start(const detail::message_arguments& arguments);

  std::shared_ptr<detail::world_state> world_;
  std::shared_ptr<detail::group_state> group_;
  int rank_ = 0;
  detail::call_mark mark_;
};

}  // namespace heddle::inline v0

#if defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/threads/collectives.hpp>
#endif

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/threads/communicator.hpp>
#endif
