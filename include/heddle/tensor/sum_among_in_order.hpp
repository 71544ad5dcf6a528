// heddle/tensor/sum_among_in_order.hpp: a sum over a few ranks, in queue order.
#pragma once

#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline v0 {

/// `sum_among` of rows in the order of `queue`, with the same bits: x_0 + x_1 + .., added in the order of `ranks`. Each pair of ranks exchanges its
/// shares in turn, the lower place first, in one order of pairs for all: nothing waits for ever where a send waits for its receive.
/// Shapes: `scratch` any multiple of ranks - 1 elements, at least that many. Bytes sent per rank: (ranks - 1) n s. `add(a, b, to)` adds two rows.
/// All of it has been queued when this returns.
template <class Queue, class Communicator, class Row, class Add>
void sum_among(Queue& queue, Communicator& group, std::span<const int> ranks, Row mine, Row scratch, int tag,
               Add&& add) {
  using space = space_of<Row>;
  const auto others = static_cast<std::int64_t>(ranks.size()) - 1;
  if (others < 1) return;
  const auto here = std::find(ranks.begin(), ranks.end(), group.rank()) - ranks.begin();
  const std::int64_t elements = mine.size(), room = scratch.size() / others;
  for (std::int64_t begin = 0; begin < elements; begin += room) {
    const std::int64_t n = (std::min)(elements - begin, room);
    const Row part = row_at<space>(mine.address() + begin, n);
    // The share of the rank at this place, which is not this one.
    const auto share = [&](std::int64_t at) {
      return row_at<space>(scratch.address() + (at < here ? at : at - 1) * n, n);
    };
    for (std::int64_t at = 0; at <= others; ++at) {
      const int peer = ranks[static_cast<std::size_t>(at)];
      if (at < here) recv(queue, group, share(at), peer, tag);
      if (at != here) send(queue, group, part, peer, tag);
      if (at > here) recv(queue, group, share(at), peer, tag);
    }
    if (here == 0) {
      for (std::int64_t at = 1; at <= others; ++at) add(part, share(at), part);
    } else {  // into the first one's share
      const Row sum = share(0);
      for (std::int64_t at = 1; at <= others; ++at) add(sum, at == here ? part : share(at), sum);
      queue.copy(sum, part);
    }
  }
}

}  // namespace heddle::inline v0
