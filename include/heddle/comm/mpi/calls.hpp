// heddle/comm/mpi/calls.hpp: base of the MPI communicator: its members and common steps.
#pragma once

#include <heddle/comm/argument_checks.hpp>
#include <heddle/comm/call_mark.hpp>
#include <heddle/comm/mpi/group.hpp>
#include <heddle/comm/mpi/request.hpp>
#include <heddle/comm/mpi/wait.hpp>
#include <heddle/core/type_name.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

// Base of mpi_communicator.
class mpi_calls : protected argument_checks<mpi_calls> {
 public:
  explicit mpi_calls(std::shared_ptr<mpi_group> group) : group_(std::move(group)) {}

  int rank() const noexcept { return group_->rank(); }
  int size() const noexcept { return group_->size(); }
  const std::string& name() const noexcept { return group_->name(); }
  int world_rank(int rank) const { return group_->world_rank(rank); }
  MPI_Comm native() const noexcept { return group_->comm(); }
  void marked_by(call_mark mark) noexcept { mark_ = std::move(mark); }

 protected:
  friend argument_checks<mpi_calls>;

  // Counts and offsets as MPI takes them.
  struct wire_blocks {
    int* counts = nullptr;
    int* offsets = nullptr;
  };

  template <class N>
  static std::size_t index(N n) noexcept {
    return static_cast<std::size_t>(n);
  }
  template <class T>
  static std::int64_t bytes(std::span<T> x) noexcept {
    return static_cast<std::int64_t>(x.size_bytes());
  }
  int limit() const noexcept { return group_->state().count_limit(); }
  mpi_operators& operators() const noexcept { return group_->state().operators(); }

  // What every collective begins with. `count`: elements that are the same on every rank, or -1.
  template <class T, class Op = void>
  [[nodiscard]] mpi_entered enter(comm_operation what, std::int64_t bytes, std::int64_t count, int root = -1,
                                  std::span<const std::int64_t> counts = {}, bool flag = false) {
    return mpi_entered(*group_, what, bytes, root, flag, [&] {
      call_info call;
      call.what = what;
      call.count = count;
      call.root = root;
      call.mark = mark_.now();
      if (!counts.empty()) call.counts_hash = hash_of(counts);
      if constexpr (!std::is_void_v<T>) {
        call.element = short_type_name<T>();
        call.element_size = sizeof(T);
      }
      if constexpr (!std::is_void_v<Op>) call.combine = short_type_name<Op>();
      return call;
    });
  }
  bool checked() const noexcept { return group_->state().checked(); }
  void begin_message(comm_operation what, std::int64_t bytes) {
    group_->state().throw_late_error();
    group_->count(what, bytes);
  }

  // What MPI counts.
  template <class T>
  static std::uint64_t units(std::span<T> x) noexcept {
    return wire_units<std::remove_cv_t<T>> == 1 ? x.size() : x.size_bytes();
  }
  template <class T, class Use>
  decltype(auto) with_amount(std::int64_t n, Use&& use) const {
    return detail::with_amount<T>(n, limit(), use);
  }
  template <class T>
  static int wire_count(std::int64_t n) noexcept {
    return static_cast<int>(n * wire_units<T>);
  }
  template <class T>
  wire_blocks wire(std::span<const std::int64_t> counts, int which) const noexcept {
    const int n = size();
    int* const to = group_->int_scratch() + 2 * which * n;
    int offset = 0;
    for (int r = 0; r < n; ++r) {
      to[r] = wire_count<T>(counts[index(r)]);
      to[n + r] = offset;
      offset += to[r];
    }
    return {to, to + n};
  }

