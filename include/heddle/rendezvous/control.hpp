// heddle/rendezvous/control.hpp: a control plane over rendezvous messages, for ranks with device memory.
#pragma once

#include <heddle/comm/argument_checks.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/rendezvous/control_state.hpp>
#include <heddle/comm/starting_calls.hpp>
#include <heddle/core/type_name.hpp>

#include <algorithm>
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
                           public detail::starting_calls<rendezvous_control> {
  friend detail::argument_checks<rendezvous_control>;
  friend detail::starting_calls<rendezvous_control>;

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

  template <detail::spannable In>
  void send(In&& in, int to, int tag = 0) {
    if constexpr (detail::can_travel<detail::comm_element<In>>()) leave_message(in, to, tag);
  }
  template <detail::spannable Out>
  void recv(Out&& out, int from, int tag = 0) {
    if constexpr (detail::can_receive<Out>()) expect_message(out, from, tag).wait();
  }
  template <detail::spannable In>
  [[nodiscard("heddle: a message that was started must be waited for")]] request isend(In&& in, int to, int tag = 0) {
    if constexpr (detail::outlives_the_call<In>() && detail::can_travel<detail::comm_element<In>>())
      leave_message(in, to, tag);
    return {};
  }
  template <detail::spannable Out>
  [[nodiscard("heddle: a message that was started must be waited for")]] request irecv(Out&& out, int from,
                                                                                       int tag = 0) {
    if constexpr (!detail::outlives_the_call<Out>())
      return {};
    else if constexpr (detail::can_receive<Out>())
      return expect_message(out, from, tag);
  }

  void barrier() {
    state_->template meet<true>(call_of<void>(comm_operation::barrier, 0), {}, [](parts&, int) { return bytes{}; });
  }
  template <detail::spannable InOut>
  void broadcast(InOut&& inout, int root) {
    if constexpr (detail::can_receive<InOut>()) {
      using T = detail::comm_element<InOut>;
      const std::span<T> x = std::span(inout);
      require_root(root);
      const bool here = rank() == root;
      const bytes whole = state_->template meet<true>(
          call_of<T>(comm_operation::broadcast, length(x), root),
          here ? std::as_bytes(x) : std::span<const std::byte>{},
          [root](parts& all, int) { return std::move(all[static_cast<std::size_t>(root)]); });
      if (!here) store<T>(whole, x);
    }
  }

  template <class InOut, class Op>
  void all_reduce(InOut&& inout, Op op) {
    if constexpr (detail::can_reduce_in_place<InOut>()) {
      using T = detail::reduced_element<InOut>;
      const std::span<T> x = detail::elements_of(inout);
      all_reduce_spans<T>(std::span<const T>(x), x, op);
    }
  }
  template <detail::spannable In, detail::spannable Out, class Op>
  void all_reduce(In&& in, Out&& out, Op op) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      all_reduce_spans<T>(std::span<const T>(std::span(in)), std::span<T>(std::span(out)), op);
    }
  }
  /// `out` is used at the root only and may be empty elsewhere.
  template <detail::spannable In, detail::spannable Out, class Op>
  void reduce(In&& input, Out&& output, Op op, int root) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      if constexpr (detail::can_reduce<T, Op>()) {
        const std::span<const T> x = std::span(input);
        const std::span<T> y = std::span(output);
        require_root(root);
        if (rank() == root) require_length("reduce", "out", length(y), length(x));
        const bytes sum = state_->template meet<false>(
            call_of<T, Op>(comm_operation::reduce, length(x), root), std::as_bytes(x),
            [&](parts& all, int r) { return r == root ? folded<T>(all, 0, x.size(), op) : bytes{}; });
        if (rank() == root) store<T>(sum, y);
      }
    }
  }
  template <detail::spannable In, detail::spannable Out, class Op>
  void reduce_scatter(In&& input, Out&& output, Op op) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      require_length("reduce_scatter", "in", length(x), size() * length(y));
      reduce_scatter_spans<T>(comm_operation::reduce_scatter, x, y, equal_blocks{length(y)}, op, 0);
    }
  }
  template <detail::spannable In, detail::spannable Out, class Op>
  void reduce_scatter_v(In&& input, Out&& output, counts_span counts, Op op) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      const counted_blocks blocks = require_counts("reduce_scatter_v", counts);
      require_length("reduce_scatter_v", "in", length(x), blocks.offset(size()));
      require_length("reduce_scatter_v", "out", length(y), blocks.count(rank()));
      reduce_scatter_spans<T>(comm_operation::reduce_scatter_v, x, y, blocks, op, detail::hash_of(counts));
    }
  }
  template <detail::spannable In, detail::spannable Out>
  void all_gather(In&& input, Out&& output) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      require_length("all_gather", "out", length(y), size() * length(x));
      gather_all<T>(call_of<T>(comm_operation::all_gather, length(x)), x, y);
    }
  }
  template <detail::spannable In, detail::spannable Out>
  void all_gather_v(In&& input, Out&& output, counts_span counts) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      const counted_blocks blocks = require_counts("all_gather_v", counts);
      require_length("all_gather_v", "in", length(x), blocks.count(rank()));
      require_length("all_gather_v", "out", length(y), blocks.offset(size()));
      gather_all<T>(with_counts(call_of<T>(comm_operation::all_gather_v, length(y)), counts), x, y);
    }
  }

  template <detail::spannable In, detail::spannable Out>
  void all_to_all(In&& input, Out&& output) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      require_length("all_to_all", "out", length(y), length(x));
      require_divides("all_to_all", length(x));
      const std::size_t each = x.size_bytes() / static_cast<std::size_t>(size());
      store<T>(
          state_->template meet<false>(call_of<T>(comm_operation::all_to_all, length(x) / size()), std::as_bytes(x),
                                       [&](parts& all, int r) {
                                         bytes column;
                                         for (const bytes& p : all)
                                           append(column, slice(p, static_cast<std::size_t>(r) * each, each));
                                         return column;
                                       }),
          y);
    }
  }
  /// `send_counts[r]` elements for rank r and `recv_counts[r]` from rank r, in rank order without gaps.
  template <detail::spannable In, detail::spannable Out>
  void all_to_all_v(In&& input, counts_span send_counts, Out&& output, counts_span recv_counts) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      require_length("all_to_all_v", "in", length(x), require_counts("all_to_all_v", send_counts).offset(size()));
      require_length("all_to_all_v", "out", length(y), require_counts("all_to_all_v", recv_counts).offset(size()));
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
  }
  /// The root's `out` gets a block per rank; elsewhere it is not used and may be empty.
  template <detail::spannable In, detail::spannable Out>
  void gather(In&& input, Out&& output, int root) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      require_root(root);
      if (rank() == root) require_length("gather", "out", length(y), size() * length(x));
      gather_at<T>(call_of<T>(comm_operation::gather, length(x), root), x, y, root);
    }
  }
  /// `counts[r]` elements of rank r; `counts` and `out` are used at the root only and may be empty elsewhere.
  template <detail::spannable In, detail::spannable Out>
  void gather_v(In&& input, Out&& output, counts_span counts, int root) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      require_root(root);
      if (rank() == root)
        require_length("gather_v", "out", length(y), require_counts("gather_v", counts).offset(size()));
      gather_at<T>(call_of<T>(comm_operation::gather_v, -1, root), x, y, root);
    }
  }
  /// Rank r's `out` gets block r of the root's `in`, which elsewhere is not used and may be empty.
  template <detail::spannable In, detail::spannable Out>
  void scatter(In&& input, Out&& output, int root) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      require_root(root);
      if (rank() == root) require_length("scatter", "in", length(x), size() * length(y));
      scatter_from<T>(call_of<T>(comm_operation::scatter, length(y), root), x, y, equal_blocks{length(y)}, root);
    }
  }
  /// `counts[r]` elements for rank r; `counts` and `in` are used at the root only and may be empty elsewhere.
  template <detail::spannable In, detail::spannable Out>
  void scatter_v(In&& input, counts_span counts, Out&& output, int root) {
    if constexpr (detail::same_elements<In, Out>()) {
      using T = detail::comm_element<In>;
      const std::span<const T> x = std::span(input);
      const std::span<T> y = std::span(output);
      require_root(root);
      if (rank() == root)
        require_length("scatter_v", "in", length(x), require_counts("scatter_v", counts).offset(size()));
      scatter_from<T>(call_of<T>(comm_operation::scatter_v, -1, root), x, y, counted_blocks{counts.data()}, root);
    }
  }

  /// The ranks that call with the same color become a communicator, ordered by key, then by rank here. A collective.
  [[nodiscard("heddle: split makes a communicator")]] rendezvous_control split(int color, int key) {
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size()));
    const std::int64_t mine[2] = {color, key};
    gather_all<std::int64_t>(call_of<void>(comm_operation::split, 0), mine, all);
    std::vector<int> order;
    for (int r = 0; r < size(); ++r)
      if (all[2 * static_cast<std::size_t>(r)] == color) order.push_back(r);
    const auto key_of = [&](int r) { return all[2 * static_cast<std::size_t>(r) + 1]; };
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return std::pair(key_of(a), a) < std::pair(key_of(b), b); });
    const int index = static_cast<int>(std::find(order.begin(), order.end(), rank()) - order.begin());
    for (int& r : order) r = world_rank(r);
    std::string label = name() + "/" + std::to_string(state_->next_split());
    label += ":" + std::to_string(color);
    return rendezvous_control(std::make_shared<detail::control_state>(state_->meeting(), std::move(label),
                                                                      std::move(order), index, state_->options()));
  }

 private:
  using bytes = detail::message_bytes;
  using parts = std::vector<bytes>;
  using equal_blocks = detail::equal_blocks;
  using counted_blocks = detail::counted_blocks;

  template <class T, class Op = void>
  static detail::call_info call_of(comm_operation what, std::int64_t count, int root = -1, int tag = 0) {
    detail::call_info call;
    call.what = what;
    call.count = count;
    call.root = root;
    call.tag = tag;
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

  template <class T, class Op>
  void all_reduce_spans(std::span<const T> x, std::span<T> y, const Op& op) {
    if constexpr (detail::can_reduce<T, Op>()) {
      require_length("all_reduce", "out", length(y), length(x));
      store<T>(state_->template meet<true>(call_of<T, Op>(comm_operation::all_reduce, length(x)), std::as_bytes(x),
                                           [&](parts& all, int) { return folded<T>(all, 0, x.size(), op); }),
               y);
    }
  }
  template <class T, class Blocks, class Op>
  void reduce_scatter_spans(comm_operation what, std::span<const T> x, std::span<T> y, Blocks blocks, const Op& op,
                            std::uint64_t hash) {
    if constexpr (detail::can_reduce<T, Op>()) {
      detail::call_info call = call_of<T, Op>(what, length(x));
      call.counts_hash = hash;
      store<T>(state_->template meet<false>(call, std::as_bytes(x),
                                            [&](parts& all, int r) {
                                              return folded<T>(all, static_cast<std::size_t>(blocks.offset(r)),
                                                               static_cast<std::size_t>(blocks.count(r)), op);
                                            }),
               y);
    }
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

  template <class In>
  void leave_message(In& in, int to, int tag) {
    using T = detail::comm_element<In>;
    const std::span<const T> x = std::span(in);
    require_peer("send", "to", to);
    state_->begin(comm_operation::send, x.size_bytes());
    state_->give(state_->next_message(true, to, tag), to, std::as_bytes(x));
  }
  template <class Out>
  request expect_message(Out& out, int from, int tag) {
    using T = detail::comm_element<Out>;
    const std::span<T> x = std::span(out);
    require_peer("recv", "from", from);
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
};

static_assert(starting_communicator<rendezvous_control>);

}  // namespace heddle::inline v0
