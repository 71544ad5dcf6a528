// heddle/io/node_topology.hpp: one machine: GPUs or cores as ranks, and network cards.
#pragma once

#include <heddle/mesh/topology.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace heddle::inline v0 {

/// A network card of a machine. Units: bytes per second in each direction; 0 where the description does not say.
struct network_card {
  int vertex = 0;
  std::string name;
  double bytes_per_second = 0;
  link_kind kind = link_kind::other;
  friend bool operator==(const network_card&, const network_card&) = default;
};

/// A machine: its links inside, ranks in one node, and its cards, to which nothing outside is linked yet
/// (`links.add_vertex()` makes a switch, `links.add_both(card.vertex, ...)` plugs a card into it).
struct node_topology {
  topology links;
  std::vector<network_card> cards;
  friend bool operator==(const node_topology&, const node_topology&) = default;
};

/// Links of which the description of a machine gives no numbers.
struct node_link_classes {
  link_class pcie{5e-7, 1.6e10, link_kind::pcie};       ///< latency of every PCIe link; bandwidth of those without one
  link_class nvlink{5e-7, 2.5e10, link_kind::nvlink};   ///< one NVLink; several side by side count as one wider link
  link_class processor{2e-7, 4e10, link_kind::memory};  ///< between processors (sockets), and from cores to theirs
  link_kind card = link_kind::infiniband;               ///< kind of cards of which the description does not say it
};

namespace detail {
// Gives each rank a card: one with RDMA if there is any; of these the one with the fewest links between them; of
// several the one that the fewest ranks have.
inline void assign_cards(node_topology& node) {
  std::vector<int> users(node.cards.size(), 0);
  std::vector<std::vector<int>> hops;  // of each card, from every vertex
  for (const network_card& card : node.cards) hops.push_back(node.links.hops_to(card.vertex));
  for (int r = 0; r < node.links.ranks(); ++r) {
    std::size_t best = node.cards.size();
    std::array<int, 3> least{};
    for (std::size_t c = 0; c < node.cards.size(); ++c) {
      const bool rdma = node.cards[c].kind == link_kind::infiniband || node.cards[c].kind == link_kind::roce;
      const int links_between = hops[c][static_cast<std::size_t>(r)];
      if (links_between < 0) static_cast<void>(node.links.hops(r, node.cards[c].vertex));  // says that no way leads
      const std::array<int, 3> cost{rdma ? 0 : 1, links_between, users[c]};
      if (best < node.cards.size() && least <= cost) continue;
      best = c;
      least = cost;
    }
    rank_place place{r, 0, 0, 0, link_kind::other};
    if (best < node.cards.size()) {
      ++users[best];
      place.rail = static_cast<int>(best);
      place.nic = node.cards[best].kind;
    }
    node.links.place(r, place);
  }
}
}  // namespace detail

}  // namespace heddle::inline v0
