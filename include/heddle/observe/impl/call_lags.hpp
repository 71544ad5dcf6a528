// heddle/observe/impl/call_lags.hpp: bodies of heddle/observe/call_lags.hpp.
#pragma once

#include <heddle/observe/call_lags.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace heddle::inline v0::observe {

namespace detail {

HEDDLE_INLINE std::int64_t median_of_times(std::vector<std::int64_t> x) {
  if (x.empty()) return 0;
  const auto half = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), half, x.end());
  if (x.size() % 2 != 0) return *half;
  const std::int64_t lower = *std::max_element(x.begin(), half);
  return lower + (*half - lower) / 2;
}

}  // namespace detail

HEDDLE_INLINE std::vector<call_lag> call_lags(std::span<const event> events) {
  struct entry {
    std::int64_t begin_ns;
    int rank;
    std::size_t at;
  };
  std::map<std::uint64_t, std::vector<entry>> calls;
  std::vector<entry> order;
  for (std::size_t i = 0; i < events.size(); ++i)
    if (const event& e = events[i]; e.kind == activity::collective && e.flow != 0 && e.rank >= 0) {
      calls[e.flow].push_back({e.begin_ns, e.rank, i});
      order.push_back({e.begin_ns, e.rank, i});
    }
  std::sort(order.begin(), order.end(), [](const entry& a, const entry& b) {
    return std::tie(a.begin_ns, a.rank, a.at) < std::tie(b.begin_ns, b.rank, b.at);
  });
  std::map<int, std::int64_t> inherited;
  std::vector<call_lag> lags;
  std::vector<std::int64_t> others;
  for (const entry& mine : order) {
    const event& e = events[mine.at];
    const std::vector<entry>& members = calls[e.flow];
    if (members.size() < 2) continue;
    others.clear();
    std::int64_t last = mine.begin_ns;
    for (const entry& m : members) {
      last = (std::max)(last, m.begin_ns);
      if (m.at != mine.at) others.push_back(m.begin_ns);
    }
    const std::int64_t lag = mine.begin_ns - detail::median_of_times(others);
    std::int64_t& by_others = inherited[mine.rank];
    lags.push_back({.rank = mine.rank,
                    .step = e.step,
                    .name = e.name,
                    .flow = e.flow,
                    .lag_ns = lag,
                    .own_ns = (std::max)(std::int64_t{0}, lag - by_others)});
    if (last > mine.begin_ns) by_others = last - mine.begin_ns;
  }
  return lags;
}

HEDDLE_INLINE std::vector<rank_lateness> latest_ranks(std::span<const call_lag> lags) {
  std::map<int, std::vector<std::int64_t>> all, own;
  for (const call_lag& l : lags) {
    all[l.rank].push_back(l.lag_ns);
    own[l.rank].push_back(l.own_ns);
  }
  std::vector<rank_lateness> ranks;
  for (const auto& [rank, of] : all)
    ranks.push_back({.rank = rank,
                     .calls = static_cast<std::int64_t>(of.size()),
                     .lag_ns = detail::median_of_times(of),
                     .own_ns = detail::median_of_times(own[rank])});
  std::sort(ranks.begin(), ranks.end(), [](const rank_lateness& a, const rank_lateness& b) {
    return a.own_ns != b.own_ns ? a.own_ns > b.own_ns : a.rank < b.rank;
  });
  return ranks;
}

HEDDLE_INLINE std::vector<rank_lateness> late_roots(std::span<const call_lag> lags, lateness_rule rule) {
  std::vector<rank_lateness> ranks = latest_ranks(lags);
  std::map<int, std::int64_t> medians;
  for (const rank_lateness& r : ranks) medians[r.rank] = r.own_ns;
  std::vector<std::int64_t> distances;
  for (const call_lag& l : lags) distances.push_back(std::abs(l.own_ns - medians[l.rank]));
  const double spread = 1.4826 * static_cast<double>(detail::median_of_times(distances));
  std::erase_if(ranks, [&](const rank_lateness& r) {
    return r.own_ns <= rule.least_ns || static_cast<double>(r.own_ns) <= rule.deviations * spread;
  });
  return ranks;
}

HEDDLE_INLINE std::string to_string(const rank_lateness& late) {
  char text[160];
  std::snprintf(text, sizeof text, "rank %d enters its collectives %.3g ms after the others, by itself (%lld calls)",
                late.rank, 1e-6 * static_cast<double>(late.own_ns), static_cast<long long>(late.calls));
  return text;
}

}  // namespace heddle::inline v0::observe
