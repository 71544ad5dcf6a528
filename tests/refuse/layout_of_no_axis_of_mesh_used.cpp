// refuse: heddle: a layout names an axis that its mesh does not have; name one of the mesh's axes, or add the axis to the mesh
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/sharded.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using bad = hd::layout<mesh, hd::shard<0, hd::pp>>;
void use() {
  hd::launch<hd::threads, mesh>(
      [](auto& world) { hd::sharded<float, 2, bad> x(bad{}, hd::shape{4, 6}, world.rank()); });
}
