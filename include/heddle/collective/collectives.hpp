// heddle/collective/collectives.hpp: collectives on any communicator by a named algorithm.
#pragma once

#include <heddle/collective/algorithms.hpp>
#include <heddle/comm/blocks.hpp>
#include <heddle/collective/collective_plans.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/collective/decision.hpp>
#include <heddle/collective/run_collective.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0 {

// The calls below are those of a communicator, which says what they mean (comm/communicator.hpp), with the algorithm
// as a template argument: `all_reduce<algo::ring>(comm, x, plus{})`. `algo::built_in` is the communicator's own call.
// Without an algorithm (`algo::automatic`) the decisions of the plans choose, where they have some; else the
// communicator's own call, where it works on the ranks' buffers in place; else the thresholds of comm/decision.hpp.
// Operators may hold state, and need an identity only for exclusive_scan; they are refused where the algorithm
// changes an order or a grouping that they do not allow (core/op_traits.hpp). The last argument, where given, keeps
// programs from call to call (comm/collective_plans.hpp); a communicator with a member `plans()` keeps them itself.
//
// Errors: `comm_error` if the algorithm has no rounds for this number of ranks, naming those that have, if its rounds are
// wrong (an algorithm of the caller's, where calls are checked), or if arguments do not fit; otherwise as the communicator's isend and irecv.

/// Every rank's `inout` becomes the fold of all.
template <class A = algo::automatic, communicator C, class InOut, class Op>
void all_reduce(C& comm, InOut&& inout, Op op, detail::kept_plans plans = {}) {
  const auto own = [&](auto& c) { c.all_reduce(inout, op); };
  if constexpr (std::is_same_v<A, algo::built_in>) {
    own(comm);
  } else if constexpr (detail::can_reduce_in_place<InOut>()) {
    using T = detail::reduced_element<InOut>;
    const std::span<T> x = detail::elements_of(inout);
    if constexpr (detail::algorithm_of_transport<A>)
      detail::all_reduce_of_transport<A, T>(comm, std::span<const T>(x), x, op);
    else
      detail::fold_by_rounds<A, comm_operation::all_reduce, T>(comm, std::span<const T>(x), x, op, plans.plans, own);
  }
}
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out, class Op>
void all_reduce(C& comm, In&& in, Out&& out, Op op, detail::kept_plans plans = {}) {
  const auto own = [&](auto& c) { c.all_reduce(in, out, op); };
  if constexpr (std::is_same_v<A, algo::built_in>) {
    own(comm);
  } else if constexpr (detail::same_elements<In, Out>()) {
    using T = detail::comm_element<In>;
    const std::span<const T> x = std::span(in);
    const std::span<T> y = std::span(out);
    if constexpr (detail::algorithm_of_transport<A>)
      detail::all_reduce_of_transport<A, T>(comm, x, y, op);
    else
      detail::fold_by_rounds<A, comm_operation::all_reduce, T>(comm, x, y, op, plans.plans, own);
  }
}

/// The root's `out`, unused elsewhere, becomes the fold of all.
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out, class Op>
void reduce(C& comm, In&& in, Out&& out, Op op, int root, detail::kept_plans plans = {}) {
  const auto own = [&](auto& c) { c.reduce(in, out, op, root); };
  detail::with_spans<A, In, Out>(comm, in, out, own, [&](const auto& arguments, auto x, auto y) {
    using T = detail::comm_element<In>;
    constexpr auto what = comm_operation::reduce;
    if constexpr (detail::can_fold<A, what, T, Op>()) {
      arguments.require_root(root);
      const bool at_root = comm.rank() == root;
      if (at_root) arguments.require_vectors("reduce", x, y);
      detail::by_rounds<A, what>(comm, x.data(), y.data(), block_sizes::vector(arguments.length(x)),
                                 arguments.length(x), root, at_root && x.data() == y.data(), op, plans.plans, own);
    }
  });
}

