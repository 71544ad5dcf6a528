#include <heddle/sim/temporal_fusion.hpp>

#include "catch.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace hd = heddle;
namespace sim = heddle::sim;
using Catch::Matchers::Contains;

namespace {

// Makespans of requests of one length that arrive 0.5 s apart, in seconds. Source: arXiv:2305.13484. `per_row` is fitted to the five cells beyond one request: the
// only number that does not come from the table.
struct published {
  const char* model;
  double alone;
  std::array<double, 5> seconds;   // of 2, 4, 8, 16 and 32 requests
  std::array<double, 3> slowdown;  // of 8, 16 and 32
  double per_row;
};
constexpr published table[] = {{"GPT-J 6B", 5.6, {6.1, 7.1, 9.2, 13.2, 21.2}, {1.03, 1.04, 1.05}, 0.0020},
                               {"LLaMA 13B", 9.1, {9.6, 10.6, 12.7, 16.9, 24.9}, {1.02, 1.04, 1.05}, 0.0024},
                               {"LLaMA 33B", 13.6, {14.1, 15.6, 17.7, 21.9, 30.3}, {1.05, 1.07, 1.09}, 0.0072},
                               {"LLaMA 65B", 10.8, {11.4, 12.5, 14.4, 18.7, 27.2}, {1.01, 1.05, 1.13}, 0.0044}};
constexpr std::int64_t counts[] = {2, 4, 8, 16, 32};
constexpr std::int64_t length = 512;

std::vector<sim::fused_request> apart(std::int64_t n, double interval, std::int64_t tokens) {
  std::vector<sim::fused_request> r;
  for (std::int64_t i = 0; i < n; ++i) r.push_back({interval * static_cast<double>(i), tokens});
  return r;
}

}  // namespace

TEST_CASE("the makespans of fused decoding are the published ones within two percent", "[sim]") {
  for (const published& p : table)
    for (std::size_t i = 0; i < 5; ++i) {
      CAPTURE(p.model, counts[i], p.seconds[i]);
      const double slowdown = i < 2 ? 1 : p.slowdown[i - 2];
      const double law = sim::fused_makespan(counts[i], 0.5, p.alone, slowdown);
      if (i >= 2) CHECK(std::abs(law / p.seconds[i] - 1) < 0.02);
      const sim::fused_decoding found = sim::simulate_temporal_fusion(
          apart(counts[i], 0.5, length), {.step_s = p.alone / length, .per_row = p.per_row}, 32, true);
      CHECK(std::abs(found.makespan_s / p.seconds[i] - 1) < 0.02);
      CHECK(found.end_s.back() == found.makespan_s);
    }
}

TEST_CASE("steps, rows and moves of fused decoding are counted", "[sim]") {
  // Three requests at once, of 2, 1 and 3 tokens: the middle one leaves a hole.
  const std::vector<sim::fused_request> three{{0, 2}, {0, 1}, {0, 3}};
  const sim::fused_decoding kept = sim::simulate_temporal_fusion(three, {.step_s = 1}, 4, false);
  CHECK(kept.rows == 3 + 3 + 1);
  CHECK(kept.moves == 0);
  const sim::fused_decoding closed = sim::simulate_temporal_fusion(three, {.step_s = 1}, 4, true);
  CHECK(closed.rows == 3 + 2 + 1);
  CHECK(closed.moves == 1);
  CHECK(closed.end_s == std::vector<double>{2, 1, 3});
  CHECK(closed.steps == 3);
  // With one slot they wait for each other.
  const sim::fused_decoding one = sim::simulate_temporal_fusion(three, {.step_s = 1}, 1, true);
  CHECK(one.end_s == std::vector<double>{2, 3, 6});
  CHECK(one.most_rows == 1);
  // A row's share, and that of tokens in the cache: 1 + 0.5, then 1 + 0.5 + 2 * 0.25, ...
  const sim::fused_decoding dear =
      sim::simulate_temporal_fusion(apart(2, 0, 2), {.step_s = 1, .per_row = 0.5, .per_token = 0.25}, 2, true);
  CHECK(dear.makespan_s == 1.5 + 2.0);
  CHECK(sim::simulate_temporal_fusion({}, {.step_s = 1}, 1, true).makespan_s == 0);
}

