// Losses of fifty steps of a GPT-2 of bf16 on a GPU, to 2e-2 of the host's in float; captured steps have the bits of eager ones.
#include "losses_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/train/captured_steps.hpp>

#include <cstdio>
#include <vector>

namespace hd = heddle;
using losses_trials::furthest, losses_trials::losses;

TEST_CASE("losses of fifty steps of a model of bf16 on a GPU are those of float", "[cuda][gpu][train][losses]") {
  const std::vector<double> host = losses<hd::compute::host<>>();
  REQUIRE(host.back() < 0.9 * host.front());  // it learns
  const std::vector<double> eager = losses<hd::compute::cuda, hd::precision<>, hd::bf16>();
  const double in_bf16 = furthest(eager, host);
  std::printf("result heddle.losses.bf16 %.3g of_loss\n", in_bf16);
  CHECK(in_bf16 <= 2e-2);
  CHECK(losses<hd::compute::cuda, hd::captured_steps, hd::bf16>() == eager);
}
