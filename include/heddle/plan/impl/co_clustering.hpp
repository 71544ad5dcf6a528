// heddle/plan/impl/co_clustering.hpp: bodies of heddle/plan/co_clustering.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/line_reader.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/co_clustering.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {
namespace detail {

inline constexpr int most_placed = 1 << 22;  // experts of all layers, and tokens, that a text may have

inline void require_expert_counts(const expert_counts& c, const co_cluster_options& o) {
  if (c.layers < 1 || c.tokens < 1 || c.experts < 1 ||
      c.counts.size() !=
          static_cast<std::size_t>(c.layers) * static_cast<std::size_t>(c.tokens) * static_cast<std::size_t>(c.experts))
    throw config_error(
        text_of({"heddle: counts of ", c.layers, " layers, ", c.tokens, " tokens and ", c.experts,
                 " experts, each at least 1, have an entry for each of all three; got ", c.counts.size()}));
  if (o.ranks < 1 || c.experts % o.ranks != 0)
    throw config_error(text_of({"heddle: ", o.ranks, " ranks do not hold ", c.experts, " experts in equal numbers"}));
  if (!(o.theta >= 0 && o.theta <= 1) || o.restarts < 1 || o.steps < 1)
    throw config_error(
        text_of({"heddle: experts are placed with a theta from 0 to 1 and at least one restart and step; got ",
                 number_text(o.theta), ", ", o.restarts, " and ", o.steps}));
}

// One descent: who is where, and what it costs.
class expert_descent {
 public:
  expert_descent(const expert_counts& counts, const co_cluster_options& options, const std::vector<double>& weights,
                 double total)
      : c_(counts),
        o_(options),
        weights_(weights),
        total_(total),
        experts_(at(c_.experts)),
        ranks_(at(o_.ranks)),
        rank_of_expert_(at(c_.layers) * experts_, 0),
        rank_of_token_(at(c_.tokens), 0) {
    for (std::size_t t = 0; t < weights.size(); ++t)
      if (weights[t] > 0) by_weight_.push_back(static_cast<int>(t));
    std::sort(by_weight_.begin(), by_weight_.end(), [&](int a, int b) {
      return weights_[at(a)] != weights_[at(b)] ? weights_[at(a)] > weights_[at(b)] : a < b;
    });
  }

  void run(int restart) {
    if (restart % 2 == 0 && restart / 2 < c_.layers)
      start_from_layer(restart / 2);
    else
      start_at_random(o_.seed + static_cast<std::uint64_t>(restart));
    objectives.clear();
    for (int step = 0; step < o_.steps; ++step) {
      place_experts();
      const bool moved = place_tokens(0, c_.layers);
      objectives.push_back(objective());
      if (!moved && step > 0) break;
    }
  }

  double objective() const {
    double imbalance = 0;
    for (const double l : load_) imbalance += std::abs(l - total_ / static_cast<double>(ranks_));
    return o_.theta * imbalance + (1 - o_.theta) * (total_ - local_);
  }

  std::vector<double> objectives;

