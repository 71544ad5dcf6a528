// heddle/collective/round_cost.hpp: costs of rounds: messages, bytes, seconds (Hockney's model).
#pragma once

#include <heddle/collective/rounds.hpp>
#include <heddle/core/split.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace heddle::inline v0 {

/// Where an item lies in the vector its collective cuts: the vector is cut evenly into blocks, each block into parts,
/// larger ones first. Units: elements.
struct item_extent {
  std::int64_t offset = 0;
  std::int64_t size = 0;
  friend constexpr bool operator==(const item_extent&, const item_extent&) = default;
};

/// The extent of an item if the vector has `elements` elements. The vector is the whole one (all_reduce, reduce,
/// broadcast, scans), that of all ranks' blocks one after the other (reduce_scatter, all_gather, gather, scatter), or
/// what one rank sends to all ranks (all_to_all: block s * ranks + d is piece d of the vector of rank s). A table with sizes
/// of its own has its blocks one after the other, and `elements` means nothing.
constexpr item_extent extent_of(round_view view, int item, std::int64_t elements) noexcept {
  if (const auto sizes = view.sizes(); !sizes.empty()) {
    const auto block = static_cast<std::size_t>(item / view.parts());
    const balanced_split parts{sizes[block], view.parts()};
    std::int64_t before = 0;
    for (std::size_t b = 0; b < block; ++b) before += sizes[b];
    return {before + parts.offset(item % view.parts()), parts.size(item % view.parts())};
  }
  const bool to_each = view.what() == comm_operation::all_to_all || view.what() == comm_operation::all_to_all_v;
  const int block = to_each ? item / view.parts() % view.ranks() : item / view.parts();
  const balanced_split blocks{elements, to_each ? view.ranks() : view.blocks()};
  const balanced_split parts{blocks.size(block), view.parts()};
  return {blocks.offset(block) + parts.offset(item % view.parts()), parts.size(item % view.parts())};
}

/// The elements a message carries.
constexpr std::int64_t elements_of(round_view view, const round_transfer& t, std::int64_t elements) noexcept {
  std::int64_t n = 0;
  const auto sizes = view.sizes();
  for (const int item : view.items_of(t))
    n += sizes.empty() ? extent_of(view, item, elements).size
                       : balanced_split{sizes[static_cast<std::size_t>(item / view.parts())], view.parts()}.size(
                             item % view.parts());
  return n;
}

/// The messages a rank sends, in all rounds.
constexpr int messages_sent(round_view view, int rank) noexcept {
  int n = 0;
  for (const round_transfer& t : view.transfers()) n += t.from == rank;
  return n;
}

/// The items a rank sends, in all rounds.
constexpr int items_sent(round_view view, int rank) noexcept {
  int n = 0;
  for (const round_transfer& t : view.transfers())
    if (t.from == rank) n += t.items;
  return n;
}

/// The bytes a rank sends, in all rounds, for a vector of `elements` (see `extent_of`).
constexpr std::int64_t bytes_sent(round_view view, int rank, std::int64_t elements,
                                  std::int64_t element_bytes) noexcept {
  std::int64_t n = 0;
  for (const round_transfer& t : view.transfers())
    if (t.from == rank) n += elements_of(view, t, elements);
  return n * element_bytes;
}

/// The bytes all ranks send together.
constexpr std::int64_t total_bytes(round_view view, std::int64_t elements, std::int64_t element_bytes) noexcept {
  std::int64_t n = 0;
  for (const round_transfer& t : view.transfers()) n += elements_of(view, t, elements);
  return n * element_bytes;
}

/// What the busiest rank of a round does: the most messages and the most bytes that one rank sends, and the longest
/// message.
struct round_maxima {
  int messages = 0;
  std::int64_t bytes = 0;
  std::int64_t message_bytes = 0;
  friend constexpr bool operator==(const round_maxima&, const round_maxima&) = default;
};

/// The most messages and bytes that one rank sends in a round, and the longest message, each over all ranks.
constexpr round_maxima busiest_sender(round_view view, int round, std::int64_t elements, std::int64_t element_bytes) {
  std::vector<round_maxima> by_rank(static_cast<std::size_t>(view.ranks()));
  round_maxima most;
  for (const round_transfer& t : view.round(round)) {
    round_maxima& own = by_rank[static_cast<std::size_t>(t.from)];
    const std::int64_t bytes = elements_of(view, t, elements) * element_bytes;
    own.messages += 1;
    own.bytes += bytes;
    most.messages = (std::max)(most.messages, own.messages);
    most.bytes = (std::max)(most.bytes, own.bytes);
    most.message_bytes = (std::max)(most.message_bytes, bytes);
  }
  return most;
}

/// Hockney's model of a network: a message of n bytes takes `alpha + beta n` seconds, folding n bytes `gamma n`. A rank
/// sends over `ports` ports at once and receives over as many, at full speed each.
/// Source: Hockney 1994, Parallel Computing 20(3); Thakur, Rabenseifner, Gropp 2005.
struct hockney {
  double alpha = 0;  ///< seconds per message
  double beta = 0;   ///< seconds per byte
  double gamma = 0;  ///< seconds per folded byte
  int ports = 1;
};

/// The seconds a collective takes for a vector of `elements` (see `extent_of`), until the last rank is done.
///
/// In a round a rank's messages leave in the order of the table, dealt to its ports by turns, and come in by turns over
/// as many; a message that finds the receiver's port busy waits there and holds up nobody else. A rank begins its next
/// round when all has left, all has come, and what has come is folded: it can be ahead of others. The network between
/// the ports is never the bottleneck; for one that is, put the table on a topology.
constexpr double seconds(round_view view, const hockney& net, std::int64_t elements, std::int64_t element_bytes) {
  const auto ranks = static_cast<std::size_t>(view.ranks());
  const auto ports = static_cast<std::size_t>((std::max)(net.ports, 1));
  struct rank_state {
    double begin = 0;  // of the round
    double end = 0;    // of what it sent and received in the round
    double folding = 0;
    std::size_t sent = 0, received = 0;
  };
  std::vector<rank_state> state(ranks);
  std::vector<double> out(ranks * ports, 0), in(ranks * ports, 0);  // until when each port is busy
  const auto transfers = view.transfers();
  for (std::size_t i = 0; i < transfers.size();) {
    for (const int round = transfers[i].round; i < transfers.size() && transfers[i].round == round; ++i) {
      const round_transfer& t = transfers[i];
      const auto from = static_cast<std::size_t>(t.from), to = static_cast<std::size_t>(t.to);
      rank_state &sender = state[from], &receiver = state[to];
      const double bytes = static_cast<double>(elements_of(view, t, elements) * element_bytes);
      const double takes = net.alpha + net.beta * bytes;
      double& leaves = out[from * ports + sender.sent++ % ports];
      double& comes = in[to * ports + receiver.received++ % ports];
      comes = (std::max)(comes, leaves) + takes;
      leaves += takes;
      sender.end = (std::max)(sender.end, leaves);
      receiver.end = (std::max)(receiver.end, comes);
      if (t.how != arrival::store) receiver.folding += net.gamma * bytes;
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      rank_state& own = state[r];
      if (own.sent + own.received == 0) continue;
      own = {own.end + own.folding, 0, 0, 0, 0};
      for (std::size_t k = 0; k < ports; ++k) out[r * ports + k] = in[r * ports + k] = own.begin;
    }
  }
  double last = 0;
  for (const rank_state& own : state) last = (std::max)(last, own.begin);
  return last;
}

}  // namespace heddle::inline v0
