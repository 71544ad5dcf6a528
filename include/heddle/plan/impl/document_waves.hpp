// heddle/plan/impl/document_waves.hpp: bodies of heddle/plan/document_waves.hpp.
#pragma once

#include <heddle/plan/document_waves.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace heddle::inline v0::plan {

namespace detail {

HEDDLE_INLINE std::vector<std::int64_t> longest_first(std::span<const std::int64_t> lengths) {
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] > 0) order.push_back(static_cast<std::int64_t>(i));
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const std::int64_t of_a = lengths[static_cast<std::size_t>(a)], of_b = lengths[static_cast<std::size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  return order;
}

}  // namespace detail

HEDDLE_INLINE void require_documents(std::span<const std::int64_t> lengths, int ranks, std::int64_t tokens_per_rank) {
  if (ranks < 1) throw config_error("heddle: documents need at least 1 rank, got " + std::to_string(ranks));
  if (tokens_per_rank < 1)
    throw config_error("heddle: a rank needs room for at least 1 token, got " + std::to_string(tokens_per_rank));
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0)
      throw config_error("heddle: document " + std::to_string(i) + " has " + std::to_string(lengths[i]) +
                         " tokens; expected at least 0");
    if (tokens_of_share(lengths[i], ranks) > tokens_per_rank)
      throw config_error("heddle: document " + std::to_string(i) + " has " + std::to_string(lengths[i]) + " tokens; " +
                         std::to_string(ranks) + " ranks with room for " + std::to_string(tokens_per_rank) +
                         " tokens each hold at most " + std::to_string(ranks * tokens_per_rank));
  }
}

HEDDLE_INLINE void require_waves(std::span<const document_wave> waves, std::span<const std::int64_t> lengths, int ranks,
                                 std::int64_t tokens_per_rank) {
  const auto refuse = [](std::size_t wave, std::int64_t document, const std::string& what) {
    throw config_error("heddle: wave " + std::to_string(wave) + " of a plan, document " + std::to_string(document) +
                       ": " + what);
  };
  std::vector<int> placed(lengths.size(), 0);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(ranks));
  for (std::size_t w = 0; w < waves.size(); ++w) {
    std::fill(tokens.begin(), tokens.end(), 0);
    for (const placed_document& d : waves[w].documents) {
      if (d.document < 0 || d.document >= std::ssize(lengths))
        refuse(w, d.document, "there are " + std::to_string(lengths.size()) + " documents");
      if (++placed[static_cast<std::size_t>(d.document)] > 1) refuse(w, d.document, "it is placed twice");
      if (d.ranks.empty()) refuse(w, d.document, "it has no ranks");
      const std::int64_t share =
          tokens_of_share(lengths[static_cast<std::size_t>(d.document)], static_cast<std::int64_t>(d.ranks.size()));
      for (std::size_t i = 0; i < d.ranks.size(); ++i) {
        const int r = d.ranks[i];
        if (r < 0 || r >= ranks)
          refuse(w, d.document, "rank " + std::to_string(r) + " is not among the " + std::to_string(ranks));
        if (std::find(d.ranks.begin(), d.ranks.begin() + static_cast<std::ptrdiff_t>(i), r) !=
            d.ranks.begin() + static_cast<std::ptrdiff_t>(i))
          refuse(w, d.document, "rank " + std::to_string(r) + " is named twice");
        if ((tokens[static_cast<std::size_t>(r)] += share) > tokens_per_rank)
          refuse(w, d.document,
                 "rank " + std::to_string(r) + " has " + std::to_string(tokens[static_cast<std::size_t>(r)]) +
                     " tokens, and room for " + std::to_string(tokens_per_rank));
      }
    }
  }
  for (std::size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] > 0 && placed[i] == 0)
      throw config_error("heddle: a plan leaves out document " + std::to_string(i) + " of " +
                         std::to_string(lengths[i]) + " tokens");
}

HEDDLE_INLINE std::vector<document_wave> whole_axis(std::span<const std::int64_t> lengths, int ranks,
                                                    std::int64_t tokens_per_rank) {
  require_documents(lengths, ranks, tokens_per_rank);
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  std::vector<document_wave> waves;
  std::int64_t tokens = tokens_per_rank;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] == 0) continue;
    const std::int64_t share = tokens_of_share(lengths[i], ranks);
    if (waves.empty() || tokens + share > tokens_per_rank) {
      waves.emplace_back();
      tokens = 0;
    }
    tokens += share;
    waves.back().documents.push_back({static_cast<std::int64_t>(i), all});
  }
  return waves;
}

}  // namespace heddle::inline v0::plan