  expert_placement placement() const {
    expert_placement p;
    p.ranks = o_.ranks;
    p.layers = c_.layers;
    p.experts = c_.experts;
    p.rank_of_expert = rank_of_expert_;
    p.rank_of_token.assign(weights_.size(), expert_placement::unseen);
    p.confidence.assign(weights_.size(), 0);
    for (const int t : by_weight_) {
      const auto r = static_cast<std::size_t>(rank_of_token_[at(t)]);
      p.rank_of_token[at(t)] = rank_of_token_[at(t)];
      p.confidence[at(t)] = of_255(gain_[at(t) * ranks_ + r] / weights_[at(t)]);
    }
    p.local_share = local_ / total_;
    p.load = *std::max_element(load_.begin(), load_.end()) * static_cast<double>(ranks_) / total_;
    p.objective = objective();
    p.objectives = objectives;
    fill_next_ranks(p);
    return p;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  static std::uint8_t of_255(double share) {
    return static_cast<std::uint8_t>(std::lround(255 * (std::min)((std::max)(share, 0.0), 1.0)));
  }
  int* ranks_of(int layer) { return rank_of_expert_.data() + at(layer) * experts_; }
  const int* ranks_of(int layer) const { return rank_of_expert_.data() + at(layer) * experts_; }

  // Experts that the same frequent tokens choose belong together; tokens then go to most of their experts of this layer.
  void start_from_layer(int layer) {
    std::vector<double> together(experts_ * experts_, 0.0), alone(experts_, 0.0);
    for (std::size_t k = 0; k < by_weight_.size() && k < 4096; ++k) {
      const std::uint32_t* row = c_.row(layer, by_weight_[k]);
      double sum = 0;
      for (std::size_t e = 0; e < experts_; ++e) sum += row[e];
      if (sum == 0) continue;
      for (std::size_t a = 0; a < experts_; ++a) {
        if (row[a] == 0) continue;
        alone[a] += row[a];
        for (std::size_t b = 0; b < experts_; ++b)
          together[a * experts_ + b] += static_cast<double>(row[a]) * row[b] / sum;
      }
    }
    const std::size_t each = experts_ / ranks_;
    std::vector<int> rank(experts_, -1);
    for (std::size_t r = 0; r < ranks_; ++r) {
      std::vector<double> near(experts_, 0.0);
      for (std::size_t k = 0; k < each; ++k) {
        // The busiest first, then the nearest to those that are there.
        std::size_t next = experts_;
        double most = -1;
        for (std::size_t e = 0; e < experts_; ++e) {
          const double score = k == 0 ? alone[e] : near[e] / std::sqrt(alone[e] + 1);
          if (rank[e] < 0 && score > most) most = score, next = e;
        }
        rank[next] = static_cast<int>(r);
        for (std::size_t e = 0; e < experts_; ++e)
          near[e] += together[next * experts_ + e] / std::sqrt(alone[next] + 1);
      }
    }
    std::copy(rank.begin(), rank.end(), ranks_of(layer));
    start_tokens(layer, layer + 1);
    // Experts of the other layers: anywhere, to be exchanged.
    for (int l = 0; l < c_.layers; ++l)
      if (l != layer)
        for (std::size_t e = 0; e < experts_; ++e) ranks_of(l)[e] = static_cast<int>(e / each);
  }

  void start_at_random(std::uint64_t seed) {
    const counter_random random(seed, 0);
    std::uint64_t draw = 0;
    for (int l = 0; l < c_.layers; ++l)
      for (std::size_t e = 0; e < experts_; ++e) {
        ranks_of(l)[e] = static_cast<int>(e / (experts_ / ranks_));
        std::swap(ranks_of(l)[e], ranks_of(l)[random.integer(draw++) % (e + 1)]);
      }
    load_.assign(ranks_, 0.0);
    for (const int t : by_weight_) {
      rank_of_token_[at(t)] = static_cast<int>(random.integer(draw++) % ranks_);
      load_[at(rank_of_token_[at(t)])] += weights_[at(t)];
    }
  }

  // Each token alone, frequent ones first.
  void start_tokens(int first, int last) {
    load_.assign(ranks_, 0.0);
    fill_gains(first, last);
    local_ = 0;
    for (const int t : by_weight_) {
      const double* gain = gain_.data() + at(t) * ranks_;
      std::size_t best = 0;
      for (std::size_t r = 1; r < ranks_; ++r)
        if (score(gain, r, t) > score(gain, best, t)) best = r;
      rank_of_token_[at(t)] = static_cast<int>(best);
      load_[best] += weights_[at(t)];
    }
  }
  double score(const double* gain, std::size_t rank, int token) const {
    const double room = total_ / static_cast<double>(ranks_) - load_[rank];
    return (1 - o_.theta) * gain[rank] + 2 * o_.theta * (std::min)(room, weights_[at(token)]);
  }

  // Activations of each token on each rank.
  void fill_gains(int first, int last) {
    gain_.assign(weights_.size() * ranks_, 0.0);
    for (int l = first; l < last; ++l)
      for (const int t : by_weight_) {
        const std::uint32_t* row = c_.row(l, t);
        double* gain = gain_.data() + at(t) * ranks_;
        const int* rank = ranks_of(l);
        for (std::size_t e = 0; e < experts_; ++e) gain[rank[e]] += row[e];
      }
  }

  // Moves tokens while that lowers the objective. Returns whether one moved.
  bool place_tokens(int first, int last) {
    fill_gains(first, last);
    local_ = 0;
    for (const int t : by_weight_) local_ += gain_[at(t) * ranks_ + at(rank_of_token_[at(t)])];
    const double mean = total_ / static_cast<double>(ranks_);
    bool any = false, moved = true;
    for (int pass = 0; pass < 50 && moved; ++pass) {
      moved = false;
      for (const int t : by_weight_) {
        const double* gain = gain_.data() + at(t) * ranks_;
        const double weight = weights_[at(t)];
        const std::size_t here = at(rank_of_token_[at(t)]);
        std::size_t best = here;
        double least = -1e-9 * weight;
        const double leaving = std::abs(load_[here] - weight - mean) - std::abs(load_[here] - mean);
        for (std::size_t r = 0; r < ranks_; ++r) {
          if (r == here) continue;
          const double coming = std::abs(load_[r] + weight - mean) - std::abs(load_[r] - mean);
          const double change = o_.theta * (leaving + coming) + (1 - o_.theta) * (gain[here] - gain[r]);
          if (change < least) least = change, best = r;
        }
        if (best == here) continue;
        load_[here] -= weight;
        load_[best] += weight;
        local_ += gain[best] - gain[here];
        rank_of_token_[at(t)] = static_cast<int>(best);
        any = moved = true;
      }
      if (!moved) any = (moved = exchange_tokens()) || any;
    }
    return any;
  }

  // Exchanges two of the most frequent tokens where that lowers the objective: what moves cannot do where loads are even.
  bool exchange_tokens() {
    const double mean = total_ / static_cast<double>(ranks_);
    const std::size_t tried = (std::min)(by_weight_.size(), std::size_t{256});
    bool any = false;
    for (std::size_t i = 0; i < tried; ++i)
      for (std::size_t j = i + 1; j < tried; ++j) {
        const std::size_t a = at(by_weight_[i]), b = at(by_weight_[j]);
        const std::size_t ra = at(rank_of_token_[a]), rb = at(rank_of_token_[b]);
        if (ra == rb) continue;
        const double more = weights_[b] - weights_[a];  // on a's rank
        const double loads = std::abs(load_[ra] + more - mean) - std::abs(load_[ra] - mean) +
                             std::abs(load_[rb] - more - mean) - std::abs(load_[rb] - mean);
        const double nearer =
            gain_[a * ranks_ + rb] - gain_[a * ranks_ + ra] + gain_[b * ranks_ + ra] - gain_[b * ranks_ + rb];
        if (!(o_.theta * loads - (1 - o_.theta) * nearer < -1e-9 * weights_[a])) continue;
        load_[ra] += more;
        load_[rb] -= more;
        local_ += nearer;
        std::swap(rank_of_token_[a], rank_of_token_[b]);
        any = true;
      }
    return any;
  }

  // Exchanges two experts of a layer while that brings activations to the rank of their token.
  void place_experts() {
    std::vector<double> near(experts_ * ranks_);
    for (int l = 0; l < c_.layers; ++l) {
      std::fill(near.begin(), near.end(), 0.0);
      for (const int t : by_weight_) {
        const std::uint32_t* row = c_.row(l, t);
        const std::size_t r = at(rank_of_token_[at(t)]);
        for (std::size_t e = 0; e < experts_; ++e) near[e * ranks_ + r] += row[e];
      }
      int* rank = ranks_of(l);
      for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t a = 0; a < experts_; ++a)
          for (std::size_t b = a + 1; b < experts_; ++b) {
            const std::size_t ra = at(rank[a]), rb = at(rank[b]);
            const double now = near[a * ranks_ + ra] + near[b * ranks_ + rb],
                         then = near[a * ranks_ + rb] + near[b * ranks_ + ra];
            if (ra == rb || !(then > now * (1 + 1e-12))) continue;
            std::swap(rank[a], rank[b]);
            moved = true;
          }
      }
    }
  }