/// `in` holds a block per rank; `out` becomes the fold of the own blocks.
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out, class Op>
void reduce_scatter(C& comm, In&& in, Out&& out, Op op, detail::kept_plans plans = {}) {
  const auto own = [&](auto& c) { c.reduce_scatter(in, out, op); };
  detail::with_spans<A, In, Out>(comm, in, out, own, [&](const auto& arguments, auto x, auto y) {
    const std::int64_t n = arguments.length(y);
    arguments.require_blocks_in("reduce_scatter", x, y);
    detail::reduce_scatter_by_rounds<A>(comm, x, y, block_sizes::equal(n), comm.rank() * n, op, plans.plans, own);
  });
}
/// As `reduce_scatter`, with `counts[r]` elements for rank r, the same on every rank.
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out, class Op>
void reduce_scatter_v(C& comm, In&& in, Out&& out, counts_span counts, Op op, detail::kept_plans plans = {}) {
  const auto own = [&](auto& c) { c.reduce_scatter_v(in, out, counts, op); };
  detail::with_spans<A, In, Out>(comm, in, out, own, [&](const auto& arguments, auto x, auto y) {
    const detail::counted_blocks blocks = arguments.require_blocks_in("reduce_scatter_v", x, y, counts);
    detail::reduce_scatter_by_rounds<A>(comm, x, y, block_sizes::counted(counts), blocks.offset(comm.rank()), op,
                                        plans.plans, own);
  });
}

/// `out` gets a block per rank.
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out>
void all_gather(C& comm, In&& in, Out&& out, detail::kept_plans plans = {}) {
  const auto own = [&](auto& c) { c.all_gather(in, out); };
  detail::with_spans<A, In, Out>(comm, in, out, own, [&](const auto& arguments, auto x, auto y) {
    const std::int64_t n = arguments.length(x);
    arguments.require_blocks_out("all_gather", x, y);
    detail::move_by_rounds<A, comm_operation::all_gather>(comm, x, y, block_sizes::equal(n), comm.size() * n, 0,
                                                          plans.plans, own);
  });
}
/// As `all_gather`, with `counts[r]` elements of rank r, the same on every rank.
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out>
void all_gather_v(C& comm, In&& in, Out&& out, counts_span counts, detail::kept_plans plans = {}) {
  const auto own = [&](auto& c) { c.all_gather_v(in, out, counts); };
  detail::with_spans<A, In, Out>(comm, in, out, own, [&](const auto& arguments, auto x, auto y) {
    arguments.require_blocks_out("all_gather_v", x, y, counts);
    detail::move_by_rounds<A, comm_operation::all_gather>(comm, x, y, block_sizes::counted(counts), arguments.length(y),
                                                          0, plans.plans, own);
  });
}

/// Block s of `out` is block `rank()` of rank s's `in`.
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out>
void all_to_all(C& comm, In&& in, Out&& out, detail::kept_plans plans = {}) {
  const auto own = [&](auto& c) { c.all_to_all(in, out); };
  detail::with_spans<A, In, Out>(comm, in, out, own, [&](const auto& arguments, auto x, auto y) {
    const std::int64_t n = arguments.length(x) / comm.size();
    arguments.require_all_to_all(x, y);
    detail::move_by_rounds<A, comm_operation::all_to_all>(comm, x, y, block_sizes::equal(n), comm.size() * n, 0,
                                                          plans.plans, own);
  });
}
/// As `all_to_all`, with `send_counts[r]` elements for rank r and `recv_counts[r]` from it. An algorithm whose blocks
/// pass through other ranks first tells every rank all counts, by the communicator's own all_gather.
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out>
void all_to_all_v(C& comm, In&& in, counts_span send_counts, Out&& out, counts_span recv_counts,
                  detail::kept_plans plans = {}) {
  const auto own = [&](auto& c) { c.all_to_all_v(in, send_counts, out, recv_counts); };
  detail::with_spans<A, In, Out>(comm, in, out, own, [&](const auto& arguments, auto x, auto y) {
    arguments.require_all_to_all_v(x, send_counts, y, recv_counts);
    detail::move_by_rounds<A, comm_operation::all_to_all>(
        comm, x, y, block_sizes::counted(send_counts, recv_counts),
        detail::unknown_length / static_cast<std::int64_t>(sizeof(detail::comm_element<In>)), 0, plans.plans, own);
  });
}

