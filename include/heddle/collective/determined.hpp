// heddle/collective/determined.hpp: reductions that are told how deterministic they must be.
#pragma once

#include <heddle/collective/algorithm/dyadic.hpp>
#include <heddle/collective/algorithm/recursive_doubling.hpp>
#include <heddle/collective/algorithm/reduce_then_scatter.hpp>
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/core/determinism.hpp>

#include <type_traits>

namespace heddle::inline v0 {

namespace detail {
// The operator, for communicators whose own calls then fold in the aligned tree.
template <class Op>
struct in_tree : Op {
  static constexpr bool associative = false;
};
template <class C, class Op>
inline constexpr bool own_calls_in_tree = [] {
  if constexpr (std::is_class_v<Op> && !std::is_final_v<Op>)
    return requires { requires C::folds_in_tree; };
  else
    return false;
}();
}  // namespace detail

/// Every rank's `inout` becomes the fold of all, with the bits that `Determinism` asks for: `determinism::run_to_run` those of any other
/// run, `mesh_to_mesh` those of the aligned binary tree over the ranks (`algo::dyadic`). If each of p = 2^k ranks gives the fold of 2^j
/// neighbours in that tree, all meshes of 2^(k + j) contributions have the same bits.
/// Errors: as `all_reduce`; a communicator that promises less (`determinism::promised`) does not compile.
template <class Determinism, communicator C, class InOut, class Op>
  requires std::is_same_v<typename Determinism::kind, determinism_kind>
void all_reduce(C& comm, InOut&& inout, Op op, Determinism) {
  if constexpr (detail::promise_checked<C, Determinism>()) {
    if constexpr (Determinism::asked > determinism::own_calls<C> && detail::own_calls_in_tree<C, Op>)
      comm.all_reduce(inout, detail::in_tree<Op>{op});
    else if constexpr (Determinism::asked > determinism::own_calls<C>)
      heddle::v0::all_reduce<algo::dyadic>(comm, inout, op);
    else
      comm.all_reduce(inout, op);
  }
}

/// The same of a reduce_scatter: `counts[r]` elements for rank r. `mesh_to_mesh` is for a power of two of ranks.
template <class Determinism, communicator C, detail::spannable In, detail::spannable Out, class Op>
  requires std::is_same_v<typename Determinism::kind, determinism_kind>
void reduce_scatter_v(C& comm, In&& in, Out&& out, counts_span counts, Op op, Determinism) {
  if constexpr (detail::promise_checked<C, Determinism>()) {
    if constexpr (Determinism::asked > determinism::own_calls<C> && detail::own_calls_in_tree<C, Op>)
      comm.reduce_scatter_v(in, out, counts, detail::in_tree<Op>{op});
    else if constexpr (Determinism::asked == determinism::level::mesh_to_mesh)
      heddle::v0::reduce_scatter_v<algo::recursive_doubling>(comm, in, out, counts, op);
    else if constexpr (Determinism::asked > determinism::own_calls<C>)
      heddle::v0::reduce_scatter_v<algo::reduce_then_scatter>(comm, in, out, counts, op);
    else
      comm.reduce_scatter_v(in, out, counts, op);
  }
}

}  // namespace heddle::inline v0
