// tests/plan/activation_choice_test.cpp: keep, recompute or offload per block, and the microbatch size: as good as all choices simulated.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/activation_choice.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace hd = heddle;
namespace pl = heddle::plan;
namespace si = heddle::sim;
using Catch::Matchers::Contains;

namespace {

using use = si::activation_use;

// The fewest seconds of a step among all uses of all blocks and all sizes; infinite where nothing fits.
double best_of_all_choices(const std::vector<pl::microbatch_costs>& sizes, const pl::activation_limits& limits) {
  double best = std::numeric_limits<double>::infinity();
  for (const pl::microbatch_costs& m : sizes) {
    const int count = limits.samples / m.samples;
    std::vector<use> uses(m.blocks.size(), use::keep);
    for (bool more = true; more;) {
      const si::offload_outcome o = si::simulate_activations(m.blocks, limits.rates, uses, limits.ahead);
      if (o.peak + ((std::min)(count, limits.stages) - 1) * o.resident <= limits.bytes)
        best = (std::min)(best, o.end * (count + limits.stages - 1));
      more = false;
      for (use& u : uses) {  // the next number in base three
        u = u == use::keep ? use::recompute : u == use::recompute ? use::offload : use::keep;
        more = u != use::keep;
        if (more) break;
      }
    }
  }
  return best;
}

}  // namespace

TEST_CASE("a choice is as fast as the fastest of all that are simulated", "[plan][activation][property]") {
  std::set<use> used;
  std::set<int> sizes_taken;
  int fits = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    const hd::counter_random random(seed, 1);
    std::uint64_t at = 0;
    const auto upto = [&](int most) {
      return 1 + static_cast<int>(random.integer(at++) % static_cast<unsigned>(most));
    };
    const int blocks = seed % 100 == 0 ? 8 : seed % 10 == 0 ? 6 : upto(4);
    std::vector<pl::microbatch_costs> sizes;
    double least = 0;
    for (int samples = 1; samples <= 8; samples *= 2) {
      sizes.push_back({samples, {}});
      for (int b = 0; b < blocks; ++b) {
        const double bytes = upto(100) * samples, worse = 1.0 / samples + 1;  // small microbatches take more a sample
        sizes.back().blocks.push_back(
            {upto(20) * samples * worse, upto(40) * samples * worse, bytes, bytes * upto(10) / 10});
        if (samples == 1) least += bytes;
      }
    }
    const pl::activation_limits limits{.bytes = least * upto(40) / 10,
                                       .rates = {upto(40) / 2.0, upto(40) / 2.0},
                                       .samples = 8,
                                       .stages = upto(4),
                                       .ahead = {static_cast<std::size_t>(upto(3))}};
    const pl::activation_choice c = pl::choose_activations(sizes, limits);
    const double expected = best_of_all_choices(sizes, limits);
    REQUIRE(c.proven);
    REQUIRE(c.fits() == (expected < std::numeric_limits<double>::infinity()));
    if (!c.fits()) continue;
    ++fits;
    CHECK(c.step_seconds == Approx(expected).epsilon(1e-8));
    CHECK(c.peak_bytes <= limits.bytes);
    CHECK(c.samples_per_second * c.step_seconds == Approx(8));
    used.insert(c.uses.begin(), c.uses.end());
    sizes_taken.insert(c.samples);
    // What it says of itself is what its simulation says.
    const auto& costs =
        *std::find_if(sizes.begin(), sizes.end(), [&](const auto& m) { return m.samples == c.samples; });
    CHECK(pl::simulate_choice(costs, limits, c.uses).step_seconds == c.step_seconds);
    CHECK(pl::simulate_choice(costs, limits, c.uses).peak_bytes == c.peak_bytes);
  }
  CHECK(used.size() == 3);
  CHECK(sizes_taken.size() == 4);
  CHECK((fits > 250 && fits < 500));
}

TEST_CASE("blocks that are computed again take their forward twice and leave their input", "[plan][activation]") {
  const std::vector<si::offloaded_layer> layers(3, {10, 20, 6, 1});
  const std::array<use, 3> again{use::recompute, use::recompute, use::recompute};
  const auto o = si::simulate_activations(layers, {1, 1}, again);
  CHECK(o.end == 3 * 10 + 3 * (10 + 20));
  CHECK(o.again == 30);
  CHECK(o.resident == 3);
  CHECK(o.peak == 2 + 6);  // two inputs, and all of the last
  CHECK(o.peak_kept == 18);
  // With a store of 1 byte a time the first is away from 16 to 50 and back when it is needed; the second stays.
  const std::array<use, 3> mixed{use::offload, use::keep, use::recompute};
  const auto m = si::simulate_activations(layers, {1, 1}, mixed);
  CHECK(m.stored == 1);
  CHECK(m.loaded == 1);
  CHECK(m.stall == 0);
  CHECK(m.end == 30 + 10 + 60);
  CHECK(m.resident == 7);
  // Its beginning to come back, two blocks ahead, and the last being computed again are at the same time.
  CHECK(m.peak == 6 + 6 + 6);
  CHECK_THROWS_WITH(si::simulate_activations(layers, {1, 1}, std::vector<use>(2)),
                    Contains("3 simulated layers have as many uses of their activations, got 2"));
  CHECK_THROWS_WITH(
      si::simulate_activations(std::vector<si::offloaded_layer>{{1, 1, 1, 2}}, {1, 1}, std::vector<use>(1)),
      Contains("its input is one of its bytes"));
}

