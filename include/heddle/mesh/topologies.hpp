// heddle/mesh/topologies.hpp: usual clusters: rings, tori, switches, nodes, fat trees.
#pragma once

#include <heddle/mesh/topology.hpp>
#include <heddle/core/text.hpp>

#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

namespace heddle::inline v0 {

/// Functions that make a `topology`. Each takes the link class of every sort of link that it has; bandwidths are those
/// of one link in one direction. Errors: `mesh_error` for numbers that are not positive.
namespace topologies {

namespace detail {
inline std::string refusal(const char* before, int number, const char* after) {
  return text_of({before, number, after});
}

inline std::string too_few(int number, const char* what) {
  std::string text = refusal("heddle: got ", number, " for a topology that needs at least one ");
  text += what;
  return text;
}

constexpr int positive(int number, const char* what) {
  if (number <= 0) throw mesh_error(too_few(number, what));
  return number;
}

// Ranks are numbered by int.
constexpr int product(int a, int b) {
  const long long ranks = static_cast<long long>(a) * b;
  if (ranks > (std::numeric_limits<int>::max)()) throw mesh_error("heddle: a topology has too many ranks to number");
  return static_cast<int>(ranks);
}

// Rank `r` moved by `step` along the dimension with this stride and extent; -1 beyond an edge that is not closed.
constexpr int neighbour(int r, int stride, int extent, int step, bool closed) noexcept {
  const int at = r / stride % extent;
  const int next = at + step;
  if (!closed && (next < 0 || next >= extent)) return -1;
  return r + ((next + extent) % extent - at) * stride;
}

// Links of one direction of a dimension come after one another: at equal distances the way up is the first, and lower
// dimensions come before higher ones.
constexpr topology lattice(std::span<const int> extents, const link_class& c, bool closed) {
  int ranks = 1;
  for (const int e : extents) ranks = product(ranks, positive(e, "rank along each dimension"));
  topology t(ranks);
  int stride = ranks;
  for (const int extent : extents) {
    stride /= extent;
    for (const int step : {1, -1})
      for (int r = 0; r < ranks && extent > 1; ++r) {
        if (closed && extent == 2 && step != 1) break;  // both neighbours are the same rank
        if (const int to = neighbour(r, stride, extent, step, closed); to >= 0) t.add_link(r, to, c);
      }
  }
  return t;
}

// A link class for one of two links that are crossed one after the other.
constexpr link_class half_way(link_class c) noexcept {
  c.seconds /= 2;
  return c;
}
}  // namespace detail

/// A torus: rank numbers are row-major in the extents (the last one varies fastest), neighbours along each dimension
/// are linked in both directions, ends are joined. Along an extent of 2 there is one neighbour and one link to it.
constexpr topology torus(std::span<const int> extents, const link_class& c = {}) {
  return detail::lattice(extents, c, true);
}
constexpr topology torus(std::initializer_list<int> extents, const link_class& c = {}) {
  return detail::lattice({extents.begin(), extents.size()}, c, true);
}

/// A torus whose ends are not joined (often called a mesh).
constexpr topology grid(std::span<const int> extents, const link_class& c = {}) {
  return detail::lattice(extents, c, false);
}
constexpr topology grid(std::initializer_list<int> extents, const link_class& c = {}) {
  return detail::lattice({extents.begin(), extents.size()}, c, false);
}

/// Each rank is linked with the next and the one before.
constexpr topology ring(int ranks, const link_class& c = {}) {
  return torus({ranks}, c);
}

/// 2^dimensions ranks; those whose numbers differ in one bit are linked.
constexpr topology hypercube(int dimensions, const link_class& c = {}) {
  if (dimensions < 0 || dimensions > 20)
    throw mesh_error(detail::refusal("heddle: a hypercube has 0 to 20 dimensions, got ", dimensions, ""));
  const std::vector<int> extents(static_cast<std::size_t>(dimensions), 2);
  return torus(extents, c);
}

/// Each rank has a link of its own to each other one.
constexpr topology full(int ranks, const link_class& c = {}) {
  topology t(detail::positive(ranks, "rank"));
  for (int a = 0; a < ranks; ++a)
    for (int b = 0; b < ranks; ++b)
      if (a != b) t.add_link(a, b, c);
  return t;
}

/// All ranks on one switch. A message crosses two links, which take `c.seconds` together.
constexpr topology star(int ranks, const link_class& c = {}) {
  topology t(detail::positive(ranks, "rank"));
  const int hub = t.add_vertex();
  for (int r = 0; r < ranks; ++r) t.add_both(r, hub, detail::half_way(c));
  return t;
}

namespace detail {
// A network card: one vertex for what leaves, one for what arrives, so that no way turns around in a card.
struct card {
  int out = 0;
  int in = 0;
};

// The inside of each node: a switch, `rails` network cards, and who sits where. Returns the cards, node after node.
constexpr std::vector<card> add_nodes(topology& t, int nodes_per_pod, int per_node, int rails, const link_class& inside,
                                      link_kind network) {
  std::vector<card> cards;
  const int nodes = t.ranks() / per_node;
  for (int n = 0; n < nodes; ++n) {
    if (per_node > 1) {
      const int hub = t.add_vertex();
      for (int i = 0; i < per_node; ++i) t.add_both(n * per_node + i, hub, half_way(inside));
    }
    for (int k = 0; k < rails; ++k) {
      const int out = t.add_vertex(vertex_kind::nic);
      cards.push_back({out, t.add_vertex(vertex_kind::nic)});
    }
    for (int i = 0; i < per_node; ++i) {
      const int rail = i * rails / per_node, rank = n * per_node + i;
      const card& mine = cards[static_cast<std::size_t>(n * rails + rail)];
      t.add_link({rank, mine.out, 0, inside.bytes_per_second, inside.kind});
      t.add_link({mine.in, rank, 0, inside.bytes_per_second, inside.kind});
      t.place(rank, {rank, n, rail, n / nodes_per_pod, network});
    }
  }
  t.ranks_forward(false);
  return cards;
}

constexpr void plug(topology& t, const card& c, int network_switch, const link_class& between) {
  t.add_link(c.out, network_switch, half_way(between));
  t.add_link(network_switch, c.in, half_way(between));
}

constexpr void require_rails(int rails, int per_node) {
  if (positive(rails, "network card per node") > per_node)
    throw mesh_error(refusal("heddle: a node has at most one network card per rank, got ", rails, " cards"));
}
}  // namespace detail

/// Nodes of `per_node` ranks on a switch (two links, `inside.seconds` together). Each node has `cards` network cards; a
/// rank uses card `i * cards / per_node`, i its number in the node. The cards of all nodes are on one switch: between
/// nodes a message takes `between.seconds`, and a card's ranks share `between.bytes_per_second` in each direction. (A
/// card is two vertices, one for what leaves and one for what arrives.)
constexpr topology nodes(int count, int per_node, const link_class& inside, const link_class& between, int cards = 1) {
  detail::positive(count, "node");
  detail::positive(per_node, "rank per node");
  detail::require_rails(cards, per_node);
  topology t(detail::product(count, per_node));
  const auto plugs = detail::add_nodes(t, count, per_node, cards, inside, between.kind);
  const int network = t.add_vertex();
  for (const detail::card& c : plugs) detail::plug(t, c, network, between);
  return t;
}

/// A fat tree of pods of nodes. Card k of every node of a pod is on the pod's switch of rail k; a pod's rail switches
/// (if there are several) are on the pod's spine by links that carry all their cards; the pods are joined by a core
/// switch: `core` is the link of a pod to it, so that a message between pods takes `between.seconds + core.seconds` and
/// a pod's messages to others share `core.bytes_per_second` in each direction.
constexpr topology fat_tree(int pods, int nodes_per_pod, int per_node, const link_class& inside,
                            const link_class& between, const link_class& core, int rails = 1) {
  detail::positive(pods, "pod");
  detail::positive(nodes_per_pod, "node per pod");
  detail::positive(per_node, "rank per node");
  detail::require_rails(rails, per_node);
  topology t(detail::product(detail::product(pods, nodes_per_pod), per_node));
  const auto plugs = detail::add_nodes(t, nodes_per_pod, per_node, rails, inside, between.kind);
  const int top = pods > 1 ? t.add_vertex() : -1;
  for (int p = 0; p < pods; ++p) {
    const int spine = rails > 1 ? t.add_vertex() : -1;
    int leaf = -1;
    for (int k = 0; k < rails; ++k) {
      leaf = t.add_vertex();
      for (int n = p * nodes_per_pod; n < (p + 1) * nodes_per_pod; ++n)
        detail::plug(t, plugs[static_cast<std::size_t>(n * rails + k)], leaf, between);
      if (spine >= 0) t.add_both(leaf, spine, {0, between.bytes_per_second * nodes_per_pod, between.kind});
    }
    if (top >= 0) t.add_both(spine >= 0 ? spine : leaf, top, detail::half_way(core));
  }
  return t;
}

}  // namespace topologies

}  // namespace heddle::inline v0
