// heddle/collective/dyadic_plan.hpp: the assignment of the nodes of dyadic trees to ranks, as data.
#pragma once

#include <heddle/core/dyadic.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// The bounds of trees whose leaves lie together: leaf i belongs to tree `tree_of[i]` of `trees`, as messages to nodes of
/// a graph that are sorted by where they go. Shapes: [leaves] to [trees + 1], a `dyadic_plan`'s `trees`.
/// Errors: `comm_error` where the numbers decrease or are not those of a tree.
inline std::vector<std::int64_t> dyadic_trees(std::span<const std::int64_t> tree_of, std::int64_t trees) {
  std::vector<std::int64_t> bounds(1, 0);
  for (std::size_t i = 0; i < tree_of.size(); ++i) {
    const std::int64_t t = tree_of[i];
    if (t < 0 || t >= trees || (i > 0 && t < tree_of[i - 1])) {
      std::string text = "heddle: dyadic_trees: leaf ";
      text += std::to_string(i);
      text += " is of tree ";
      text += std::to_string(t);
      text += "; the numbers must not decrease, and lie below ";
      text += std::to_string(trees);
      throw comm_error(text);
    }
    bounds.resize(static_cast<std::size_t>(t) + 1, static_cast<std::int64_t>(i));
  }
  bounds.resize(static_cast<std::size_t>((std::max)(trees, std::int64_t{0})) + 1,
                static_cast<std::int64_t>(tree_of.size()));
  return bounds;
}

/// One rank's part in folding the leaves of one or more dyadic trees, each over consecutive leaves, that lie on the
/// ranks of a group: rank r has the leaves [bounds[r], bounds[r + 1]), tree t is over the leaves [trees[t], trees[t +
/// 1]).
/// Any cut will do: trees may span ranks, ranks may span trees, and both may be empty.
///
/// A rank folds the nodes that lie in its leaves. Then groups of ranks double: each rank gets the maximal nodes of the
/// neighbour group's leaves, at most 2 ceil(log2 n) for a tree of n leaves, and folds what the two together complete,
/// so that every rank of the larger group has its maximal nodes. The last group is all ranks, its nodes are the trees'
/// roots. Where the ranks are no power of two, the first ones go in pairs that begin by telling each other what they
/// have, and act as one from then on. Every rank computes all nodes above its own leaves. Since a node's operands and
/// their order never depend on the cut, neither do its bits.
///
/// Values lie in slots of one element each: first the own leaves, then, stage by stage, the nodes received and the
/// nodes computed, those of one height after each other, so that one call of the operator computes them all.
/// Messages: a rank receives floor(log2 p), and one more if it is of a pair; it sends as many, but in a round where one
/// rank faces a pair that one sends two, and the second of the pair none. There is no message where there is no node to
/// tell. In the aligned case (p and leaves per rank powers of two, one tree) each message has one element.
/// Errors: `comm_error` if the bounds or the trees do not cover the same leaves in order.
/// Source: Ong and Velickovic 2022, arXiv:2212.08541 (the tree); the merging of lists is recursive doubling.
class dyadic_plan {
 public:
  /// The operands of a node, as slots; -1 for leaves and for nodes that were received.
  struct operands {
    std::int64_t left = -1;
    std::int64_t right = -1;
  };

  /// What is received, then computed. The first stage receives nothing.
  struct stage {
    std::vector<int> send_to;        ///< ranks that get the slots of `send`, together in one message
    std::vector<std::int64_t> send;  ///< slots; empty: no message
    int receive_from = -1;           ///< the rank whose message fills `received` slots from `first_received` on
    std::int64_t first_received = 0;
    std::int64_t received = 0;
    std::int64_t first_result = 0;     ///< slot of the first node computed
    std::vector<std::int64_t> levels;  ///< nodes that one call computes end at these slots
    bool first_of_group = true;        ///< no lower rank computes the same nodes
  };

