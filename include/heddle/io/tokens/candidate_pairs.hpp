// heddle/io/tokens/candidate_pairs.hpp: pairs of documents with a key alike, over all ranks.
#pragma once

#include <heddle/collective/sparse_exchange.hpp>
#include <heddle/comm/communicator.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace heddle::inline v0::io {

/// A key of a document, such as one of `minhash::keys`.
struct document_key {
  std::uint64_t key = 0;
  std::int64_t document = 0;
  friend auto operator<=>(const document_key&, const document_key&) = default;
};
/// Two documents, the earlier one first.
struct document_pair {
  std::int64_t kept = 0, other = 0;
  friend auto operator<=>(const document_pair&, const document_pair&) = default;
};

/// Of all documents with a key in common, the first with each other one; each pair once, in order, all of them on
/// every rank. Ranks call it together, each with the keys of some documents: who has which does not matter. A key is
/// grouped on the rank that it is a remainder of.
/// Errors: those of `sparse_exchange`.
template <communicator C>
std::vector<document_pair> candidate_pairs(C& comm, std::span<const document_key> mine) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::vector<document_key>> parts(ranks);
  for (const document_key& k : mine) parts[static_cast<std::size_t>(k.key % ranks)].push_back(k);
  std::vector<block_to<document_key>> out;
  for (std::size_t r = 0; r < ranks; ++r) out.push_back({static_cast<int>(r), parts[r]});
  std::vector<document_key> keys = sparse_exchange(comm, out).elements;
  std::sort(keys.begin(), keys.end());
  std::vector<document_pair> pairs;
  for (std::size_t i = 1, first = 0; i < keys.size(); ++i) {
    if (keys[i].key != keys[first].key) first = i;
    if (keys[i].document != keys[first].document) pairs.push_back({keys[first].document, keys[i].document});
  }
  std::vector<block_to<document_pair>> to_all;
  for (std::size_t r = 0; r < ranks; ++r) to_all.push_back({static_cast<int>(r), pairs});
  std::vector<document_pair> all = sparse_exchange(comm, to_all).elements;
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

/// Which of so many documents go, when of those that pairs join, in a chain too, only the first stays.
inline std::vector<bool> later_of_pairs(std::span<const document_pair> pairs, std::int64_t documents) {
  std::vector<std::int64_t> first(static_cast<std::size_t>(documents));
  std::iota(first.begin(), first.end(), std::int64_t{0});
  const auto first_of = [&](std::int64_t d) {
    while (first[static_cast<std::size_t>(d)] != d)
      d = first[static_cast<std::size_t>(d)] = first[static_cast<std::size_t>(first[static_cast<std::size_t>(d)])];
    return d;
  };
  for (const document_pair& p : pairs) {
    const std::int64_t a = first_of(p.kept), b = first_of(p.other);
    first[static_cast<std::size_t>((std::max)(a, b))] = (std::min)(a, b);
  }
  std::vector<bool> goes(first.size());
  for (std::size_t d = 0; d < first.size(); ++d)
    goes[d] = first_of(static_cast<std::int64_t>(d)) != static_cast<std::int64_t>(d);
  return goes;
}

}  // namespace heddle::inline v0::io
