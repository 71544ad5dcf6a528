// heddle/plan/impl/place_groups.hpp: bodies of heddle/plan/place_groups.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/place_groups.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {
namespace detail {

inline constexpr int most_exact_pods = 14;

struct pod_nodes {
  int pod = 0;
  std::int64_t nodes = 0;
};

/// Pods that share groups, and how many groups they carry.
struct pod_part {
  std::vector<pod_nodes> pods;
  std::int64_t groups = 0;
};

// Places groups of `columns` nodes, each in at most `widest` pods.
class pod_packing {
 public:
  pod_packing(int rows, int columns, int widest) : rows_(rows), columns_(columns), widest_(widest) {}

  // How many groups all these pods carry as one part; -1 if they cannot be one.
  std::int64_t as_one(std::int64_t nodes, std::int64_t pods) const {
    const std::int64_t groups = nodes / columns_;
    return widest_ >= columns_ || groups * (widest_ - 1) >= pods - 1 ? groups : -1;
  }

  // For each set of these pods: the groups that it carries, up to all rows, and the first of the parts that it is split into. Of equal
  // splits that into most parts: each part less is one more pod that shares a group.
  void solve(std::span<const pod_nodes> pods) {
    pods_.assign(pods.begin(), pods.end());
    const std::size_t sets = std::size_t{1} << pods.size();
    best_.assign(sets, {});
    std::vector<std::int64_t> sum(sets, 0), one(sets, 0);
    for (std::size_t set = 1; set < sets; ++set) {
      const std::size_t low = set & (~set + 1);
      sum[set] = sum[set ^ low] + pods_[static_cast<std::size_t>(std::countr_zero(set))].nodes;
      one[set] = as_one(sum[set], std::popcount(set));
      split& best = best_[set];
      // The part that holds the lowest pod.
      for (std::size_t rest = (set ^ low);; rest = (rest - 1) & (set ^ low)) {
        const std::size_t part = set ^ rest;
        if (one[part] >= 0) {
          const split with{(std::min)(one[part] + best_[rest].groups, std::int64_t{rows_}), best_[rest].parts + 1,
                           part};
          if (with.groups > best.groups || (with.groups == best.groups && with.parts > best.parts)) best = with;
        }
        if (rest == 0) break;
      }
    }
  }
  std::int64_t groups(std::size_t set) const { return best_[set].groups; }

  std::vector<pod_part> parts(std::size_t set) const {
    std::vector<pod_part> all;
    for (; set != 0; set ^= best_[set].part) {
      pod_part p;
      std::int64_t nodes = 0;
      for (std::size_t k = 0; k < pods_.size(); ++k)
        if ((best_[set].part >> k & 1) != 0) {
          p.pods.push_back(pods_[k]);
          nodes += pods_[k].nodes;
        }
      p.groups = nodes / columns_;
      all.push_back(std::move(p));
    }
    return all;
  }

  // More pods than sets can be tried of: one part, or the best splits of 14 at a time.
  std::vector<pod_part> many(std::span<const pod_nodes> pods) {
    std::int64_t nodes = 0;
    for (const pod_nodes& p : pods) nodes += p.nodes;
    if (const std::int64_t all = as_one(nodes, static_cast<std::int64_t>(pods.size())); all >= rows_)
      return {{{pods.begin(), pods.end()}, all}};
    std::vector<pod_part> all;
    for (std::size_t begin = 0; begin < pods.size(); begin += most_exact_pods) {
      const auto some = pods.subspan(begin, (std::min)(pods.size() - begin, std::size_t{most_exact_pods}));
      solve(some);
      for (pod_part& p : parts((std::size_t{1} << some.size()) - 1)) all.push_back(std::move(p));
    }
    return all;
  }

