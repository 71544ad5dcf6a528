// heddle/mesh/link_table.hpp: measured latency and bandwidth between distant nodes.
#pragma once

#include <heddle/core/error.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace heddle::inline v0 {

/// One way from a node to another. Units: seconds, bytes per second.
struct node_link {
  double latency = 0;
  double bytes_per_second = 1;
};

/// The links of every pair of nodes, as measured: no topology is assumed, and the two directions may differ. A node's
/// messages to itself take no time.
class link_table {
 public:
  /// Errors: `mesh_error` unless there is a node.
  constexpr explicit link_table(int nodes) : nodes_(nodes) {
    if (nodes < 1) throw mesh_error("heddle: a link table needs at least one node, got " + std::to_string(nodes));
    links_.assign(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(nodes), node_link{});
  }

  constexpr int nodes() const noexcept { return nodes_; }
  constexpr const node_link& operator()(int from, int to) const { return links_[at(from, to)]; }

  /// One direction. Errors: `mesh_error` for a negative latency or a bandwidth that is not positive.
  constexpr void set_one_way(int from, int to, node_link link) {
    if (!(link.latency >= 0) || !(link.bytes_per_second > 0))
      throw mesh_error("heddle: the link from node " + std::to_string(from) + " to node " + std::to_string(to) +
                       " has a negative latency or no bandwidth");
    links_[at(from, to)] = link;
  }
  /// Both directions.
  constexpr void set(int a, int b, node_link link) {
    set_one_way(a, b, link);
    set_one_way(b, a, link);
  }

  /// How long a message takes. `overhead`: what each message costs besides, whatever its size.
  constexpr double seconds(int from, int to, double bytes, double overhead = 0) const {
    if (from == to) return 0;
    const node_link& link = links_[at(from, to)];
    return link.latency + bytes / link.bytes_per_second + overhead;
  }

  /// The times of one message size for all pairs, `[from * nodes() + to]`.
  constexpr std::vector<double> all_seconds(double bytes, double overhead = 0) const {
    std::vector<double> times(links_.size(), 0.0);
    for (int a = 0; a < nodes_; ++a)
      for (int b = 0; b < nodes_; ++b)
        times[static_cast<std::size_t>(a) * static_cast<std::size_t>(nodes_) + static_cast<std::size_t>(b)] =
            seconds(a, b, bytes, overhead);
    return times;
  }

 private:
  constexpr std::size_t at(int from, int to) const {
    if (from < 0 || from >= nodes_ || to < 0 || to >= nodes_)
      throw mesh_error("heddle: a link table of " + std::to_string(nodes_) + " nodes has no link from " +
                       std::to_string(from) + " to " + std::to_string(to));
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(nodes_) + static_cast<std::size_t>(to);
  }

  int nodes_;
  std::vector<node_link> links_;
};

/// The links of nodes of which several stand at one place: node i stands at `place_of_node[i]` of `places`, and two
/// nodes of one place are joined by `inside`. Errors: `mesh_error` for a place that is not in the table.
constexpr link_table nodes_at(const link_table& places, const std::vector<int>& place_of_node, node_link inside) {
  link_table table(static_cast<int>(place_of_node.size()));
  for (int a = 0; a < table.nodes(); ++a)
    for (int b = 0; b < table.nodes(); ++b) {
      const int from = place_of_node[static_cast<std::size_t>(a)], to = place_of_node[static_cast<std::size_t>(b)];
      const node_link& link = places(from, to);
      if (a != b) table.set_one_way(a, b, from == to ? inside : link);
    }
  return table;
}

}  // namespace heddle::inline v0
