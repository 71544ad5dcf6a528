#include <heddle/mesh/topologies.hpp>
#include <heddle/plan/gain_map.hpp>

#include "catch.hpp"
#include "collective/plain_rounds.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace plan = heddle::plan;

namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("a map of gains has the best plan and the best fixed time of all algorithms", "[plan][pccl]") {
  const std::array tables{plain_rounds::halving_doubling(16), plain_rounds::ring(16, true), plain_rounds::doubling(16)};
  const std::vector<hd::round_view> algorithms(tables.begin(), tables.end());
  const plan::circuit_switch fabric{3e-6, 100e9, 2, 0};
  const hd::topology start = hd::topologies::ring(16, fabric.port());
  const std::vector<double> delays{0, 1e-6, 1e-5, 1e-4, 1e-3, 1};
  const std::vector<std::int64_t> bytes{16, 1600, 160000, 16000000};
  const plan::gain_map map = plan::gains_of_switching(algorithms, start, fabric, delays, bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    double fixed = 1e9;
    for (const hd::round_view& a : algorithms) fixed = std::min(fixed, hd::load_map(a, start, bytes[i], 1).seconds());
    CHECK(map.fixed[i] == Approx(fixed).epsilon(1e-14));
    for (std::size_t k = 0; k < delays.size(); ++k) {
      double best = 1e9;
      for (const hd::round_view& a : algorithms) {
        plan::circuit_switch slow = fabric;
        slow.reconfiguration_seconds = delays[k];
        best = std::min(best, plan::reconfigure(plan::fabric_states(a, start, slow), bytes[i], 1).seconds);
      }
      CHECK(map.plans[map.at(i, k)].seconds == best);
      CHECK(map.gain(i, k) >= 1);
      if (k > 0) CHECK(map.gain(i, k) <= map.gain(i, k - 1));
    }
    CHECK(map.gain(i, delays.size() - 1) == 1);
    CHECK(map.plans[map.at(i, delays.size() - 1)].switches == 0);
  }
}

TEST_CASE("the picture of a map has a cell for each plan, and names powers of ten", "[plan][pccl]") {
  const std::array tables{plain_rounds::halving_doubling(16)};
  const std::vector<hd::round_view> algorithms(tables.begin(), tables.end());
  const plan::circuit_switch fabric{3e-6, 100e9, 2, 0};
  const std::vector<double> delays = plan::logarithmic(1e-6, 1e-3, 2);
  CHECK(delays.size() == 7);
  CHECK(delays.back() == Approx(1e-3));
  const auto map = plan::gains_of_switching(algorithms, hd::topologies::ring(16, fabric.port()), fabric, delays,
                                            {1000, 3000, 1000000});
  const std::string svg = plan::gain_map_svg(map, "a < b");
  CHECK(count(svg, "width=\"17\" height=\"17\"") == 21);
  CHECK(count(svg, "<rect") == 21 + 5 + 1);  // cells, legend, background
  for (const char* text : {">a &lt; b<", ">1 \u00b5s<", ">100 \u00b5s<", ">1 ms<", ">1 kB<", ">1 MB<", ">3 and more<"})
    CHECK(count(svg, text) == 1);
  CHECK(count(svg, ">3 kB<") == 0);
}

TEST_CASE("a logarithmic scale has so many numbers per power of ten", "[plan][pccl]") {
  const auto scale = plan::logarithmic(1e-3, 1, 2);
  REQUIRE(scale.size() == 7);
  for (std::size_t i = 0; i < 7; ++i) CHECK(scale[i] == Approx(std::pow(10.0, static_cast<double>(i) / 2 - 3)));
  CHECK(plan::logarithmic(5, 5, 3).size() == 1);
  for (const auto& [low, high] : {std::pair(0.0, 1.0), std::pair(-1.0, 1.0), std::pair(2.0, 1.0),
                                  std::pair(1.0, std::numeric_limits<double>::infinity())})
    CHECK_THROWS_AS(plan::logarithmic(low, high, 3), heddle::config_error);
  CHECK_THROWS_AS(plan::logarithmic(1, 10, 0), heddle::config_error);
}

TEST_CASE("a map of a fabric without circuits to begin with", "[plan][pccl]") {
  const std::array tables{plain_rounds::halving_doubling(8)};
  const std::vector<hd::round_view> algorithms(tables.begin(), tables.end());
  const auto dark = plan::gains_of_switching(algorithms, hd::topology(8), {3e-6, 100e9, 2, 0}, {1e-6}, {1000});
  CHECK(dark.fixed[0] == std::numeric_limits<double>::infinity());
  CHECK(dark.gain(0, 0) == std::numeric_limits<double>::infinity());
  CHECK(count(plan::gain_map_svg(dark, "dark"), "fill=\"#0b3c6f\"") == 2);  // three and more: the cell and the legend
  // Rounds that no state carries: too few ports, nothing there.
  const std::array at_once{plain_rounds::shifts(8, true)};
  const std::vector<hd::round_view> too_much(at_once.begin(), at_once.end());
  CHECK(plan::gains_of_switching(too_much, hd::topology(8), {3e-6, 100e9, 2, 0}, {1e-6}, {1000}).gain(0, 0) == 1);
  CHECK_THROWS_AS(plan::gains_of_switching({}, hd::topology(8), {3e-6, 100e9, 2, 0}, {1e-6}, {1000}), hd::config_error);
}
