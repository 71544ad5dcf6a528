// heddle/plan/impl/hybrid_data.hpp: bodies of heddle/plan/hybrid_data.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/hybrid_data.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

namespace heddle::inline v0::plan {
namespace detail {

// Ranks in the order of what they have to do, over a step or in one wave.
class rank_order {
 public:
  explicit rank_order(int ranks) : seconds_(static_cast<std::size_t>(ranks), 0.0) {
    for (int r = 0; r < ranks; ++r) order_.emplace_hint(order_.end(), 0.0, r);
  }
  double seconds(int rank) const { return seconds_[static_cast<std::size_t>(rank)]; }
  int first() const { return order_.begin()->second; }
  // What the rank with `count - 1` ranks before it has to do.
  double seconds_at(std::size_t count) const {
    auto at = order_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(count) - 1);
    return at->first;
  }
  // The `count` ranks with least to do that `has_room(rank)` names, none of them with more than `most`; else none, or where these are not
  // among the first `looked_at`.
  template <class HasRoom>
  std::vector<int> least_loaded(std::size_t count, double most, HasRoom&& has_room,
                                std::size_t looked_at = (std::numeric_limits<std::size_t>::max)()) const {
    std::vector<int> found;
    for (const auto& [seconds, rank] : order_) {
      if (seconds > most || looked_at-- == 0) break;
      if (has_room(rank)) found.push_back(rank);
      if (found.size() == count) return found;
    }
    return {};
  }
  void give(std::span<const int> ranks, double seconds) {
    for (const int r : ranks) {
      double& of_rank = seconds_[static_cast<std::size_t>(r)];
      auto entry = order_.extract({of_rank, r});
      entry.value().first = of_rank += seconds;
      order_.insert(std::move(entry));
    }
  }

 private:
  std::vector<double> seconds_;
  std::set<std::pair<double, int>> order_{};
};

// The tokens of each rank in a wave.
struct wave_rooms {
  std::vector<std::int64_t> tokens;
  std::int64_t empty;  // ranks without any
  explicit wave_rooms(int ranks) : tokens(static_cast<std::size_t>(ranks), 0), empty(ranks) {}
  std::int64_t& of(int rank) { return tokens[static_cast<std::size_t>(rank)]; }
  void give(std::span<const int> ranks, std::int64_t share) {
    for (const int r : ranks) {
      if (of(r) == 0) --empty;
      of(r) += share;
    }
  }
};

// What a document takes: ranks, tokens of each and seconds.
struct document_share {
  std::int64_t document = 0;
  int ranks = 1;
  std::int64_t tokens = 0;
  double seconds = 0;
};

// Documents over a step: those of several ranks where each rank is empty, in the earliest wave where none has much more to do than those that
// have least; those of one rank on the rank that has least to do, in its earliest wave with room.
HEDDLE_INLINE std::vector<document_wave> place_in_step(std::span<const document_share> documents, int ranks,
                                                       std::int64_t room) {
  std::vector<document_wave> waves;
  std::vector<wave_rooms> rooms;
  rank_order order(ranks);
  for (const document_share& d : documents) {
    std::size_t wave = 0;
    std::vector<int> chosen;
    if (d.ranks == 1) {
      chosen = {order.first()};
      while (wave < waves.size() && rooms[wave].of(chosen[0]) + d.tokens > room) ++wave;
    } else {
      const double most = order.seconds_at(static_cast<std::size_t>(d.ranks)) * 1.02 + 1e-9;
      for (; wave < waves.size(); ++wave) {
        if (rooms[wave].empty < d.ranks) continue;
        chosen = order.least_loaded(static_cast<std::size_t>(d.ranks), most,
                                    [&](int r) { return rooms[wave].of(r) == 0; });
        if (!chosen.empty()) break;
      }
      if (chosen.empty())
        chosen = order.least_loaded(static_cast<std::size_t>(d.ranks), most, [](int) { return true; });
    }
    if (wave == waves.size()) {
      waves.emplace_back();
      rooms.emplace_back(ranks);
    }
    order.give(chosen, d.seconds);
    rooms[wave].give(chosen, d.tokens);
    waves[wave].documents.push_back({d.document, std::move(chosen)});
  }
  return waves;
}

// Documents where ranks wait in each wave: each in the wave that it makes least longer.
HEDDLE_INLINE std::vector<document_wave> place_in_waves(std::span<const document_share> documents, int ranks,
                                                        std::int64_t room) {
  std::vector<document_wave> waves;
  std::vector<wave_rooms> rooms;
  std::vector<rank_order> orders;
  for (const document_share& d : documents) {
    std::size_t wave = waves.size();
    std::vector<int> chosen;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t w = 0; w < waves.size() && least > 0; ++w) {
      if (d.ranks > 1 && rooms[w].empty < d.ranks) continue;
      const bool alone = d.ranks == 1;
      std::vector<int> here = orders[w].least_loaded(
          static_cast<std::size_t>(d.ranks), std::numeric_limits<double>::infinity(),
          [&](int r) { return alone ? rooms[w].of(r) + d.tokens <= room : rooms[w].of(r) == 0; },
          alone ? 8 : (std::numeric_limits<std::size_t>::max)());
      if (here.empty()) continue;
      const double longer = (std::max)(0.0, orders[w].seconds(here.back()) + d.seconds - waves[w].seconds);
      if (longer >= least) continue;
      least = longer;
      wave = w;
      chosen = std::move(here);
    }
    if (wave == waves.size()) {
      waves.emplace_back();
      rooms.emplace_back(ranks);
      chosen = orders.emplace_back(ranks).least_loaded(static_cast<std::size_t>(d.ranks), 0, [](int) { return true; });
    }
    orders[wave].give(chosen, d.seconds);
    rooms[wave].give(chosen, d.tokens);
    waves[wave].seconds = (std::max)(waves[wave].seconds, orders[wave].seconds(chosen.front()));
    waves[wave].seconds = (std::max)(waves[wave].seconds, orders[wave].seconds(chosen.back()));
    waves[wave].documents.push_back({d.document, std::move(chosen)});
  }
  return waves;
}

}  // namespace detail