  /// One tree over all leaves.
  dyadic_plan(std::span<const std::int64_t> bounds, int rank) : dyadic_plan(whole(bounds), bounds, rank) {}
  dyadic_plan(std::span<const std::int64_t> trees, std::span<const std::int64_t> bounds, int rank)
      : trees_(trees.begin(), trees.end()), bounds_(bounds.begin(), bounds.end()), rank_(rank) {
    check();
    begin_ = bounds_[static_cast<std::size_t>(rank)];
    end_ = bounds_[static_cast<std::size_t>(rank) + 1];
    std::vector<piece> have;
    for (std::int64_t g = begin_; g < end_; ++g) {
      have.push_back({{g, g + 1}, g - begin_});
      add_slot({g, g + 1}, {});
    }
    stages_.emplace_back();
    compute(have, begin_, end_);
    exchange_all(have);
    roots_.assign(trees_.size() - 1, -1);
    std::size_t next = 0;
    for (std::size_t t = 0; t + 1 < trees_.size(); ++t)
      if (trees_[t] < trees_[t + 1]) roots_[t] = have[next++].slot;
  }

  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return static_cast<int>(bounds_.size()) - 1; }
  /// This rank's leaves are [begin, end) of all.
  std::int64_t begin() const noexcept { return begin_; }
  std::int64_t end() const noexcept { return end_; }
  std::int64_t leaves() const noexcept { return end_ - begin_; }
  std::int64_t trees() const noexcept { return static_cast<std::int64_t>(roots_.size()); }
  /// The slot of a tree's value; -1 for a tree without leaves, which has none.
  std::int64_t root(std::int64_t tree) const noexcept { return roots_[static_cast<std::size_t>(tree)]; }
  const std::vector<stage>& stages() const noexcept { return stages_; }
  std::int64_t slots() const noexcept { return static_cast<std::int64_t>(nodes_.size()); }
  dyadic_node node(std::int64_t slot) const noexcept { return nodes_[static_cast<std::size_t>(slot)]; }
  const operands& of(std::int64_t slot) const noexcept { return operands_[static_cast<std::size_t>(slot)]; }
  /// Nodes this rank computes.
  std::int64_t computed() const noexcept { return computed_; }
  /// Nodes this rank computes and no lower rank does. The sum over the ranks is leaves minus trees that have leaves.
  std::int64_t computed_first() const noexcept { return computed_first_; }
  /// Calls of the operator, each of which needs the one before. On one rank it is the height of the highest tree.
  std::int64_t depth() const noexcept { return depth_; }
  /// Messages this rank sends, and the elements in them.
  std::int64_t messages_sent() const noexcept { return messages_; }
  std::int64_t elements_sent() const noexcept { return elements_; }

 private:
  struct piece {
    dyadic_node node;
    std::int64_t slot = 0;
  };
  struct open_node {
    dyadic_node node;
    operands of;
    std::int64_t level = 0;
  };

  static std::vector<std::int64_t> whole(std::span<const std::int64_t> bounds) {
    return bounds.empty() ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{bounds.front(), bounds.back()};
  }

  void check() const {
    const auto ordered = [](const std::vector<std::int64_t>& x) {
      return !x.empty() && x.front() == 0 && std::is_sorted(x.begin(), x.end());
    };
    std::string problem;
    if (bounds_.size() < 2 || !ordered(bounds_))
      problem = "the ranks' bounds must begin with 0 and never decrease";
    else if (!ordered(trees_) || trees_.back() != bounds_.back())
      problem = "the trees' bounds must begin with 0, never decrease, and end where the ranks' leaves do";
    else if (rank_ < 0 || rank_ >= ranks())
      problem = "the rank must be one of those that have leaves";
    if (problem.empty()) return;
    std::string text = "heddle: dyadic_plan on rank ";
    text += std::to_string(rank_);
    text += ": ";
    text += problem;
    throw comm_error(text);
  }

  void add_slot(dyadic_node node, operands of) {
    nodes_.push_back(node);
    operands_.push_back(of);
  }

  // The maximal nodes of the leaves [lo, hi), in order.
  std::vector<dyadic_node> maximal(std::int64_t lo, std::int64_t hi) const {
    std::vector<dyadic_node> nodes;
    auto t = static_cast<std::size_t>(std::upper_bound(trees_.begin(), trees_.end(), lo) - trees_.begin());
    for (std::int64_t at = lo; at < hi; ++t) {
      const std::int64_t from = trees_[t - 1], to = trees_[t], stop = (std::min)(hi, to);
      while (at < stop) {
        const std::int64_t end = from + dyadic_node_end(at - from, stop - from, to - from);
        nodes.push_back({at, end});
        at = end;
      }
    }
    return nodes;
  }

  std::int64_t build(dyadic_node node, const std::vector<piece>& have, std::size_t& next,
                     std::vector<open_node>& open) const {
    if (have[next].node == node) return have[next++].slot;
    const std::int64_t middle = node.begin + dyadic_split(node.end - node.begin);
    open_node made{node, {}, 0};
    made.of.left = build({node.begin, middle}, have, next, open);
    made.of.right = build({middle, node.end}, have, next, open);
    for (const std::int64_t s : {made.of.left, made.of.right})
      if (s >= slots()) made.level = (std::max)(made.level, open[static_cast<std::size_t>(s - slots())].level + 1);
    open.push_back(made);
    return slots() + static_cast<std::int64_t>(open.size()) - 1;
  }

  // Appends to the last stage what makes the pieces of the leaves [lo, hi) maximal.
  void compute(std::vector<piece>& have, std::int64_t lo, std::int64_t hi) {
    std::vector<open_node> open;
    std::vector<piece> result;
    std::size_t next = 0;
    for (const dyadic_node node : maximal(lo, hi)) result.push_back({node, build(node, have, next, open)});
    // By levels; `place` is where a node goes.
    std::int64_t levels = 0;
    for (const open_node& node : open) levels = (std::max)(levels, node.level + 1);
    std::vector<std::int64_t> ends(static_cast<std::size_t>(levels) + 1, 0), place(open.size());
    for (const open_node& node : open) ++ends[static_cast<std::size_t>(node.level) + 1];
    for (std::size_t l = 1; l < ends.size(); ++l) ends[l] += ends[l - 1];
    std::vector<std::size_t> order(open.size());
    for (std::size_t i = 0; i < open.size(); ++i) {
      place[i] = ends[static_cast<std::size_t>(open[i].level)]++;  // afterwards ends[l] is the end of level l
      order[static_cast<std::size_t>(place[i])] = i;
    }
    const std::int64_t base = slots();
    const auto placed = [&](std::int64_t slot) {
      return slot < base ? slot : base + place[static_cast<std::size_t>(slot - base)];
    };
    stage& s = stages_.back();
    s.first_result = base;
    for (std::size_t l = 0; l + 1 < ends.size(); ++l) s.levels.push_back(base + ends[l]);
    for (const std::size_t i : order) add_slot(open[i].node, {placed(open[i].of.left), placed(open[i].of.right)});
    for (piece& p : result) p.slot = placed(p.slot);
    have = std::move(result);
    computed_ += static_cast<std::int64_t>(open.size());
    if (s.first_of_group) computed_first_ += static_cast<std::int64_t>(open.size());
    depth_ += levels;
  }

  // One exchange: the ranks [lo, middle) and [middle, hi) tell each other their nodes.
  void exchange(std::vector<piece>& have, int lo, int middle, int hi, std::vector<int> send_to, int receive_from) {
    const auto leaf = [&](int r) { return bounds_[static_cast<std::size_t>(r)]; };
    const bool left = rank_ < middle;
    const std::vector<dyadic_node> theirs = left ? maximal(leaf(middle), leaf(hi)) : maximal(leaf(lo), leaf(middle));
    stage& s = stages_.emplace_back();
    s.first_of_group = rank_ == lo;
    if (!send_to.empty()) {
      for (const piece& p : have) s.send.push_back(p.slot);
      s.send_to = std::move(send_to);
      if (!have.empty()) {
        messages_ += static_cast<std::int64_t>(s.send_to.size());
        elements_ += static_cast<std::int64_t>(s.send_to.size() * have.size());
      }
    }
    s.receive_from = receive_from;
    s.first_received = slots();
    s.received = static_cast<std::int64_t>(theirs.size());
    std::vector<piece> pieces;
    for (const dyadic_node node : theirs) {
      pieces.push_back({node, slots()});
      add_slot(node, {});
    }
    pieces.insert(left ? pieces.begin() : pieces.end(), have.begin(), have.end());
    have = std::move(pieces);
    compute(have, leaf(lo), leaf(hi));
  }

  void exchange_all(std::vector<piece>& have) {
    const int doubling = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks())));
    const int pairs = ranks() - doubling;  // the first members are pairs of ranks
    const auto first = [&](int member) { return member + (std::min)(member, pairs); };
    const auto size = [&](int member) { return member < pairs ? 2 : 1; };
    const int me = rank_ < 2 * pairs ? rank_ / 2 : rank_ - pairs;
    const int place = rank_ - first(me);
    if (size(me) == 2) {
      const int twin = first(me) + 1 - place;
      exchange(have, first(me), first(me) + 1, first(me) + 2, {twin}, twin);
    }
    for (int reach = 1; reach < doubling; reach *= 2) {
      const int lo = me / (2 * reach) * (2 * reach), other = me ^ reach;
      std::vector<int> send_to;
      for (int m = 0; m < size(other); ++m)
        if ((std::min)(m, size(me) - 1) == place) send_to.push_back(first(other) + m);
      exchange(have, first(lo), first(lo + reach), first(lo + 2 * reach), std::move(send_to),
               first(other) + (std::min)(place, size(other) - 1));
    }
  }

  std::vector<std::int64_t> trees_, bounds_;
  int rank_ = 0;
  std::int64_t begin_ = 0, end_ = 0;
  std::vector<stage> stages_;
  std::vector<dyadic_node> nodes_;
  std::vector<operands> operands_;
  std::vector<std::int64_t> roots_;
  std::int64_t computed_ = 0, computed_first_ = 0, depth_ = 0, messages_ = 0, elements_ = 0;
};

