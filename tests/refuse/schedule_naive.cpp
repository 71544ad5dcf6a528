// refuse: heddle: the schedule deadlocks: ranks wait for each other
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>

namespace sc = heddle::schedule;

// 1F1B with each send right behind its computation and each receive right before: in the steady state both ranks send.
template <class Microbatches>
struct naive : sc::one_f_one_b<Microbatches> {
  template <class Sink>
  constexpr void generate(int rank, int ranks, Sink& emit) const {
    using enum sc::action_kind;
    const auto with_transfers = [&](sc::action_kind kind, int stage, int microbatch) {
      const bool up = kind == forward;
      if (up ? rank > 0 : rank + 1 < ranks) emit(up ? recv_forward : recv_backward, stage, microbatch);
      emit(kind, stage, microbatch);
      if (up ? rank + 1 < ranks : rank > 0) emit(up ? send_forward : send_backward, stage, microbatch);
    };
    sc::one_f_one_b<Microbatches>::generate(rank, ranks, with_transfers);
  }
};
using mesh = heddle::mesh<heddle::axis<heddle::pp, 4>>;
static_assert(sc::valid<naive<heddle::microbatches<8>>, mesh>);
static_assert(sc::require<naive<heddle::microbatches<8>>, mesh>());