/// Every rank's `inout` becomes the root's.
template <class A = algo::automatic, communicator C, detail::spannable InOut>
void broadcast(C& comm, InOut&& inout, int root, detail::kept_plans plans = {}) {
  constexpr auto what = comm_operation::broadcast;
  const auto own = [&](auto& c) { c.broadcast(inout, root); };
  if constexpr (std::is_same_v<A, algo::built_in>) {
    own(comm);
  } else if constexpr (detail::can_receive<InOut>() && detail::can_run<A, what>()) {
    using T = detail::comm_element<InOut>;
    const std::span<T> x = std::span(inout);
    const detail::arguments_of<C> arguments(comm);
    arguments.require_root(root);
    detail::by_rounds<A, what, T>(comm, x.data(), x.data(), block_sizes::vector(arguments.length(x)),
                                  arguments.length(x), root, true, no_operator{}, plans.plans, own);
  }
}

/// The root's `out`, unused elsewhere, gets a block per rank.
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out>
void gather(C& comm, In&& in, Out&& out, int root, detail::kept_plans plans = {}) {
  const auto own = [&](auto& c) { c.gather(in, out, root); };
  detail::with_spans<A, In, Out>(comm, in, out, own, [&](const auto& arguments, auto x, auto y) {
    detail::move_with_root<A, comm_operation::gather>(comm, arguments, x, y, root, plans.plans, own);
  });
}

/// `out` gets this rank's block of the root's `in`, which is unused elsewhere.
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out>
void scatter(C& comm, In&& in, Out&& out, int root, detail::kept_plans plans = {}) {
  const auto own = [&](auto& c) { c.scatter(in, out, root); };
  detail::with_spans<A, In, Out>(comm, in, out, own, [&](const auto& arguments, auto x, auto y) {
    detail::move_with_root<A, comm_operation::scatter>(comm, arguments, x, y, root, plans.plans, own);
  });
}

/// Rank r's `out` becomes the fold of ranks 0, ..., r. In place: the same buffer twice.
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out, class Op>
void scan(C& comm, In&& in, Out&& out, Op op, detail::kept_plans plans = {}) {
  if constexpr (detail::same_elements<In, Out>()) {
    using T = detail::comm_element<In>;
    detail::fold_by_rounds<A, comm_operation::scan, T>(
        comm, std::span<const T>(std::span(in)), std::span<T>(std::span(out)), op, plans.plans, detail::no_own_call{});
  }
}

/// Rank r's `out` becomes the fold of ranks 0, ..., r - 1; on rank 0 the operator's identity.
template <class A = algo::automatic, communicator C, detail::spannable In, detail::spannable Out, class Op>
void exclusive_scan(C& comm, In&& in, Out&& out, Op op, detail::kept_plans plans = {}) {
  if constexpr (detail::same_elements<In, Out>()) {
    using T = detail::comm_element<In>;
    constexpr bool has_identity = requires {
      { op.template identity<T>() } -> std::convertible_to<T>;
    };
    static_assert(has_identity,
                  "heddle: exclusive_scan gives rank 0 the operator's identity: template <class T> T identity()");
    if constexpr (has_identity)
      detail::fold_by_rounds<A, comm_operation::exclusive_scan, T>(comm, std::span<const T>(std::span(in)),
                                                                   std::span<T>(std::span(out)), op, plans.plans,
                                                                   detail::no_own_call{});
  }
}

}  // namespace heddle::inline v0