TEST_CASE("closing holes makes random lengths faster, the more the longer they are", "[sim][law]") {
  const unsigned seed = 20;
  CAPTURE(seed);
  double last = 1;
  for (const std::int64_t most : {512, 1024, 1536, 2048}) {
    std::mt19937 random(seed);
    double kept = 0, closed = 0;
    for (int trial = 0; trial < 20; ++trial) {
      auto requests = apart(32, 0.5, 1);
      for (auto& r : requests) r.tokens = std::uniform_int_distribution<std::int64_t>(1, most)(random);
      // A row that costs a fiftieth of a step, and attention that takes as long as all else at 25000 tokens.
      const sim::fused_step_costs costs{.step_s = 9.1 / length, .per_row = 0.02, .per_token = 4e-5};
      const sim::fused_decoding a = sim::simulate_temporal_fusion(requests, costs, 32, false);
      const sim::fused_decoding b = sim::simulate_temporal_fusion(requests, costs, 32, true);
      kept += a.makespan_s;
      closed += b.makespan_s;
      CHECK(b.rows <= a.rows);
    }
    CAPTURE(most, kept / closed);
    CHECK(kept / closed > last);
    last = kept / closed;
    if (most >= 1024) CHECK((last > 1.10 && last < 1.30));
  }
}

TEST_CASE("more slots than requests change nothing", "[sim][law]") {
  const unsigned seed = 21;
  CAPTURE(seed);
  std::mt19937 random(seed);
  auto requests = apart(12, 0.5, 1);
  for (auto& r : requests) r.tokens = std::uniform_int_distribution<std::int64_t>(1, 20)(random);
  for (const bool closed : {false, true}) {
    const sim::fused_decoding some =
        sim::simulate_temporal_fusion(requests, {.step_s = 0.1, .per_row = 0.1}, 12, closed);
    const sim::fused_decoding many =
        sim::simulate_temporal_fusion(requests, {.step_s = 0.1, .per_row = 0.1}, std::int64_t{1} << 60, closed);
    CHECK(many.end_s == some.end_s);
    CHECK(many.rows == some.rows);
    CHECK(many.moves == some.moves);
  }
}

TEST_CASE("numbers with which fused decoding has no meaning, or would not end, are refused", "[sim][error]") {
  const auto refused = [](std::vector<sim::fused_request> r, sim::fused_step_costs c, std::int64_t slots) {
    for (const bool close : {false, true}) try {
        sim::simulate_temporal_fusion(r, c, slots, close);
        return std::string("accepted");
      } catch (const hd::config_error& e) {
        if (!close) continue;
        return std::string(e.what());
      }
    return std::string();
  };
  constexpr double infinite = std::numeric_limits<double>::infinity(), none = std::numeric_limits<double>::quiet_NaN();
  CHECK_THAT(refused(apart(1, 1, 4), {.step_s = 1}, 0), Contains("0 slots"));
  CHECK_THAT(refused({}, {.step_s = 1}, -1), Contains("-1 slots"));
  CHECK_THAT(refused(apart(2, 1, 0), {.step_s = 1}, 1), Contains("of 0 tokens"));
  CHECK_THAT(refused(apart(2, -1, 1), {.step_s = 1}, 1), Contains("at -1 s"));
  for (const double bad : {none, infinite, -infinite}) {
    CAPTURE(bad);
    CHECK_THAT(refused({{bad, 4}}, {.step_s = 1}, 2), Contains("request 0 of 4 tokens"));
    CHECK_THAT(refused({{0, 4}, {bad, 3}, {1, 1}}, {.step_s = 1}, 2), Contains("request 1 of 3 tokens"));
    CHECK_THAT(refused(apart(2, 1, 4), {.step_s = bad}, 2), Contains("finite and not negative"));
    CHECK_THAT(refused(apart(2, 1, 4), {.step_s = 1, .per_row = bad}, 2), Contains("per row"));
    CHECK_THAT(refused(apart(2, 1, 4), {.step_s = 1, .per_token = bad}, 2), Contains("per token"));
  }
  CHECK_THAT(refused(apart(2, 1, 4), {.step_s = -1}, 2), Contains("got -1 s"));
  // Zero times what is beyond a double is no number, with which no request would come any more.
  CHECK_THAT(refused(apart(2, 100, 40), {.step_s = 0, .per_token = 1e308}, 2), Contains("after 3 steps"));
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK_THAT(refused({{0, most}}, {.step_s = 1}, 2), Contains("1073741824 tokens together, got 0 and request 0 of"));
  CHECK_THAT(refused({{0, 5}, {0, most}, {0, most}}, {.step_s = 1}, 2), Contains("got 5 and request 1 of"));
}
