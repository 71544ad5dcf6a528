// refuse: heddle: halo_exchange: this transport moves memory of a device, and the exchange packs in the host's
#include <heddle/nccl/nccl.hpp>
#include <heddle/tensor/halo_exchange.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using rows = hd::layout<mesh, hd::halo<0, 1, hd::dp>>;
void refresh(hd::sharded<double, 1, rows>& x, hd::world<hd::nccl, mesh>& world) { hd::exchange_halo(x, world); }
