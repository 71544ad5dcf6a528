// tests/sim/mfu_test.cpp: MFU equals published tables; failures cost what the formulas say.
#include "catch.hpp"

#include <heddle/core/error.hpp>
#include <heddle/sim/mfu.hpp>
#include <heddle/sim/reliability.hpp>

#include <cmath>
#include <cstdint>
#include <string>

namespace sim = heddle::sim;
using Catch::Matchers::Contains;

namespace {
constexpr sim::transformer_shape gpt_175b{96, 12288, 2048, 64000};
constexpr double flops_175b = sim::flops_per_token(gpt_175b);
static_assert(flops_175b > 1.077386e12 && flops_175b < 1.077388e12);
constexpr double flops_175b_causal = sim::flops_per_token(gpt_175b, sim::attention_flops::causal);
static_assert(flops_175b_causal > 1.062890e12 && flops_175b_causal < 1.062892e12);

// Seconds an iteration and MFU in per cent, as published: arXiv:2402.15627, table 2; 312 TFLOP/s a device.
struct scaling_row {
  int devices, batch;
  double megatron_seconds, megatron_mfu, megascale_seconds, megascale_mfu;
};
constexpr scaling_row strong_scaling[]{
    {256, 768, 40.0, 53.0, 32.0, 65.3},     {512, 768, 21.2, 49.9, 16.5, 63.5},
    {768, 768, 15.2, 46.7, 11.5, 61.3},     {1024, 768, 11.9, 44.7, 8.9, 59.0},
    {3072, 6144, 29.02, 48.7, 23.66, 59.1}, {6144, 6144, 14.78, 47.8, 12.21, 57.3},
    {8192, 6144, 12.24, 43.3, 9.56, 54.9},  {12288, 6144, 8.57, 41.2, 6.34, 55.2},
};
}  // namespace

TEST_CASE("MFU is that of MegaScale's table", "[sim][mfu]") {
  for (const scaling_row& row : strong_scaling) {
    CAPTURE(row.devices);
    const double tokens = row.batch * 2048.0;
    CHECK(100 * sim::mfu(tokens, flops_175b, row.megatron_seconds, row.devices, 312e12) ==
          Approx(row.megatron_mfu).margin(0.3));
    CHECK(100 * sim::mfu(tokens, flops_175b_causal, row.megascale_seconds, row.devices, 312e12) ==
          Approx(row.megascale_mfu).margin(row.devices == 768 ? 0.7 : 0.25));
  }
}

TEST_CASE("FLOPs of a token are those of its products", "[sim][mfu]") {
  // Counted one by one: four projections of attention, two products with keys and values, two of the feed-forward part, the output layer;
  // two FLOPs a multiplication, backward twice the forward.
  for (const auto& t : {gpt_175b, sim::transformer_shape{2, 64, 128, 1000}, sim::transformer_shape{1, 8, 4, 0}}) {
    const double forward =
        t.layers * (4 * 2 * t.hidden * t.hidden + 2 * 2 * t.sequence * t.hidden + 2 * 2 * t.hidden * 4 * t.hidden) +
        2 * t.hidden * t.vocabulary;
    CHECK(sim::flops_per_token(t) == Approx(3 * forward).epsilon(1e-12));
    CHECK(sim::flops_per_token(t) - sim::flops_per_token(t, sim::attention_flops::causal) ==
          Approx(3 * t.layers * 2 * t.sequence * t.hidden).epsilon(1e-9));
  }
}

TEST_CASE("Daly's interval costs what the best interval costs", "[sim][reliability]") {
  for (const double between : {3600.0, 20000.0, 1e6})
    for (const double save : {1.0, 30.0, 300.0})
      for (const double restart : {0.0, 600.0}) {
        CAPTURE(between, save, restart);
        const sim::failing_job job{between, save, restart};
        // Golden section: the expected time has one minimum.
        double low = 1e-3, high = 4 * between;
        constexpr double golden = 0.6180339887498949;
        for (int i = 0; i < 200; ++i) {
          const double a = high - golden * (high - low), b = low + golden * (high - low);
          (sim::expected_seconds(job, a, 1) < sim::expected_seconds(job, b, 1) ? high : low) =
              sim::expected_seconds(job, a, 1) < sim::expected_seconds(job, b, 1) ? b : a;
        }
        const double best = sim::expected_seconds(job, low, 1),
                     daly = sim::expected_seconds(job, sim::daly_interval(job), 1);
        CHECK(daly >= best * (1 - 1e-12));
        CHECK(daly <= best * (1 + 1e-3));
        CHECK(sim::expected_seconds(job, sim::young_interval(job), 1) >= daly * (1 - 1e-6));
        CHECK(sim::effective_share(job, sim::daly_interval(job)) == Approx(1 / daly).epsilon(1e-12));
      }
  CHECK(sim::young_interval({7200, 9, 0}) == Approx(360));
  CHECK(sim::daly_interval({10, 30, 0}) == 10);
  CHECK(sim::expected_seconds({}, 100, 1000) == 1000);  // without failures
  CHECK(sim::expected_seconds({.save = 5}, 100, 1000) == 1050);
}

TEST_CASE("simulated failures take the expected time", "[sim][reliability]") {
  const struct {
    sim::failing_job job;
    double interval, work;
  } cases[]{{{5000, 20, 120}, 600, 60000}, {{2000, 60, 300}, 480, 24000}, {{50000, 5, 900}, 700, 350000}};
  for (const auto& c : cases) {
    double sum = 0, failures = 0;
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
      const sim::job_history h = sim::simulate_failures(c.job, c.interval, c.work, seed);
      sum += h.seconds;
      failures += static_cast<double>(h.failures);
      REQUIRE(h.seconds == Approx(c.work + h.saving + h.lost + h.restarting).epsilon(1e-9));
      REQUIRE((h.lost >= 0 && h.restarting >= -1e-6));
    }
    CHECK(sum / 1000 == Approx(sim::expected_seconds(c.job, c.interval, c.work)).epsilon(0.03));
    CHECK(failures / 1000 == Approx(sum / 1000 / c.job.between_failures).epsilon(0.03));
  }
  const sim::job_history calm = sim::simulate_failures({.save = 5}, 100, 950, 1);
  CHECK(calm.failures == 0);
  CHECK(calm.seconds == Approx(950 + 10 * 5));
}

TEST_CASE("jobs that make no sense are refused", "[sim][reliability]") {
  CHECK_THROWS_WITH(sim::daly_interval({-1, 2, 3}), Contains("got -1, 1, 2, 3"));
  CHECK_THROWS_WITH(sim::expected_seconds({10, 2, 3}, 0, 5), Contains("above 0") && Contains("got 10, 0, 2, 3 and 5"));
  CHECK_THROWS_WITH(sim::simulate_failures({10, 1, 1}, 1000, 5000, 0),
                    Contains("hardly ever gets through 1001 seconds"));
  CHECK_THROWS_AS(sim::simulate_failures({10, NAN, 3}, 1, 5, 0), heddle::config_error);
  CHECK_THROWS_WITH(sim::simulate_failures({1e300, 0, 0}, 1e-9, 1e9, 1), Contains("more than 10^9 intervals"));
}
