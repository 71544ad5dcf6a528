// heddle/comm/mpi/communicator.hpp: ranks that are MPI processes; calls are MPI's own.
#pragma once

#include <heddle/comm/collective_calls.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/mpi/calls.hpp>
#include <heddle/comm/mpi/device_memory.hpp>
#include <heddle/comm/mpi/group.hpp>
#include <heddle/comm/mpi/request.hpp>
#include <heddle/comm/mpi/started.hpp>
#include <heddle/comm/poison.hpp>
#include <heddle/comm/split_part.hpp>
#include <heddle/core/type_name.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// A group of MPI processes. Models `starting_communicator`; `communicator` says what the calls mean: each is one call of
/// MPI's, and arithmetic elements travel as MPI's own types, all others as bytes. Counts may exceed what an `int` holds,
/// except in reductions and `_v` calls that are started.
///
/// Reductions: heddle's operators are MPI's own where both mean the same (sums and products of arithmetic types, maximum
/// and minimum of integers), all others are user-defined operators of MPI's; an operator that does not declare
/// `commutative` keeps the order of ranks. Unlike on `threads`, MPI chooses how operands are grouped: floating-point sums
/// may differ in their last bits from one number of ranks to another, and from `threads`, and a started reduction from the
/// blocking one.
///
/// A handle: cheap to move, tied to its process. One thread at a time may use it, and the thread that initialised MPI
/// unless MPI was asked for more (`mpi_session`).
class mpi_communicator : private detail::mpi_calls, public detail::collective_calls<mpi_communicator> {
 public:
  using request = mpi_request;
  using started = mpi_started;