  // Where a token's activations of a layer are most likely, given where most of them were in the two layers before.
  void fill_next_ranks(expert_placement& p) const {
    const std::size_t pairs = ranks_ * ranks_;
    p.next_rank.assign(at(c_.layers) * pairs, expert_placement::unseen);
    p.next_confidence.assign(p.next_rank.size(), 0);
    std::vector<int> last(weights_.size(), -1), before(weights_.size(), -1);
    std::vector<double> share(ranks_), sums;
    for (int l = 0; l < c_.layers; ++l) {
      sums.assign(pairs * ranks_, 0.0);
      for (const int t : by_weight_) {
        const std::uint32_t* row = c_.row(l, t);
        std::fill(share.begin(), share.end(), 0.0);
        for (std::size_t e = 0; e < experts_; ++e) share[at(ranks_of(l)[e])] += row[e];
        if (l >= 2) {
          const std::size_t pair = at(last[at(t)]) * ranks_ + at(before[at(t)]);
          for (std::size_t r = 0; r < ranks_; ++r) sums[pair * ranks_ + r] += share[r];
        }
        before[at(t)] = last[at(t)];
        last[at(t)] = static_cast<int>(std::max_element(share.begin(), share.end()) - share.begin());
      }
      for (std::size_t pair = 0; pair < pairs && l >= 2; ++pair) {
        const auto first = sums.begin() + static_cast<std::ptrdiff_t>(pair * ranks_),
                   end = first + static_cast<std::ptrdiff_t>(ranks_);
        const double all = std::accumulate(first, end, 0.0);
        if (all == 0) continue;
        const auto most = std::max_element(first, end);
        p.next_rank[at(l) * pairs + pair] = static_cast<int>(most - first);
        p.next_confidence[at(l) * pairs + pair] = of_255(*most / all);
      }
    }
  }

