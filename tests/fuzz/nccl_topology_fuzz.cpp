// NCCL's topology files: what is accepted is a topology that can be printed and read again.
#if __has_include(<pugixml.hpp>)
#include <heddle/io/nccl_topology.hpp>
#include <heddle/mesh/topology_file.hpp>

#include "fuzz.hpp"

HEDDLE_FUZZ_TARGET(nccl_topology) {
  namespace hd = heddle;
  fuzz::accepted([&] {
    const hd::node_topology node = hd::parse_nccl_topology(std::string(reinterpret_cast<const char*>(data), size));
    fuzz::require(node.links.ranks() > 0, "a machine has a rank");
    fuzz::require(hd::parse_topology(hd::to_text(node.links)) == node.links, "its links read back");
    for (const hd::network_card& card : node.cards)
      fuzz::require(node.links.kind(card.vertex) == hd::vertex_kind::nic && card.bytes_per_second >= 0,
                    "cards are cards");
    for (int r = 0; r < node.links.ranks() && !node.cards.empty(); ++r)
      fuzz::require(node.links.place(r).rail < static_cast<int>(node.cards.size()), "each rank has one of the cards");
  });
}
#endif
