// heddle/layout/exchange.hpp: direct exchange between two sets of parts, as messages.
#pragma once

#include <heddle/layout/part.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0 {
namespace detail {

// Elements of one dimension that two parts of it have in common.
template <std::size_t Axes, std::size_t Others>
constexpr std::int64_t common_size(const dimension_part<Axes>& a, const dimension_part<Others>& b) {
  std::int64_t at_a = 0, at_b = 0, sum = 0, seen_a = -1, seen_b = -1;
  while (at_a < a.size() && at_b < b.size()) {  // policies keep the order of the elements: walk both together
    const std::int64_t first_a = a.to_global(at_a), first_b = b.to_global(at_b);
    if (first_a < seen_a || first_b < seen_b) break;
    seen_a = first_a;
    seen_b = first_b;
    const std::int64_t end_a = first_a + a.run(at_a), end_b = first_b + b.run(at_b);
    const std::int64_t begin = first_a > first_b ? first_a : first_b, end = end_a < end_b ? end_a : end_b;
    if (begin < end) sum += end - begin;
    if (end_a <= end_b) at_a += end_a - first_a;
    if (end_b <= end_a) at_b += end_b - first_b;
  }
  bool ascending = true;
  for (; ascending && at_a < a.size(); at_a += a.run(at_a)) {
    ascending = a.to_global(at_a) >= seen_a;
    seen_a = a.to_global(at_a);
  }
  for (; ascending && at_b < b.size(); at_b += b.run(at_b)) {
    ascending = b.to_global(at_b) >= seen_b;
    seen_b = b.to_global(at_b);
  }
  if (ascending) return sum;
  sum = 0;  // a policy of the user's own that does not: element by element
  for (std::int64_t i = 0; i < a.size(); ++i) sum += b.holds(a.to_global(i)) ? 1 : 0;
  return sum;
}

// Elements of a tensor that two parts of it have in common.
template <std::size_t Rank, std::size_t Axes>
constexpr std::int64_t common_size(const tensor_part<Rank, Axes>& a, const tensor_part<Rank, Axes>& b) {
  std::int64_t n = 1;
  for (std::size_t d = 0; d < Rank && n > 0; ++d) n *= common_size(a.dims[d], b.dims[d]);
  return n;
}

// The choice of the sender: a rank gets elements from ranks that agree with it on every axis that does not split what is
// held before. So each element has one sender, and it is the receiver itself where that one holds the element already.
template <std::size_t Axes>
constexpr bool exchanges_with(const cut_list<Axes>& before, const mesh_numbers<Axes>& mesh, int rank, int peer) {
  for (std::size_t a = 0; a < Axes; ++a) {
    bool split = false;
    for (const cut& c : before) split = split || c.axis == a;
    if (!split && mesh.coordinate(a, rank) != mesh.coordinate(a, peer)) return false;
  }
  return true;
}

// Elements that `rank` sends in an exchange; may be `uncountable`.
template <std::size_t Rank, std::size_t Axes>
constexpr std::int64_t exchanged_size(const cut_list<Axes>& before, const cut_list<Axes>& after,
                                      const mesh_numbers<Axes>& mesh, const std::array<std::int64_t, Rank>& extents,
                                      int rank) {
  const auto held = part_of(before, mesh, extents, rank);
  std::int64_t sent = 0;
  for (int peer = 0; peer < mesh.size; ++peer)
    if (peer != rank && exchanges_with(before, mesh, rank, peer))
      sent = sum_of_counts(sent, common_size(held, part_of(after, mesh, extents, peer)));
  return sent;
}

}  // namespace detail
}  // namespace heddle::inline v0
