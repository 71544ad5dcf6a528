// Topologies from text: what is accepted, printed and read again is the same topology.
#include <heddle/mesh/topology_file.hpp>

#include "fuzz.hpp"

HEDDLE_FUZZ_TARGET(topology) {
  namespace hd = heddle;
  fuzz::accepted([&] {
    const hd::topology t = hd::parse_topology({reinterpret_cast<const char*>(data), size});
    if (t.ranks() > 4096) return;  // a line for each would be all that is tested
    fuzz::require(hd::parse_topology(hd::to_text(t)) == t, "a topology reads back");
    for (int a = 0; a < t.vertices() && a < 6; ++a)
      for (int b = 0; b < t.vertices() && b < 6; ++b)
        fuzz::accepted([&] {
          const auto far = t.hops_to(b);
          fuzz::require(t.route(a, b, hd::routing::split).hops == t.route(a, b).hops, "both routings are as short");
          fuzz::require(far[static_cast<std::size_t>(a)] == t.hops(a, b), "hops_to has the hops of all");
        });
  });
}