  const expert_counts& c_;
  const co_cluster_options& o_;
  const std::vector<double>& weights_;  // activations of each token
  double total_;
  std::size_t experts_, ranks_;
  std::vector<int> rank_of_expert_, rank_of_token_;
  std::vector<int> by_weight_;  // tokens of the profile, frequent ones first
  std::vector<double> gain_;    // [tokens, ranks]
  std::vector<double> load_;
  double local_ = 0;
};

}  // namespace detail

HEDDLE_INLINE std::vector<int> expert_placement::order(int layer) const {
  if (layer < 0 || layer >= layers)
    throw config_error(text_of({"heddle: there is no layer ", layer, " in a placement of ", layers}));
  std::vector<int> all(static_cast<std::size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  const int* rank = rank_of_expert.data() + static_cast<std::size_t>(layer) * static_cast<std::size_t>(experts);
  std::sort(all.begin(), all.end(), [&](int a, int b) { return rank[a] != rank[b] ? rank[a] < rank[b] : a < b; });
  return all;
}

HEDDLE_INLINE int expert_placement::predicted(int layer, int token, int last, int before_last) const {
  int rank = unseen, sure = -1;
  if (token >= 0 && static_cast<std::size_t>(token) < rank_of_token.size() &&
      rank_of_token[static_cast<std::size_t>(token)] != unseen) {
    rank = rank_of_token[static_cast<std::size_t>(token)];
    sure = confidence[static_cast<std::size_t>(token)];
  }
  if (layer < 0 || layer >= layers || last < 0 || last >= ranks || before_last < 0 || before_last >= ranks) return rank;
  const auto at = static_cast<std::size_t>((layer * ranks + last) * ranks + before_last);
  return next_rank[at] != unseen && next_confidence[at] > sure ? next_rank[at] : rank;
}

HEDDLE_INLINE expert_placement co_cluster(const expert_counts& counts, const co_cluster_options& options) {
  detail::require_expert_counts(counts, options);
  std::vector<double> weights(static_cast<std::size_t>(counts.tokens), 0.0);
  for (int l = 0; l < counts.layers; ++l)
    for (int t = 0; t < counts.tokens; ++t) {
      const std::uint32_t* row = counts.row(l, t);
      for (int e = 0; e < counts.experts; ++e) weights[static_cast<std::size_t>(t)] += row[e];
    }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!(total > 0)) throw config_error("heddle: experts are placed by a profile, and this one has no activations");
  detail::expert_descent descent(counts, options, weights, total);
  expert_placement best;
  for (int restart = 0; restart < options.restarts; ++restart) {
    descent.run(restart);
    if (restart == 0 || descent.objective() < best.objective) best = descent.placement();
  }
  return best;
}

