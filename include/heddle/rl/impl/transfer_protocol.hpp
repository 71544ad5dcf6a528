// heddle/rl/impl/transfer_protocol.hpp: bodies of heddle/rl/transfer_protocol.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/rl/transfer_protocol.hpp>

#include <algorithm>
#include <string>

namespace heddle::inline v0::rl {

HEDDLE_INLINE row_share transfer::share(int rank, std::size_t rows) const {
  const auto chunks = static_cast<std::size_t>(chunks_);
  if (rows == 0 || (!padded_ && rows != chunks))
    throw config_error("heddle: a batch for " + std::to_string(chunks) + " chunks has " +
                       (padded_ ? "at least one row" : "as many rows") + ", got " + std::to_string(rows));
  const std::size_t count = (rows + chunks - 1) / chunks, first = static_cast<std::size_t>(chunk_of(rank)) * count;
  return {first, count, first < rows ? (std::min)(count, rows - first) : 0};
}

HEDDLE_INLINE void transfer::require_ranks(std::size_t results) const {
  if (results != chunk_of_rank_.size())
    throw config_error("heddle: a mesh of " + std::to_string(ranks()) + " ranks has as many results, got " +
                       std::to_string(results));
}

HEDDLE_INLINE void transfer::require_results(int rank, std::size_t expected, std::size_t got) const {
  if (expected != got)
    throw config_error("heddle: rank " + std::to_string(rank) + " got " + std::to_string(expected) + " rows and has " +
                       std::to_string(got) + " results");
}

HEDDLE_INLINE std::vector<row_move> row_moves(const transfer& from, const transfer& to, std::size_t rows) {
  std::vector<int> owner(rows, -1);
  for (const int rank : from.collected()) {
    const row_share s = from.share(rank, rows);
    for (std::size_t row = s.first; row < s.first + s.real; ++row) {
      if (owner[row] >= 0)
        throw config_error("heddle: rows to move are the results of one rank each, but both ranks " +
                           std::to_string(owner[row]) + " and " + std::to_string(rank) + " have row " +
                           std::to_string(row));
      owner[row] = rank;
    }
  }
  for (std::size_t row = 0; row < rows; ++row)
    if (owner[row] < 0) throw config_error("heddle: no rank that is collected has row " + std::to_string(row));
  std::vector<row_move> all;
  for (int rank = 0; rank < to.ranks(); ++rank) {
    const row_share s = to.share(rank, rows);
    for (std::size_t i = 0; i < s.count; ++i) {
      const std::size_t row = (s.first + i) % rows;
      const bool goes_on = i > 0 && all.back().from == owner[row] && all.back().first + all.back().count == row;
      if (goes_on)
        ++all.back().count;
      else
        all.push_back({owner[row], rank, row, i, 1});
    }
  }
  return all;
}

}  // namespace heddle::inline v0::rl
