// heddle/rendezvous/control.hpp: a control plane over a rendezvous, for device ranks.
#pragma once

#include <heddle/comm/argument_checks.hpp>
#include <heddle/comm/call_mark.hpp>
#include <heddle/comm/collective_calls.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/split_part.hpp>
#include <heddle/core/type_name.hpp>
#include <heddle/rendezvous/control_state.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// A group of ranks that exchange small things in host memory: scalars, strings, verdicts. Models `starting_communicator`. A
/// collective is a message of each rank to rank 0, which folds in rank order, and one back: two passes through the
/// rendezvous, so thousands of bytes, not millions. A started one is a message of each rank to each other one, folded in
/// the same order. Sends return at once; the bytes are kept until they are taken.
///
/// Times are the rendezvous': microseconds between threads, some more over TCP, milliseconds over a folder.
///
/// A handle: cheap to move, used by its rank's thread only. Errors: `comm_error` when ranks disagree, or one has not come
/// within `launch_options::timeout`, naming it; `aborted_error` when another rank has failed.
class rendezvous_control : private detail::argument_checks<rendezvous_control>,
                           public detail::collective_calls<rendezvous_control> {
  friend detail::argument_checks<rendezvous_control>;
  friend detail::collective_calls<rendezvous_control>;

 public:
  using request = control_request;
  using started = control_request;

  explicit rendezvous_control(std::shared_ptr<detail::control_state> state) : state_(std::move(state)) {}
  rendezvous_control(rendezvous_control&&) = default;
  rendezvous_control& operator=(rendezvous_control&&) = default;

  int rank() const noexcept { return state_->rank(); }
  int size() const noexcept { return state_->size(); }
  /// As messages name it: `"control"`, `"control dp"`.
  const std::string& name() const noexcept { return state_->label(); }
  /// The world rank of a member.
  int world_rank(int rank) const { return state_->world_rank(rank); }
  comm_counters counters() const { return state_->counters(); }
  /// Whether ranks compare their calls: `launch_options::check`.
  bool checked() const noexcept { return state_->checked(); }
  /// Its collectives have the mark of this world from now on: `world::mark`.
  void marked_by(detail::call_mark mark) noexcept { mark_ = std::move(mark); }

  void barrier() {
    state_->template meet<true>(call_of<void>(comm_operation::barrier, 0), {}, [](parts&, int) { return bytes{}; });
  }

  /// The ranks that call with the same color become a communicator, ordered by key, then by rank here. A collective.
  [[nodiscard("heddle: split makes a communicator")]] rendezvous_control split(int color, int key) {
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size()));
    const std::int64_t mine[2] = {color, key};
    gather_all<std::int64_t>(call_of<void>(comm_operation::split, 0), mine, all);
    detail::split_part part = detail::part_of(*this, all, state_->next_split());
    rendezvous_control made(std::make_shared<detail::control_state>(
        state_->meeting(), std::move(part.label), std::move(part.members), part.rank, state_->options()));
    made.marked_by(mark_);
    return made;
  }

 private:
  using bytes = detail::message_bytes;
  using parts = std::vector<bytes>;
  using equal_blocks = detail::equal_blocks;
  using counted_blocks = detail::counted_blocks;

  template <class T, class Op = void>
  detail::call_info call_of(comm_operation what, std::int64_t count, int root = -1, int tag = 0) const {
    detail::call_info call;
    call.what = what;
    call.count = count;
    call.root = root;
    call.tag = tag;
    if (!heddle::detail::is_message(what)) call.mark = mark_.now();
    if constexpr (!std::is_void_v<T>) {
      call.element = short_type_name<T>();
      call.element_size = sizeof(T);
    }
    if constexpr (!std::is_void_v<Op>) call.combine = short_type_name<Op>();
    return call;
  }
  static detail::call_info with_counts(detail::call_info call, std::span<const std::int64_t> counts) {
    call.counts_hash = detail::hash_of(counts);
    return call;
  }
  template <class T>
  static std::size_t size_of(std::int64_t elements) {
    return static_cast<std::size_t>(elements) * sizeof(T);
  }
  std::size_t counts_bytes() const { return static_cast<std::size_t>(size()) * sizeof(std::int64_t); }
  static void append(bytes& to, std::span<const std::byte> x) { to.insert(to.end(), x.begin(), x.end()); }
  // Of what another rank has sent, which unchecked calls may have made shorter.
  static std::span<const std::byte> slice(const bytes& x, std::size_t begin, std::size_t count) {
    if (begin + count > x.size()) throw comm_error("a rank gives fewer elements than another expects");
    return std::span<const std::byte>(x).subspan(begin, count);
  }
  static std::int64_t number_in(const bytes& x, int at) {
    std::int64_t n = 0;
    std::memcpy(&n, slice(x, static_cast<std::size_t>(at) * sizeof n, sizeof n).data(), sizeof n);
    return n;
  }
  template <class T>
  void store(const bytes& from, std::span<T> to) const {
    if (from.size() != to.size_bytes())
      fail("a call expects " + std::to_string(to.size_bytes()) + " bytes and got " + std::to_string(from.size()));
    if (!from.empty()) std::memcpy(static_cast<void*>(to.data()), from.data(), from.size());
  }
  // Elements [first, first + count) of all parts, from the first rank to the last.
  template <class T, class Op>
  static bytes folded(const parts& all, std::size_t first, std::size_t count, const Op& op) {
    bytes result(count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) {
      alignas(T) std::byte left[sizeof(T)], right[sizeof(T)];
      const auto read = [&](const bytes& part, std::byte* to) {
        std::memcpy(to, slice(part, (first + i) * sizeof(T), sizeof(T)).data(), sizeof(T));
        return reinterpret_cast<T*>(to);
      };
      T value = *read(all[0], left);
      for (std::size_t r = 1; r < all.size(); ++r) value = static_cast<T>(op(value, *read(all[r], right)));
      std::memcpy(result.data() + i * sizeof(T), static_cast<const void*>(&value), sizeof(T));
    }
    return result;
  }

  // --- collectives ---
  template <class T>
  void waiting_broadcast(std::span<T> x, int root) {
    const bool here = rank() == root;
    const bytes whole = state_->template meet<true>(
        call_of<T>(comm_operation::broadcast, length(x), root), here ? std::as_bytes(x) : std::span<const std::byte>{},
        [root](parts& all, int) { return std::move(all[static_cast<std::size_t>(root)]); });
    if (!here) store<T>(whole, x);
  }
  template <class T, class Op>
  void waiting_all_reduce(std::span<const T> x, std::span<T> y, const Op& op) {
    store<T>(state_->template meet<true>(call_of<T, Op>(comm_operation::all_reduce, length(x)), std::as_bytes(x),
                                         [&](parts& all, int) { return folded<T>(all, 0, x.size(), op); }),
             y);
  }
  template <class T, class Op>
  void waiting_reduce(std::span<const T> x, std::span<T> y, const Op& op, int root) {
    const bytes sum = state_->template meet<false>(
        call_of<T, Op>(comm_operation::reduce, length(x), root), std::as_bytes(x),
        [&](parts& all, int r) { return r == root ? folded<T>(all, 0, x.size(), op) : bytes{}; });
    if (rank() == root) store<T>(sum, y);
  }
  template <class T, class Op>
  void waiting_reduce_scatter(std::span<const T> x, std::span<T> y, const Op& op) {
    fold_blocks<T>(call_of<T, Op>(comm_operation::reduce_scatter, length(x)), x, y, equal_blocks{length(y)}, op);
  }
  template <class T, class Op>
  void waiting_reduce_scatter_v(std::span<const T> x, std::span<T> y, counts_span counts, const Op& op) {
    fold_blocks<T>(with_counts(call_of<T, Op>(comm_operation::reduce_scatter_v, length(x)), counts), x, y,
                   counted_blocks{counts.data()}, op);
  }
  template <class T>
  void waiting_all_gather(std::span<const T> x, std::span<T> y) {
    gather_all<T>(call_of<T>(comm_operation::all_gather, length(x)), x, y);
  }
  template <class T>
  void waiting_all_gather_v(std::span<const T> x, std::span<T> y, counts_span counts) {
    gather_all<T>(with_counts(call_of<T>(comm_operation::all_gather_v, length(y)), counts), x, y);
  }
  template <class T>
  void waiting_all_to_all(std::span<const T> x, std::span<T> y) {
    const std::size_t each = x.size_bytes() / static_cast<std::size_t>(size());
    store<T>(state_->template meet<false>(call_of<T>(comm_operation::all_to_all, length(x) / size()), std::as_bytes(x),
                                          [&](parts& all, int r) {
                                            bytes column;
                                            for (const bytes& p : all)
                                              append(column, slice(p, static_cast<std::size_t>(r) * each, each));
                                            return column;
                                          }),
             y);
  }
  template <class T>
  void waiting_all_to_all_v(std::span<const T> x, counts_span send_counts, std::span<T> y, counts_span recv_counts) {
    bytes mine;
    append(mine, std::as_bytes(std::span<const std::int64_t>(send_counts)));
    append(mine, std::as_bytes(std::span<const std::int64_t>(recv_counts)));
    append(mine, std::as_bytes(x));
    store<T>(state_->template meet<false>(
                 call_of<T>(comm_operation::all_to_all_v, -1), mine,
                 [&](parts& all, int r) {
                   bytes column;
                   for (int s = 0; s < size(); ++s) {
                     const bytes& p = all[static_cast<std::size_t>(s)];
                     const std::int64_t sent = number_in(p, r);
                     const std::int64_t expected = number_in(all[static_cast<std::size_t>(r)], size() + s);
                     if (sent != expected)
                       throw comm_error("rank " + std::to_string(world_rank(s)) + " sends " + std::to_string(sent) +
                                        " elements to rank " + std::to_string(world_rank(r)) + ", which expects " +
                                        std::to_string(expected));
                     std::int64_t before = 0;
                     for (int k = 0; k < r; ++k) before += number_in(p, k);
                     append(column, slice(p, 2 * counts_bytes() + size_of<T>(before), size_of<T>(sent)));
                   }
                   return column;
                 }),
             y);
  }
  template <class T>
  void waiting_gather(std::span<const T> x, std::span<T> y, int root) {
    gather_at<T>(call_of<T>(comm_operation::gather, length(x), root), x, y, root);
  }
  template <class T>
  void waiting_gather_v(std::span<const T> x, std::span<T> y, counts_span, int root) {
    gather_at<T>(call_of<T>(comm_operation::gather_v, -1, root), x, y, root);
  }
  template <class T>
  void waiting_scatter(std::span<const T> x, std::span<T> y, int root) {
    scatter_from<T>(call_of<T>(comm_operation::scatter, length(y), root), x, y, equal_blocks{length(y)}, root);
  }
  template <class T>
  void waiting_scatter_v(std::span<const T> x, counts_span counts, std::span<T> y, int root) {
    scatter_from<T>(call_of<T>(comm_operation::scatter_v, -1, root), x, y, counted_blocks{counts.data()}, root);
  }

  template <class T, class Blocks, class Op>
  void fold_blocks(const detail::call_info& call, std::span<const T> x, std::span<T> y, Blocks blocks, const Op& op) {
    store<T>(state_->template meet<false>(call, std::as_bytes(x),
                                          [&](parts& all, int r) {
                                            return folded<T>(all, static_cast<std::size_t>(blocks.offset(r)),
                                                             static_cast<std::size_t>(blocks.count(r)), op);
                                          }),
             y);
  }
  template <class T>
  void gather_all(const detail::call_info& call, std::span<const T> x, std::span<T> y) {
    store<T>(state_->template meet<true>(call, std::as_bytes(x), [](parts& all, int) { return joined(all); }), y);
  }
  static bytes joined(const parts& all) {
    bytes whole;
    for (const bytes& p : all) append(whole, p);
    return whole;
  }
  template <class T>
  void gather_at(const detail::call_info& call, std::span<const T> x, std::span<T> y, int root) {
    const bytes whole = state_->template meet<false>(
        call, std::as_bytes(x), [root](parts& all, int r) { return r == root ? joined(all) : bytes{}; });
    if (rank() == root) store<T>(whole, y);
  }
  // The root's counts go with its elements: rank 0, which makes the answers, may be another.
  template <class T, class Blocks>
  void scatter_from(const detail::call_info& call, std::span<const T> x, std::span<T> y, Blocks blocks, int root) {
    bytes mine;
    if (rank() == root) {
      std::vector<std::int64_t> counts;
      for (int r = 0; r < size(); ++r) counts.push_back(blocks.count(r));
      append(mine, std::as_bytes(std::span<const std::int64_t>(counts)));
      append(mine, std::as_bytes(x));
    }
    store<T>(state_->template meet<false>(call, mine,
                                          [&](parts& all, int r) {
                                            const bytes& p = all[static_cast<std::size_t>(root)];
                                            std::int64_t before = 0;
                                            for (int k = 0; k < r; ++k) before += number_in(p, k);
                                            bytes part;
                                            append(part, slice(p, counts_bytes() + size_of<T>(before),
                                                               size_of<T>(number_in(p, r))));
                                            return part;
                                          }),
             y);
  }

  // --- started collectives ---
  template <class T, class Op>
  static consteval bool can_fold() {
    return detail::can_reduce<T, Op>();
  }
  // `part(r)` goes to rank r, if `gives`; `takes(r)`: whether one of rank r is expected. `done(parts)` when all are here, with
  // the own one, `part(rank())`.
  template <class Part, class Takes, class Done>
  started start(detail::call_info call, std::size_t given, bool gives, const Part& part, const Takes& takes,
                Done done) {
    call.started = true;
    state_->begin(call.what, given);
    auto work = std::make_unique<detail::control_work>();
    work->call = call;
    work->number = state_->next_started();
    const std::string key = "s" + std::to_string(work->number);
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      if (gives) state_->give(key, r, state_->framed(call, part(r)));
      if (takes(r)) work->parts.push_back({key, r});
    }
    struct context {
      Done done;
      bytes own;
      int rank, size;
    };
    const std::span<const std::byte> own = part(rank());
    work->context = std::make_shared<context>(context{std::move(done), bytes(own.begin(), own.end()), rank(), size()});
    work->finish = [](void* c, detail::control_work& w) {
      context& here = *static_cast<context*>(c);
      parts all(static_cast<std::size_t>(here.size));
      all[static_cast<std::size_t>(here.rank)] = std::move(here.own);
      for (auto& p : w.parts) all[static_cast<std::size_t>(p.from)] = std::move(p.bytes);
      here.done(all);
    };
    return {state_, std::move(work)};
  }
  static bool from_all(int) { return true; }
  template <class T, class Op>
  started started_all_reduce(std::span<const T> x, std::span<T> y, const Op& op) {
    return start(
        call_of<T, Op>(comm_operation::all_reduce, length(x)), x.size_bytes(), true,
        [x](int) { return std::as_bytes(x); }, from_all,
        [to = rendezvous_control(state_), y, op](const parts& all) {
          to.store<T>(folded<T>(all, 0, y.size(), op), y);
        });
  }
  template <class T>
  started started_broadcast(std::span<T> x, int root) {
    const bool here = rank() == root;
    return start(
        call_of<T>(comm_operation::broadcast, length(x), root), x.size_bytes(), here,
        [x](int) { return std::span<const std::byte>(std::as_bytes(x)); },
        [root, here](int r) { return !here && r == root; },
        [to = rendezvous_control(state_), x, root, here](const parts& all) {
          if (!here) to.store<T>(all[static_cast<std::size_t>(root)], x);
        });
  }
  template <class T, class Op>
  started started_reduce_scatter(std::span<const T> x, std::span<T> y, const Op& op) {
    return start_blocks<T>(call_of<T, Op>(comm_operation::reduce_scatter, length(x)), x, y, equal_blocks{length(y)},
                           op);
  }
  template <class T, class Op>
  started started_reduce_scatter_v(std::span<const T> x, std::span<T> y, counts_span counts, const Op& op) {
    return start_blocks<T>(with_counts(call_of<T, Op>(comm_operation::reduce_scatter_v, length(x)), counts), x, y,
                           counted_blocks{counts.data()}, op);
  }
  template <class T, class Blocks, class Op>
  started start_blocks(const detail::call_info& call, std::span<const T> x, std::span<T> y, Blocks blocks,
                       const Op& op) {
    return start(
        call, x.size_bytes(), true,
        [&](int r) {
          return std::as_bytes(
              x.subspan(static_cast<std::size_t>(blocks.offset(r)), static_cast<std::size_t>(blocks.count(r))));
        },
        from_all,
        [to = rendezvous_control(state_), y, op](const parts& all) {
          to.store<T>(folded<T>(all, 0, y.size(), op), y);
        });
  }
  template <class T>
  started started_all_gather(std::span<const T> x, std::span<T> y) {
    return start_gather<T>(call_of<T>(comm_operation::all_gather, length(x)), x, y);
  }
  template <class T>
  started started_all_gather_v(std::span<const T> x, std::span<T> y, counts_span counts) {
    return start_gather<T>(with_counts(call_of<T>(comm_operation::all_gather_v, length(y)), counts), x, y);
  }
  template <class T>
  started start_gather(const detail::call_info& call, std::span<const T> x, std::span<T> y) {
    return start(
        call, x.size_bytes(), true, [x](int) { return std::as_bytes(x); }, from_all,
        [to = rendezvous_control(state_), y](const parts& all) { to.store<T>(joined(all), y); });
  }

  // --- messages ---
  template <class T>
  void waiting_send(std::span<const T> x, int to, int tag) {
    state_->begin(comm_operation::send, x.size_bytes());
    state_->give(state_->next_message(true, to, tag), to, std::as_bytes(x));
  }
  template <class T>
  request started_send(std::span<const T> x, int to, int tag) {
    waiting_send<T>(x, to, tag);
    return {};
  }
  template <class T>
  void waiting_recv(std::span<T> x, int from, int tag) {
    started_recv<T>(x, from, tag).wait();
  }
  template <class T>
  request started_recv(std::span<T> x, int from, int tag) {
    state_->begin(comm_operation::recv, x.size_bytes());
    auto work = std::make_unique<detail::control_work>();
    work->call = call_of<T>(comm_operation::recv, length(x), from, tag);
    work->parts.push_back({state_->next_message(false, from, tag), from});
    struct place {
      std::span<T> out;
      std::shared_ptr<detail::control_state> state;
    };
    work->context = std::make_shared<place>(place{x, state_});
    work->finish = [](void* context, detail::control_work& w) {
      const place& to = *static_cast<const place*>(context);
      rendezvous_control(to.state).template store_message<T>(w, to.out);
    };
    return {state_, std::move(work)};
  }
  template <class T>
  void store_message(const detail::control_work& work, std::span<T> out) const {
    const bytes& got = work.parts[0].bytes;
    if (got.size() != out.size_bytes())
      throw comm_error("heddle: rank " + std::to_string(world_rank(work.parts[0].from)) + " and rank " +
                       std::to_string(world_rank(rank())) + " disagree about a message on communicator (" + name() +
                       "): rank " + std::to_string(world_rank(rank())) + " entered " +
                       detail::describe(work.call, state_->members()) + ", the message has " +
                       std::to_string(got.size()) + " bytes");
    if (!got.empty()) std::memcpy(static_cast<void*>(out.data()), got.data(), got.size());
  }

  std::shared_ptr<detail::control_state> state_;
  detail::call_mark mark_;
};

static_assert(starting_communicator<rendezvous_control>);

}  // namespace heddle::inline v0
