// refuse: heddle: world.along<Tags...>: the mesh has no axis with one of these tags
#include <heddle/comm/threads.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;

int program() {
  return hd::launch<hd::threads, mesh>([](auto& world) { world.template along<hd::pp>().barrier(); });
}
