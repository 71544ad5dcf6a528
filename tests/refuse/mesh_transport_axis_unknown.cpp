// refuse: heddle: transport_along: the mesh has no axis with one of these tags
#include <heddle/mesh/axis_network.hpp>

namespace hd = heddle;

using machines = hd::cluster<hd::ranks_with<4, hd::link_kind::infiniband>, hd::ranks_with<4, hd::link_kind::roce>>;
using mesh = hd::mesh<hd::axis<hd::pp, 2>, hd::axis<hd::tp, 4>>;

int main() {
  return sizeof(hd::transport_along<machines, mesh, hd::dp>);
}
