// heddle/infer/medusa_speculation.hpp: speculation by several heads, as token trees.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/acceptance.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/decoding.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/token_tree.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Heads that predict tokens from the residual stream of a model, as it leaves the last block. `run(streams, rows, logits)`: head k (from 0 on) of the row of position p gives
/// logits of the token at position p + k + 2; the model itself gives those at p + 1.
/// Shapes: streams [rows, width], logits [rows, heads, vocabulary].
template <class H>
concept token_heads = requires(H& heads, const H& that, std::span<const typename H::scalar> streams, std::int64_t rows,
                               std::span<typename H::scalar> logits) {
  { that.heads() } -> std::convertible_to<std::int64_t>;
  { that.vocabulary() } -> std::convertible_to<std::int64_t>;
  heads.run(streams, rows, logits);
};

/// Proposes a tree of tokens that heads on the model's last hidden state predict (Medusa): the model computes all its nodes in one step, each seeing its
/// ancestors alone, and the path of those that are drawn becomes part of the answer. So answers are the same, token for token, as without it, greedy or
/// sampled, for any heads, unless `Acceptance` is `typical_acceptance`. `Most`: nodes of the largest tree.
/// Source: Cai et al. 2024, arXiv:2401.10774.
template <token_heads Heads, std::int64_t Most = 64, class Acceptance = equal_draws>
class medusa_speculation {
 public:
  static_assert(Most > 0,
                "heddle: medusa_speculation<Heads, Most>: Most is the number of nodes of a tree and must be positive");
  using kind = decoding_kind;
  using needs = infer::capabilities<truncate, tree_rows, next_token>;
  using scalar = typename Heads::scalar;
  static constexpr std::int64_t most_proposed = Most;
  static constexpr bool lossless = Acceptance::lossless;
  static constexpr bool trees = true;
  static constexpr bool reads_streams = true;

  /// The heads must outlive the policy.
  /// Errors: `config_error` for a tree of no or more than `Most` nodes, of more depth than there are heads, or with ranks that the vocabulary does not have.
  medusa_speculation(Heads& heads, token_tree tree, Acceptance acceptance = {})
      : heads_(&heads), tree_(std::move(tree)), acceptance_(acceptance) {
    if (tree_.size() < 1 || tree_.size() > Most || tree_.depth() > heads.heads() || tree_.ranks() > heads.vocabulary())
      throw config_error("heddle: medusa_speculation: a tree should have 1 to " + std::to_string(Most) +
                         " nodes, a depth of at most " + std::to_string(heads.heads()) + " and at most " +
                         std::to_string(heads.vocabulary()) + " ranks; got " + std::to_string(tree_.size()) +
                         " nodes, depth " + std::to_string(tree_.depth()) + " and " + std::to_string(tree_.ranks()) +
                         " ranks");
  }

  void propose(std::span<proposal> proposals) {
    streams_.clear();
    taken_.clear();
    for (proposal& p : proposals)
      if (const auto at = known_.find(p.id); at != known_.end() && at->second.length == std::ssize(p.text)) {
        taken_.push_back(&p);
        streams_.insert(streams_.end(), at->second.stream.begin(), at->second.stream.end());
      }
    if (taken_.empty()) return;
    const auto words = static_cast<std::size_t>(heads_->vocabulary());
    const std::size_t row = static_cast<std::size_t>(heads_->heads()) * words;
    logits_.resize(taken_.size() * row);
    heads_->run(std::span<const scalar>(streams_), std::ssize(taken_), std::span<scalar>(logits_));
    for (std::size_t i = 0; i < taken_.size(); ++i)
      grow(*taken_[i], std::span<const scalar>(logits_).subspan(i * row, row), words);
  }
  void verified(request_id id, std::int64_t length, std::span<const scalar> stream) {
    state& s = known_[id];
    s.length = length;
    s.stream.assign(stream.begin(), stream.end());
  }
  void ended(request_id id) { known_.erase(id); }
  const token_tree& tree() const noexcept { return tree_; }
  /// Tokens that the heads know: an engine refuses those of a model with another number.
  std::int64_t vocabulary() const { return heads_->vocabulary(); }
  const Acceptance& acceptance() const noexcept { return acceptance_; }

 private:
  struct state {
    std::int64_t length = 0;  // of the text that ends with what was drawn at the row of `stream`
    std::vector<scalar> stream{};
  };

  // The nodes' tokens; none if a head gives something that is no number.
  void grow(proposal& p, std::span<const scalar> logits, std::size_t words) {
    const auto ranks = static_cast<std::size_t>(tree_.ranks());
    const auto depth = static_cast<std::size_t>(tree_.depth());
    likeliest_.resize(depth * ranks);
    order_.resize(words);
    for (std::size_t d = 0; d < depth; ++d) {
      const auto of_head = logits.subspan(d * words, words);
      if (!std::all_of(of_head.begin(), of_head.end(), [](scalar x) { return x == x; })) return;
      std::iota(order_.begin(), order_.end(), 0);
      const auto end = order_.begin() + static_cast<std::ptrdiff_t>(ranks);
      std::partial_sort(order_.begin(), end, order_.end(), [&](std::int32_t a, std::int32_t b) {
        const scalar x = of_head[static_cast<std::size_t>(a)], y = of_head[static_cast<std::size_t>(b)];
        return x != y ? x > y : a < b;
      });
      std::copy(order_.begin(), end, likeliest_.begin() + static_cast<std::ptrdiff_t>(d * ranks));
    }
    for (const token_tree::node& n : tree_.nodes()) {
      if (std::ssize(p.tokens) == p.most) break;
      p.tokens.push_back(likeliest_[static_cast<std::size_t>(n.depth - 1) * ranks + static_cast<std::size_t>(n.rank)]);
      p.parents.push_back(n.parent);
    }
  }

  Heads* heads_;
  token_tree tree_;
  [[no_unique_address]] Acceptance acceptance_;
  std::map<request_id, state> known_{};
  std::vector<proposal*> taken_{};
  std::vector<scalar> streams_{}, logits_{};
  std::vector<std::int32_t> likeliest_{}, order_{};
};

}  // namespace heddle::inline v0::infer
