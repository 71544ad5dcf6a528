// heddle/tensor/global_runs.hpp: runs of a rank's part that are adjacent in the whole.
#pragma once

#include <heddle/core/next_index.hpp>
#include <heddle/tensor/sharded.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0 {
namespace detail {

// Calls `run(global, local, count)` for each run of elements that are neighbours both in the whole tensor (row-major flat
// index) and in this rank's memory, in memory order. `part` has one entry of `dims` per dimension with size(), stored(), to_global(l)
// and run(l). Dimensions that are held whole join the run, so that a replicated tensor is one run; padding is left out.
template <std::size_t Rank, class Part, class Run>
void for_each_global_run(const std::array<std::int64_t, Rank>& whole, const Part& part, Run&& run) {
  std::size_t inner = Rank;  // dimensions [inner, Rank) are held whole
  std::int64_t block = 1;    // their elements
  for (std::size_t d = 0; d < Rank; ++d)
    if (part.dims[d].size() == 0) return;
  while (inner > 0 && part.dims[inner - 1].stored() == whole[inner - 1] &&
         part.dims[inner - 1].run(0) >= whole[inner - 1])
    block *= whole[--inner];
  if (inner == 0) {
    run(std::int64_t{0}, std::int64_t{0}, block);
    return;
  }
  const std::size_t last = inner - 1;
  std::array<std::int64_t, Rank> at{};
  do {
    std::int64_t global = 0, local = 0;
    for (std::size_t d = 0; d < last; ++d) {
      global = global * whole[d] + part.dims[d].to_global(at[d]);
      local = local * part.dims[d].stored() + at[d];
    }
    global *= whole[last];
    local *= part.dims[last].stored();
    const std::int64_t size = part.dims[last].size();
    for (std::int64_t l = 0; l < size;) {
      const std::int64_t left = size - l, together = part.dims[last].run(l);
      const std::int64_t count = together < left ? together : left;
      run((global + part.dims[last].to_global(l)) * block, (local + l) * block, count * block);
      l += count;
    }
  } while (next_index(last, [&](std::size_t d) {
    if (++at[d] < part.dims[d].size()) return true;
    at[d] = 0;
    return false;
  }));
}

}  // namespace detail
}  // namespace heddle::inline v0