  /// Around a communicator of the caller's, which must outlive this one and keeps its error handler. No communication.
  static mpi_communicator borrow(MPI_Comm comm, std::string name = "borrowed") {
    return around(comm, false, std::move(name));
  }
  /// Takes the communicator over: it is freed with this one, and its errors become exceptions. No communication.
  static mpi_communicator adopt(MPI_Comm comm, std::string name = "adopted") {
    return around(comm, true, std::move(name));
  }
  /// Around a duplicate: what is sent here and there never meets. A collective over the communicator.
  static mpi_communicator duplicate(MPI_Comm comm, std::string name = "duplicate") {
    MPI_Comm copy = MPI_COMM_NULL;
    detail::mpi_check(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
    return around(copy, true, std::move(name));
  }
  explicit mpi_communicator(std::shared_ptr<detail::mpi_group> group) : mpi_calls(std::move(group)) {}
  mpi_communicator(mpi_communicator&&) = default;
  mpi_communicator& operator=(mpi_communicator&&) = default;

  using detail::mpi_calls::rank;
  using detail::mpi_calls::size;
  /// The axes it runs along, as messages name it: `"dp,tp"`.
  using detail::mpi_calls::name;
  /// The world rank of a member.
  using detail::mpi_calls::world_rank;
  /// Whether ranks compare their calls: `launch_options::check`; not outside a launch.
  using detail::mpi_calls::checked;
  /// `bytes_moved` stays 0: MPI does not tell.
  comm_counters counters() const { return group_->counters(); }
  /// 0, 1, 2, ... on each rank, counted by all communicators over the same axes of the same ranks together: a number that
  /// the ranks agree on for what all of them start in the same order.
  std::int64_t ticket() noexcept { return group_->next_ticket(); }
  /// Its collectives have the mark of this world from now on: `world::mark`.
  using detail::mpi_calls::marked_by;
  /// One place per rank, for what goes on side by side on all of its communicators.
  std::weak_ptr<void>& work_under_way() noexcept { return group_->state().work_under_way(); }
  /// MPI's communicator, for calls that heddle does not have. It belongs to this one.
  using detail::mpi_calls::native;

  /// Whether MPI is given addresses of this space, which the host cannot use: `launch_options::device`, and what MPI says of itself.
  /// Collectives and messages of elements in such a space (space_collectives.hpp) ask; elsewhere they go through copies on the host.
  /// Errors: `comm_error` that names the space if `device_messages::direct` asks for what MPI says it cannot.
  bool takes_memory_of(device_runtime runtime, std::string_view space) const {
    return detail::mpi_is_given(group_->state().options().device, runtime, space);
  }
  /// Whether MPI folds elements by an operator of its own. All others are called by the host, which cannot read memory of devices.
  template <class T, class Op>
  static constexpr bool folds_memory_of_devices = detail::has_mpi_op<T, Op>;

  void barrier() {
    const auto call = enter<void>(comm_operation::barrier, 0, 0);
    if (checked()) return;  // all are here
    detail::mpi_check(MPI_Barrier(native()), "MPI_Barrier");
  }

  /// The ranks that call with the same color become a communicator, ordered by key, then by rank here. A collective.
  [[nodiscard("heddle: split makes a communicator")]] mpi_communicator split(int color, int key) {
    const auto call = enter<void>(comm_operation::split, 2 * static_cast<std::int64_t>(sizeof(std::int64_t)), 2);
    // MPI's own split takes no negative colors: the colors in order of their first rank.
    std::vector<int> all(2 * index(size()));
    const int mine[2] = {color, key};
    detail::mpi_check(MPI_Allgather(mine, 2, MPI_INT, all.data(), 2, MPI_INT, native()), "MPI_Allgather");
    int first = 0;
    while (all[2 * index(first)] != color) ++first;
    MPI_Comm part = MPI_COMM_NULL;
    detail::mpi_check(MPI_Comm_split(native(), first, key, &part), "MPI_Comm_split");
    detail::split_part members = detail::part_of(*this, all, group_->next_split());
    mpi_communicator made(std::make_shared<detail::mpi_group>(group_->shared_state(), part, true,
                                                              std::move(members.label), std::move(members.members)));
    made.marked_by(mark_);
    return made;
  }

  /// The largest count that is given to MPI at once, for tests of what happens beyond it.
  void count_limit_for_tests(int most) { group_->state().count_limit(most); }

 private:
  friend detail::collective_calls<mpi_communicator>;

  // --- collectives; those that are quick, and messages, are in mpi_calls ---
  static constexpr bool quick_calls = true;
  template <class T>
  void waiting_broadcast(std::span<T> x, int root) {
    const auto call = enter<T>(comm_operation::broadcast, bytes(x), length(x), root);
    broadcast_span<T>(x, root);
  }
  template <class T, class Op>
  void waiting_reduce(std::span<const T> x, std::span<T> y, const Op& op, int root) {
    const auto call = enter<T, Op>(comm_operation::reduce, bytes(x), length(x), root);
    detail::mpi_reduction<T, Op> f(operators(), op);
    reduce_spans<T>(x.data(), y.data(), length(x), f, root);
    f.done();
  }
  template <class T, class Op>
  void waiting_reduce_scatter(std::span<const T> x, std::span<T> y, const Op& op) {
    const std::int64_t n = length(y);
    const auto call = enter<T, Op>(comm_operation::reduce_scatter, bytes(x), length(x));
    detail::mpi_reduction<T, Op> f(operators(), op);
    apart_from_input<T>(x, y, [&](T* result) {
      if (n <= limit()) [[likely]]
        detail::mpi_check(MPI_Reduce_scatter_block(x.data(), result, static_cast<int>(n), f.type(), f.op(), native()),
                          "MPI_Reduce_scatter_block");
      else
        for (int r = 0; r < size(); ++r) reduce_spans<T>(x.data() + r * n, result, n, f, r);
    });
    f.done();
  }
  template <class T, class Op>
  void waiting_reduce_scatter_v(std::span<const T> x, std::span<T> y, counts_span counts, const Op& op) {
    const detail::counted_blocks blocks{counts.data()};
    const auto call = enter<T, Op>(comm_operation::reduce_scatter_v, bytes(x), length(x), -1, counts);
    detail::mpi_reduction<T, Op> f(operators(), op);
    apart_from_input<T>(x, y, [&](T* result) {
      if (length(x) <= limit()) [[likely]] {
        int* n = group_->int_scratch();
        for (int r = 0; r < size(); ++r) n[r] = static_cast<int>(blocks.count(r));
        detail::mpi_check(MPI_Reduce_scatter(x.data(), result, n, f.type(), f.op(), native()), "MPI_Reduce_scatter");
      } else {
        for (int r = 0; r < size(); ++r) reduce_spans<T>(x.data() + blocks.offset(r), result, blocks.count(r), f, r);
      }
    });
    f.done();
  }
  template <class T>
  void waiting_all_gather_v(std::span<const T> x, std::span<T> y, counts_span counts) {
    const detail::counted_blocks blocks{counts.data()};
    const std::int64_t total = length(y);
    const auto call = enter<T>(comm_operation::all_gather_v, bytes(x), total, -1, counts);
    T* const own = y.data() + blocks.offset(rank());
    if (total * detail::wire_units<T> <= limit()) [[likely]] {
      const wire_blocks to = wire<T>(counts, 0);
      detail::mpi_check(
          MPI_Allgatherv(x.data() == own ? MPI_IN_PLACE : x.data(), to.counts[rank()], detail::wire_datatype<T>(),
                         y.data(), to.counts, to.offsets, detail::wire_datatype<T>(), native()),
          "MPI_Allgatherv");
    } else {
      copy_own<T>(x, own);
      for (int r = 0; r < size(); ++r) broadcast_span<T>(y.subspan(index(blocks.offset(r)), index(blocks.count(r))), r);
    }
  }
  template <class T>
  void waiting_all_to_all(std::span<const T> x, std::span<T> y) {
    const auto call = enter<T>(comm_operation::all_to_all, bytes(x), length(x));
    with_amount<T>(length(x) / size(), [&](detail::mpi_amount each) {
      detail::mpi_check(MPI_Alltoall(x.data(), each.count, each.type, y.data(), each.count, each.type, native()),
                        "MPI_Alltoall");
    });
  }
  template <class T>
  void waiting_gather(std::span<const T> x, std::span<T> y, int root) {
    const auto call = enter<T>(comm_operation::gather, bytes(x), length(x), root);
    with_amount<T>(length(x), [&](detail::mpi_amount each) {
      const bool in_place = rank() == root && x.data() == y.data() + rank() * length(x);
      detail::mpi_check(MPI_Gather(in_place ? MPI_IN_PLACE : x.data(), each.count, each.type, y.data(), each.count,
                                   each.type, root, native()),
                        "MPI_Gather");
    });
  }
  template <class T>
  void waiting_gather_v(std::span<const T> x, std::span<T> y, counts_span counts, int root) {
    const bool here = rank() == root;
    const detail::counted_blocks blocks{counts.data()};
    const std::int64_t most = here ? length(y) : length(x);
    const auto call = enter<T>(comm_operation::gather_v, bytes(x), -1, root, {}, too_many<T>(most));
    if (!call.flag()) [[likely]] {
      const wire_blocks to = here ? wire<T>(counts, 0) : wire_blocks{};
      const bool in_place = here && x.data() == y.data() + blocks.offset(rank());
      detail::mpi_check(
          MPI_Gatherv(in_place ? MPI_IN_PLACE : x.data(), wire_count<T>(length(x)), detail::wire_datatype<T>(),
                      y.data(), to.counts, to.offsets, detail::wire_datatype<T>(), root, native()),
          "MPI_Gatherv");
    } else {
      require_told("gather_v", most);
      exchange_messages<T>(
          [&](int r) { return r == root ? x : x.first(0); },
          [&](int r) { return here ? y.subspan(index(blocks.offset(r)), index(blocks.count(r))) : y.first(0); });
    }
  }
  template <class T>
  void waiting_scatter(std::span<const T> x, std::span<T> y, int root) {
    const auto call = enter<T>(comm_operation::scatter, bytes(x), length(y), root);
    with_amount<T>(length(y), [&](detail::mpi_amount each) {
      const bool in_place = rank() == root && x.data() + rank() * length(y) == y.data();
      detail::mpi_check(MPI_Scatter(x.data(), each.count, each.type, in_place ? MPI_IN_PLACE : y.data(), each.count,
                                    each.type, root, native()),
                        "MPI_Scatter");
    });
  }
  template <class T>
  void waiting_scatter_v(std::span<const T> x, counts_span counts, std::span<T> y, int root) {
    const bool here = rank() == root;
    const detail::counted_blocks blocks{counts.data()};
    const std::int64_t most = here ? length(x) : length(y);
    const auto call = enter<T>(comm_operation::scatter_v, bytes(x), -1, root, {}, too_many<T>(most));
    if (!call.flag()) [[likely]] {
      const wire_blocks from = here ? wire<T>(counts, 0) : wire_blocks{};
      const bool in_place = here && x.data() + blocks.offset(rank()) == y.data();
      detail::mpi_check(MPI_Scatterv(x.data(), from.counts, from.offsets, detail::wire_datatype<T>(),
                                     in_place ? MPI_IN_PLACE : y.data(), wire_count<T>(length(y)),
                                     detail::wire_datatype<T>(), root, native()),
                        "MPI_Scatterv");
    } else {
      require_told("scatter_v", most);
      exchange_messages<T>(
          [&](int r) { return here ? x.subspan(index(blocks.offset(r)), index(blocks.count(r))) : x.first(0); },
          [&](int r) { return r == root ? y : y.first(0); });
    }
  }

  // --- started collectives ---
  template <class T, class Op>
  static consteval bool can_fold() {
    return detail::can_reduce<T, Op>();
  }
  template <class T, class Op = void>
  detail::mpi_started_handle begin_started(comm_operation what, std::int64_t given, std::int64_t count, int root = -1,
                                           std::span<const std::int64_t> counts = {}) {
    group_->state().throw_late_error();
    detail::mpi_started_handle call(new detail::mpi_started_call, detail::mpi_started_end{&group_->state()});
    call->call = {what, count, short_type_name<T>(), {}, sizeof(T), root, 0, 0, true};
    if constexpr (!std::is_void_v<Op>) call->call.combine = short_type_name<Op>();
    if (!counts.empty()) call->call.counts_hash = detail::hash_of(counts);
    call->bytes = given * static_cast<std::int64_t>(sizeof(T));
    call->call.mark = mark_.now();
    group_->count(what, call->bytes);
    if (detail::flight_recorder* const kept = group_->state().flight(); kept != nullptr) {
      call->flight_number = group_->counters().collectives();
      // It is entered, and left: the rank is inside of it when it waits.
      const detail::flight_scope shown(kept, group_->flight_group(), group_->name(), group_->members(), call->call,
                                       call->flight_number);
    }
    if (checked()) call->compare(*group_);
    return call;
  }
  started under_way(detail::mpi_started_handle call, int code, const char* function) {
    detail::mpi_check(code, function);
    return {group_, std::move(call)};
  }
  void require_countable(const char* what, std::int64_t units) const {
    if (units > limit())
      fail(std::string(what) + ": MPI counts at most " + std::to_string(limit()) + " of the " + std::to_string(units) +
           " elements in a call that is started; start several");
  }
  // The operator and the type for it, which live as long as the call.
  template <class T, class Op>
  std::pair<MPI_Op, MPI_Datatype> reduction_of(detail::mpi_started_call& call, const Op& op) {
    if constexpr (detail::has_mpi_op<T, Op>) {
      return {detail::predefined_mpi_op<Op>(), mpi_datatype<T>()};
    } else {
      const auto own = std::make_shared<Op>(op);
      call.slot.op = own.get();
      call.op = own;
      call.type = detail::owned_datatype::contiguous(static_cast<int>(sizeof(T)), MPI_BYTE);
      call.type.commit();
      detail::mpi_check(MPI_Type_set_attr(call.type.get(), detail::mpi_op_key(), &call.slot), "MPI_Type_set_attr");
      return {operators().template get<T, Op>().op, call.type.get()};
    }
  }
  // The input, after NaN has been put into a result that is to be poisoned; a copy where it is part of that.
  template <class T>
  std::span<const T> poisoned(detail::mpi_started_call& call, std::span<const T> x, std::span<T> y) {
    if constexpr (detail::has_poison<T>) {
      if (group_->state().poisons()) {
        const void* const in =
            detail::kept_input(x.data(), x.size_bytes(), y.data(), y.size_bytes(), call.poisoned_input);
        detail::poison(y.data(), y.size_bytes());
        return {static_cast<const T*>(in), x.size()};
      }
    }
    return x;
  }
  // MPI wants all ranks in place or none, and does not compare them: no rank is, and an input that is the output is copied.
  template <class T>
  const T* input_of(detail::mpi_started_call& call, std::span<const T> x, std::span<T> y) {
    x = poisoned<T>(call, x, y);
    if (x.empty() || x.data() != y.data()) return x.data();
    call.input = std::make_unique_for_overwrite<std::byte[]>(x.size_bytes());
    std::memcpy(call.input.get(), x.data(), x.size_bytes());
    return reinterpret_cast<const T*>(call.input.get());
  }
  // Here all ranks are in place: their own parts are put there first.
  template <class T>
  static void put_own(std::span<const T> x, T* own) {
    if (!x.empty() && x.data() != own) std::memcpy(own, x.data(), x.size_bytes());
  }
  template <class T, class Op>
  started started_all_reduce(std::span<const T> x, std::span<T> y, const Op& op) {
    require_countable("start_all_reduce", length(x));
    auto call = begin_started<T, Op>(comm_operation::all_reduce, length(x), length(x));
    const auto [fold, type] = reduction_of<T>(*call, op);
    const int code = MPI_Iallreduce(input_of<T>(*call, x, y), y.data(), static_cast<int>(length(x)), type, fold,
                                    native(), &call->request);
    return under_way(std::move(call), code, "MPI_Iallreduce");
  }
  template <class T>
  started started_broadcast(std::span<T> x, int root) {
    auto call = begin_started<T>(comm_operation::broadcast, length(x), length(x), root);
    if (rank() != root) poisoned<T>(*call, {}, x);
    const int code = with_amount<T>(length(x), [&](detail::mpi_amount n) {
      return MPI_Ibcast(x.data(), n.count, n.type, root, native(), &call->request);
    });
    return under_way(std::move(call), code, "MPI_Ibcast");
  }
  // MPI wants a result that is no part of the input: an output that is gets a copy of it at the end. Where results are poisoned the
  // input is the copy.
  template <class T>
  T* result_of(detail::mpi_started_call& call, std::span<const T>& x, std::span<T> y) {
    x = poisoned<T>(call, x, y);
    if (apart<T>(x, y)) return y.data();
    call.result = std::make_unique_for_overwrite<std::byte[]>(y.size_bytes() + 1);
    call.to = y.data();
    call.to_bytes = y.size_bytes();
    return reinterpret_cast<T*>(call.result.get());
  }
  template <class T, class Op>
  started started_reduce_scatter(std::span<const T> x, std::span<T> y, const Op& op) {
    require_countable("start_reduce_scatter", length(x));
    auto call = begin_started<T, Op>(comm_operation::reduce_scatter, length(x), length(x));
    const auto [fold, type] = reduction_of<T>(*call, op);
    T* const result = result_of<T>(*call, x, y);
    const int code =
        MPI_Ireduce_scatter_block(x.data(), result, static_cast<int>(length(y)), type, fold, native(), &call->request);
    return under_way(std::move(call), code, "MPI_Ireduce_scatter_block");
  }
  template <class T, class Op>
  started started_reduce_scatter_v(std::span<const T> x, std::span<T> y, counts_span counts, const Op& op) {
    require_countable("start_reduce_scatter_v", length(x));
    auto call = begin_started<T, Op>(comm_operation::reduce_scatter_v, length(x), length(x), -1, counts);
    const auto [fold, type] = reduction_of<T>(*call, op);
    for (const std::int64_t c : counts) call->counts.push_back(static_cast<int>(c));
    T* const result = result_of<T>(*call, x, y);
    const int code = MPI_Ireduce_scatter(x.data(), result, call->counts.data(), type, fold, native(), &call->request);
    return under_way(std::move(call), code, "MPI_Ireduce_scatter");
  }
  template <class T>
  started started_all_gather(std::span<const T> x, std::span<T> y) {
    auto call = begin_started<T>(comm_operation::all_gather, length(x), length(x));
    put_own<T>(poisoned<T>(*call, x, y), y.data() + rank() * length(x));
    const int code = with_amount<T>(length(x), [&](detail::mpi_amount n) {
      return MPI_Iallgather(MPI_IN_PLACE, n.count, n.type, y.data(), n.count, n.type, native(), &call->request);
    });
    return under_way(std::move(call), code, "MPI_Iallgather");
  }
  template <class T>
  started started_all_gather_v(std::span<const T> x, std::span<T> y, counts_span counts) {
    require_countable("start_all_gather_v", length(y) * detail::wire_units<T>);
    auto call = begin_started<T>(comm_operation::all_gather_v, length(x), length(y), -1, counts);
    const wire_blocks to = wire<T>(counts, 0);
    call->counts.assign(to.counts, to.counts + 2 * size());
    put_own<T>(poisoned<T>(*call, x, y), y.data() + detail::counted_blocks{counts.data()}.offset(rank()));
    const int code = MPI_Iallgatherv(MPI_IN_PLACE, call->counts[index(rank())], detail::wire_datatype<T>(), y.data(),
                                     call->counts.data(), call->counts.data() + size(), detail::wire_datatype<T>(),
                                     native(), &call->request);
    return under_way(std::move(call), code, "MPI_Iallgatherv");
  }

  static mpi_communicator around(MPI_Comm comm, bool owned, std::string name) {
    int size = 0;
    detail::mpi_check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    std::vector<int> members(index(size));
    std::iota(members.begin(), members.end(), 0);
    launch_options options;
    options.check = checking::off;
    return mpi_communicator(std::make_shared<detail::mpi_group>(std::make_shared<detail::mpi_rank_state>(options), comm,
                                                                owned, std::move(name), std::move(members)));
  }
};

static_assert(starting_communicator<mpi_communicator>);

}  // namespace heddle::inline v0
