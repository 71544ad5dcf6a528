// Round tables written out from their definitions, for tests of what takes round tables.
#pragma once

#include <heddle/collective/rounds.hpp>

namespace plain_rounds {

namespace hd = heddle;

// All-reduce by recursive halving and doubling on 2^k ranks: distances n/2 .. 1, then 1 .. n/2.
constexpr hd::round_table halving_doubling(int n) {
  hd::round_builder rounds(hd::comm_operation::all_reduce, n, 0, n, 1);
  int k = 0;
  for (int d = n / 2; d >= 1; d /= 2, ++k)
    for (int r = 0; r < n; ++r)
      rounds.send(k, r, r ^ d, r < (r ^ d) ? hd::arrival::fold_before : hd::arrival::fold_after)
          .blocks((r ^ d) & ~(d - 1), d);
  for (int d = 1; d < n; d *= 2, ++k)
    for (int r = 0; r < n; ++r) rounds.send(k, r, r ^ d).blocks(r & ~(d - 1), d);
  return rounds.take();
}

// All-reduce by recursive doubling on 2^k ranks: the whole vector at distances 1 .. n/2.
constexpr hd::round_table doubling(int n) {
  hd::round_builder rounds(hd::comm_operation::all_reduce, n, 0, 1, 1);
  int k = 0;
  for (int d = 1; d < n; d *= 2, ++k)
    for (int r = 0; r < n; ++r)
      rounds.send(k, r, r ^ d, r < (r ^ d) ? hd::arrival::fold_before : hd::arrival::fold_after).block(0);
  return rounds.take();
}

// All-gather round the ring, and the all-reduce that begins with a reduce-scatter.
constexpr hd::round_table ring(int n, bool reduce) {
  hd::round_builder rounds(reduce ? hd::comm_operation::all_reduce : hd::comm_operation::all_gather, n, 0, n, 1);
  int k = 0;
  if (reduce)
    for (; k < n - 1; ++k)
      for (int r = 0; r < n; ++r) rounds.send(k, r, (r + 1) % n, hd::arrival::fold_before).block((r - k - 1 + n) % n);
  for (int i = 0; i < n - 1; ++i)
    for (int r = 0; r < n; ++r) rounds.send(k + i, r, (r + 1) % n).block((r - i + n) % n);
  return rounds.take();
}

// All-to-all by shifts: in round k rank r sends to r + k + 1. With `at_once` everything is in one round.
constexpr hd::round_table shifts(int n, bool at_once = false) {
  hd::round_builder rounds(hd::comm_operation::all_to_all, n, 0, n * n, 1);
  for (int k = 1; k < n; ++k)
    for (int r = 0; r < n; ++r) rounds.send(at_once ? 0 : k - 1, r, (r + k) % n).block(r * n + (r + k) % n);
  return rounds.take();
}

// One round in which each rank sends its block to the rank `distance` further on and to the one as far back.
constexpr hd::round_table exchange(int n, int distance) {
  hd::round_builder rounds(hd::comm_operation::all_gather, n, 0, n, 1);
  for (int r = 0; r < n; ++r) {
    rounds.send(0, r, (r + distance) % n).block(r);
    if (2 * distance != n) rounds.send(0, r, (r - distance + n) % n).block(r);
  }
  return rounds.take();
}

}  // namespace plain_rounds
