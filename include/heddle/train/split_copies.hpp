// heddle/train/split_copies.hpp: shares of equal copies, to be saved, read and gathered.
#pragma once

#include <heddle/core/split.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/train/buckets.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::train::detail {

// The part of a row that rank `copies.rank()` of the ranks that hold the same one saves and reads: that of the balanced
// cut. Every rank knows it without being told, parts differ by one element at most, and what lies between cuts stays in
// one piece.
template <class T>
struct copy_share {
  std::int64_t begin = 0;
  std::span<T> elements;
};
template <class T>
copy_share<T> share_of_copies(std::span<T> row, place_in_group copies) {
  const balanced_split cut{static_cast<std::int64_t>(row.size()), copies.size()};
  const std::int64_t begin = cut.offset(copies.rank());
  return {begin, row.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(cut.size(copies.rank())))};
}

// Puts the parts of all those ranks together, on each of them. Called on all ranks of `group` together.
template <class Stage, class Group, class Row>
void gather_copies(Stage& stage, Group& group, const Row& row) {
  using T = element_of<const Row>;
  using space = space_of<Stage>;
  const balanced_split cut{static_cast<std::int64_t>(element_count(row)), group.size()};
  if (group.size() == 1 || cut.extent == 0) return;
  std::vector<std::int64_t> counts;
  for (int r = 0; r < group.size(); ++r) counts.push_back(cut.size(r));
  const row_view<const T, space> mine(part_of_row<space>(row, cut.offset(group.rank()), cut.size(group.rank())));
  heddle::v0::all_gather_v(queue_of_stage(stage), group, mine, row, std::span<const std::int64_t>(counts));
}

// The ranks of a group that hold the same weights, and the same moments and masters, of a stage.
template <class Optimizer, class Group>
place_in_group copies_of_weights(const Group& group) {
  return Optimizer::zero_stage >= 3 ? place_in_group{0, 1} : place_in_group{group.rank(), group.size()};
}
template <class Optimizer, class Group>
place_in_group copies_of_state(const Group& group) {
  return Optimizer::zero_stage >= 1 ? place_in_group{0, 1} : place_in_group{group.rank(), group.size()};
}

}  // namespace heddle::inline v0::train::detail
