// heddle/infer/falcon_speculation.hpp: speculation by a drafter of blocks, as trees.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/decoding.hpp>
#include <heddle/infer/token_tree.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// The `ranks` likeliest tokens of each of `rows` rows of logits, the likeliest first, equally likely ones by their number; empty if a logit is no number.
template <class T>
std::vector<std::int32_t> likeliest_tokens(std::span<const T> logits, std::int64_t rows, std::int64_t ranks) {
  std::vector<std::int32_t> found, order(logits.size() / static_cast<std::size_t>(rows));
  if (!std::all_of(logits.begin(), logits.end(), [](T x) { return x == x; })) return found;
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    const std::span<const T> row = logits.subspan(r * order.size(), order.size());
    std::iota(order.begin(), order.end(), 0);
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(ranks);
    std::partial_sort(order.begin(), end, order.end(), [&](std::int32_t a, std::int32_t b) {
      const T x = row[static_cast<std::size_t>(a)], y = row[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    });
    found.insert(found.end(), order.begin(), end);
  }
  return found;
}

/// What Falcon's drafting did. Units: proposals, passes of the drafter, rows of all passes.
struct falcon_counts {
  std::int64_t proposals = 0;
  std::int64_t passes = 0;
  std::int64_t rows = 0;
};

/// Proposes a tree of tokens (`token_tree`) that a semi-autoregressive drafter predicts in blocks of k. The first pass gives the tokens of depths 1 to k from the last k rows of the text; each later
/// one those of the next k depths, behind all nodes of the last depth that have children, at once: ceil(depth / k) passes of k rows for each of these. A node has the token of its rank among
/// those of the block behind which it is. Answers are the same, token for token, as without it, greedy or sampled, for any drafter and tree.
/// The drafter reads the residual stream of all rows of a text, so a step computes the logits of prompts, too. A text of which the beginning was in the cache is known to it from
/// the first row that was computed on. Behind more rows than the drafter's context nothing is drafted. A new row's keys and LSTM
/// state do not depend on the block it is in, so nothing is computed again where fewer than k tokens were gained.
/// `Drafter`: `model::falcon_drafter`. `Most`: nodes of the largest tree. Source: Falcon, arXiv:2412.12639.
template <class Drafter, std::int64_t Most = 64>
class falcon_speculation {
 public:
  static_assert(
      Most > 0,
      "heddle: falcon_speculation<Drafter, Most>: Most is the number of nodes of a tree and must be positive");
  using kind = decoding_kind;
  using needs = infer::capabilities<truncate, tree_rows, next_token>;
  using scalar = typename Drafter::scalar;
  static constexpr std::int64_t most_proposed = Most;
  static constexpr bool lossless = true;
  static constexpr bool trees = true;
  static constexpr bool reads_streams = true;
  static constexpr bool reads_all_streams = true;

  /// The drafter must outlive the policy.
  /// Errors: `config_error` for a tree of no or more than `Most` nodes, deeper than the drafter's context, or with ranks that the vocabulary does not have; what `drafter.require_whole()` throws.
  falcon_speculation(Drafter& drafter, token_tree tree) : drafter_(&drafter), tree_(std::move(tree)) {
    if (tree_.size() < 1 || tree_.size() > Most || tree_.ranks() > drafter.vocabulary() ||
        tree_.depth() > drafter.shape().context)
      throw config_error("heddle: falcon_speculation: a tree should have 1 to " + std::to_string(Most) +
                         " nodes, a depth of at most " + std::to_string(drafter.shape().context) + " and at most " +
                         std::to_string(drafter.vocabulary()) + " ranks; got " + std::to_string(tree_.size()) +
                         " nodes, depth " + std::to_string(tree_.depth()) + " and " + std::to_string(tree_.ranks()) +
                         " ranks");
    if constexpr (requires { drafter.require_whole(); }) drafter.require_whole();
  }

  void propose(std::span<proposal> proposals) {
    for (proposal& p : proposals)
      if (const auto at = known_.find(p.id); at != known_.end()) propose_one(p, at->second);
  }
  void computed(request_id id, std::int64_t position, std::span<const scalar> streams) {
    state& s = known_[id];
    const std::int64_t rows = std::ssize(streams) / drafter_->shape().width;
    if (position != s.end) s = {.first = position, .end = position};
    s.end += rows;
    if (!fits(s)) {  // nothing is drafted for it any more
      s.text = {};
      s.features = {};
      return;
    }
    const std::size_t before = s.features.size();
    s.features.resize(before + streams.size());
    drafter_->features_of(streams, std::span<scalar>(s.features).subspan(before));
  }
  void verified(request_id, std::int64_t, std::span<const scalar>) noexcept {}
  void ended(request_id id) { known_.erase(id); }

