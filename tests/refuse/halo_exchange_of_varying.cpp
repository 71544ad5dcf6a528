// refuse: heddle: halo_exchange: values that vary along an axis have no neighbours of a common meaning
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/halo_exchange.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using rows = hd::layout<mesh, hd::halo<0, 1, hd::dp>, hd::varying<hd::tp>>;
void refresh(hd::sharded<double, 1, rows>& x, hd::world<hd::threads, mesh>& world) { hd::exchange_halo(x, world); }
