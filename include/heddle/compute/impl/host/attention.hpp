// heddle/compute/impl/host/attention.hpp: bodies of heddle/compute/host/attention.hpp.
#pragma once

#include <heddle/compute/host/attention.hpp>
#include <heddle/compute/attention_slices.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::compute::detail {

HEDDLE_INLINE bool query_order(const attention_slice& a, const attention_slice& b) noexcept {
  if (a.q_begin != b.q_begin) return a.q_begin < b.q_begin;
  if (a.k_begin != b.k_begin) return a.k_begin < b.k_begin;
  if (a.q_end != b.q_end) return a.q_end < b.q_end;
  return a.k_end != b.k_end ? a.k_end < b.k_end : a.mask < b.mask;
}

// By this number, then in the order of the queries. One type of order, so that a program has one sort of slices.
struct slice_order {
  std::int64_t attention_slice::* first = &attention_slice::q_begin;
  bool operator()(const attention_slice& a, const attention_slice& b) const noexcept {
    return a.*first != b.*first ? a.*first < b.*first : query_order(a, b);
  }
};
inline void sort_slices(std::vector<attention_slice>& slices, slice_order order = {}) {
  std::sort(slices.data(), slices.data() + slices.size(), order);
}

// Slices whose rows, from `begin` to `end`, overlap, as lists; in the order of the rows.
HEDDLE_INLINE std::vector<std::vector<attention_slice>> overlapping(std::vector<attention_slice> slices,
                                                                    std::int64_t attention_slice::* begin,
                                                                    std::int64_t attention_slice::* end) {
  std::vector<std::vector<attention_slice>> lists;
  sort_slices(slices, {begin});
  std::int64_t last = 0;
  for (const attention_slice& s : slices) {
    if (lists.empty() || last <= s.*begin) lists.emplace_back();
    last = lists.back().empty() ? s.*end : (std::max)(last, s.*end);
    lists.back().push_back(s);
  }
  return lists;
}

HEDDLE_INLINE std::vector<attention_group> attention_groups(std::span<const attention_slice> slices, bool share_keys) {
  std::vector<attention_slice> all;
  for (const attention_slice& s : slices)
    if (s.queries() > 0 && s.keys() > 0) all.push_back(s);
  std::vector<attention_group> groups;
  const auto add = [&](std::vector<attention_slice>&& list) {
    sort_slices(list);
    attention_group g;
    g.begin = list.front().q_begin;
    for (const attention_slice& s : list) g.end = (std::max)(g.end, s.q_end);
    g.slices = std::move(list);
    const auto most = [&](std::int64_t rows) {
      std::int64_t greatest = 0;
      for (std::int64_t first = g.begin; first < g.end; first += rows) {
        std::int64_t keys = 0;
        for (const attention_slice& s : g.slices) keys += s.of_queries(first, first + rows).keys();
        greatest = (std::max)(greatest, keys);
      }
      return greatest;
    };
    g.rows = (std::min)(g.end - g.begin, query_block(most(64)));
    g.keys = most(g.rows);
    groups.push_back(std::move(g));
  };
  if (share_keys) {
    for (auto& list : overlapping(std::move(all), &attention_slice::q_begin, &attention_slice::q_end))
      add(std::move(list));
    return groups;
  }
  // Slices that share keys go to one list; lists of which one's queries lie among another's are joined.
  std::vector<std::vector<attention_slice>> lists =
      overlapping(std::move(all), &attention_slice::k_begin, &attention_slice::k_end);
  for (auto& list : lists) sort_slices(list);
  std::sort(lists.begin(), lists.end(), [](const auto& a, const auto& b) { return query_order(a.front(), b.front()); });
  std::int64_t last = 0;
  std::vector<attention_slice> open;
  for (auto& list : lists) {
    if (!open.empty() && last <= list.front().q_begin) {
      add(std::move(open));
      open.clear();
    }
    if (open.empty()) last = 0;
    for (const attention_slice& s : list) last = (std::max)(last, s.q_end);
    open.insert(open.end(), list.begin(), list.end());
  }
  if (!open.empty()) add(std::move(open));
  return groups;
}

}  // namespace heddle::inline v0::compute::detail
