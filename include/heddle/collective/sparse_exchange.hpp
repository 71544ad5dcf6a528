// heddle/collective/sparse_exchange.hpp: exchange with few ranks that are not known beforehand.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/comm/wait_all.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {

/// The tag of the messages of sparse exchanges. One's own messages take another one.
inline constexpr int sparse_tag = 31'754;

/// A block of elements for rank `to`.
template <class T>
struct block_to {
  int to = 0;
  std::span<const T> elements;
};

/// The blocks that came, ordered by the ranks they come from; those of one rank in the order in which it gave them.
template <class T>
struct blocks_from {
  struct block {
    int from = 0;             ///< the rank
    std::int64_t offset = 0;  ///< of its first element in `elements`
    std::int64_t count = 0;
  };
  std::vector<T> elements;  ///< of all blocks, one after the other
  std::vector<block> blocks;

  std::size_t size() const noexcept { return blocks.size(); }
  /// The rank that block i comes from.
  int from(std::size_t i) const noexcept { return blocks[i].from; }
  /// The elements of block i.
  std::span<const T> operator[](std::size_t i) const noexcept {
    return std::span<const T>(elements).subspan(static_cast<std::size_t>(blocks[i].offset),
                                                static_cast<std::size_t>(blocks[i].count));
  }
};

namespace detail {

// Says that `count` elements go from one rank to another.
struct block_notice {
  int from = 0;
  int to = 0;
  std::int64_t count = 0;
};

// Results come in a vector of elements.
template <class T>
consteval bool can_be_stored() {
  constexpr bool ok = !std::is_same_v<T, bool> && std::is_default_constructible_v<T>;
  static_assert(ok,
                "heddle: what comes is stored in a std::vector<T>: T needs a default constructor, and bool is no "
                "element of such; send char instead");
  return ok;
}

// Sends `out` ahead while `in` arrives; empty ones are no messages.
template <class C, class T>
void pass_on(C& comm, const std::vector<T>& out, int to, std::vector<T>& in, int from) {
  const std::span<const T> x(out);
  const std::span<T> y(in);
  if (in.empty()) {
    if (!out.empty()) comm.send(x, to, sparse_tag);
    return;
  }
  auto arriving = comm.irecv(y, from, sparse_tag);
  if (!out.empty()) comm.send(x, to, sparse_tag);
  arriving.wait();
}

// Brings every notice to the rank it is for: in the round of 2^s all those 2^s ranks ahead whose way has that bit left.
// Returns this rank's, by the ranks they come from.
template <class C>
std::vector<block_notice> spread_notices(C& comm, std::vector<block_notice> held) {
  const int p = comm.size(), r = comm.rank();
  std::vector<block_notice> leaving, arriving;
  std::vector<std::int64_t> going(1), coming(1);
  for (int step = 1; step < p; step *= 2) {
    leaving.clear();
    std::size_t staying = 0;
    for (const block_notice& n : held)
      if ((((n.to - r + p) % p) & step) == 0)
        held[staying++] = n;
      else
        leaving.push_back(n);
    held.resize(staying);
    const int to = (r + step) % p, from = (r - step + p) % p;
    going[0] = static_cast<std::int64_t>(leaving.size());
    pass_on(comm, going, to, coming, from);
    arriving.resize(static_cast<std::size_t>(coming[0]));
    pass_on(comm, leaving, to, arriving, from);
    held.insert(held.end(), arriving.begin(), arriving.end());
  }
  // By rank; a rank's notices came one way, in their order.
  std::vector<std::size_t> order(held.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return held[a].from != held[b].from ? held[a].from < held[b].from : a < b;
  });
  std::vector<block_notice> sorted;
  sorted.reserve(held.size());
  for (const std::size_t i : order) sorted.push_back(held[i]);
  return sorted;
}

}  // namespace detail

/// Sends blocks to the ranks they are for and returns those that are for this one. All ranks of the group call it, each
/// with the blocks it has: none, several for one rank, some for itself, empty ones. For data whose receivers cannot
/// know who sends: particles that leave a domain, updates of a graph, tokens for experts.
///
///     std::vector<hd::block_to<float>> out{{3, left}, {7, right}};
///     const auto in = hd::sparse_exchange(comm, out);
///     for (std::size_t i = 0; i < in.size(); ++i) use(in.from(i), in[i]);
///
/// A rank sends at most 2 log2 p (rounded up) messages of notices, and one per block that is neither empty nor its own;
/// nothing is as long as there are ranks, as the counts of an all_to_all_v are. First the notices (from, to, count) are
/// passed on, 1, 2, 4, ... ranks ahead, as the blocks of Bruck's all_to_all are; then every rank knows what will come,
/// and the blocks go straight. The usual protocol (NBX) learns of messages by probing while a barrier goes on; that
/// takes receives from any rank, sends that report their arrival and a barrier that is only started, none of which
/// communicators have. Buffers are host memory.
///
/// Errors: `comm_error` for a block for a rank that does not exist, before anything is sent; otherwise as the
/// communicator's isend and irecv.
/// Source: Hoefler, Siebert, Lumsdaine 2010 (the problem, and NBX); Bruck et al. 1997 (the ways of the notices).
template <communicator C, detail::spannable Blocks>
auto sparse_exchange(C& comm, Blocks&& blocks) {
  using T = std::remove_cv_t<typename decltype(detail::comm_element<Blocks>::elements)::element_type>;
  blocks_from<T> came;
  if constexpr (detail::can_travel<T>() && detail::can_be_stored<T>()) {
    const std::span<const block_to<T>> out = std::span(blocks);
    const int p = comm.size(), r = comm.rank();
    std::vector<detail::block_notice> notices;
    notices.reserve(out.size());
    for (const block_to<T>& block : out) {
      if (block.to < 0 || block.to >= p) {
        throw comm_error(text_of({"heddle: sparse_exchange: rank ", r, " has a block for rank ", block.to,
                                  ", which is not one of ", p, " ranks"}));
      }
      notices.push_back({r, block.to, static_cast<std::int64_t>(block.elements.size())});
    }
    notices = detail::spread_notices(comm, static_cast<std::vector<detail::block_notice>&&>(notices));
    std::int64_t offset = 0;
    for (const detail::block_notice& n : notices) {
      came.blocks.push_back({n.from, offset, n.count});
      offset += n.count;
    }
    came.elements.resize(static_cast<std::size_t>(offset));
    const auto place = [&](std::size_t i) {
      return std::span<T>(came.elements)
          .subspan(static_cast<std::size_t>(came.blocks[i].offset), static_cast<std::size_t>(came.blocks[i].count));
    };

    std::vector<typename C::request> messages;
    messages.reserve(came.size() + out.size());
    std::size_t own = 0;  // the next of the blocks that stay here
    while (own < came.size() && came.from(own) != r) ++own;
    for (std::size_t i = 0; i < came.size(); ++i)
      if (const std::span<T> x = place(i); came.from(i) != r && !x.empty())
        messages.push_back(comm.irecv(x, came.from(i), sparse_tag));
    for (const block_to<T>& block : out) {
      if (block.to == r) {
        const std::span<T> x = place(own++);
        if (!x.empty()) std::memcpy(static_cast<void*>(x.data()), block.elements.data(), x.size_bytes());
      } else if (!block.elements.empty()) {
        messages.push_back(comm.isend(block.elements, block.to, sparse_tag));
      }
    }
    wait_all(messages);
  }
  return came;
}

}  // namespace heddle::inline v0