  // The pods of each group of a part. With g (T - 1) + 1 pods, empty ones among them, that hold g groups exactly, some T pods hold a
  // group, and all but one of them not more: between the T smallest and the T largest pods, one is exchanged for the next larger one
  // until they do. That takes T - 1 pods away, so the rest is again of this form.
  std::vector<std::vector<int>> place(pod_part p) const {
    std::vector<std::vector<int>> groups;
    std::vector<pod_nodes>& pods = p.pods;
    const auto smaller = [](const pod_nodes& a, const pod_nodes& b) {
      return a.nodes != b.nodes ? a.nodes < b.nodes : a.pod < b.pod;
    };
    std::sort(pods.begin(), pods.end(), smaller);
    std::int64_t spare = -p.groups * columns_;
    for (const pod_nodes& q : pods) spare += q.nodes;
    for (pod_nodes& q : pods) {
      const std::int64_t left = (std::min)(q.nodes, spare);
      q.nodes -= left;
      spare -= left;
    }
    if (widest_ >= columns_) {  // whatever a group's nodes are, they are in so many pods
      std::vector<int> nodes;
      for (const pod_nodes& q : pods) nodes.insert(nodes.end(), static_cast<std::size_t>(q.nodes), q.pod);
      for (std::size_t begin = 0; begin < nodes.size(); begin += static_cast<std::size_t>(columns_)) {
        const auto first = nodes.begin() + static_cast<std::ptrdiff_t>(begin);
        groups.emplace_back(first, first + columns_);
      }
      return groups;
    }
    const auto wide = static_cast<std::size_t>(widest_);
    pods.resize(static_cast<std::size_t>(p.groups * (widest_ - 1) + 1), pod_nodes{-1, 0});
    for (std::int64_t g = 0; g < p.groups; ++g) {
      std::sort(pods.begin(), pods.end(), smaller);
      std::vector<std::size_t> chosen(wide);
      std::iota(chosen.begin(), chosen.end(), std::size_t{0});
      std::int64_t sum = 0;
      for (const std::size_t i : chosen) sum += pods[i].nodes;
      std::size_t last = wide - 1;  // which of the chosen keeps nodes
      while (sum < columns_) {
        last = chosen[wide - 1] - chosen[0] == wide - 1 ? wide - 1 : last - 1;
        sum -= pods[chosen[last]].nodes;
        sum += pods[++chosen[last]].nodes;
      }
      const std::int64_t kept = sum - columns_;
      std::vector<int> nodes;
      for (std::size_t i = 0; i < wide; ++i) {
        pod_nodes& q = pods[chosen[i]];
        nodes.insert(nodes.end(), static_cast<std::size_t>(q.nodes - (i == last ? kept : 0)), q.pod);
        q.nodes = i == last ? kept : -1;
      }
      std::erase_if(pods, [](const pod_nodes& q) { return q.nodes < 0; });
      groups.push_back(std::move(nodes));
    }
    return groups;
  }

 private:
  struct split {
    std::int64_t groups = 0;
    int parts = 0;
    std::size_t part = 0;
  };
  int rows_, columns_, widest_;
  std::vector<pod_nodes> pods_;
  std::vector<split> best_;
};

inline int pods_in(const std::vector<int>& cells) {
  std::vector<int> pods = cells;
  std::sort(pods.begin(), pods.end());
  return static_cast<int>(std::unique(pods.begin(), pods.end()) - pods.begin());
}

// Of the groups that these parts carry, the narrowest rows; those of one pod beside each other.
inline group_placement placed_rows(const pod_packing& packing, std::vector<pod_part> parts, const group_request& r) {
  std::vector<std::vector<int>> groups;
  for (pod_part& p : parts)
    for (std::vector<int>& g : packing.place(std::move(p))) groups.push_back(std::move(g));
  for (std::vector<int>& g : groups) std::sort(g.begin(), g.end());
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    const int p = pods_in(a), q = pods_in(b);
    return p != q ? p < q : a < b;
  });
  groups.resize(static_cast<std::size_t>(r.rows));
  std::sort(groups.begin(), groups.end());
  group_placement placed;
  placed.rows = r.rows;
  placed.columns = r.columns;
  for (const std::vector<int>& g : groups) {
    placed.widest = (std::max)(placed.widest, pods_in(g));
    placed.pod_of.insert(placed.pod_of.end(), g.begin(), g.end());
  }
  placed.pods = pods_in(placed.pod_of);
  return placed;
}

}  // namespace detail
}  // namespace heddle::inline v0::plan

