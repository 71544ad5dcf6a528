// tests/smpi/clusters.hpp: the clusters of the tests under smpirun, by name.
#pragma once

#include <heddle/mesh/topologies.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace hd = heddle;

// Of step_8, step_64 and step_256: nodes of 8 with a network card each.
inline constexpr hd::link_class step_inside{1e-6, 1e11, hd::link_kind::nvlink}, step_between{5e-6, 2.5e10, hd::link_kind::infiniband};

inline hd::topology named(const std::string& name) {
  const hd::link_class nvlink{1e-6, 4e11, hd::link_kind::nvlink}, ib{5e-6, 5e10, hd::link_kind::infiniband};
  const hd::link_class core{2e-5, 2e11, hd::link_kind::ethernet}, optical{1e-6, 1e10, hd::link_kind::optical};
  if (name == "ring") return hd::topologies::ring(64, optical);
  if (name == "torus") return hd::topologies::torus({4, 4, 8}, optical);
  if (name == "nodes") return hd::topologies::nodes(16, 8, nvlink, ib, 4);
  if (name == "one_card" || name == "one_card_pairs") return hd::topologies::fat_tree(2, 4, 8, nvlink, ib, core);
  if (name == "fat_tree") return hd::topologies::fat_tree(2, 4, 8, nvlink, ib, core, 8);
  if (name == "step_8") return hd::topologies::nodes(1, 8, step_inside, step_between);
  if (name == "step_64") return hd::topologies::nodes(8, 8, step_inside, step_between);
  if (name == "step_256") return hd::topologies::nodes(32, 8, step_inside, step_between);
  if (name == "full") return hd::topologies::full(64, {1e-6, 1e8, hd::link_kind::other});
  if (name == "star") return hd::topologies::star(64, {1e-6, 1e8, hd::link_kind::other});
  std::fprintf(stderr, "no topology is called %s\n", name.c_str());
  std::exit(2);
}