HEDDLE_INLINE rank_seconds seconds_of_ranks(std::span<const document_wave> waves, std::span<const std::int64_t> lengths,
                                            int ranks, const sequence_costs& costs) {
  std::vector<double> seconds(static_cast<std::size_t>(ranks), 0.0);
  for (const document_wave& w : waves)
    for (const placed_document& d : w.documents)
      for (const int r : d.ranks)
        seconds[static_cast<std::size_t>(r)] +=
            costs.of(lengths[static_cast<std::size_t>(d.document)], static_cast<int>(d.ranks.size()));
  return {*std::max_element(seconds.begin(), seconds.end()),
          std::accumulate(seconds.begin(), seconds.end(), 0.0) / ranks};
}

HEDDLE_INLINE std::vector<document_wave> hybrid_data(std::span<const std::int64_t> lengths, int ranks,
                                                     std::int64_t tokens_per_rank, const sequence_costs& costs,
                                                     balance by, bool offloads) {
  require_documents(lengths, ranks, tokens_per_rank);
  costs.validate();
  const std::vector<std::int64_t> order = detail::longest_first(lengths);
  const auto shares = [&](double most_seconds) {
    std::vector<detail::document_share> all;
    for (const std::int64_t d : order) {
      const std::int64_t s = lengths[static_cast<std::size_t>(d)];
      int n = offloads ? costs.least_ranks(s, tokens_per_rank)
                       : static_cast<int>(tokens_of_share(s, tokens_per_rank));
      if (n > 1 && costs.of(s, n) > most_seconds)
        n = (std::max)(n, static_cast<int>((std::min)(static_cast<double>(ranks),
                                                      std::ceil(costs.compute(s, 1) / most_seconds))));
      n = (std::min)(n, ranks);
      const double held = offloads ? 1 - costs.offloaded(s) : 1;
      const double share = std::ceil(held * static_cast<double>(tokens_of_share(s, n)));
      all.push_back({d, n, (std::max)(std::int64_t{1}, static_cast<std::int64_t>(share)), costs.of(s, n)});
    }
    return all;
  };
  // As few ranks as hold a document; then more for those that would take a rank longer than a part of what all have to do.
  std::vector<document_wave> best;
  double least = std::numeric_limits<double>::infinity(), mean = 0;
  for (const double part : {0.0, 0.5, 0.2}) {
    const std::vector<detail::document_share> documents =
        shares(part == 0 ? std::numeric_limits<double>::infinity() : mean * part);
    std::vector<document_wave> waves = by == balance::steps
                                           ? detail::place_in_step(documents, ranks, tokens_per_rank)
                                           : detail::place_in_waves(documents, ranks, tokens_per_rank);
    double seconds = 0;
    if (by == balance::steps) {
      const rank_seconds of = seconds_of_ranks(waves, lengths, ranks, costs);
      seconds = of.most;
      if (part == 0) mean = of.mean;
    } else {
      for (const document_wave& w : waves) seconds += w.seconds;
      if (part == 0) mean = waves.empty() ? 0 : seconds / static_cast<double>(waves.size());
    }
    if (seconds < least) {
      least = seconds;
      best = std::move(waves);
    }
    if (mean == 0 || least <= 1.01 * mean) break;
  }
  if (by == balance::steps)
    for (document_wave& w : best) w.seconds = seconds_of_ranks({&w, 1}, lengths, ranks, costs).most;
  return best;
}

}  // namespace heddle::inline v0::plan
