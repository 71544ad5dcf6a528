// refuse: heddle: settle_gradient<parameter, to>: `to` leaves the gradient partial over an axis
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using weight = hd::layout<mesh, hd::shard<1, hd::tp>>;
auto settle(hd::sharded<float, 2, hd::dual<weight>>&& g, hd::world<hd::threads, mesh>& world) {
  return hd::settle_gradient<weight, hd::dual<weight>>(std::move(g), world);
}
