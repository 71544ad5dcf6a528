// refuse: heddle: transport_along needs a mesh whose extents are all known
#include <heddle/mesh/axis_network.hpp>

namespace hd = heddle;

using machines = hd::cluster<hd::ranks_with<4, hd::link_kind::infiniband>, hd::ranks_with<4, hd::link_kind::roce>>;
using mesh = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp, 4>>;

int main() {
  return sizeof(hd::transport_along<machines, mesh, hd::tp>);
}
