// refuse: heddle: squared_norm: the tensor's layout is on another mesh than the world
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using part = hd::mesh<hd::axis<hd::tp, 2>>;
double norm(const hd::sharded<float, 1, hd::layout<part, hd::shard<0, hd::tp>>>& g, hd::world<hd::threads, mesh>& w) {
  return hd::squared_norm(w, g);
}
