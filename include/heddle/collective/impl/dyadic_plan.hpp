// heddle/collective/impl/dyadic_plan.hpp: bodies of heddle/collective/dyadic_plan.hpp.
#pragma once

#include <heddle/collective/dyadic_plan.hpp>
#include <heddle/core/dyadic.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

HEDDLE_INLINE std::vector<std::int64_t> dyadic_trees(std::span<const std::int64_t> tree_of, std::int64_t trees) {
  std::vector<std::int64_t> bounds(1, 0);
  for (std::size_t i = 0; i < tree_of.size(); ++i) {
    const std::int64_t t = tree_of[i];
    if (t < 0 || t >= trees || (i > 0 && t < tree_of[i - 1])) {
      throw comm_error(text_of({"heddle: dyadic_trees: leaf ", i, " is of tree ", t,
                                "; the numbers must not decrease, and lie below ", trees}));
    }
    bounds.resize(static_cast<std::size_t>(t) + 1, static_cast<std::int64_t>(i));
  }
  bounds.resize(static_cast<std::size_t>((std::max)(trees, std::int64_t{0})) + 1,
                static_cast<std::int64_t>(tree_of.size()));
  return bounds;
}

HEDDLE_INLINE dyadic_plan::dyadic_plan(std::span<const std::int64_t> trees, std::span<const std::int64_t> bounds,
                                       int rank)
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

HEDDLE_INLINE void dyadic_plan::check() const {
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
  throw comm_error(text_of({"heddle: dyadic_plan on rank ", rank_, ": ", problem}));
}

HEDDLE_INLINE std::vector<dyadic_node> dyadic_plan::maximal(std::int64_t lo, std::int64_t hi) const {
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

HEDDLE_INLINE std::int64_t dyadic_plan::build(dyadic_node node, const std::vector<piece>& have, std::size_t& next,
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

HEDDLE_INLINE void dyadic_plan::compute(std::vector<piece>& have, std::int64_t lo, std::int64_t hi) {
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

HEDDLE_INLINE void dyadic_plan::exchange(std::vector<piece>& have, int lo, int middle, int hi, std::vector<int> send_to,
                                         int receive_from) {
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

HEDDLE_INLINE void dyadic_plan::exchange_all(std::vector<piece>& have) {
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

HEDDLE_INLINE dyadic_scan_plan::dyadic_scan_plan(const dyadic_plan& plan) : slots_(plan.slots()) {
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

}  // namespace heddle::inline v0
