// refuse: heddle: reduce<axes...> names one axis twice
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/gradient.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using sums = hd::layout<mesh, hd::partial<hd::plus, hd::tp>>;

int program() {
  return hd::launch<hd::threads, mesh>([](auto& world) {
    hd::sharded<float, 1, sums> gradient(sums{}, hd::shape{4}, world.rank());
    (void)hd::reduce<hd::tp, hd::tp>(std::move(gradient), world);
  });
}
