// refuse: heddle: halo_exchange: the tensor's layout has no halo; lay it out with halo<dim, width, axes...>
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/halo_exchange.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using split = hd::layout<mesh, hd::shard<0, hd::dp>>;
void refresh(hd::sharded<double, 1, split>& x, hd::world<hd::threads, mesh>& world) { hd::exchange_halo(x, world); }
