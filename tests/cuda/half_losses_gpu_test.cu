// Losses of fifty steps of a GPT-2 of bf16 on a GPU, to 2e-2 of the host's in float.
#include "losses_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/host/host.hpp>

#include <cstdio>
#include <vector>

namespace hd = heddle;
using losses_trials::furthest, losses_trials::losses;

TEST_CASE("losses of fifty steps of a model of bf16 on a GPU are those of float", "[cuda][gpu][train][losses]") {
  const std::vector<double> host = losses<hd::compute::host<>>();
  REQUIRE(host.back() < 0.9 * host.front());  // it learns
  const double in_bf16 = furthest(losses<hd::compute::cuda, hd::precision<>, hd::bf16>(), host);
  std::printf("result heddle.losses.bf16 %.3g of_loss\n", in_bf16);
  CHECK(in_bf16 <= 2e-2);
}