  template <class T>
  [[gnu::always_inline]] void waiting_send(std::span<const T> x, int to, int tag) {
    mpi_group& g = *group_;
    if (g.plain(units(x))) [[likely]] {
      board_slot& shown = g.begin(comm_operation::send, bytes(x), to);
      const int code = MPI_Send(x.data(), wire_count<T>(length(x)), wire_datatype<T>(), to, tag, g.comm());
      g.end(shown);
      return mpi_check(code, "MPI_Send");
    }
    send_with_more<T>(x, to, tag);
  }
  // Checked, or too large for a count.
  template <class T>
  [[gnu::noinline]] void send_with_more(std::span<const T> x, int to, int tag) {
    begin_message(comm_operation::send, bytes(x));
    if (checked()) return start_send<T>(x, to, tag).wait();
    const in_message here(
        *group_, {comm_operation::send, length(x), short_type_name<T>(), {}, sizeof(T), to, tag, 0, false}, bytes(x));
    with_amount<T>(length(x), [&](mpi_amount n) {
      mpi_check(MPI_Send(x.data(), n.count, n.type, to, tag, native()), "MPI_Send");
    });
  }

  template <class T>
  [[gnu::always_inline]] void waiting_recv(std::span<T> x, int from, int tag) {
    mpi_group& g = *group_;
    if (g.plain(units(x))) [[likely]] {
      board_slot& shown = g.begin(comm_operation::recv, bytes(x), from);
      MPI_Status status;
      const int code = MPI_Recv(x.data(), wire_count<T>(length(x)), wire_datatype<T>(), from, tag, g.comm(), &status);
      g.end(shown);
      if (code != MPI_SUCCESS || received_bytes(status) != bytes(x)) [[unlikely]]
        fail_received<T>(code, status, length(x), from, tag);
      return;
    }
    recv_with_more<T>(x, from, tag);
  }
  template <class T>
  [[gnu::noinline]] void recv_with_more(std::span<T> x, int from, int tag) {
    begin_message(comm_operation::recv, bytes(x));
    if (checked()) return start_recv<T>(x, from, tag).wait();
    const in_message here(
        *group_, {comm_operation::recv, length(x), short_type_name<T>(), {}, sizeof(T), from, tag, 0, false}, bytes(x));
    with_amount<T>(length(x), [&](mpi_amount n) {
      MPI_Status status;
      const int code = MPI_Recv(x.data(), n.count, n.type, from, tag, native(), &status);
      if (code != MPI_SUCCESS || received_bytes(status) != bytes(x))
        fail_received<T>(code, status, length(x), from, tag);
    });
  }
  template <class T>
  [[noreturn, gnu::noinline, gnu::cold]] void fail_received(int code, MPI_Status status, std::int64_t count, int from,
                                                            int tag) {
    fail_receive(*group_, code, status,
                 {comm_operation::recv, count, short_type_name<T>(), {}, sizeof(T), from, tag, 0, false});
  }

