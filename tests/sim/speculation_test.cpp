#include <heddle/sim/speculation.hpp>

#include "catch.hpp"

#include <cmath>
#include <utility>

namespace sim = heddle::sim;

TEST_CASE("rates and overheads of Medusa give its published speedups within two percent", "[sim]") {
  // Tokens a step, time of a step, speedup. Source: Cai et al. 2024, arXiv:2401.10774, table 1.
  struct row {
    const char* model;
    double tokens, step, speedup;
  };
  for (const row& r : {row{"Vicuna-7B", 3.47, 1.22, 2.83}, row{"Zephyr-7B", 3.14, 1.18, 2.66},
                       row{"Vicuna-13B", 3.51, 1.23, 2.83}, row{"Vicuna-33B", 3.01, 1.27, 2.35}}) {
    CAPTURE(r.model);
    CHECK(std::abs(sim::speculation_speedup(r.tokens, {.verify = r.step}) / r.speedup - 1) < 0.02);
  }
}

TEST_CASE("Falcon's published runs cost less the fewer passes they have", "[sim]") {
  // Vicuna-7B on MT-Bench with blocks of 2, 3 and 4: accepted drafts a step, speedup, passes, and the time of a step that follows. Source: arXiv:2412.12639.
  struct row {
    double accepted, speedup;
    int passes;
    double step;
  };
  double last = 2;
  for (const row& r : {row{3.34, 3.10, 4, 1.40}, row{2.52, 2.96, 2, 1.19}, row{2.35, 2.86, 2, 1.17}}) {
    const double step = sim::speculation_step(r.accepted + 1, r.speedup);
    CHECK(std::abs(step / r.step - 1) < 0.02);
    CHECK(step < last);
    last = step;
  }
  // Two unknowns from the runs of 4 and of 2 passes: what a pass and the verification take.
  const double draft = (1.40 - 1.19) / 2, verify = 1.40 - 4 * draft;
  CHECK(sim::speculation_speedup(4.34, {verify, draft, 4}) == Approx(3.10).epsilon(0.02));
  CHECK(sim::speculation_speedup(3.35, {verify, draft, 2}) == Approx(2.86).epsilon(0.02));
  // The published shares of drafted tokens, in percent, follow from the accepted drafts within one point.
  for (const auto& [accepted, share] : {std::pair{3.34, 77.6}, std::pair{3.88, 79.9}, std::pair{3.70, 78.0}})
    CHECK(std::abs(100 * sim::drafted_share(accepted + 1) - share) < 1);
}
