// heddle/infer/elastic_blocks.hpp: moves of cache blocks when instances merge or split.
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::infer {

/// Instances on `ranks` ranks, of which each has `blocks` blocks of all heads as an instance of its own. Instance i of degree d is ranks [i d, (i + 1) d); it has blocks * d blocks of
/// 1 / d of the heads on each rank. A block of all heads is, byte for byte, d that follow one another of a d-th of the heads where they lie by_head. `most_degree`: of those that occur,
/// each of which divides the next.
struct elastic_extent {
  int ranks = 1;
  int most_degree = 1;
  std::int64_t blocks = 0;
};

/// The blocks of one request in its instance, in the order of its text; `most_blocks`: as many as it may come to have.
struct elastic_blocks {
  int instance = 0;
  std::int64_t most_blocks = 0;
  std::vector<std::int32_t> blocks{};
  friend bool operator==(const elastic_blocks&, const elastic_blocks&) = default;
};

/// The heads of a block that belong to one rank at the largest degree go elsewhere. Units of `from` and `to`: such runs of heads, in each tensor of each layer from its beginning.
struct unit_move {
  int from_rank = 0, to_rank = 0;
  std::int64_t from = 0, to = 0;
  friend bool operator==(const unit_move&, const unit_move&) = default;
};

/// Where requests are after a change of degree, in the order in which they were given, and what moves; what stays is not listed.
struct elastic_placement {
  std::vector<elastic_blocks> requests{};
  std::vector<unit_move> moves{};
};

/// Places requests of instances of degree `from` in instances of degree `to`. Where instances merge, the number of an instance among those that merge becomes part of the number of each
/// of its blocks: those of degree 1 are block * to + instance, and the heads that stay on their rank stay in place. Where one splits, a request goes whole to the part with room from which most
/// of its blocks came, else to that with the fewest blocks in prospect; blocks that came from there get the place that they had.
/// Errors: `config_error` for a request that no part has room for, with its blocks and those of a part.
/// Source: Gyges, arXiv:2509.19729 (blocks in the order of heads, moved without compaction); ids and order are a reconstruction.
inline elastic_placement place_elastic(const elastic_extent& e, int from, int to,
                                       std::span<const elastic_blocks> requests) {
  elastic_placement placed;
  const std::int64_t room = e.blocks * to;
  const auto ways = static_cast<std::size_t>(e.ranks / to);
  const std::int64_t m = to > from ? to / from : from / to;
  std::vector<std::int64_t> left(ways, room), load(ways);
  for (const elastic_blocks& r : requests) {
    elastic_blocks& p = placed.requests.emplace_back(r);
    const auto needed = static_cast<std::int64_t>(r.blocks.size());
    if (to >= from) {
      p.instance = static_cast<int>(r.instance / m);
      for (std::int32_t& b : p.blocks) b = static_cast<std::int32_t>(b / from * to + r.instance % m * from + b % from);
      continue;
    }
    std::vector<std::int64_t> stay(static_cast<std::size_t>(m));
    for (const std::int32_t b : r.blocks) ++stay[static_cast<std::size_t>(b % from / to)];
    int best = -1;
    for (int s = 0; s < m; ++s) {
      const auto at = static_cast<std::size_t>(r.instance * m + s);
      const auto better = [&](int than) {
        const auto other = static_cast<std::size_t>(r.instance * m + than);
        return std::pair(stay[static_cast<std::size_t>(s)], load[other]) >
               std::pair(stay[static_cast<std::size_t>(than)], load[at]);
      };
      if (r.most_blocks <= room && needed <= left[at] && (best < 0 || better(best))) best = s;
    }
    if (best < 0)
      throw config_error("heddle: elastic: a request of " + std::to_string(needed) +
                         " blocks, which may come to have " + std::to_string(r.most_blocks) +
                         ", finds no room in an instance of degree " + std::to_string(to) + ", which has " +
                         std::to_string(room));
    p.instance = static_cast<int>(r.instance * m + best);
    left[static_cast<std::size_t>(p.instance)] -= needed;
    load[static_cast<std::size_t>(p.instance)] += r.most_blocks;
  }
  if (to < from) {  // blocks that stay first, then what is free
    std::vector<std::vector<char>> taken(ways, std::vector<char>(static_cast<std::size_t>(room)));
    std::vector<std::size_t> next(ways);
    for (const bool stays : {true, false})
      for (std::size_t i = 0; i < requests.size(); ++i) {
        elastic_blocks& p = placed.requests[i];
        const auto at = static_cast<std::size_t>(p.instance);
        for (std::size_t k = 0; k < p.blocks.size(); ++k) {
          const std::int32_t b = requests[i].blocks[k];
          if ((b % from / to == p.instance % m) != stays) continue;
          if (!stays)
            while (taken[at][next[at]] != 0) ++next[at];
          p.blocks[k] = stays ? static_cast<std::int32_t>(b / from * to + b % to) : static_cast<std::int32_t>(next[at]);
          taken[at][static_cast<std::size_t>(p.blocks[k])] = 1;
        }
      }
  }
  const auto place = [&](int degree, int instance, std::int64_t block, int heads) {
    const int units = e.most_degree / degree;
    return std::pair(instance * degree + heads / units, block * units + heads % units);
  };
  for (std::size_t i = 0; i < requests.size(); ++i)
    for (std::size_t k = 0; k < requests[i].blocks.size(); ++k)
      for (int h = 0; h < e.most_degree; ++h) {
        const auto before = place(from, requests[i].instance, requests[i].blocks[k], h);
        const auto after = place(to, placed.requests[i].instance, placed.requests[i].blocks[k], h);
        if (before != after) placed.moves.push_back({before.first, after.first, before.second, after.second});
      }
  return placed;
}

}  // namespace heddle::inline v0::infer
