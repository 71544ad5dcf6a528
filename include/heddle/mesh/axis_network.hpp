// heddle/mesh/axis_network.hpp: the network of an axis's groups, where cards differ.
#pragma once

#include <heddle/mesh/rank_order.hpp>
#include <heddle/core/text.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {

/// What a group of ranks can use among themselves.
struct group_network {
  /// Their cards' kind. If the cards differ: `ethernet` (sockets), since RDMA needs one kind; `other` inside one node.
  link_kind kind = link_kind::other;
  bool mixed = false;    ///< messages leave the node, and the cards differ
  bool one_node = true;  ///< no message leaves the node
  friend constexpr bool operator==(const group_network&, const group_network&) = default;
};

/// The network that a group of physical ranks can use: that of their cards if they agree, else sockets, or none inside a
/// node.
/// Source: Yang et al. 2024, arXiv:2312.03549 (Holmes): the network is chosen per group, not per process.
constexpr group_network network_of(const topology& t, std::span<const int> ranks) {
  group_network result;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const rank_place& p = t.place(ranks[i]);
    if (i == 0) result.kind = p.nic;
    result.mixed = result.mixed || p.nic != t.place(ranks[0]).nic;
    result.one_node = result.one_node && p.node == t.place(ranks[0]).node;
  }
  if (result.mixed) result.kind = result.one_node ? link_kind::other : link_kind::ethernet;
  result.mixed = result.mixed && !result.one_node;
  return result;
}

/// The networks of all groups along an axis (or several).
struct axis_network {
  int groups = 0;
  int mixed = 0;                      ///< groups over several nodes whose ranks have different cards: these use sockets
  int one_node = 0;                   ///< groups that need no network
  bool same_kind = true;              ///< all groups use the same kind
  link_kind kind = link_kind::other;  ///< that kind, or `other`
  friend constexpr bool operator==(const axis_network&, const axis_network&) = default;
};

/// The networks of all groups of the mesh along these axes, whose ranks are played in this order (none: as numbered).
/// Errors: `mesh_error` if mesh, topology and order do not have the same number of ranks.
template <class... Tags, mesh_like Mesh>
constexpr axis_network network_along(const Mesh& mesh, const topology& t, std::span<const int> order = {}) {
  axis_network result;
  detail::each_group<Tags...>(mesh, t, order, [&](const std::vector<int>& members) {
    const group_network g = network_of(t, members);
    result.same_kind = result.groups == 0 || (result.same_kind && g.kind == result.kind);
    result.kind = result.same_kind ? g.kind : link_kind::other;
    ++result.groups;
    result.mixed += g.mixed;
    result.one_node += g.one_node;
  });
  return result;
}

/// Refuses an order of ranks that puts different network cards into one group along these axes, unless the group is
/// inside one node.
/// Errors: `mesh_error` naming the axes and the physical ranks of the group.
template <class... Tags, mesh_like Mesh>
void require_one_kind(const Mesh& mesh, const topology& t, std::span<const int> order = {}) {
  detail::each_group<Tags...>(mesh, t, order, [&](const std::vector<int>& members) {
    if (!network_of(t, members).mixed) return;
    std::string text = "heddle: the physical ranks ";
    text += detail::rank_list(members);
    text += " of one group along ";
    text += detail::tag_list<Tags...>();
    text +=
        " have different network cards and could only use sockets; sort the ranks (sorted_ranks), or name the axis "
        "that may cross clusters (pp) first in the mesh";
    throw mesh_error(text);
  });
}

/// A cluster as a type: so many ranks with such a card, then so many with such a one, in the mesh's numbering. It knows
/// no nodes: a group of different cards counts as mixed also where it is inside one.
///
///     using hd::link_kind, hd::ranks_with;
///     using machines = hd::cluster<ranks_with<8, link_kind::infiniband>, ranks_with<8, link_kind::roce>>;
template <int Ranks, link_kind Nic>
struct ranks_with {
  static_assert(Ranks > 0, "heddle: ranks_with<Ranks, Nic>: Ranks must be positive");
  static constexpr int ranks = Ranks;
  static constexpr link_kind nic = Nic;
};

/// A cluster as a type: parts `ranks_with<...>`, in the order of their ranks.
template <class... Parts>
struct cluster {
  static constexpr int size() noexcept { return (0 + ... + Parts::ranks); }
  static constexpr link_kind nic(int rank) noexcept {
    link_kind kind = link_kind::other;
    int end = 0;
    ((end += Parts::ranks, kind = rank >= end - Parts::ranks && rank < end ? Parts::nic : kind), ...);
    return kind;
  }
};

