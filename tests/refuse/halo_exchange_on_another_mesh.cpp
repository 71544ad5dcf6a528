// refuse: heddle: halo_exchange: the tensor's layout is on another mesh than the world; make the layout on the world's mesh
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/halo_exchange.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using line = hd::mesh<hd::axis<hd::dp, 4>>;
using rows = hd::layout<mesh, hd::halo<0, 1, hd::dp>>;
void refresh(hd::sharded<double, 1, rows>& x, hd::world<hd::threads, line>& world) { hd::exchange_halo(x, world); }
