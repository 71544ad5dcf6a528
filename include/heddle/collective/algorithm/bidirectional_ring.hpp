// heddle/collective/algorithm/bidirectional_ring.hpp: rings in both directions, in half the rounds.
#pragma once

#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/rounds_reverse.hpp>

#include <string_view>

namespace heddle::inline v0::detail {

// all_gather of p ranks, half of the blocks clockwise and half counter-clockwise.
constexpr round_table both_ways_round(int p, int root) {
  const bool halves = p % 2 == 0 && p > 2;  // two ranks are neighbours on both sides: one message will do
  round_builder rounds(comm_operation::all_gather, p, root, p, halves ? 2 : 1);
  const int whole = p == 2 ? 0 : (p - 1) / 2;
  for (int k = 0; k < whole; ++k)
    for (int r = 0; r < p; ++r) {
      rounds.send(k, r, (r + 1) % p).block((r - k + p) % p);
      rounds.send(k, r, (r - 1 + p) % p).block((r + k) % p);
    }
  for (int r = 0; halves && r < p; ++r) {
    rounds.send(whole, r, (r + 1) % p).item((r - whole + p) % p * 2);
    rounds.send(whole, r, (r - 1 + p) % p).item((r + whole) % p * 2 + 1);
  }
  for (int r = 0; p == 2 && r < p; ++r) rounds.send(0, r, 1 - r).block(r);
  return rounds.take();
}

}  // namespace heddle::inline v0::detail

namespace heddle::inline v0::algo {

/// The ring, with both neighbours: every block goes half way round clockwise and half way counter-clockwise. Half the
/// rounds of the ring, ceil((p - 1) / 2) for all_gather and as many for reduce_scatter, and half of its bytes per
/// direction: (p - 1) / 2 blocks each way. Where p is even, the rank opposite gets one half of the block from each
/// side. all_reduce is one after the other. For long vectors where links work both ways at once and each neighbour
/// has its own (torus, NVLink pairs); with one port it is no faster than the ring. Needs a commutative operator.
struct bidirectional_ring : detail::gathers_and_reduces {
  static constexpr std::string_view name = "bidirectional_ring";

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    return detail::from_all_gather<What>(detail::both_ways_round(ranks, root));
  }
};

}  // namespace heddle::inline v0::algo