  // The arguments come by reference, and those that the loop does not need are looked at after it: it has all registers.
  template <class T, class In, class Out>
  [[gnu::always_inline]] bool quick_all_to_all_v(const In& in, std::span<const std::int64_t> send_counts, Out& out,
                                                 std::span<const std::int64_t> recv_counts) {
    constexpr std::size_t few = mpi_group::few;
    mpi_group& g = *group_;
    const std::size_t n = g.size_if_few();
    if (send_counts.size() != n || recv_counts.size() != n) [[unlikely]]
      return false;
    const std::int64_t* const send = send_counts.data();
    const std::int64_t* const recv = recv_counts.data();
    int* const to = g.int_scratch();
    std::uint64_t sent = 0, received = 0, send_bits = 0, recv_bits = 0;  // nonsense may overflow
    constexpr auto units_each = static_cast<std::uint64_t>(wire_units<T>);
    std::size_t r = 0;
    do {  // both kinds of counts in one pass
      const auto s = static_cast<std::uint64_t>(send[r]), t = static_cast<std::uint64_t>(recv[r]);
      to[r] = static_cast<int>(s * units_each);
      to[few + r] = static_cast<int>(sent * units_each);
      to[2 * few + r] = static_cast<int>(t * units_each);
      to[3 * few + r] = static_cast<int>(received * units_each);
      send_bits |= s;
      recv_bits |= t;
      sent += s;
      received += t;
    } while (++r < n);
    const std::span<const T> x = std::span(in);
    const std::span<T> y = std::span(out);
    const auto at = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p); };
    const auto x_end = at(x.data()) + sent * sizeof(T), y_end = at(y.data()) + received * sizeof(T);
    const bool fits = ((x_end ^ at(x.data() + x.size())) | (y_end ^ at(y.data() + y.size()))) == 0;
    const std::uint64_t bits = send_bits | recv_bits | sent | received;
    if (!g.plain(bits) || (units_each > 1 && !g.plain(bits * units_each)) || !fits || !apart<T>(x, y)) [[unlikely]]
      return false;
    board_slot& shown = g.begin(comm_operation::all_to_all_v, static_cast<std::int64_t>(sent * sizeof(T)));
    const int code = MPI_Alltoallv(x.data(), to, to + few, wire_datatype<T>(), y.data(), to + 2 * few, to + 3 * few,
                                   wire_datatype<T>(), g.comm());
    g.end(shown);
    mpi_check(code, "MPI_Alltoallv");
    return true;
  }
  // Checked, many ranks, or too large for a count.
  template <class T>
  void waiting_all_to_all_v(std::span<const T> x, std::span<const std::int64_t> send_counts, std::span<T> y,
                            std::span<const std::int64_t> recv_counts) {
    const counted_blocks sent{send_counts.data()}, received{recv_counts.data()};
    const std::int64_t most = (std::max)(length(x), length(y));
    const auto call = enter<T>(comm_operation::all_to_all_v, bytes(x), -1, -1, {}, too_many<T>(most));
    if (!call.flag()) [[likely]] {
      const wire_blocks from = wire<T>(send_counts, 0), to = wire<T>(recv_counts, 1);
      mpi_check(MPI_Alltoallv(x.data(), from.counts, from.offsets, wire_datatype<T>(), y.data(), to.counts, to.offsets,
                              wire_datatype<T>(), native()),
                "MPI_Alltoallv");
    } else {
      require_told("all_to_all_v", most);
      exchange_messages<T>([&](int r) { return x.subspan(index(sent.offset(r)), index(sent.count(r))); },
                           [&](int r) { return y.subspan(index(received.offset(r)), index(received.count(r))); });
    }
  }

  // By MPI alone where nothing more is to be done.
  template <class T, class Start, class WithMore>
  [[gnu::always_inline]] mpi_request started_message(comm_operation what, std::span<T> x, int other, int tag,
                                                     Start start, const char* name, WithMore with_more) {
    using element = std::remove_const_t<T>;
    mpi_group& g = *group_;
    mpi_request r(group_, {what, other, tag, length(x), bytes(x)});
    if (g.plain(units(x))) [[likely]] {
      g.count(what, bytes(x));
      const int n = wire_count<element>(length(x));
      mpi_check(start(x.data(), n, wire_datatype<element>(), other, tag, g.comm(), &r.request_), name);
    } else {
      (this->*with_more)(r, x, other, tag);
    }
    return r;
  }
  template <class T>
  [[gnu::always_inline]] mpi_request started_send(std::span<const T> x, int to, int tag) {
    return started_message(comm_operation::send, x, to, tag, MPI_Isend, "MPI_Isend", &mpi_calls::isend_with_more<T>);
  }
  template <class T>
  [[gnu::noinline]] void isend_with_more(mpi_request& r, std::span<const T> x, int to, int tag) {
    begin_message(comm_operation::send, bytes(x));
    start_send<T>(r, x, to, tag);
  }
  template <class T>
  [[gnu::always_inline]] mpi_request started_recv(std::span<T> x, int from, int tag) {
    return started_message(comm_operation::recv, x, from, tag, MPI_Irecv, "MPI_Irecv", &mpi_calls::irecv_with_more<T>);
  }
  template <class T>
  [[gnu::noinline]] void irecv_with_more(mpi_request& r, std::span<T> x, int from, int tag) {
    begin_message(comm_operation::recv, bytes(x));
    start_recv<T>(r, x, from, tag);
  }
  template <class T>
  mpi_request start_send(std::span<const T> x, int to, int tag) {
    mpi_request r(group_, {comm_operation::send, to, tag, length(x), bytes(x)});
    start_send<T>(r, x, to, tag);
    return r;
  }
  template <class T>
  mpi_request start_recv(std::span<T> x, int from, int tag) {
    mpi_request r(group_, {comm_operation::recv, from, tag, length(x), bytes(x)});
    start_recv<T>(r, x, from, tag);
    return r;
  }
  template <class T>
  [[gnu::noinline]] void start_send(mpi_request& r, std::span<const T> x, int to, int tag) {
    with_amount<T>(length(x), [&](mpi_amount n) {
      mpi_check(MPI_Isend(x.data(), n.count, n.type, to, tag, native(), &r.request_), "MPI_Isend");
    });
    if (checked()) [[unlikely]]
      r.start_check(short_type_name<T>(), sizeof(T));
  }
  template <class T>
  [[gnu::noinline]] void start_recv(mpi_request& r, std::span<T> x, int from, int tag) {
    with_amount<T>(length(x), [&](mpi_amount n) {
      mpi_check(MPI_Irecv(x.data(), n.count, n.type, from, tag, native(), &r.request_), "MPI_Irecv");
    });
    if (checked()) [[unlikely]]
      r.start_check(short_type_name<T>(), sizeof(T));
  }

  template <class T>
  [[gnu::always_inline]] bool quick_all_gather(std::span<const T> x, std::span<T> y) {
    mpi_group& g = *group_;
    if (length(y) == g.size() * length(x) && g.plain(units(x)) && apart<T>(x, y)) [[likely]] {
      board_slot& shown = g.begin(comm_operation::all_gather, bytes(x));
      const int n = wire_count<T>(length(x));
      const int code = MPI_Allgather(x.data(), n, wire_datatype<T>(), y.data(), n, wire_datatype<T>(), g.comm());
      g.end(shown);
      mpi_check(code, "MPI_Allgather");
      return true;
    }
    return false;
  }
  // Checked, in place, or too large for a count.
  template <class T>
  void waiting_all_gather(std::span<const T> x, std::span<T> y) {
    const std::int64_t n = length(x);
    const bool in_place = x.data() == y.data() + rank() * n;
    const auto call = enter<T>(comm_operation::all_gather, bytes(x), n);
    with_amount<T>(n, [&](mpi_amount each) {
      mpi_check(MPI_Allgather(in_place ? MPI_IN_PLACE : x.data(), each.count, each.type, y.data(), each.count,
                              each.type, native()),
                "MPI_Allgather");
    });
  }

  template <class T>
  void broadcast_span(std::span<T> x, int root) {
    with_amount<T>(length(x),
                   [&](mpi_amount n) { mpi_check(MPI_Bcast(x.data(), n.count, n.type, root, native()), "MPI_Bcast"); });
  }

  template <class T, class Op>
  [[gnu::always_inline]] bool quick_all_reduce(std::span<const T> x, std::span<T> y) {
    if constexpr (has_mpi_op<T, Op>) {
      if (x.size() == y.size() && group_->plain(x.size()) && apart<T>(x, y)) [[likely]] {
        plain_all_reduce<T, Op>(x.data(), y);
        return true;
      }
    }
    return false;
  }
  template <class T, class Op>
  [[gnu::always_inline]] bool quick_all_reduce(std::span<T> x) {
    if constexpr (has_mpi_op<T, Op>) {
      if (group_->plain(x.size())) [[likely]] {
        plain_all_reduce<T, Op>(MPI_IN_PLACE, x);
        return true;
      }
    }
    return false;
  }
  template <class T, class Op>
  [[gnu::always_inline]] void plain_all_reduce(const void* from, std::span<T> to) {
    mpi_group& g = *group_;
    board_slot& shown = g.begin(comm_operation::all_reduce, bytes(to));
    const int code = MPI_Allreduce(from, to.data(), static_cast<int>(length(to)), mpi_datatype<T>(),
                                   predefined_mpi_op<Op>(), g.comm());
    g.end(shown);
    mpi_check(code, "MPI_Allreduce");
  }
  // Checked, an operator of the user's, too large for a count, or in place.
  template <class T, class Op>
  void waiting_all_reduce(std::span<const T> x, std::span<T> y, const Op& op) {
    const auto call = enter<T, Op>(comm_operation::all_reduce, bytes(x), length(x));
    mpi_reduction<T, Op> f(operators(), op);
    const bool in_place = x.data() == y.data();
    std::int64_t at = 0;
    do {  // one call, or as many as a count too large for one needs
      const std::int64_t n = (std::min)(length(x) - at, static_cast<std::int64_t>(limit()));
      mpi_check(MPI_Allreduce(in_place ? MPI_IN_PLACE : x.data() + at, y.data() + at, static_cast<int>(n), f.type(),
                              f.op(), native()),
                "MPI_Allreduce");
      at += n;
    } while (at < length(x));
    f.done();
  }

  // To the root's y; y is not used elsewhere.
  template <class T, class Reduction>
  void reduce_spans(const T* x, T* y, std::int64_t count, Reduction& f, int root) {
    bool in_place = rank() == root && x == y;
    std::unique_ptr<T[]> copy;
#if defined(MPICH_VERSION)
    // MPICH 4.0 crashes where a root other than rank 0 reduces some hundred elements in place.
    if (in_place && root != 0 && count > 0) {
      copy = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(count));
      std::memcpy(copy.get(), x, static_cast<std::size_t>(count) * sizeof(T));
      x = copy.get();
      in_place = false;
    }