TEST_CASE("the worked table by choice: less memory, then a store, then computing again", "[plan][activation]") {
  // 24 blocks of 0.5 GB and 10 ms, of which 0.03 GB are what they are computed again from. Units: ms, GB.
  const std::vector<pl::microbatch_costs> one{{1, std::vector<si::offloaded_layer>(24, {10, 20, 0.5, 0.03})}};
  pl::activation_limits limits{.bytes = 12, .rates = {0.040, 0.040}};
  const auto keeps = pl::choose_activations(one, limits);
  CHECK(keeps.uses == std::vector<use>(24, use::keep));
  limits.bytes = 3;  // what the rule of SSDTrain comes to at this rate
  const auto offloads = pl::choose_activations(one, limits);
  CHECK(offloads.proven);
  CHECK(offloads.step_seconds == Approx(720));
  CHECK(offloads.peak_bytes <= 3);
  limits.rates = {1e-9, 1e-9};  // no store to speak of
  const auto again = pl::choose_activations(one, limits, 1 << 11);
  CHECK(again.microbatch.loaded == 0);
  CHECK(again.step_seconds > 720);
  CHECK(again.step_seconds <= 720 + 24 * 10);
  limits.bytes = 1;
  CHECK_FALSE(pl::choose_activations(one, limits, 1 << 11).fits());

  // A curve has less memory and no more speed from point to point.
  limits = {.bytes = 12, .rates = {0.040, 0.040}};
  const auto curve = pl::activation_curve(one, limits, 8, 1 << 11);
  REQUIRE(curve.size() >= 5);
  for (std::size_t i = 1; i < curve.size(); ++i) {
    CHECK(curve[i].peak_bytes < curve[i - 1].peak_bytes);
    CHECK(curve[i].samples_per_second <= curve[i - 1].samples_per_second * (1 + 1e-9));
  }
  const std::string svg = pl::activation_curve_svg(curve, "24 blocks & a store");
  CHECK_THAT(svg, Contains("<svg") && Contains("24 blocks &amp; a store") && Contains("samples per second") &&
                      Contains("microbatches of 1"));
}

TEST_CASE("a choice in words", "[plan][activation]") {
  const std::vector<pl::microbatch_costs> two{{2, std::vector<si::offloaded_layer>(2, {0.1, 0.15, 2e9, 1e9})}};
  const auto kept = pl::choose_activations(two, {.bytes = 4e9, .rates = {1, 1}, .samples = 4});
  CHECK(to_string(kept) == "microbatches of 2: kk, 4 samples/s, 4 GB at the peak");
  CHECK(to_string(pl::choose_activations(two, {.bytes = 1e9, .rates = {1, 1}, .samples = 4})) == "no choice fits");
}

TEST_CASE("what cannot be chosen for says why", "[plan][activation]") {
  const std::vector<si::offloaded_layer> block{{1, 2, 3, 1}};
  const auto refused = [](std::vector<pl::microbatch_costs> sizes, pl::activation_limits limits) -> std::string {
    try {
      static_cast<void>(pl::choose_activations(sizes, limits));
    } catch (const hd::config_error& e) {
      return e.what();
    }
    return "chosen";
  };
  const pl::activation_limits limits{.bytes = 10, .rates = {1, 1}, .samples = 8};
  CHECK_THAT(refused({{3, block}}, limits), Contains("divides the 8 of a step, got 3"));
  CHECK_THAT(refused({{0, block}}, limits), Contains("divides the 8 of a step, got 0"));
  CHECK_THAT(refused({{1, block}, {2, {}}}, limits), Contains("got 0 with microbatches of 2 and 1 with those of 1"));
  CHECK_THAT(refused({{1, block}}, {.bytes = 10, .rates = {1, 1}, .samples = 8, .stages = 0}),
             Contains("at least one stage"));
  CHECK_THAT(refused({{1, block}}, {.bytes = 10, .rates = {0, 1}, .samples = 8}), Contains("rates that are positive"));
  CHECK_FALSE(pl::choose_activations({}, limits).fits());
}