HEDDLE_INLINE double local_share_of(const expert_placement& p, const expert_counts& counts) {
  if (p.layers != counts.layers || p.experts != counts.experts ||
      p.rank_of_token.size() != static_cast<std::size_t>(counts.tokens))
    throw config_error(text_of({"heddle: a placement of ", p.layers, " layers of ", p.experts, " experts and ",
                                p.rank_of_token.size(), " tokens says nothing about counts of ", counts.layers, " of ",
                                counts.experts, " and ", counts.tokens}));
  double local = 0, all = 0;
  for (int l = 0; l < counts.layers; ++l)
    for (int t = 0; t < counts.tokens; ++t)
      for (int e = 0; e < counts.experts; ++e) {
        const double n = counts.row(l, t)[e];
        all += n;
        const auto expert =
            static_cast<std::size_t>(l) * static_cast<std::size_t>(p.experts) + static_cast<std::size_t>(e);
        if (p.rank_of_expert[expert] == p.rank_of_token[static_cast<std::size_t>(t)]) local += n;
      }
  return all > 0 ? local / all : 0;
}

HEDDLE_INLINE std::string to_string(const expert_placement& p) {
  return text_of(
      {p.layers, " layers of ", p.experts, " experts on ", p.ranks, " ranks: ", rounded_text(100 * p.local_share, 1),
       " % of activations stay on their rank, the fullest has ", rounded_text(p.load, 2), " of the mean, ",
       rounded_text(100 * all_to_all_saving(p.local_share, p.ranks), 1), " % of the bytes of all-to-alls are saved"});
}

HEDDLE_INLINE std::string to_text(const expert_placement& p) {
  std::string text = text_of({"heddle expert_placement 1\nranks ", p.ranks, "\nlayers ", p.layers, "\nexperts ",
                              p.experts, "\ntokens ", p.rank_of_token.size(), "\n"});
  text += "quality " + number_text(p.local_share) + " " + number_text(p.load) + " " + number_text(p.objective) + "\n";
  const auto experts = static_cast<std::size_t>(p.experts), ranks = static_cast<std::size_t>(p.ranks);
  for (std::size_t i = 0; i < p.rank_of_expert.size(); ++i)
    text += (i % experts == 0 ? (i == 0 ? "layer " : "\nlayer ") + std::to_string(i / experts) + " " : " ") +
            std::to_string(p.rank_of_expert[i]);
  for (std::size_t t = 0; t < p.rank_of_token.size(); ++t)
    if (p.rank_of_token[t] != expert_placement::unseen)
      text += text_of({"\ntoken ", t, " ", p.rank_of_token[t], " ", int{p.confidence[t]}});
  for (std::size_t i = 0; i < p.next_rank.size(); ++i)
    if (p.next_rank[i] != expert_placement::unseen)
      text += text_of({"\nnext ", i / (ranks * ranks), " ", i / ranks % ranks, " ", i % ranks, " ", p.next_rank[i], " ",
                       int{p.next_confidence[i]}});
  return text + "\nend\n";
}

