// heddle/plan/strategy_space.hpp: lists the parallel strategies of a number of devices.
#pragma once

#include <heddle/core/error.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::plan {

/// The kinds of a level of a decision tree: copies with summed gradients, states split as by ZeRO-3, layers split.
enum class level_kind { data, sharded_data, tensor };
/// Their names in texts.
inline constexpr std::array<const char*, 3> level_names{"dp", "sdp", "tp"};

/// A level of such a tree: so many groups of ranks by one kind.
struct tree_level {
  level_kind kind = level_kind::data;
  int size = 2;
  friend bool operator==(const tree_level&, const tree_level&) = default;
};

/// A decision tree of Galvatron: pipeline stages outermost, on the slowest links; the last level on the fastest.
struct strategy_tree {
  int pipeline = 1;
  std::vector<tree_level> levels{};
  bool recompute = false;
  friend bool operator==(const strategy_tree&, const strategy_tree&) = default;
};

/// `pp=2,sdp=2,tp=2,recompute`.
inline std::string to_string(const strategy_tree& tree) {
  std::string text = "pp=" + std::to_string(tree.pipeline);
  for (const tree_level& l : tree.levels)
    ((text += ',') += level_names[static_cast<std::size_t>(l.kind)]) += '=' + std::to_string(l.size);
  return tree.recompute ? text + ",recompute" : text;
}

/// Which trees are listed.
struct tree_options {
  bool pruned = true;      ///< without those that mix dp and sdp: sdp alone is never worse
  bool recompute = false;  ///< each with and without recomputed activations (Galvatron-BMW)
};

/// All decision trees of a number of devices: 34 for 8, 22 pruned, 44 with recomputation.
/// Errors: `config_error` if the number is no power of two, or above 2^20.
/// Source: Galvatron (arXiv:2211.13878), section 3.2; Galvatron-BMW (arXiv:2307.02031), section 3.1.
inline std::vector<strategy_tree> strategy_trees(int devices, const tree_options& options = {}) {
  if (devices < 1 || devices > 1 << 20 || !std::has_single_bit(static_cast<unsigned>(devices)))
    throw config_error("heddle: decision trees are made for a power of two of devices up to 1048576, not " +
                       std::to_string(devices));
  std::vector<strategy_tree> all;
  strategy_tree tree;
  const auto used = [&](level_kind kind) {
    for (const tree_level& l : tree.levels)
      if (l.kind == kind) return true;
    return false;
  };
  const auto add = [&](auto&& self, int left) -> void {
    if (left == 1) {
      all.push_back(tree);
      if (options.recompute) all.push_back({tree.pipeline, tree.levels, true});
      return;
    }
    for (const level_kind kind : {level_kind::data, level_kind::sharded_data, level_kind::tensor}) {
      if (used(kind)) continue;
      if (options.pruned && kind != level_kind::tensor &&
          used(kind == level_kind::data ? level_kind::sharded_data : level_kind::data))
        continue;
      for (int size = 2; size <= left; size *= 2) {
        tree.levels.push_back({kind, size});
        self(self, left / size);
        tree.levels.pop_back();
      }
    }
  };
  for (tree.pipeline = 1; tree.pipeline <= devices; tree.pipeline *= 2) add(add, devices / tree.pipeline);
  return all;
}

/// An axis of a space of meshes: `pp`, `dp`, `tp`, and the axes that a sharding names.
struct space_axis {
  std::string name;
  int most = 0;  ///< ranks along it at most, as those of a node for tp; 0: no limit
};

/// The extents of all meshes of `ranks` ranks over these axes, in their order; the last axis varies fastest.
/// Errors: `config_error` for less than one rank or axis, or two axes of one name.
inline std::vector<std::vector<int>> mesh_extents(int ranks, std::span<const space_axis> axes) {
  if (ranks < 1 || axes.empty())
    throw config_error("heddle: meshes have at least 1 rank and 1 axis, got " + std::to_string(ranks) + " and " +
                       std::to_string(axes.size()));
  for (std::size_t i = 0; i < axes.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (axes[i].name == axes[j].name)
        throw config_error("heddle: two axes of a space of meshes are named " + axes[i].name);
  std::vector<std::vector<int>> all;
  std::vector<int> extents;
  const auto add = [&](auto&& self, int left) -> void {
    const space_axis& axis = axes[extents.size()];
    const bool last = extents.size() + 1 == axes.size();
    for (int n = last ? left : 1; n <= left && (axis.most == 0 || n <= axis.most); ++n) {
      if (left % n != 0) continue;
      extents.push_back(n);
      if (last)
        all.push_back(extents);
      else
        self(self, left / n);
      extents.pop_back();
    }
  };
  add(add, ranks);
  return all;
}

/// Such a mesh as text that `parse_mesh` reads: `dp=2,pp=4,tp=1`.
inline std::string mesh_text(std::span<const space_axis> axes, std::span<const int> extents) {
  std::string text;
  for (std::size_t i = 0; i < axes.size(); ++i)
    text += (i == 0 ? "" : ",") + axes[i].name + '=' + std::to_string(extents[i]);
  return text;
}

}  // namespace heddle::inline v0::plan
