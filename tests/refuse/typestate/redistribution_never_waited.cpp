// refuse: while it is in the 'unconsumed' state
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/redistribute_async.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using split = hd::layout<mesh, hd::shard<0, hd::dp>>;
void program(hd::world<hd::threads, mesh>& world, const hd::sharded<float, 1, split>& x) {
  hd::redistribution_queue queue(world);
  auto whole = queue.start<hd::layout<mesh>>(x);
}
