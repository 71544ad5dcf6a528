// tests/plan/model_mapping_test.cpp: the mapping of models equals the best of all, and moves from shared devices to own ones.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/model_mapping.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace plan = heddle::plan;
using Catch::Matchers::Contains;

namespace {

// Actor, critic, reference and reward in generation, preparation and training: work that divides, and what more devices cost.
plan::mapped_models four_models() {
  plan::mapped_models of;
  of.models = 4;
  of.seconds = [](int model, int stage, int n) {
    const double work = stage == 0 ? (model == 0 ? 640 : 0) : stage == 1 ? 960 : model < 2 ? 640 : 0;
    return work == 0 ? 0.0 : work / n + 0.2 * n;
  };
  return of;
}

}  // namespace

TEST_CASE("partitions into sets are as many as the Bell numbers, and all different", "[plan][mapping]") {
  const std::size_t bell[] = {1, 2, 5, 15, 52, 203, 877};
  for (int k = 1; k <= 7; ++k) {
    const auto all = plan::set_partitions(k);
    CHECK(all.size() == bell[k - 1]);
    std::set<std::set<std::set<int>>> different;
    for (const auto& set_of : all) {
      std::set<std::set<int>> sets;
      for (int s = 0; s < k; ++s) {
        std::set<int> one;
        for (int m = 0; m < k; ++m)
          if (set_of[static_cast<std::size_t>(m)] == s) one.insert(m);
        if (!one.empty()) sets.insert(one);
      }
      different.insert(sets);
    }
    CHECK(different.size() == bell[k - 1]);
  }
  CHECK_THROWS_WITH(plan::set_partitions(0), Contains("1 to 10 things, got 0"));
}

TEST_CASE("the mapping of models is the best of all", "[plan][mapping]") {
  const std::uint64_t seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  CAPTURE(seed);
  for (int i = 0; i < 60; ++i) {
    const heddle::counter_random draw(seed, static_cast<std::uint64_t>(i));
    plan::mapped_models of;
    of.models = 1 + static_cast<int>(draw.integer(0) % 4);
    of.stages = 1 + static_cast<int>(draw.integer(1) % 3);
    const int devices = 1 + static_cast<int>(draw.integer(2) % 8);
    CAPTURE(i, of.models, of.stages, devices);
    of.seconds = [draw](int model, int stage, int n) {
      return 10 * draw.uniform(static_cast<std::uint64_t>(100 + (model * 10 + stage) * 10 + n)) / n;
    };
    of.bytes_per_device = 1;
    for (int m = 0; m < of.models; ++m) of.bytes.push_back(3 * draw.uniform(static_cast<std::uint64_t>(10 + m)));
    // Each model is given one of four devices' ranges, ranges any sizes.
    double best = std::numeric_limits<double>::infinity();
    const int ways = 1 << (2 * of.models);
    for (int way = 0; way < ways; ++way)
      for (int sizes = 0; sizes < 9 * 9 * 9 * 9; ++sizes) {
        int n[4] = {sizes % 9, sizes / 9 % 9, sizes / 81 % 9, sizes / 729};
        if (n[0] + n[1] + n[2] + n[3] != devices) continue;
        double bytes[4] = {0, 0, 0, 0};
        bool used[4] = {false, false, false, false}, fits = true;
        for (int m = 0; m < of.models; ++m) {
          bytes[way >> (2 * m) & 3] += of.bytes[static_cast<std::size_t>(m)];
          used[way >> (2 * m) & 3] = true;
        }
        for (int s = 0; s < 4; ++s) fits = fits && used[s] == (n[s] > 0) && bytes[s] <= n[s];
        if (!fits) continue;
        double sum = 0;
        for (int stage = 0; stage < of.stages; ++stage) {
          double own[4] = {0, 0, 0, 0};
          for (int m = 0; m < of.models; ++m) own[way >> (2 * m) & 3] += of.seconds(m, stage, n[way >> (2 * m) & 3]);
          sum += *std::max_element(own, own + 4);
        }
        best = (std::min)(best, sum);
      }
    if (best == std::numeric_limits<double>::infinity()) {
      CHECK_THROWS_WITH(plan::map_models(of, devices), Contains("fit on " + std::to_string(devices) + " devices"));
      continue;
    }
    const plan::model_mapping found = plan::map_models(of, devices);
    CHECK(found.seconds == Approx(best).epsilon(1e-12));
    CHECK(plan::seconds_of(found, of) == Approx(best).epsilon(1e-12));
  }
}

TEST_CASE("models share few devices and have many for themselves", "[plan][mapping]") {
  const plan::mapped_models of = four_models();
  const plan::model_mapping together{{0, 0, 0, 0}, {8}, 0}, alone{{0, 1, 2, 3}, {2, 2, 2, 2}, 0};
  CHECK(plan::seconds_of(together, of) == Approx(80 + 4 * 120 + 2 * 80 + 7 * 1.6));  // sums
  CHECK(plan::seconds_of(alone, of) == Approx(320 + 480 + 320 + 3 * 0.4));           // the slowest
  for (const auto& [devices, sets] : {std::pair{16, 1u}, std::pair{64, 2u}, std::pair{128, 4u}})
    CHECK(plan::map_models(of, devices).devices.size() == sets);
  plan::mapped_models none = of;
  none.bytes = {1};
  CHECK_THROWS_WITH(plan::map_models(none, 8), Contains("bytes of each model; got 4, 3, 8 and 1"));
}
