// refuse: heddle: a group along one of these axes holds ranks with different network cards
#include <heddle/mesh/axis_network.hpp>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;

using machines = hd::cluster<hd::ranks_with<4, hd::link_kind::infiniband>, hd::ranks_with<4, hd::link_kind::roce>>;
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;  // dp first: its groups cross the clusters

int main() {
  return hd::require_one_kind<machines, mesh, dp, tp>() ? 0 : 1;
}