HEDDLE_INLINE expert_placement parse_expert_placement(std::string_view text, int experts, int tokens,
                                                      std::string_view source) {
  line_reader<config_error> lines(text, source);
  expert_placement p;
  lines.require("heddle", 3, "heddle expert_placement 1");
  if (lines.word(1) != "expert_placement" || lines.word(2) != "1") lines.fail("expected heddle expert_placement 1");
  lines.require("ranks", 2, "ranks <number>");
  p.ranks = lines.between(1, 1, 1 << 10);
  lines.require("layers", 2, "layers <number>");
  p.layers = lines.between(1, 1, 1 << 12);
  lines.require("experts", 2, "experts <number>");
  p.experts = lines.between(1, 1, detail::most_placed / p.layers);
  if (p.experts % p.ranks != 0)
    lines.fail(text_of({p.ranks, " ranks do not hold ", p.experts, " experts in equal numbers"}));
  if (experts != 0 && p.experts != experts)
    lines.fail(text_of({"the placement is of ", p.experts, " experts, the model has ", experts}));
  lines.require("tokens", 2, "tokens <number>");
  const int vocabulary = lines.between(1, 1, detail::most_placed);
  if (tokens != 0 && vocabulary != tokens)
    lines.fail(text_of({"the placement is of ", vocabulary, " tokens, the model has ", tokens}));
  lines.require("quality", 4, "quality <local share> <load> <objective>");
  p.local_share = lines.between(1, 0.0, 1.0);
  p.load = lines.between(2, 0.0, 1e300);
  p.objective = lines.between(3, 0.0, 1e300);
  for (int l = 0; l < p.layers; ++l) {
    lines.require("layer", static_cast<std::size_t>(p.experts) + 2,
                  text_of({"layer ", l, " and the ranks of its ", p.experts, " experts"}));
    if (lines.integer(1) != l) lines.fail(text_of({"the next layer is ", l}));
    std::vector<int> held(static_cast<std::size_t>(p.ranks), 0);
    for (int e = 0; e < p.experts; ++e) {
      p.rank_of_expert.push_back(lines.between(static_cast<std::size_t>(e) + 2, 0, p.ranks - 1));
      ++held[static_cast<std::size_t>(p.rank_of_expert.back())];
    }
    for (int r = 0; r < p.ranks; ++r)
      if (held[static_cast<std::size_t>(r)] != p.experts / p.ranks)
        lines.fail(text_of({"rank ", r, " has ", held[static_cast<std::size_t>(r)], " experts of layer ", l,
                            ", and each has ", p.experts / p.ranks}));
  }
  const std::int64_t pairs = std::int64_t{p.ranks} * p.ranks * p.layers;
  if (pairs > detail::most_placed) lines.fail(text_of({pairs, " pairs of ranks in layers are too many"}));
  p.rank_of_token.assign(static_cast<std::size_t>(vocabulary), expert_placement::unseen);
  p.confidence.assign(p.rank_of_token.size(), 0);
  p.next_rank.assign(static_cast<std::size_t>(pairs), expert_placement::unseen);
  p.next_confidence.assign(p.next_rank.size(), 0);
  for (;;) {
    if (!lines.next()) lines.fail("the text ends here; expected token, next or end");
    const auto set = [&](std::vector<int>& ranks, std::vector<std::uint8_t>& sure, std::size_t entry,
                         std::size_t word) {
      if (ranks[entry] != expert_placement::unseen) lines.fail("this entry is given twice");
      ranks[entry] = lines.between(word, 0, p.ranks - 1);
      sure[entry] = static_cast<std::uint8_t>(lines.between(word + 1, 0, 255));
    };
    if (lines.word(0) == "token") {
      lines.expect(4, "token <number> <rank> <confidence>");
      set(p.rank_of_token, p.confidence, static_cast<std::size_t>(lines.between(1, 0, vocabulary - 1)), 2);
    } else if (lines.word(0) == "next") {
      lines.expect(6, "next <layer> <last rank> <rank before> <rank> <confidence>");
      const int layer = lines.between(1, 0, p.layers - 1), last = lines.between(2, 0, p.ranks - 1),
                before = lines.between(3, 0, p.ranks - 1);
      set(p.next_rank, p.next_confidence, static_cast<std::size_t>((layer * p.ranks + last) * p.ranks + before), 4);
    } else if (lines.word(0) == "end" && lines.words() == 1) {
      if (lines.next()) lines.fail("the placement ends before this line");
      return p;
    } else {
      lines.fail("expected token, next or end");
    }
  }
}

}  // namespace heddle::inline v0::plan
