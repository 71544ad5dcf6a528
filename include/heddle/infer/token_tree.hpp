// heddle/infer/token_tree.hpp: trees of proposed tokens, as ranks among likely ones.
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// A tree of tokens to propose. A node at depth d (from 1 on) has a token of head d: its `rank`-th likeliest, 0 being the likeliest. Nodes are in the order
/// of depth, then of parents, then of ranks, so that the first n nodes are a tree, too, for any n.
/// Source: Cai et al. 2024, arXiv:2401.10774, section 2.1.2.
class token_tree {
 public:
  struct node {
    std::int64_t parent = -1;  ///< -1: the text
    std::int64_t rank = 0;     ///< among the tokens of head `depth`
    std::int64_t depth = 1;
    friend bool operator==(const node&, const node&) = default;
  };

  token_tree() = default;
  /// From the ranks on the path to each node, in any order.
  /// Errors: `config_error` for an empty path, a negative rank, a path that is there twice, and a node whose parent is not there.
  explicit token_tree(std::vector<std::vector<std::int64_t>> paths) {
    std::sort(paths.begin(), paths.end(),
              [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; });
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const std::vector<std::int64_t>& p = paths[i];
      if (p.empty() || *std::min_element(p.begin(), p.end()) < 0)
        throw config_error("heddle: a node of a token tree should have a path of ranks of at least 0, got " + shown(p));
      if (i > 0 && p == paths[i - 1])
        throw config_error("heddle: each node of a token tree should be given once, got " + shown(p) + " twice");
      node n{.parent = -1, .rank = p.back(), .depth = std::ssize(p)};
      if (p.size() > 1) {
        const auto parent = std::find_if(
            paths.begin(), paths.begin() + static_cast<std::ptrdiff_t>(i),
            [&](const auto& q) { return q.size() + 1 == p.size() && std::equal(q.begin(), q.end(), p.begin()); });
        if (parent == paths.begin() + static_cast<std::ptrdiff_t>(i))
          throw config_error("heddle: a node of a token tree should have its parent there, got " + shown(p) +
                             " without it");
        n.parent = parent - paths.begin();
      }
      nodes_.push_back(n);
    }
  }
  /// All combinations of the `widths[d]` likeliest tokens of each head: the Cartesian product, and all beginnings of its paths.
  static token_tree product(std::span<const std::int64_t> widths) {
    std::vector<std::vector<std::int64_t>> paths, level{{}};
    for (const std::int64_t width : widths) {
      std::vector<std::vector<std::int64_t>> deeper;
      for (const auto& p : level)
        for (std::int64_t r = 0; r < width; ++r) {
          deeper.push_back(p);
          deeper.back().push_back(r);
        }
      paths.insert(paths.end(), deeper.begin(), deeper.end());
      level = std::move(deeper);
    }
    return token_tree(std::move(paths));
  }
  /// The tree of `nodes` nodes with the greatest expected number of accepted tokens, if heads are right independently of each other: `accuracies[d][r]` is how
  /// often token r of head d + 1 is right. Begins with none and adds the best neighbour, the next rank at the same depth or rank 0 one deeper; that is the best
  /// tree because a node is never worth more than its parent or a sibling that is right more often. Accuracies need not descend; ranks are those of `accuracies`.
  /// Source: Cai et al. 2024, arXiv:2401.10774, section 2.3.3.
  static token_tree best(const std::vector<std::vector<double>>& accuracies, std::int64_t nodes) {
    struct candidate {
      std::vector<std::int64_t> path;
      double value;
      double of_parent;
    };
    std::vector<std::vector<std::int64_t>> order;  // of each head its ranks, the one that is right most often first
    for (const auto& a : accuracies) {
      order.emplace_back(a.size());
      std::iota(order.back().begin(), order.back().end(), std::int64_t{0});
      std::sort(order.back().begin(), order.back().end(), [&](std::int64_t x, std::int64_t y) {
        const double of_x = a[static_cast<std::size_t>(x)], of_y = a[static_cast<std::size_t>(y)];
        return of_x != of_y ? of_x > of_y : x < y;
      });
    }
    std::vector<candidate> open;
    const auto open_node = [&](std::vector<std::int64_t> path, double of_parent) {
      const std::size_t depth = path.size();
      if (depth > order.size()) return;
      const auto& ranks = order[depth - 1];
      if (path.back() >= std::ssize(ranks)) return;
      const auto rank = static_cast<std::size_t>(ranks[static_cast<std::size_t>(path.back())]);
      open.push_back({path, of_parent * accuracies[depth - 1][rank], of_parent});
    };
    open_node({0}, 1);
    std::vector<std::vector<std::int64_t>> paths;
    while (std::ssize(paths) < nodes && !open.empty()) {
      const auto best = std::max_element(open.begin(), open.end(),
                                         [](const candidate& a, const candidate& b) { return a.value < b.value; });
      const candidate taken = *best;
      open.erase(best);
      paths.push_back(taken.path);
      auto sibling = taken.path, child = taken.path;
      ++sibling.back();
      child.push_back(0);
      open_node(std::move(sibling), taken.of_parent);
      open_node(std::move(child), taken.value);
    }
    for (auto& p : paths)
      for (std::size_t d = 0; d < p.size(); ++d) p[d] = order[d][static_cast<std::size_t>(p[d])];
    return token_tree(std::move(paths));
  }

  const std::vector<node>& nodes() const noexcept { return nodes_; }
  std::int64_t size() const noexcept { return std::ssize(nodes_); }
  /// Heads that it has tokens of.
  std::int64_t depth() const noexcept { return nodes_.empty() ? 0 : nodes_.back().depth; }
  /// Tokens of a head that it has at most.
  std::int64_t ranks() const noexcept {
    std::int64_t n = 0;
    for (const node& a : nodes_) n = (std::max)(n, a.rank + 1);
    return n;
  }
  /// The expected number of accepted tokens with these accuracies: the sum over nodes of how often the whole path is right.
  double expected(const std::vector<std::vector<double>>& accuracies) const {
    std::vector<double> values;
    double sum = 0;
    for (const node& n : nodes_) {
      const double above = n.parent < 0 ? 1 : values[static_cast<std::size_t>(n.parent)];
      values.push_back(above *
                       accuracies.at(static_cast<std::size_t>(n.depth - 1)).at(static_cast<std::size_t>(n.rank)));
      sum += values.back();
    }
    return sum;
  }
  friend bool operator==(const token_tree&, const token_tree&) = default;

 private:
  static std::string shown(const std::vector<std::int64_t>& path) {
    std::string s = "(";
    for (const std::int64_t r : path) s += (s.size() > 1 ? ", " : "") + std::to_string(r);
    return s + ")";
  }
  std::vector<node> nodes_{};
};

}  // namespace heddle::inline v0::infer
