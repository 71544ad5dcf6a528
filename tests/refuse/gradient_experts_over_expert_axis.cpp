// refuse: heddle: reduce<axes...>: the axis splits this tensor, so its ranks hold different elements
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/gradient.hpp>

namespace hd = heddle;
struct experts {};
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<experts, 2>>;
using weight = hd::layout<mesh, hd::shard<0, experts>>;
// Each expert's gradient is a sum over dp; this adds up the gradients of different experts.
auto average(hd::sharded<float, 3, hd::dual<weight>> gradient, hd::world<hd::threads, mesh>& world) {
  return hd::reduce<experts>(std::move(gradient), world);
}
