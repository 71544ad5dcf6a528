// heddle/collective/dyadic_plan.hpp: the assignment of the nodes of dyadic trees to ranks, as data.
#pragma once

#include <heddle/core/config.hpp>
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
HEDDLE_INLINE std::vector<std::int64_t> dyadic_trees(std::span<const std::int64_t> tree_of, std::int64_t trees);

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
  dyadic_plan(std::span<const std::int64_t> trees, std::span<const std::int64_t> bounds, int rank);

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

  void check() const;

  void add_slot(dyadic_node node, operands of) {
    nodes_.push_back(node);
    operands_.push_back(of);
  }

  // The maximal nodes of the leaves [lo, hi), in order.
  std::vector<dyadic_node> maximal(std::int64_t lo, std::int64_t hi) const;

  std::int64_t build(dyadic_node node, const std::vector<piece>& have, std::size_t& next,
                     std::vector<open_node>& open) const;

  // Appends to the last stage what makes the pieces of the leaves [lo, hi) maximal.
  void compute(std::vector<piece>& have, std::int64_t lo, std::int64_t hi);

  // One exchange: the ranks [lo, middle) and [middle, hi) tell each other their nodes.
  void exchange(std::vector<piece>& have, int lo, int middle, int hi, std::vector<int> send_to, int receive_from);

  void exchange_all(std::vector<piece>& have);

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
  explicit dyadic_scan_plan(const dyadic_plan& plan);

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

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/collective/impl/dyadic_plan.hpp>
#endif
