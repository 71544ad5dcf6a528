// refuse: heddle: halo_exchange: host code may not touch this memory; redistribute from without_halo<layout> instead
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/halo_exchange.hpp>
#include <heddle/testing/checked_memory.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using rows = hd::layout<mesh, hd::halo<0, 1, hd::dp>>;
void refresh(hd::sharded<double, 1, rows, hd::testing::checked_memory>& x, hd::world<hd::threads, mesh>& world) {
  hd::exchange_halo(x, world);
}