/// What an exclusive scan over a plan's trees computes after the fold: for each leaf of this rank, the fold of the
/// leaves before it in its tree. The way is down the tree: a left operand has what came before the node, a right one
/// that and the left operand. All values it needs are in the fold's slots: nothing is sent. New values go to the slots
/// from `plan.slots()` on, and what came before the first leaf of a tree is absent.
class dyadic_scan_plan {
 public:
  explicit dyadic_scan_plan(const dyadic_plan& plan) : slots_(plan.slots()) {
    before_.assign(static_cast<std::size_t>(plan.leaves()), -1);
    struct open_node {
      std::int64_t slot, before;
    };
    std::vector<open_node> level, below;
    const auto here = [&](std::int64_t slot) {
      const dyadic_node n = plan.node(slot);
      return n.begin < plan.end() && plan.begin() < n.end;
    };
    for (std::int64_t t = 0; t < plan.trees(); ++t)
      if (plan.root(t) >= 0 && here(plan.root(t))) level.push_back({plan.root(t), -1});
    while (!level.empty()) {
      below.clear();
      for (const open_node& node : level) {
        if (node.slot < plan.leaves()) {
          before_[static_cast<std::size_t>(node.slot)] = node.before;
          continue;
        }
        const dyadic_plan::operands& of = plan.of(node.slot);
        if (here(of.left)) below.push_back({of.left, node.before});
        if (!here(of.right)) continue;
        if (node.before < 0) {
          below.push_back({of.right, of.left});
        } else {
          operands_.push_back({node.before, of.left});
          below.push_back({of.right, slots_++});
        }
      }
      if (levels_.empty() ? slots_ > plan.slots() : slots_ > levels_.back()) levels_.push_back(slots_);
      std::swap(level, below);
    }
  }

  /// All slots, the fold's among them.
  std::int64_t slots() const noexcept { return slots_; }
  /// Values that one call computes end at these slots.
  std::span<const std::int64_t> levels() const noexcept { return levels_; }
  /// The operands of the k-th new slot.
  const dyadic_plan::operands& of(std::int64_t k) const noexcept { return operands_[static_cast<std::size_t>(k)]; }
  /// The slot of what comes before a leaf of this rank, -1 for the first leaf of a tree.
  std::int64_t before(std::int64_t leaf) const noexcept { return before_[static_cast<std::size_t>(leaf)]; }

 private:
  std::int64_t slots_ = 0;
  std::vector<dyadic_plan::operands> operands_;
  std::vector<std::int64_t> levels_, before_;
};

}  // namespace heddle::inline v0
