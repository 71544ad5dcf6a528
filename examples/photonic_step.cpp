// A training step on optical circuits: the collectives of 32 layers planned together, and what that gains.
// run:
// prints: switch of     1 us: first topology 495.5 ms, planned together 298.8 ms, 1.66 times faster
// prints: switch of 10000 us: first topology 495.5 ms, planned together 476.7 ms, 1.04 times faster
// prints: hidden behind computation: 332.0 ms, 1.49 times faster
#include <heddle/collective/algorithm/bidirectional_ring.hpp>
#include <heddle/collective/algorithm/rabenseifner.hpp>
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/plan/fabric_step.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <vector>

namespace hd = heddle;
namespace plan = heddle::plan;
namespace algo = heddle::algo;
using hd::dp, hd::tp;

namespace {

using mesh = hd::mesh<hd::axis<tp, 8>, hd::axis<dp, 16>>;

// Tokens of experts whose popularity falls off as Zipf's law says, from each of 16 ranks to each: bytes.
plan::rank_traffic tokens_of_experts() {
  std::mt19937 random(1);
  std::vector<double> popularity(64);
  for (std::size_t e = 0; e < popularity.size(); ++e) popularity[e] = 1 / std::pow(static_cast<double>(e + 1), 0.6);
  std::vector<std::int64_t> bytes(16 * 16, 0);
  double sum = 0;
  for (double& p : popularity) p = sum += p;
  for (std::size_t from = 0; from < 16; ++from)
    for (int t = 0; t < 2 * 4096; ++t) {
      const double at = sum * static_cast<double>(random()) / 4294967296.0;
      const auto e = std::lower_bound(popularity.begin(), popularity.end(), at) - popularity.begin();
      bytes[from * 16 + static_cast<std::size_t>(e) / 4] += 2 * 4096;
    }
  return {16, bytes};
}

// 32 layers of width 8,192, 2,048 tokens a group, 400 TFLOP/s a rank; with `moe` tokens are exchanged after each layer.
plan::fabric_step<mesh> step_of(double switching, bool moe) {
  const plan::circuit_switch optics{3e-6, 100e9, 4, switching};
  plan::fabric_step step(mesh{}, hd::topologies::torus({8, 16}, optics.port()), optics);
  step.offer<algo::rabenseifner, algo::ring, algo::bidirectional_ring>();
  const double layer = 24.0 * 2048 * 8192 * 8192 / 8 / 400e12;  // seconds of a forward
  const std::int64_t activations = 2048LL * 8192 * 2, gradients = 12LL * 8192 * 8192 / 8 * 2;
  for (int l = 0; l < 32; ++l) {
    for (int half = 0; half < 2; ++half) step.compute(layer / 2).all_reduce<tp>(activations);
    if (moe) step.all_to_all_v<dp>(tokens_of_experts());
  }
  for (int l = 0; l < 32; ++l) {
    for (int half = 0; half < 2; ++half) step.compute(layer).all_reduce<tp>(activations);
    step.all_reduce<dp>(gradients);
  }
  return step;
}

void print(double switching, bool moe) {
  const plan::fabric_step<mesh> step = step_of(switching, moe);
  const plan::fabric_plan made = step.plan();
  std::printf(
      "switch of %5.0f us: first topology %.1f ms, planned together %.1f ms, %.2f times faster; "
      "call by call %.1f ms\n",
      switching * 1e6, made.fixed * 1e3, made.seconds * 1e3, made.fixed / made.seconds, made.call_by_call * 1e3);
  const plan::fabric_plan hidden = step.plan({.hide_behind_computation = true});
  std::printf("  hidden behind computation: %.1f ms, %.2f times faster; %d switches\n", hidden.seconds * 1e3,
              hidden.fixed / hidden.seconds, hidden.switches);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<double> delays{1e-6, 10e-6, 100e-6, 1e-3, 10e-3};
    bool moe = false;
    for (int i = 1; i < argc; ++i) {
      const std::string option = argv[i];
      char* end = nullptr;
      if (option == "--moe") {
        moe = true;
      } else if (option == "--switch-us" && i + 1 < argc && std::strtod(argv[i + 1], &end) >= 0 && *end == '\0') {
        delays = {std::strtod(argv[++i], nullptr) * 1e-6};
      } else {
        std::printf("usage: photonic_step [--switch-us MICROSECONDS] [--moe]\n");
        return option == "--help" ? 0 : 2;
      }
    }
    for (const double delay : delays) print(delay, moe);
    if (delays.size() == 1)
      std::printf("%s", to_string(step_of(delays[0], moe).plan({.hide_behind_computation = true})).c_str());
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 1;
  }
}
