// heddle/tensor/sum_among.hpp: the sum of a tensor over a few ranks, the same bits on each.
#pragma once

#include <heddle/core/config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace heddle::inline v0 {

/// Adds up `mine` over `ranks` of `group`, this rank among them: afterwards each has x_0 + x_1 + .., added in the order
/// of `ranks`. The other ranks of the group take no part. Everyone sends to everyone, so it is for the few that hold
/// copies of one tensor: tied embeddings, replicas of a pipeline.
/// Shapes: `scratch` any multiple of ranks - 1 elements, at least that many; the tensor goes through it piece by piece.
/// Bytes sent per rank: (ranks - 1) n s. `add(a, b, to)` adds two spans. `tag` is that of the messages.
template <class T, class Communicator, class Add>
void sum_among(Communicator& group, std::span<const int> ranks, std::span<T> mine, std::span<T> scratch, int tag,
               Add&& add) {
  const std::size_t others = ranks.empty() ? 0 : ranks.size() - 1;
  if (others == 0) return;
  using request = decltype(group.isend(std::span<const T>(mine), 0, tag));
  std::vector<request> sent;
  sent.reserve(others);
  const std::size_t room = scratch.size() / others;
  while (!mine.empty()) {
    const std::size_t n = (std::min)(mine.size(), room);
    const std::span<T> part = mine.first(n);
    sent.clear();
    for (const int r : ranks)
      if (r != group.rank()) sent.push_back(group.isend(std::span<const T>(part), r, tag));
    std::size_t at = 0;
    for (const int r : ranks)
      if (r != group.rank()) group.recv(scratch.subspan(at++ * n, n), r, tag);
    for (request& s : sent) s.wait();
    at = 0;
    if (ranks[0] == group.rank()) {
      for (; at < others; ++at) add(part, scratch.subspan(at * n, n), part);
    } else {  // in the order of the ranks, into the first one's share
      const std::span<T> sum = scratch.first(n);
      for (const int r : ranks.subspan(1)) add(sum, r == group.rank() ? part : scratch.subspan(++at * n, n), sum);
      std::copy(sum.begin(), sum.end(), part.begin());
    }
    mine = mine.subspan(n);
  }
}

}  // namespace heddle::inline v0
