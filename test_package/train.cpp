// test_package/train.cpp: trains a two-layer network for two steps on four ranks, and compares its losses with one rank's.
#include <heddle/comm/threads.hpp>
#include <heddle/compute/adamw_parameter.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/tensor/random.hpp>
#if defined(WITH_MPI)
#include <heddle/comm/mpi.hpp>
using transport = heddle::mpi;
#else
using transport = heddle::threads;
#endif

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>

namespace hd = heddle;
namespace op = heddle::op;
using hd::dp, hd::tp;

// Samples are split over dp, hidden units over tp; the numbers are the same on every mesh.
template <class Mesh, class World>
std::array<double, 2> losses(World& world) {
  using rows = hd::layout<Mesh, hd::shard<0, dp>>;
  using column = hd::layout<Mesh, hd::shard<1, tp>>;
  using row = hd::layout<Mesh, hd::shard<0, tp>>;
  hd::sharded<double, 2, rows> x(rows{}, hd::shape{8, 4}, world.rank());
  hd::sharded<double, 2, rows> target(rows{}, hd::shape{8, 2}, world.rank());
  hd::sharded<double, 2, column> w(column{}, hd::shape{4, 6}, world.rank());
  hd::sharded<double, 2, row> v(row{}, hd::shape{6, 2}, world.rank());
  hd::fill_normal(x, hd::counter_random(7, 1));
  hd::fill_normal(target, hd::counter_random(7, 2));
  hd::fill_normal(w, hd::counter_random(7, 3));
  hd::fill_normal(v, hd::counter_random(7, 4));
  auto w_moments = hd::zero_moments(w);
  auto v_moments = hd::zero_moments(v);
  const auto error = [](auto in, auto out, auto inputs, auto targets) {
    const auto hidden = hd::apply<op::gelu>(hd::einsum<"bi,ih->bh">(inputs, in));
    const auto y = hd::redistribute<rows>(hd::einsum<"bh,ho->bo">(hidden, out));
    const auto miss = hd::apply<op::add>(y, hd::apply<op::scale>(targets, -1));
    return hd::mean(hd::apply<op::multiply>(miss, miss));
  };
  hd::compute::host<> backend{1};
  std::array<double, 2> result{};
  for (int step = 1; step <= 2; ++step) {
    auto [loss, dw, dv, dx, dt] = hd::value_and_gradient<hd::reduced_gradients>(backend, world, error, w, v,
                                                                                hd::constant(x), hd::constant(target));
    hd::adamw_step(backend, world, w, dw, w_moments, {.lr = 0.05, .step = step});
    hd::adamw_step(backend, world, v, dv, v_moments, {.lr = 0.05, .step = step});
    result[static_cast<std::size_t>(step - 1)] = loss.elements()[0];
  }
  return result;
}

int main(int argc, char** argv) {
  using one_rank = hd::mesh<hd::axis<dp, 1>, hd::axis<tp, 1>>;
  using four_ranks = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  std::array<double, 2> alone{};
  hd::launch<hd::threads, one_rank>([&](auto& world) { alone = losses<one_rank>(world); });
  return hd::launch<transport, four_ranks>(argc, argv, [&](auto& world) {
    const auto together = losses<four_ranks>(world);
    for (std::size_t step = 0; step < 2; ++step) {
      if (world.rank() == 0)
        std::printf("step %zu: loss %.6f on one rank, %.6f on four\n", step + 1, alone[step], together[step]);
      if (!(std::abs(alone[step] - together[step]) < 1e-10))
        throw hd::error("heddle: four ranks train another network");
    }
    if (!(together[1] < together[0])) throw hd::error("heddle: a step of training did not lower the loss");
  });
}
