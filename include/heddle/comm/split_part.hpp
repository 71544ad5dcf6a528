// heddle/comm/split_part.hpp: the part of a split communicator that a rank joins, with its ranks in order.
#pragma once

#include <heddle/core/config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

// The part that a rank of `comm` becomes a member of.
struct split_part {
  std::vector<int> members;  // world ranks, by key, then by rank in `comm`
  int rank = 0;              // the own one in the part
  std::string label;
};

// `colors_and_keys`: those of rank 0, of rank 1, ...; `number` tells the splits of `comm` apart.
template <class Comm, class N>
split_part part_of(const Comm& comm, const std::vector<N>& colors_and_keys, std::int64_t number) {
  const auto entry = [&](int r, std::size_t which) { return colors_and_keys[2 * static_cast<std::size_t>(r) + which]; };
  const N color = entry(comm.rank(), 0);
  split_part part;
  for (int r = 0; r < comm.size(); ++r)
    if (entry(r, 0) == color) part.members.push_back(r);
  std::sort(part.members.begin(), part.members.end(),
            [&](int a, int b) { return std::pair(entry(a, 1), a) < std::pair(entry(b, 1), b); });
  part.rank = static_cast<int>(std::find(part.members.begin(), part.members.end(), comm.rank()) - part.members.begin());
  for (int& r : part.members) r = comm.world_rank(r);
  part.label = comm.name();
  part.label += '/';
  part.label += std::to_string(number);
  part.label += ':';
  part.label += std::to_string(color);
  return part;
}

}  // namespace heddle::inline v0::detail