namespace heddle::inline v0::plan {

HEDDLE_INLINE std::vector<int> group_placement::order_of(std::span<const int> column_of, int columns_of_mesh,
                                                         const topology& cluster) const {
  const int per_column = static_cast<int>(column_of.size()) / columns_of_mesh;
  if (columns_of_mesh != columns || rows < 1 || per_column % rows != 0)
    throw config_error(text_of({"heddle: ", rows, " groups of ", columns, " nodes do not hold a mesh of ",
                                column_of.size(), " ranks whose groups are ", columns_of_mesh, " long"}));
  std::map<int, std::map<int, std::vector<int>>> nodes;  // ranks by pod and node
  for (int r = 0; r < cluster.ranks(); ++r) nodes[cluster.place(r).pod][cluster.place(r).node].push_back(r);
  const auto per_node = static_cast<std::size_t>(per_column / rows);
  std::vector<std::vector<int>> free;  // of each pod: its nodes' ranks, node after node
  for (const auto& [pod, of_pod] : nodes) {
    free.emplace_back();
    for (const auto& [node, ranks] : of_pod)
      if (ranks.size() >= per_node)
        free.back().insert(free.back().end(), ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(per_node));
  }
  std::vector<std::size_t> first(pod_of.size()), taken(free.size(), 0);  // a cell's ranks in its pod's list
  for (std::size_t cell = 0; cell < pod_of.size(); ++cell) {
    const auto pod = static_cast<std::size_t>(pod_of[cell]);
    if (pod >= free.size() || taken[pod] + per_node > free[pod].size())
      throw config_error(text_of({"heddle: pod ", pod_of[cell], " of the cluster has ",
                                  pod < free.size() ? free[pod].size() / per_node : 0, " nodes of ", per_node,
                                  " ranks, and more are placed on it"}));
    first[cell] = taken[pod];
    taken[pod] += per_node;
  }
  std::vector<std::size_t> seen(static_cast<std::size_t>(columns), 0);
  std::vector<int> order;
  for (const int column : column_of) {
    const std::size_t at = seen[static_cast<std::size_t>(column)]++;
    const std::size_t cell = at / per_node * static_cast<std::size_t>(columns) + static_cast<std::size_t>(column);
    order.push_back(free[static_cast<std::size_t>(pod_of[cell])][first[cell] + at % per_node]);
  }
  return order;
}

HEDDLE_INLINE const group_placement& group_placements::best(double alpha) const {
  if (!(alpha >= 0 && alpha <= 1) || choices.empty())
    throw config_error("heddle: the weight alpha of the number of pods is between 0 and 1, and there is a placement");
  const auto objective = [&](const group_placement& p) { return alpha * p.pods + (1 - alpha) * p.widest; };
  const group_placement* best = &choices.front();
  for (const group_placement& p : choices)
    if (objective(p) < objective(*best)) best = &p;
  return *best;
}

HEDDLE_INLINE group_placements place_groups(const group_request& request) {
  const group_request& r = request;
  if (r.rows < 1 || r.columns < 1)
    throw config_error(
        text_of({"heddle: a job has at least one group of at least one node, not ", r.rows, " groups of ", r.columns}));
  std::vector<detail::pod_nodes> pods;
  std::int64_t free = 0;
  for (std::size_t k = 0; k < r.free_nodes.size(); ++k) {
    if (r.free_nodes[k] < 0)
      throw config_error(text_of({"heddle: pod ", k, " cannot have ", r.free_nodes[k], " free nodes"}));
    if (r.free_nodes[k] > 0) pods.push_back({static_cast<int>(k), r.free_nodes[k]});
    free += r.free_nodes[k];
  }
  const std::int64_t needed = std::int64_t{r.rows} * r.columns;
  if (free < needed)
    throw config_error(text_of({"heddle: the job needs ", needed, " nodes (", r.rows, " groups of ", r.columns,
                                "), and the pods have ", free, " free"}));
  std::sort(pods.begin(), pods.end(), [](const auto& a, const auto& b) { return a.nodes > b.nodes; });
  // No placement uses fewer pods than hold that many nodes.
  int least = 0;
  for (std::int64_t held = 0; held < needed; ++least) held += pods[static_cast<std::size_t>(least)].nodes;

  group_placements all;
  // A group is in no more pods than there are, or than it has nodes.
  const int most = (std::min)(r.columns, static_cast<int>(pods.size()));
  for (int widest = 1; widest <= most; ++widest) {
    detail::pod_packing packing(r.rows, r.columns, widest);
    std::vector<detail::pod_part> parts;
    int fewest = least;
    if (pods.size() <= detail::most_exact_pods) {
      packing.solve(pods);
      std::size_t chosen = 0;
      std::int64_t chosen_nodes = 0;
      for (std::size_t set = 1; set < std::size_t{1} << pods.size(); ++set) {
        if (packing.groups(set) < r.rows) continue;
        std::int64_t nodes = 0;
        for (std::size_t k = 0; k < pods.size(); ++k) nodes += (set >> k & 1) != 0 ? pods[k].nodes : 0;
        const int more = std::popcount(set) - std::popcount(chosen);
        // Of equally many pods those with the fewest free nodes: the large ones stay for other jobs.
        if (chosen != 0 && (more > 0 || (more == 0 && nodes >= chosen_nodes))) continue;
        chosen = set;
        chosen_nodes = nodes;
      }
      if (chosen == 0) continue;
      parts = packing.parts(chosen);
      fewest = std::popcount(chosen);
    } else if (widest == 1) {  // whole groups in each pod: those with most are best
      std::int64_t groups = 0;
      for (fewest = 0; groups < r.rows && fewest < static_cast<int>(pods.size()); ++fewest) {
        const detail::pod_nodes& p = pods[static_cast<std::size_t>(fewest)];
        parts.push_back({{p}, p.nodes / r.columns});
        groups += p.nodes / r.columns;
      }
      if (groups < r.rows) continue;
    } else {
      for (std::size_t count = static_cast<std::size_t>(least); count <= pods.size(); ++count) {
        parts = packing.many({pods.data(), count});
        std::int64_t groups = 0;
        for (const detail::pod_part& p : parts) groups += p.groups;
        if (groups >= r.rows) break;
        parts.clear();
      }
      if (parts.empty()) continue;
    }
    group_placement placed = detail::placed_rows(packing, std::move(parts), r);
    placed.fewest = (std::min)(fewest, placed.pods);
    if (all.choices.empty() || placed.pods < all.choices.back().pods) all.choices.push_back(std::move(placed));
    if (!all.choices.empty() && all.choices.back().pods <= least) break;
  }
  return all;
}

}  // namespace heddle::inline v0::plan
