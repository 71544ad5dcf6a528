// refuse: heddle: redistribute: the tensor's layout is on another mesh than the world
#include <heddle/tensor/redistribute.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
struct world {
  hd::mesh<hd::axis<hd::tp, 2>> mesh() const { return {}; }
};
using split = hd::layout<mesh, hd::shard<0, hd::tp>>;
auto move(const hd::sharded<float, 1, split>& x, world& w) { return hd::redistribute<hd::layout<mesh>>(x, w); }
