// heddle/rl/impl/equal_parts.hpp: bodies of heddle/rl/equal_parts.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/rl/equal_parts.hpp>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace heddle::inline v0::rl {

HEDDLE_INLINE std::vector<std::vector<std::size_t>> equal_parts(std::span<const std::int64_t> weights,
                                                                std::size_t parts) {
  if (parts == 0 || weights.empty() || weights.size() % parts != 0)
    throw config_error("heddle: " + std::to_string(weights.size()) + " weights do not fill " + std::to_string(parts) +
                       " parts of equal counts");
  struct part {
    std::int64_t sum = 0;
    std::vector<std::size_t> items{};  // in the order in which they came
  };
  const auto lighter = [&](const part& a, const part& b) {
    if (a.sum != b.sum) return a.sum < b.sum;
    return a.items < b.items;  // all have as many
  };
  const auto heavier = [&](const part& a, const part& b) { return lighter(b, a); };
  using state = std::vector<part>;  // heaviest first
  const auto spread = [](const state& s) { return s.front().sum - s.back().sum; };
  const auto later = [&](const state& a, const state& b) {  // of a heap: the greatest comes first
    if (spread(a) != spread(b)) return spread(a) < spread(b);
    return lighter(a.front(), b.front());
  };

  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return weights[a] != weights[b] ? weights[a] < weights[b] : a < b; });
  std::vector<state> heap;
  for (std::size_t at = 0; at < order.size(); at += parts) {
    state s(parts);
    for (std::size_t i = 0; i < parts; ++i) s[i] = {weights[order[at + i]], {order[at + i]}};
    std::sort(s.begin(), s.end(), heavier);
    heap.push_back(std::move(s));
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto take = [&] {
    std::pop_heap(heap.begin(), heap.end(), later);
    state s = std::move(heap.back());
    heap.pop_back();
    return s;
  };
  while (heap.size() > 1) {
    state a = take();
    const state b = take();
    for (std::size_t i = 0; i < parts; ++i) {
      const part& other = b[parts - 1 - i];
      a[i].sum += other.sum;
      a[i].items.insert(a[i].items.end(), other.items.begin(), other.items.end());
    }
    std::sort(a.begin(), a.end(), heavier);
    heap.push_back(std::move(a));
    std::push_heap(heap.begin(), heap.end(), later);
  }
  std::vector<std::vector<std::size_t>> all;
  for (part& p : heap.front()) {
    std::sort(p.items.begin(), p.items.end());
    all.push_back(std::move(p.items));
  }
  return all;
}

}  // namespace heddle::inline v0::rl