/// Refuses a machine that is not what `Cluster` says, when the mesh's ranks are played in this order (none: as
/// numbered): what is chosen by the type would use cards that are not there.
/// Errors: `mesh_error` naming the first rank whose card is of another kind, or both numbers of ranks; as
/// `inverse_order`.
template <class Cluster>
void require_cluster(const topology& t, std::span<const int> order = {}) {
  if (t.ranks() != Cluster::size() || (!order.empty() && order.size() != static_cast<std::size_t>(t.ranks()))) {
    throw mesh_error(text_of({"heddle: a cluster of ", Cluster::size(), " ranks does not describe a topology of ",
                              t.ranks(), " ranks, or the order of ranks has another length"}));
  }
  inverse_order(order);
  for (int r = 0; r < t.ranks(); ++r) {
    const int physical = order.empty() ? r : order[static_cast<std::size_t>(r)];
    if (t.place(physical).nic == Cluster::nic(r)) continue;
    throw mesh_error(text_of({"heddle: rank ", r, " (physical rank ", physical, ") has a network card of kind ",
                              to_string(t.place(physical).nic), ", where the cluster says ", to_string(Cluster::nic(r)),
                              "; sort the ranks (sorted_ranks), or correct the cluster"}));
  }
}

/// What a group talks over, as types.
template <link_kind Nic>
struct rdma {  ///< all groups along the axis use RDMA over this kind of card
  static constexpr link_kind kind = Nic;
};
struct rdma_by_group {};  ///< each group uses RDMA, but not all of them over the same kind of card
struct tcp {};            ///< some group's ranks have different cards, or cards without RDMA: sockets

namespace detail {
struct static_network {
  bool fits = true;
  bool mixed = false;
  bool same_kind = true;
  bool has_rdma = true;
  link_kind kind = link_kind::other;
};

template <class Cluster, class Mesh, class... Tags>
constexpr static_network static_network_along() {
  static_network result;
  result.fits = Cluster::size() == Mesh::size();
  result.kind = Cluster::nic(0);
  for (int r = 0; r < Mesh::size(); ++r) {
    const link_kind mine = Cluster::nic(r);
    result.same_kind = result.same_kind && mine == result.kind;
    result.mixed = result.mixed || mine != Cluster::nic(Mesh::template group_member<Tags...>(r, 0));
    result.has_rdma = result.has_rdma && (mine == link_kind::infiniband || mine == link_kind::roce);
  }
  return result;
}

template <class Cluster, class Mesh, class... Tags>
struct transport_of {
  static constexpr bool known = (Mesh::template has<Tags> && ...);
  static_assert(Mesh::is_static,
                "heddle: transport_along needs a mesh whose extents are all known; use network_along for others");
  static_assert(known,
                "heddle: transport_along: the mesh has no axis with one of these tags; name the mesh's own axes");
  static constexpr static_network network = [] {
    if constexpr (Mesh::is_static && known)
      return static_network_along<Cluster, Mesh, Tags...>();
    else
      return static_network{};
  }();
  static_assert(network.fits,
                "heddle: the cluster has another number of ranks than the mesh; change an extent or a part");
  using type = std::conditional_t<network.mixed || !network.has_rdma, tcp,
                                  std::conditional_t<network.same_kind, rdma<network.kind>, rdma_by_group>>;
};
}  // namespace detail

/// What the groups along these axes of a static mesh talk over on a static cluster: `rdma<kind>`, `rdma_by_group` or
/// `tcp`.
template <class Cluster, mesh_like Mesh, class... Tags>
using transport_along = typename detail::transport_of<Cluster, Mesh, Tags...>::type;

/// Whether no group along these axes holds ranks with different cards.
template <class Cluster, mesh_like Mesh, class... Tags>
inline constexpr bool one_kind_along = !detail::transport_of<Cluster, Mesh, Tags...>::network.mixed;

/// Refuses, at compile time, a mesh that puts different cards into one group along an axis of `Tags`, each taken alone.
template <class Cluster, mesh_like Mesh, class... Tags>
consteval bool require_one_kind() {
  static_assert(
      (one_kind_along<Cluster, Mesh, Tags> && ...),
      "heddle: a group along one of these axes holds ranks with different network cards, which share no RDMA; "
      "name the axis that may cross clusters (pp) first in the mesh");
  return true;
}

}  // namespace heddle::inline v0
