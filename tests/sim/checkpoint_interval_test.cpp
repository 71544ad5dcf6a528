// Daly's interval is where simulated runs with failures waste the least.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/sim/reliability.hpp>

#include <array>
#include <cmath>
#include <cstdint>

namespace checkpoint_interval_test {

namespace sim = heddle::sim;

// The part of the time that is lost by a run of this much work whose failures come at exponential times, also during
// saves and restarts.
double simulated(double interval, double cost, double mtbf, double restart, double work, std::uint64_t seed) {
  const heddle::counter_random random(seed, 0);
  std::uint64_t drawn = 0;
  const auto next_failure = [&] {
    const double u = (static_cast<double>(random.integer(drawn++) >> 11) + 0.5) * 0x1p-53;
    return -mtbf * std::log(u);
  };
  double time = 0, done = 0, until = next_failure();
  const auto passes = [&](double span) {  // whether it goes by without a failure
    if (until >= span) {
      until -= span;
      time += span;
      return true;
    }
    time += until;
    until = next_failure();
    return false;
  };
  while (done < work) {
    if (passes(interval + cost))
      done += interval;
    else
      while (!passes(restart)) {
      }
  }
  return 1 - done / time;
}

TEST_CASE("runs that are saved at Daly's interval waste what the formula says, and no other wastes less",
          "[sim][checkpoint_interval]") {
  const std::uint64_t seed = 45;
  INFO("seed " << seed);
  constexpr double work = 2e6;
  for (const auto& [cost, mtbf, restart] : {std::array{1.0, 100.0, 2.0}, std::array{2.0, 500.0, 0.5}}) {
    const double best = sim::daly_interval({mtbf, cost, restart});
    CAPTURE(cost, mtbf, restart, best);
    double least = 1, at = 0;
    for (double factor = 0.4; factor < 2.3; factor *= 1.06) {
      const double interval = factor * best, wasted = simulated(interval, cost, mtbf, restart, work, seed);
      CHECK(std::abs(wasted - (1 - sim::effective_share({mtbf, cost, restart}, interval))) < 0.004);
      if (wasted < least) least = wasted, at = interval;
    }
    CHECK(std::abs(at - best) < 0.15 * best);
    CHECK(std::abs(best - std::sqrt(2 * cost * mtbf)) < 0.15 * best);
  }
  // The minimum is flat.
  CHECK(std::abs(1 - sim::effective_share({100, 1, 2}, 14.1) - 0.152) < 0.001);
  CHECK(std::abs(1 - sim::effective_share({100, 1, 2}, 13) - 0.1515) < 0.001);
  CHECK(sim::daly_interval({100, 300, 0}) == 100);
  CHECK_THROWS_AS(sim::daly_interval({-1, 1, 0}), heddle::config_error);
}

}  // namespace checkpoint_interval_test
