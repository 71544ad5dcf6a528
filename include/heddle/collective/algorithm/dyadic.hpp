// heddle/collective/algorithm/dyadic.hpp: reduce and all_reduce that fold in one fixed tree.
#pragma once

#include <heddle/collective/algorithm/binomial.hpp>
#include <heddle/collective/algorithm/offers.hpp>
#include <heddle/collective/rounds.hpp>

#include <bit>
#include <cstddef>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {
namespace algo {

/// Folds the ranks' contributions as the aligned binary tree over the ranks: groups of 2^s ranks that begin at
/// multiples of 2^s, always in the same order, on all ranks the same bits. For operators that are not associative
/// (rounded sums that must be reproducible included) and for short vectors. reduce takes log2 p rounds, all_reduce too
/// where p is a power of two. Else the largest group doubles while the others fold towards it; some ranks learn the
/// result by exchange, the others from these: at most 2 log2 p rounds, like a reduce and a broadcast.
struct dyadic : detail::folds_on_any_ranks<fold_order::dyadic, comm_operation::all_reduce, comm_operation::reduce> {
  static constexpr std::string_view name = "dyadic";

  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    round_builder rounds(What, ranks, root, 1, 1);
    if constexpr (What == comm_operation::reduce)
      detail::aligned_reduce(rounds, 0);
    else
      all_reduce(rounds);
    return rounds.take();
  }

 private:
  static constexpr void swap(round_builder& rounds, int round, int left, int right) {
    rounds.send(round, left, right, arrival::fold_before).block(0);
    rounds.send(round, right, left, arrival::fold_after).block(0);
  }

  static constexpr void all_reduce(round_builder& rounds) {
    const int p = rounds.ranks();
    // The groups of p's binary digits: inside each, recursive doubling.
    int begin = 0, round = 0;
    std::vector<int> begins, sizes;
    for (int size = static_cast<int>(std::bit_floor(static_cast<unsigned>(p))); size > 0; size /= 2)
      if ((p & size) != 0) {
        for (int s = 0; (1 << s) < size; ++s)
          for (int r = begin; r < begin + size; ++r)
            if ((r & (1 << s)) == 0) swap(rounds, s, r, r | (1 << s));
        begins.push_back(begin);
        sizes.push_back(size);
        begin += size;
      }
    // From the smallest group up, each with what lies to its right: `known` ranks have that.
    std::vector<int> known;
    for (int r = begins.back(); r < p; ++r) known.push_back(r);
    round = detail::tree_rounds(sizes.back());
    for (std::size_t g = begins.size() - 1; g-- > 0;) {
      const int ready = detail::tree_rounds(sizes[g]);
      if (round < ready) round = ready;
      const std::size_t pairs = known.size();
      for (std::size_t i = 0; i < pairs; ++i) {
        const int left = begins[g] + static_cast<int>(i);
        swap(rounds, round, left, known[i]);
        known.push_back(left);
      }
      ++round;
    }
    // The others.
    std::vector<int> done(static_cast<std::size_t>(p), 0);
    for (const int r : known) done[static_cast<std::size_t>(r)] = 1;
    std::size_t senders = known.size(), next = 0;
    for (int r = 0; r < p; ++r) {
      if (done[static_cast<std::size_t>(r)] != 0) continue;
      if (next == senders) {
        next = 0;
        senders = known.size();
        ++round;
      }
      rounds.send(round, known[next++], r).block(0);
      known.push_back(r);
    }
  }
};

}  // namespace algo
}  // namespace heddle::inline v0
