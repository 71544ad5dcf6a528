// Losses of fifty steps of a GPT-2 on a GPU against the host's: in float to 1e-4, with products of bf16 to 2e-2 of the host's in float.
#include "losses_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/train/products.hpp>

#include <cstdio>
#include <vector>

namespace hd = heddle;
using losses_trials::furthest, losses_trials::losses;

TEST_CASE("losses of fifty steps on a GPU are the host's", "[cuda][gpu][train][losses]") {
  const std::vector<double> host = losses<hd::compute::host<>>();
  REQUIRE(host.back() < 0.9 * host.front());  // it learns
  const double in_float = furthest(losses<hd::compute::cuda>(), host);
  const double in_bf16 = furthest(losses<hd::compute::cuda, hd::precision<hd::products_in<hd::bf16>>>(), host);
  std::printf("result heddle.losses.float %.3g of_loss\nresult heddle.losses.bf16_products %.3g of_loss\n", in_float,
              in_bf16);
  CHECK(in_float <= 1e-4);
  CHECK(in_bf16 <= 2e-2);
}
