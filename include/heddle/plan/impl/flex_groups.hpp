// heddle/plan/impl/flex_groups.hpp: bodies of heddle/plan/flex_groups.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/flex_groups.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace heddle::inline v0::plan {
namespace detail {

inline constexpr double never_done = std::numeric_limits<double>::infinity();

HEDDLE_INLINE std::vector<std::vector<int>> group_sizes(int ranks, int smallest) {
  std::vector<std::vector<int>> all;
  std::vector<int> sizes;
  const auto add = [&](auto&& self, int left, int largest) -> void {
    if (left == 0) return all.push_back(sizes);
    for (int d = largest; d >= smallest; d /= 2) {
      if (d > left) continue;
      sizes.push_back(d);
      self(self, left - d, d);
      sizes.pop_back();
    }
  };
  int largest = 1;
  while (largest <= ranks / 2) largest *= 2;
  add(add, ranks, largest);
  return all;
}

// Documents of a microbatch, longest first, with what each takes of groups of 1, 2, 4, ... ranks.
class flex_microbatch {
 public:
  flex_microbatch(std::span<const std::int64_t> lengths, int ranks, std::int64_t room, const sequence_costs& costs)
      : lengths_(lengths), room_(room), fixed_(costs.fixed) {
    for (int d = 1; d <= ranks; d *= 2) ++degrees_;
    for (const std::int64_t s : lengths)
      for (int k = 0; k < degrees_; ++k) {
        seconds_.push_back(costs.of(s, 1 << k));
        tokens_.push_back(tokens_of_share(s, 1 << k));
      }
  }
  // Improves `seconds` and the group of each document, if these groups are faster.
  bool try_groups(const std::vector<int>& sizes, double& seconds, std::vector<int>& group_of) {
    degree_.clear();
    for (const int d : sizes) {
      int k = 0;
      while ((1 << k) < d) ++k;
      degree_.push_back(k);
    }
    best_ = seconds;
    found_ = false;
    load_.assign(sizes.size(), 0.0);
    used_.assign(sizes.size(), 0);
    if (lengths_.empty() || tokens(0, degree_.front()) > room_) return false;
    now_.assign(lengths_.size(), 0);
    longest_first();
    load_.assign(sizes.size(), 0.0);
    used_.assign(sizes.size(), 0);
    if (lengths_.size() <= 10) search(0, 0);
    if (!found_) return false;
    seconds = best_;
    group_of = best_groups_;
    return true;
  }

 private:
  double seconds(std::size_t i, int degree) const { return seconds_[i * static_cast<std::size_t>(degrees_) + static_cast<std::size_t>(degree)]; }
  std::int64_t tokens(std::size_t i, int degree) const { return tokens_[i * static_cast<std::size_t>(degrees_) + static_cast<std::size_t>(degree)]; }
  bool has_room(std::size_t i, std::size_t g) const { return used_[g] + tokens(i, degree_[g]) <= room_; }
  void accept() {
    const double all = *std::max_element(load_.begin(), load_.end()) + fixed_;
    if (all >= best_) return;
    best_ = all;
    best_groups_ = now_;
    found_ = true;
  }
  // Each document where it ends first.
  void longest_first() {
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      std::size_t to = degree_.size();
      double end = never_done;
      for (std::size_t g = 0; g < degree_.size(); ++g)
        if (has_room(i, g) && load_[g] + seconds(i, degree_[g]) < end) end = load_[g] + seconds(i, degree_[g]), to = g;
      if (to == degree_.size() || end + fixed_ >= best_) return;
      put(i, to, end);
    }
    accept();
  }
  void put(std::size_t i, std::size_t group, double end) {
    load_[group] = end;
    used_[group] += tokens(i, degree_[group]);
    now_[i] = static_cast<int>(group);
  }
  void search(std::size_t i, double most) {
    if (most + fixed_ >= best_) return;
    if (i == lengths_.size()) return accept();
    for (std::size_t g = 0; g < degree_.size(); ++g) {
      // Of groups of one size that are empty, one is tried.
      if (g > 0 && used_[g] == 0 && used_[g - 1] == 0 && degree_[g] == degree_[g - 1]) continue;
      if (!has_room(i, g)) continue;
      const double before = load_[g];
      const std::int64_t tokens_before = used_[g];
      put(i, g, before + seconds(i, degree_[g]));
      search(i + 1, (std::max)(most, load_[g]));
      load_[g] = before;
      used_[g] = tokens_before;
    }
  }

  std::span<const std::int64_t> lengths_;
  std::int64_t room_;
  double fixed_;
  int degrees_ = 0;
  std::vector<double> seconds_{};
  std::vector<std::int64_t> tokens_{};
  std::vector<int> degree_{};  // of each group, as a power of two
  std::vector<double> load_{};
  std::vector<std::int64_t> used_{};
  std::vector<int> now_{}, best_groups_{};
  double best_ = never_done;
  bool found_ = false;
};

// The fewest tokens that the fullest of `parts` consecutive parts of the list can have, and the ends of parts of so many.
HEDDLE_INLINE std::vector<std::size_t> even_cuts(std::span<const std::int64_t> lengths, std::int64_t parts) {
  const auto cut = [&](std::int64_t most) {
    std::vector<std::size_t> ends;
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      if (sum + lengths[i] > most && sum > 0) {
        ends.push_back(i);
        sum = 0;
      }
      sum += lengths[i];
    }
    ends.push_back(lengths.size());
    return ends;
  };
  std::int64_t low = lengths.empty() ? 0 : lengths.front(), high = 0;
  for (const std::int64_t s : lengths) high += s;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (std::ssize(cut(middle)) <= parts)
      high = middle;
    else
      low = middle + 1;
  }
  return cut(low);
}

