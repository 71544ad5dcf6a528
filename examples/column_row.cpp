// Two products with a gelu between, split over tp as Megatron-LM does, forward and backward: the numbers of DTensor and of JAX.
// run:
// mpi: 4
// prints: loss 0.033838, dw 0.011374 0.009719
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/tensor/random.hpp>

#include <cmath>
#include <cstdio>

namespace hd = heddle;
namespace op = hd::op;
using hd::dp, hd::tp;

using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using rows = hd::layout<mesh, hd::shard<0, dp>>;
using column = hd::layout<mesh, hd::shard<1, tp>>;
using row = hd::layout<mesh, hd::shard<0, tp>>;

int main(int argc, char** argv) {
  return hd::launch<hd::threads, mesh>(argc, argv, [](auto& world) {
    const auto waves = [](auto& x, double scale) {
      hd::fill_by_index(x, [=](auto i) { return scale * std::sin(static_cast<double>(i)); });
    };
    hd::sharded<double, 2, rows> x({}, hd::shape{8, 4}, world.rank());
    hd::sharded<double, 2, column> w({}, hd::shape{4, 6}, world.rank());
    hd::sharded<double, 2, row> v({}, hd::shape{6, 2}, world.rank());
    waves(x, 1), waves(w, 0.5), waves(v, 0.25);

    const auto half_square = [](auto w, auto v, auto x) {
      const auto hidden = hd::apply<op::gelu>(hd::einsum<"bi,ih->bh">(x, w));     // split over tp
      const auto y = hd::redistribute<rows>(hd::einsum<"bh,ho->bo">(hidden, v));  // the sum over tp
      return hd::sum(hd::apply<op::scale>(hd::apply<op::multiply>(y, y), 0.5));
    };
    hd::compute::host<> backend{1};
    auto [loss, dw, dv, dx] =
        hd::value_and_gradient<hd::reduced_gradients>(backend, world, half_square, w, v, hd::constant(x));
    const auto whole = hd::redistribute<hd::layout<mesh>>(dw, world);
    if (world.rank() == 0)
      std::printf("loss %.6f, dw %.6f %.6f\n", loss.elements()[0], whole.local()(0, 0), whole.local()(3, 5));
  });
}
