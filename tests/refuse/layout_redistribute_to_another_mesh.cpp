// refuse: heddle: a redistribution needs source and target on one mesh; give both layouts the same mesh type
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/redistribute.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using other = hd::mesh<hd::axis<hd::dp, 4>, hd::axis<hd::tp, 2>>;
using split = hd::layout<mesh, hd::shard<0, hd::tp>>;
auto move(const hd::sharded<float, 1, split>& x, hd::world<hd::threads, mesh>& w) {
  return hd::redistribute<hd::layout<other>>(x, w);
}
