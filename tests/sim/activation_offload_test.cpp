// tests/sim/activation_offload_test.cpp: the worked table of activation offloading: peak, stall, what is forwarded.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/offload_amount.hpp>
#include <heddle/sim/activation_offload.hpp>

#include <cstdint>
#include <limits>
#include <vector>

namespace hd = heddle;
namespace pl = heddle::plan;
namespace si = heddle::sim;

namespace {
// Milliseconds and gigabytes: 24 layers of 10 ms and 0.5 GB, backward twice the forward.
const std::vector<si::offloaded_layer> layers(24, {10, 20, 0.5});

std::size_t first_kept(double gb_per_s) {
  const std::vector<pl::offload_scope> scopes(24, {0.5e9, 0.010});
  return pl::amount_to_offload(scopes, gb_per_s * 1e9).first_kept;
}
template <class... Ahead>
si::offload_outcome run(double gb_per_s, Ahead... ahead) {
  return si::simulate_offload(layers, {gb_per_s / 1000, gb_per_s / 1000}, first_kept(gb_per_s), ahead...);
}
}  // namespace

TEST_CASE("the worked table: peak and stall with two layers ahead", "[sim][offload]") {
  struct row {
    double rate;
    int kept;
    double peak, stall;
    int percent, forwarded, loaded;
  };
  const row table[]{{12.5, 11, 9.5, 200, 21, 0, 11},
                    {25, 17, 6.5, 0, 46, 1, 16},
                    {40, 22, 3.0, 0, 75, 2, 20},
                    {50, 24, 1.5, 0, 88, 0, 23}};
  for (const row& r : table) {
    CAPTURE(r.rate);
    CHECK(first_kept(r.rate) == static_cast<std::size_t>(r.kept));
    const auto o = run(r.rate);
    CHECK(o.peak == Approx(r.peak));
    CHECK(o.stall == Approx(r.stall).margin(1e-9));
    CHECK(o.peak_kept == 12);
    CHECK(static_cast<int>(100 * o.saving() + 0.5) == r.percent);
    CHECK(o.forwarded == r.forwarded);
    CHECK(o.loaded == r.loaded);
    CHECK(o.stored == o.forwarded + o.loaded);
    CHECK(o.read == Approx(0.5 * o.loaded));
    CHECK(o.written == Approx(0.5 * o.stored));
    CHECK(o.end == Approx(720 + r.stall));
  }
}

TEST_CASE("reading earlier where the bandwidth demands it leaves no stall", "[sim][offload]") {
  for (const double rate : {12.5, 15.0, 20.0, 25.0, 40.0, 50.0}) {
    CAPTURE(rate);
    const std::vector<double> reads(24, 0.5 / rate * 1000), back(24, 20.0);
    const auto growing = [&](std::size_t running, std::size_t candidate, double queued) {
      return pl::read_now(running, candidate, 2, queued, reads, back);
    };
    const auto fixed = run(rate), grown = run(rate, growing);
    CHECK(grown.stall == Approx(0).margin(1e-9));
    CHECK(grown.stall <= fixed.stall + 1e-9);
    CHECK(grown.peak <= 12 + 1e-9);
    if (rate >= 25) CHECK(grown.peak == Approx(fixed.peak));  // nothing to gain: it reads no earlier
  }
}

TEST_CASE("a store that reads too slowly costs time, not memory, too", "[sim][offload][property]") {
  // Reading all of it at the first backward ends as early as can be, and takes the memory of keeping.
  const auto at_once = [](std::size_t, std::size_t, double) { return true; };
  for (const double rate : {2.5, 10.0, 20.0, 24.0}) {
    CAPTURE(rate);
    const std::vector<double> reads(24, 0.5 / rate * 1000), back(24, 20.0);
    const auto growing = [&](std::size_t running, std::size_t candidate, double queued) {
      return pl::read_now(running, candidate, 2, queued, reads, back);
    };
    const si::offload_rates rates{0.05, rate / 1000};
    const auto grown = si::simulate_offload(layers, rates, 24, growing),
               all = si::simulate_offload(layers, rates, 24, at_once);
    CHECK(all.peak == Approx(12));
    CHECK(grown.peak == Approx(1.5));
    CHECK(grown.stall == Approx(all.stall));
  }
  const std::uint64_t seed = 6;
  CAPTURE(seed);
  const hd::counter_random random(seed, 1);
  std::uint64_t at = 0;
  const auto between = [&](double a, double b) { return a + (b - a) * random.uniform(at++); };
  double peak = 0, kept = 0;
  for (int round = 0; round < 500; ++round) {
    const double read = between(0.005, 0.08);
    std::vector<si::offloaded_layer> some(2 + random.integer(at++) % 20);
    std::vector<double> reads, back;
    for (auto& l : some) {
      l = {between(1, 20), between(1, 40), between(0.1, 1)};
      reads.push_back(l.bytes / read);
      back.push_back(l.backward);
    }
    const auto growing = [&](std::size_t running, std::size_t candidate, double queued) {
      return pl::read_now(running, candidate, 2, queued, reads, back);
    };
    const auto grown = si::simulate_offload(some, {1e12, read}, some.size(), growing),
               all = si::simulate_offload(some, {1e12, read}, some.size(), at_once);
    CHECK(grown.stall == Approx(all.stall).margin(1e-6));
    peak += grown.peak;
    kept += grown.peak_kept;
  }
  CHECK(peak < 0.8 * kept);
}

TEST_CASE("the ends: nothing offloaded, no layers, stores that do nothing or cost nothing", "[sim][offload]") {
  const auto none = si::simulate_offload(layers, {1, 1}, 0);
  CHECK(none.peak == 12);
  CHECK(none.end == 720);
  CHECK(none.stored == 0);
  CHECK(si::simulate_offload({}, {1, 1}, 3).end == 0);
  CHECK_THROWS_AS(si::simulate_offload(layers, {0, 1}, 3), hd::config_error);
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    auto some = layers;
    some[5].backward = bad;
    CHECK_THROWS_AS(si::simulate_offload(some, {1, 1}, 3), hd::config_error);
  }
  const auto instant = si::simulate_offload(layers, {1e12, 1e12}, 24);
  CHECK(instant.forwarded == 0);
  CHECK(instant.stall == Approx(0).margin(1e-6));
  CHECK(instant.peak == Approx(1.5));
  // So slow that nothing is ever written: all is served from memory, nothing is read, no time is lost.
  const auto slow = si::simulate_offload(layers, {1e-9, 1e-9}, 24);
  CHECK(slow.forwarded == 23);
  CHECK(slow.loaded == 0);
  CHECK(slow.stall == 0);
  CHECK(slow.peak == 12);
}
