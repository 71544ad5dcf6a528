// refuse: heddle: launch<Transport, Mesh>: Mesh leaves extents to start-up; pass the mesh as a value
#include <heddle/comm/threads.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::tp, 2>>;

int program() {
  return hd::launch<hd::threads, mesh>([](auto& world) { world.all().barrier(); });
}
