// heddle/mesh/impl/simgrid.hpp: bodies of heddle/mesh/simgrid.hpp.
#pragma once

#include <heddle/mesh/simgrid.hpp>
#include <heddle/mesh/topology_file.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace heddle::inline v0 {

namespace detail {

// Whether each pair of ranks has one shortest way, which passes no other rank, if all vertices let messages through. A
// walk over all links for each rank.
HEDDLE_INLINE bool shortest_ways_are_plain(const topology& t) {
  const auto n = static_cast<std::size_t>(t.vertices());
  std::vector<std::vector<int>> out(n);
  for (int v = 0; v < t.vertices(); ++v) out[static_cast<std::size_t>(v)] = t.links_from(v);
  std::vector<int> hops, ways, order;
  for (int from = 0; from < t.ranks(); ++from) {
    hops.assign(n, -1);
    ways.assign(n, 0);
    order.assign(1, from);
    hops[static_cast<std::size_t>(from)] = 0;
    ways[static_cast<std::size_t>(from)] = 1;
    for (std::size_t next = 0; next < order.size(); ++next) {
      const auto v = static_cast<std::size_t>(order[next]);
      // Two ways that meet behind a rank pass it both: 2 stands for "several, or past a rank".
      const int onward = next > 0 && order[next] < t.ranks() ? 2 : ways[v];
      for (const int l : out[v]) {
        const auto to = static_cast<std::size_t>(t.links()[static_cast<std::size_t>(l)].to);
        if (hops[to] < 0) {
          hops[to] = hops[v] + 1;
          order.push_back(static_cast<int>(to));
        }
        if (hops[to] == hops[v] + 1) ways[to] = ways[to] + onward > 1 ? 2 : 1;
      }
    }
    for (int r = 0; r < t.ranks(); ++r)
      if (ways[static_cast<std::size_t>(r)] != 1) return false;
  }
  return true;
}

// A host, or what SimGrid calls what stands between hosts.
HEDDLE_INLINE std::string simgrid_vertex(const topology& t, int vertex) {
  return (vertex < t.ranks() ? "rank-" : "switch-") + std::to_string(vertex);
}

HEDDLE_INLINE void begin_simgrid_route(std::string& text, const topology& t, int from, int to) {
  text.append("    <route src=\"").append(simgrid_vertex(t, from)).append("\" dst=\"");
  text.append(simgrid_vertex(t, to)).append("\" symmetrical=\"NO\">");
}

}  // namespace detail

HEDDLE_INLINE std::string simgrid_platform(const topology& t, double flops_per_second, simgrid_ways ways) {
  const bool per_link = ways == simgrid_ways::shortest && detail::shortest_ways_are_plain(t);
  std::string text =
      "<?xml version=\"1.0\"?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
      "<platform version=\"4.1\">\n  <zone id=\"cluster\" routing=\"";
  text.append(per_link ? "DijkstraCache" : "Full").append("\">\n");
  for (int r = 0; r < t.ranks(); ++r) {
    text.append("    <host id=\"rank-").append(std::to_string(r)).append("\" speed=\"");
    detail::append_number(text, flops_per_second);
    text.append("f\"/>\n");
  }
  for (int v = t.ranks(); v < t.vertices() && per_link; ++v)
    text.append("    <router id=\"").append(detail::simgrid_vertex(t, v)).append("\"/>\n");
  for (std::size_t i = 0; i < t.links().size(); ++i) {
    const link& l = t.links()[i];
    text.append("    <link id=\"link-").append(std::to_string(i)).append("\" bandwidth=\"");
    detail::append_number(text, l.bytes_per_second < 1e18 ? l.bytes_per_second : 1e18);
    text.append("Bps\" latency=\"");
    detail::append_number(text, l.seconds);
    text.append("s\"/>\n");
  }
  const auto cross = [&](std::size_t l) {
    text.append("<link_ctn id=\"link-").append(std::to_string(l)).append("\"/>");
  };
  for (std::size_t i = 0; i < t.links().size() && per_link; ++i) {
    detail::begin_simgrid_route(text, t, t.links()[i].from, t.links()[i].to);
    cross(i);
    text.append("</route>\n");
  }
  for (int a = 0; a < t.ranks() && !per_link; ++a)
    for (int b = 0; b < t.ranks(); ++b) {
      if (a == b) continue;
      detail::begin_simgrid_route(text, t, a, b);
      for (const route_step& s : t.route(a, b)) cross(static_cast<std::size_t>(s.link));
      text.append("</route>\n");
    }
  text += "  </zone>\n</platform>\n";
  return text;
}

}  // namespace heddle::inline v0