#endif
    std::int64_t at = 0;
    do {
      const std::int64_t n = (std::min)(count - at, static_cast<std::int64_t>(limit()));
      T* const to = rank() == root ? y + at : nullptr;
      mpi_check(MPI_Reduce(in_place ? MPI_IN_PLACE : x + at, to, static_cast<int>(n), f.type(), f.op(), root, native()),
                "MPI_Reduce");
      at += n;
    } while (at < count);
  }

  // MPI wants a result that is no part of the input: an output that is goes through a buffer.
  template <class T, class Call>
  void apart_from_input(std::span<const T> x, std::span<T> y, Call&& call) {
    const auto at = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p); };
    const bool inside = !y.empty() && at(x.data()) <= at(y.data()) && at(y.data()) < at(x.data() + x.size());
    if (!inside) [[likely]] {
      call(y.data());
    } else {
      const auto result = std::make_unique_for_overwrite<T[]>(y.size());
      call(result.get());
      std::memcpy(y.data(), result.get(), y.size_bytes());
    }
  }

  // Whether counts are too large for MPI's calls with counts per rank.
  template <class T>
  bool too_many(std::int64_t total) const noexcept {
    return total * wire_units<T> > limit();
  }
  // Only checked calls tell the other ranks.
  void require_told(const char* what, std::int64_t total) const {
    if (!checked())
      fail(std::string(what) + ": MPI cannot count the " + std::to_string(total) +
           " elements of one rank; with checking::on such calls become messages");
  }

  // By MPI, as the elements may be where the host cannot read them.
  template <class T>
  void copy_own(std::span<const T> from, T* to) {
    if (from.empty() || from.data() == to) return;
    with_amount<T>(length(from), [&](mpi_amount n) {
      mpi_check(MPI_Sendrecv(from.data(), n.count, n.type, rank(), group_->own_tag(), to, n.count, n.type, rank(),
                             group_->own_tag(), native(), MPI_STATUS_IGNORE),
                "MPI_Sendrecv");
    });
  }

  // Everyone's part(r) to rank r, as messages; empty ones are not sent.
  template <class T, class Part, class Place>
  void exchange_messages(Part&& part, Place&& place) {
    std::vector<mpi_request> started;
    for (int r = 0; r < size(); ++r)
      if (const std::span<T> to = place(r); r != rank() && !to.empty())
        started.push_back(start_recv<T>(to, r, group_->own_tag()));
    for (int r = 0; r < size(); ++r)
      if (const std::span<const T> from = part(r); r != rank() && !from.empty())
        started.push_back(start_send<T>(from, r, group_->own_tag()));
    const std::span<const T> mine = part(rank());
    const std::span<T> here = place(rank());
    copy_own<T>(mine, here.data());
    wait_all(started);
  }

  std::shared_ptr<mpi_group> group_;
  call_mark mark_;
};

}  // namespace heddle::inline v0::detail
