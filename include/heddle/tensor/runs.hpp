// heddle/tensor/runs.hpp: walks a box inside two row-major tensors in runs that are contiguous in both.
#pragma once

#include <heddle/core/config.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0 {
namespace detail {

/// A box inside a row-major tensor: the tensor's extents, and where the box begins.
template <std::size_t Rank>
struct box_place {
  std::array<std::int64_t, Rank> extents{};
  std::array<std::int64_t, Rank> offset{};
};

/// Calls `run(from_index, to_index, count)` for each run of elements that is contiguous on both sides, in memory order.
/// Dimensions that the box fills on both sides are merged, so that a whole tensor is one run. An empty box has none.
template <std::size_t Rank, class Run>
void for_each_run(const box_place<Rank>& from, const box_place<Rank>& to, const std::array<std::int64_t, Rank>& box, Run&& run) {
  std::int64_t count = 1;
  for (const std::int64_t e : box) {
    if (e == 0) return;
  }
  std::size_t outer = Rank;  // dimensions [outer, Rank) make one run
  while (outer > 0) {
    --outer;
    count *= box[outer];
    if (box[outer] != from.extents[outer] || box[outer] != to.extents[outer]) break;
  }
  std::array<std::int64_t, Rank> at{};
  for (;;) {
    std::int64_t source = 0, target = 0;
    for (std::size_t d = 0; d < Rank; ++d) {
      source = source * from.extents[d] + from.offset[d] + at[d];
      target = target * to.extents[d] + to.offset[d] + at[d];
    }
    run(source, target, count);
    std::size_t d = outer;
    for (;;) {
      if (d == 0) return;
      --d;
      if (++at[d] < box[d]) break;
      at[d] = 0;
    }
  }
}

template <class T, std::size_t Rank>
void copy_box(const T* source, const box_place<Rank>& from, T* target, const box_place<Rank>& to,
              const std::array<std::int64_t, Rank>& box) {
  for_each_run(from, to, box,
               [&](std::int64_t s, std::int64_t t, std::int64_t n) { std::copy_n(source + s, n, target + t); });
}

}  // namespace detail
}  // namespace heddle::inline v0
