// heddle/compute/impl/host/attention.hpp: bodies of heddle/compute/host/attention.hpp.
#pragma once

#include <heddle/compute/host/attention.hpp>
#include <heddle/compute/attention_slices.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::compute::detail {

HEDDLE_INLINE bool query_order(const attention_slice& a, const attention_slice& b) noexcept {
  return std::tie(a.q_begin, a.k_begin, a.q_end, a.k_end, a.mask) <
         std::tie(b.q_begin, b.k_begin, b.q_end, b.k_end, b.mask);
}

// Slices whose rows, from `begin` to `end`, overlap, as lists; in the order of the rows.
HEDDLE_INLINE std::vector<std::vector<attention_slice>> overlapping(std::vector<attention_slice> slices,
                                                                    std::int64_t attention_slice::* begin,
                                                                    std::int64_t attention_slice::* end) {
  std::vector<std::vector<attention_slice>> lists;
  std::sort(slices.begin(), slices.end(), [&](const attention_slice& a, const attention_slice& b) {
    return a.*begin != b.*begin ? a.*begin < b.*begin : query_order(a, b);
  });
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
    std::sort(list.begin(), list.end(), query_order);
    attention_group g;
    g.begin = list.front().q_begin;
    for (const attention_slice& s : list) g.end = (std::max)(g.end, s.q_end);
    g.slices = std::move(list);
    const auto most = [&](std::int64_t rows) {
      std::int64_t most = 0;
      for (std::int64_t first = g.begin; first < g.end; first += rows) {
        std::int64_t keys = 0;
        for (const attention_slice& s : g.slices) keys += s.of_queries(first, first + rows).keys();
        most = (std::max)(most, keys);
      }
      return most;
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
  for (auto& list : lists) std::sort(list.begin(), list.end(), query_order);
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
