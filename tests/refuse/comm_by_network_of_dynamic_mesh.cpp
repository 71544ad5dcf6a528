// refuse: heddle: by_network chooses transports by type: it needs a mesh whose extents are all known
#include <heddle/comm/transport_by_network.hpp>
#include <heddle/comm/threads.hpp>

namespace hd = heddle;
using machines = hd::cluster<hd::ranks_with<2, hd::link_kind::infiniband>, hd::ranks_with<2, hd::link_kind::roce>>;

int main() {
  const hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp, 2>> mesh{2};
  return hd::launch<hd::by_network<machines, hd::threads, hd::threads>>(mesh, [](auto&) {});
}
