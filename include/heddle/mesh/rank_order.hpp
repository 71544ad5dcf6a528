// heddle/mesh/rank_order.hpp: orders of physical ranks on a mesh that keep groups inside of nodes.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/mesh/inverse_order.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/mesh/topology.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {
inline std::string card_not_listed(int rank, link_kind kind) {
  return text_of({"heddle: rank ", rank, " has a network card of kind ", to_string(kind),
                  ", which the list of kinds to sort by lacks; add it"});
}
}  // namespace detail

/// The physical ranks sorted by the kind of their network card (in the order of `kinds`; without a list, in the order
/// of `link_kind`), then by pod, node and GPU. The mesh's last axes then stay inside nodes, the next inside pods and
/// clusters of one kind of card, and its first axis crosses what must be crossed.
/// Errors: `mesh_error` naming a rank whose card's kind is not in the list.
/// Source: Yang et al. 2024, arXiv:2312.03549 (Holmes): ranks sorted by the position of their device type, pipeline
/// first.
constexpr std::vector<int> sorted_ranks(const topology& t, std::span<const link_kind> kinds = {}) {
  const auto position = [&](int rank) {
    const link_kind kind = t.place(rank).nic;
    if (kinds.empty()) return static_cast<std::size_t>(kind);
    for (std::size_t i = 0; i < kinds.size(); ++i)
      if (kinds[i] == kind) return i;
    throw mesh_error(detail::card_not_listed(rank, kind));
  };
  const auto before = [&](int a, int b) {
    const rank_place &p = t.place(a), &q = t.place(b);
    if (const std::size_t i = position(a), j = position(b); i != j) return i < j;
    if (p.pod != q.pod) return p.pod < q.pod;
    if (p.node != q.node) return p.node < q.node;
    if (p.gpu != q.gpu) return p.gpu < q.gpu;
    return a < b;
  };
  // Merge sort from short runs to long ones; std::stable_sort is not for constant expressions.
  std::vector<int> order, merged(static_cast<std::size_t>(t.ranks()));
  for (int r = 0; r < t.ranks(); ++r) {
    position(r);
    order.push_back(r);
  }
  for (std::size_t run = 1; run < order.size(); run *= 2) {
    for (std::size_t begin = 0; begin < order.size(); begin += 2 * run) {
      const std::size_t middle = begin + run < order.size() ? begin + run : order.size();
      const std::size_t end = middle + run < order.size() ? middle + run : order.size();
      std::size_t a = begin, b = middle;
      for (std::size_t i = begin; i < end; ++i)
        merged[i] = b == end || (a < middle && !before(order[b], order[a])) ? order[a++] : order[b++];
    }
    std::swap(order, merged);
  }
  return order;
}

/// How groups of ranks lie on the parts (nodes, pods, ...) of a cluster.
struct group_spread {
  int groups = 0;    ///< how many there are
  int crossing = 0;  ///< how many of them lie in more than one part
  int widest = 0;    ///< the most parts that one of them lies in
  friend constexpr bool operator==(const group_spread&, const group_spread&) = default;
};

namespace detail {
// Calls `visit` with the physical ranks of each group along `Tags`.
template <class... Tags, mesh_like Mesh, class Visit>
constexpr void each_group(const Mesh& mesh, const topology& t, std::span<const int> order, Visit visit) {
  if (mesh.size() != t.ranks() || (!order.empty() && order.size() != static_cast<std::size_t>(t.ranks()))) {
    throw mesh_error(text_of({"heddle: a mesh of ", mesh.size(), " ranks does not fit a topology of ", t.ranks(),
                              " ranks, or the order of ranks has another length"}));
  }
  inverse_order(order);  // refuses what is none
  for (int r = 0; r < mesh.size(); ++r) {
    if (mesh.template group_index<Tags...>(r) != 0) continue;
    std::vector<int> members;
    for (int i = 0; i < mesh.template group_size<Tags...>(); ++i) {
      const int m = mesh.template group_member<Tags...>(r, i);
      members.push_back(order.empty() ? m : order[static_cast<std::size_t>(m)]);
    }
    visit(std::as_const(members));
  }
}

constexpr int parts_of(const topology& t, cluster_level level, const std::vector<int>& ranks) {
  std::vector<int> seen;
  for (const int r : ranks) {
    bool found = false;
    for (const int s : seen) found = found || s == t.part(level, r);
    if (!found) seen.push_back(t.part(level, r));
  }
  return static_cast<int>(seen.size());
}

inline std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < 8; ++i)
    text.append(i == 0 ? "" : ", ").append(std::to_string(ranks[i]));
  if (ranks.size() > 8) text += ", ...";
  return text;
}

template <class... Tags>
std::string tag_list() {
  std::string text;
  for (const std::string& name : axis_names(type_list<Tags...>{})) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}
}  // namespace detail

/// How the groups along these axes lie on the cluster, when the mesh's ranks are played in this order (none: as
/// numbered).
/// Errors: `mesh_error` if mesh, topology and order do not have the same number of ranks, or the order names one twice.
template <class... Tags, mesh_like Mesh>
constexpr group_spread spread_along(const Mesh& mesh, const topology& t, cluster_level level,
                                    std::span<const int> order = {}) {
  group_spread result;
  detail::each_group<Tags...>(mesh, t, order, [&](const std::vector<int>& members) {
    const int parts = detail::parts_of(t, level, members);
    ++result.groups;
    result.crossing += parts > 1;
    if (parts > result.widest) result.widest = parts;
  });
  return result;
}

/// Refuses an order that lets a group along these axes cross from one part of the cluster into another.
/// Errors: `mesh_error` naming the axes, the physical ranks of the group and how many parts they lie in; as
/// `spread_along`.
template <class... Tags, mesh_like Mesh>
void require_inside(const Mesh& mesh, const topology& t, cluster_level level, std::span<const int> order = {}) {
  constexpr std::string_view names[] = {"rank", "GPU", "node", "rail", "pod"};
  detail::each_group<Tags...>(mesh, t, order, [&](const std::vector<int>& members) {
    const int parts = detail::parts_of(t, level, members);
    if (parts <= 1) return;
    throw mesh_error(
        text_of({"heddle: a group along ", detail::tag_list<Tags...>(), " (physical ranks ", detail::rank_list(members),
                 ") lies in ", parts, " parts of level ", names[static_cast<std::size_t>(level)],
                 "; sort the ranks (sorted_ranks), name this axis later in the mesh, or make it shorter"}));
  });
}

}  // namespace heddle::inline v0
