// heddle/comm/split_part.hpp: the part of a split communicator that a rank joins, in order.
#pragma once

#include <heddle/core/config.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::detail {

// The part that a rank of `comm` becomes a member of.
struct split_part {
  std::vector<int> members;  // world ranks, by key, then by rank in `comm`
  int rank = 0;              // the own one in the part
  std::string label;
};

// The part with ranks of the communicator for members. `colors_and_keys`: those of rank 0, of rank 1, ...; `rank`: the own one.
HEDDLE_INLINE split_part part_of_ranks(std::span<const std::int64_t> colors_and_keys, int rank, const std::string& name,
                                       std::int64_t number);

// `number` tells the splits of `comm` apart.
template <class Comm, class N>
split_part part_of(const Comm& comm, const std::vector<N>& colors_and_keys, std::int64_t number) {
  const std::vector<std::int64_t> all(colors_and_keys.begin(), colors_and_keys.end());
  split_part part = part_of_ranks(all, comm.rank(), comm.name(), number);
  for (int& r : part.members) r = comm.world_rank(r);
  return part;
}

}  // namespace heddle::inline v0::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/split_part.hpp>
#endif
