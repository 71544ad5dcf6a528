// refuse: heddle: the cluster has another number of ranks than the mesh
#include <heddle/mesh/axis_network.hpp>

namespace hd = heddle;

using machines = hd::cluster<hd::ranks_with<4, hd::link_kind::infiniband>, hd::ranks_with<3, hd::link_kind::roce>>;
using mesh = hd::mesh<hd::axis<hd::pp, 2>, hd::axis<hd::tp, 4>>;

int main() {
  return sizeof(hd::transport_along<machines, mesh, hd::tp>);
}