HEDDLE_INLINE std::vector<int> ranks_from(int first, int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

}  // namespace detail

HEDDLE_INLINE double seconds_of(std::span<const document_wave> waves) {
  double sum = 0;
  for (const document_wave& w : waves) sum += w.seconds;
  return sum;
}

HEDDLE_INLINE std::vector<document_wave> single_degree(std::span<const std::int64_t> lengths, int ranks, int degree,
                                                       std::int64_t tokens_per_rank, const sequence_costs& costs) {
  if (degree < 1 || ranks % degree != 0)
    throw config_error("heddle: single_degree: the degree should divide the " + std::to_string(ranks) +
                       " ranks, got " + std::to_string(degree));
  require_documents(lengths, degree, tokens_per_rank);
  struct group {
    std::int64_t tokens = 0;
    double seconds = 0;
    std::vector<std::int64_t> documents{};
  };
  std::vector<group> groups;
  const std::vector<std::int64_t> order = detail::longest_first(lengths);
  // A tenth of the room stays free, as groups that are full to the brim are slower than others.
  std::int64_t room = 0;
  for (const std::int64_t d : order) {
    const std::int64_t s = lengths[static_cast<std::size_t>(d)], share = tokens_of_share(s, degree);
    if (groups.empty()) room = (std::max)(tokens_per_rank * 9 / 10, share);
    group* to = nullptr;
    for (group& g : groups)
      if (g.tokens + share <= room && (to == nullptr || g.tokens > to->tokens)) to = &g;
    if (to == nullptr) to = &groups.emplace_back();
    to->tokens += share;
    to->seconds += costs.of(s, degree);
    to->documents.push_back(d);
  }
  std::sort(groups.begin(), groups.end(), [](const group& a, const group& b) {
    return a.seconds != b.seconds ? a.seconds > b.seconds : a.documents.front() < b.documents.front();
  });
  std::vector<document_wave> waves;
  const auto in_wave = static_cast<std::size_t>(ranks / degree);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (g % in_wave == 0) waves.emplace_back().seconds = groups[g].seconds + costs.fixed;
    for (const std::int64_t d : groups[g].documents)
      waves.back().documents.push_back({d, detail::ranks_from(static_cast<int>(g % in_wave) * degree, degree)});
  }
  return waves;
}

HEDDLE_INLINE std::vector<document_wave> flex_groups(std::span<const std::int64_t> lengths, int ranks,
                                                     std::int64_t tokens_per_rank, const sequence_costs& costs,
                                                     const flex_options& options) {
  require_documents(lengths, ranks, tokens_per_rank);
  costs.validate();
  if (options.smallest < 1 || (options.smallest & (options.smallest - 1)) != 0)
    throw config_error("heddle: flex_groups: the smallest group should have a power of two of ranks, got " +
                       std::to_string(options.smallest));
  if (options.scan < 1)
    throw config_error("heddle: flex_groups: at least 1 number of microbatches is tried, got " +
                       std::to_string(options.scan));
  const std::vector<std::int64_t> order = detail::longest_first(lengths);
  if (order.empty()) return {};
  std::vector<std::int64_t> falling;
  std::int64_t sum = 0;
  for (const std::int64_t d : order) sum += falling.emplace_back(lengths[static_cast<std::size_t>(d)]);
  std::vector<std::vector<int>> ways = detail::group_sizes(ranks, options.smallest);
  if (ways.empty()) ways = detail::group_sizes(ranks, 1);

  std::vector<document_wave> best;
  double least = detail::never_done;
  const std::int64_t fewest = tokens_of_share(sum, ranks * tokens_per_rank);
  int tried = 0;
  for (std::int64_t parts = fewest; parts <= std::ssize(order) && tried < options.scan; ++parts) {
    const std::vector<std::size_t> ends = detail::even_cuts(falling, parts);
    std::vector<document_wave> waves;
    double seconds = 0;
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      const std::span<const std::int64_t> part = std::span<const std::int64_t>(falling).subspan(begin, end - begin);
      detail::flex_microbatch microbatch(part, ranks, tokens_per_rank, costs);
      double of_part = detail::never_done;
      std::vector<int> group_of;
      const std::vector<int>* chosen = nullptr;
      for (const std::vector<int>& sizes : ways)
        if (microbatch.try_groups(sizes, of_part, group_of)) chosen = &sizes;
      seconds += of_part;
      if (chosen == nullptr || seconds >= least) break;
      document_wave& wave = waves.emplace_back();
      wave.seconds = of_part;
      std::vector<int> first{0};
      for (const int d : *chosen) first.push_back(first.back() + d);
      for (std::size_t i = begin; i < end; ++i) {
        const auto g = static_cast<std::size_t>(group_of[i - begin]);
        wave.documents.push_back({order[i], detail::ranks_from(first[g], (*chosen)[g])});
      }
      begin = end;
    }
    if (begin < order.size()) {
      tried += seconds < detail::never_done ? 1 : 0;  // what has no room is no try
      continue;
    }
    ++tried;
    least = seconds;
    best = std::move(waves);
  }
  for (int d = options.smallest; d <= ranks; d *= 2) {
    if (ranks % d != 0 || tokens_of_share(falling.front(), d) > tokens_per_rank) continue;
    std::vector<document_wave> even = single_degree(lengths, ranks, d, tokens_per_rank, costs);
    if (const double seconds = seconds_of(even); seconds < least) {
      least = seconds;
      best = std::move(even);
    }
  }
  if (best.empty()) best = whole_axis(lengths, ranks, tokens_per_rank);
  return best;
}

}  // namespace heddle::inline v0::plan
