// heddle/core/determinism.hpp: policies and promises of the same bits in other runs.
#pragma once

#include <heddle/core/config.hpp>

#include <type_traits>

namespace heddle::inline v0 {

/// The kind of policies that say which runs give the same bits.
struct determinism_kind {};

/// Which runs of a program have the same bits. The names of the first two are those of CUB.
/// Source: NVIDIA, CCCL 3, `cuda::execution::determinism`.
namespace determinism {

/// Each asks for what those before it ask for, too.
enum class level { not_guaranteed, run_to_run, mesh_to_mesh };

/// Sums may be folded in another order in the next run. The default.
struct not_guaranteed {
  using kind = determinism_kind;
  static constexpr determinism::level asked = level::not_guaranteed;
};
/// The same program on the same mesh has the same bits in each run.
struct run_to_run {
  using kind = determinism_kind;
  static constexpr determinism::level asked = level::run_to_run;
};
/// The same bits on any mesh, too: sums are folded in one fixed binary tree. A reduction's result then depends on the contributions and
/// their order alone, so that ranks that fold an aligned power of two of them first change nothing (`all_reduce` in
/// collective/determined.hpp). A strategy that asks for it trains the same weights on any number of data-parallel ranks and pipeline
/// stages (`train/mesh_to_mesh.hpp`).
struct mesh_to_mesh {
  using kind = determinism_kind;
  static constexpr determinism::level asked = level::mesh_to_mesh;
};

/// The most that reductions over a communicator can be asked for: what it says, `static constexpr determinism::level promises`. Without
/// that `mesh_to_mesh`, since its messages are folded in a tree by the host, and `not_guaranteed` where the host cannot read its buffers.
template <class Communicator>
inline constexpr level promised = [] {
  using C = std::remove_cvref_t<Communicator>;
  if constexpr (requires { C::promises; })
    return level(C::promises);
  else if constexpr (requires { requires !C::host_memory; })
    return level::not_guaranteed;
  else
    return level::mesh_to_mesh;
}();

/// What the communicator's own reductions have: `run_to_run` where they fold in the order of ranks, as it says by
/// `static constexpr bool folds_in_rank_order`.
template <class Communicator>
inline constexpr level own_calls = [] {
  if constexpr (requires { requires std::remove_cvref_t<Communicator>::folds_in_rank_order; })
    return level::run_to_run;
  else
    return level::not_guaranteed;
}();

}  // namespace determinism

namespace detail {
// Carries both into the compiler's message.
template <class Communicator, class Determinism>
struct promises_enough {
  static constexpr bool value = determinism::promised<Communicator> >= Determinism::asked;
};
template <class Communicator, class Determinism>
consteval bool promise_checked() {
  static_assert(promises_enough<Communicator, Determinism>::value,
                "heddle: this communicator promises less determinism than is asked (determinism::promised); ask for "
                "not_guaranteed, or take a transport of the host's memory");
  return promises_enough<Communicator, Determinism>::value;
}
}  // namespace detail

}  // namespace heddle::inline v0