  const token_tree& tree() const noexcept { return tree_; }
  const falcon_counts& counts() const noexcept { return counts_; }
  /// Tokens that the drafter knows: an engine refuses that of a model with another number.
  std::int64_t vocabulary() const { return drafter_->vocabulary(); }

 private:
  // Rows from position `first` to before `end`: those of the prefix, then those whose features wait for the token after them; neither where they are more than the drafter's context.
  struct state {
    std::int64_t first = 0;
    std::int64_t end = 0;
    typename Drafter::prefix text{};
    std::vector<scalar> features{};
  };
  bool fits(const state& s) const { return s.end - s.first <= drafter_->shape().context; }

  void propose_one(proposal& p, state& s) {
    const std::int64_t k = drafter_->shape().block, waiting = std::ssize(s.features) / drafter_->shape().width;
    const std::int64_t from = s.first + s.text.rows;
    if (s.end + 1 != std::ssize(p.text) || !fits(s)) return;
    drafter_->append(s.text, p.text.subspan(static_cast<std::size_t>(from + 1), static_cast<std::size_t>(waiting)),
                     s.features);
    s.features.clear();
    if (s.text.rows < k) return;
    ++counts_.proposals;
    auto blocks = drafter_->begin_drafts(s.text);
    ++counts_.passes;
    counts_.rows += k;
    // Of each node the block behind which it is, and its token.
    const auto& nodes = tree_.nodes();
    std::vector<std::int64_t> block_of(nodes.size(), 0), block_after(nodes.size(), -1);
    std::vector<std::vector<std::int32_t>> likeliest;
    const auto look = [&] {
      while (likeliest.size() < blocks.size())
        likeliest.push_back(
            likeliest_tokens(std::span<const scalar>(blocks[likeliest.size()].logits), k, tree_.ranks()));
    };
    look();
    std::size_t i = 0;
    for (std::int64_t depth = 1; depth <= tree_.depth() && i < nodes.size() && std::ssize(p.tokens) < p.most; ++depth) {
      if (depth > 1 && depth % k == (k == 1 ? 0 : 1)) {  // nodes of this depth are the first ones behind new blocks
        std::vector<std::int64_t> parents;
        std::vector<std::int32_t> tokens;
        for (std::size_t n = i; n < nodes.size() && nodes[n].depth == depth; ++n) {
          const auto leaf = static_cast<std::size_t>(nodes[n].parent);
          if (nodes[n].parent >= std::ssize(p.tokens) || block_after[leaf] >= 0) continue;
          block_after[leaf] = std::ssize(blocks) + std::ssize(parents);
          parents.push_back(block_of[leaf]);
          std::vector<std::int32_t> path;
          for (auto a = nodes[n].parent; std::ssize(path) < k; a = nodes[static_cast<std::size_t>(a)].parent)
            path.insert(path.begin(), p.tokens[static_cast<std::size_t>(a)]);
          tokens.insert(tokens.end(), path.begin(), path.end());
        }
        if (parents.empty()) break;
        drafter_->draft(s.text, blocks, parents, tokens);
        look();
        ++counts_.passes;
        counts_.rows += std::ssize(tokens);
      }
      for (; i < nodes.size() && nodes[i].depth == depth && std::ssize(p.tokens) < p.most; ++i) {
        const token_tree::node& n = nodes[i];
        if (n.parent >= 0) {
          const auto above = static_cast<std::size_t>(n.parent);
          block_of[i] = block_after[above] >= 0 ? block_after[above] : block_of[above];
        }
        const std::vector<std::int32_t>& tokens = likeliest[static_cast<std::size_t>(block_of[i])];
        if (tokens.empty()) break;  // the drafter gave something that is no number
        p.tokens.push_back(tokens[static_cast<std::size_t>((depth - 1) % k * tree_.ranks() + n.rank)]);
        p.parents.push_back(n.parent);
      }
      if (i < nodes.size() && nodes[i].depth == depth) break;
    }
    drafter_->end_drafts(s.text);
  }

  Drafter* drafter_;
  token_tree tree_;
  std::map<request_id, state> known_{};
  falcon_counts counts_{};
};

}  // namespace heddle::inline v0::infer
