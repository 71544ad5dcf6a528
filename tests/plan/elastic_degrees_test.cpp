// Instances whose degree follows the requests, against instances of one degree, in simulation.
#include "catch.hpp"
#include "svg.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/elastic_degrees.hpp>
#include <heddle/sim/served_chart.hpp>
#include <heddle/sim/served_load.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {
namespace hd = heddle;
namespace sm = heddle::sim;

// Qwen2.5-32B as the paper has it: 256 KiB a token; four ranks as one compute 0.43 of the rows of four.
sm::served_ranks served_qwen(int ranks, double efficiency = 0.43) {
  sm::served_ranks of;
  of.ranks = ranks;
  of.degrees = {{1, 12000, 1}, {4, 72000, efficiency}};
  of.step_rows = 256;
  of.row_seconds = 2e-4;
  of.least_step_seconds = 0.0005;
  of.token_bytes = 256 * 1024 * 0.75;
  of.link_rate = 450e9;
  of.token_runs = 0.75 * 64 * 2 / 16;  // by head: one for each page, layer, tensor and peer
  of.run_seconds = 1e-8;
  return of;
}
std::vector<sm::served_request> served_trace(double share_of_long, std::uint64_t seed, int n = 3000) {
  const hd::counter_random random(seed, 4);
  std::vector<sm::served_request> all;
  double now = 0;
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<std::uint64_t>(4 * i);
    now += 0.051 * -std::log(1 - random.uniform(at));
    const bool is_long = random.uniform(at + 1) < share_of_long;
    const auto prompt = static_cast<std::int64_t>(is_long ? 12500 + 2500 * random.uniform(at + 2)
                                                          : 200 + 6800 * random.uniform(at + 2));
    all.push_back({now, prompt, static_cast<std::int64_t>(50 + 300 * random.uniform(at + 3))});
  }
  return all;
}
}  // namespace

TEST_CASE("elastic instances serve 1.75 times what four ranks as one do, and all that single ranks must reject",
          "[plan][elastic]") {
  const sm::served_ranks of = served_qwen(16);
  for (const auto& [seed, share] :
       {std::pair(std::uint64_t{1}, 0.01), std::pair(std::uint64_t{2}, 0.02), std::pair(std::uint64_t{3}, 0.03)}) {
    const auto trace = served_trace(share, seed);
    const sm::served_load large = sm::simulate_load(trace, of, sm::one_degree{}, 1);
    const sm::served_load small = sm::simulate_load(trace, of, sm::one_degree{}, 0);
    const sm::served_load elastic = sm::simulate_load(trace, of, hd::plan::elastic_degrees{.cooldown = 2});
    INFO("seed " << seed << ": rows per second " << large.rows_per_second() << ", " << elastic.rows_per_second() << ", "
                 << small.rows_per_second() << "; changes " << elastic.changes << ", rejected " << small.rejected
                 << " pause " << elastic.longest_pause << " s, " << elastic.longest_pause_steps << ", again "
                 << elastic.rows_again);
    CAPTURE(elastic.served, elastic.rejected, large.seconds, elastic.seconds);
    CHECK(small.rejected > 0);
    CHECK(elastic.rejected == 0);
    CHECK(large.rejected == 0);
    CHECK(elastic.served == std::ssize(trace));
    CHECK(elastic.answer_tokens == large.answer_tokens);
    CHECK(elastic.rows == large.rows);  // those that are computed again count elsewhere
    std::int64_t rows = 0;
    for (const sm::served_request& r : trace) rows += r.tokens() - 1;
    CHECK(elastic.rows == rows);
    CHECK(large.rows_again == 0);
    CHECK(elastic.changes > 0);
    CHECK(elastic.rows_per_second() >= 1.75 * large.rows_per_second());
    const sm::served_load other = sm::simulate_load(trace, served_qwen(16, 0.43 * (1 - 0.435)), sm::one_degree{}, 1);
    CHECK(elastic.rows_per_second() >= 1.75 / (1 - 0.435) * other.rows_per_second());
    CHECK(elastic.rows_per_second() <= 1 / 0.43 * large.rows_per_second());
    CHECK(elastic.longest_pause_steps <= 2);
  }
}

TEST_CASE("instances of one degree compute what their rows cost, and merged ones split when long requests are gone",
          "[plan][elastic]") {
  sm::served_ranks of = served_qwen(4);
  std::vector<sm::served_request> burst;
  for (int i = 0; i < 400; ++i) burst.push_back({0, 1000, 1});
  // Prompts alone fill all steps: seconds are rows times their cost.
  for (const std::size_t degree : {std::size_t{0}, std::size_t{1}}) {
    const sm::served_load all = sm::simulate_load(burst, of, sm::one_degree{}, degree);
    REQUIRE(all.served == 400);
    REQUIRE(all.rows == 400000);
    REQUIRE(all.answer_tokens == 400);
    const double expected = 400000 * of.row_seconds / 4 / of.degrees[degree].efficiency;
    REQUIRE(std::abs(all.seconds / expected - 1) < 0.01);
  }
  // One long request first; then short ones, for which four ranks are better apart. What is in the cache fits there.
  of.degrees[1].tokens = 4 * of.degrees[0].tokens;
  std::vector<sm::served_request> trace{{0, 15000, 10}};
  for (int i = 0; i < 2000; ++i) trace.push_back({0.01 * i, 1000, 20});
  const sm::served_load elastic = sm::simulate_load(trace, of, hd::plan::elastic_degrees{.cooldown = 0.5});
  REQUIRE(elastic.changes == 2);
  REQUIRE(elastic.served == 2001);
  const sm::served_load never = sm::simulate_load(trace, of, hd::plan::elastic_degrees{.cooldown = 1e9});
  REQUIRE(never.changes == 1);
  REQUIRE(elastic.rows_per_second() > 1.5 * never.rows_per_second());
  of.change_seconds = 1e6;  // a change that costs more than it gains
  REQUIRE(sm::simulate_load(trace, of, hd::plan::elastic_degrees{.cooldown = 0.5}).changes == 1);
  // What no degree has room for is rejected.
  REQUIRE(sm::simulate_load(std::vector<sm::served_request>{{0, 72000, 1}}, of, hd::plan::elastic_degrees{}).rejected ==
          1);
  of.degrees[1].ranks = 3;
  REQUIRE_THROWS_WITH(
      sm::simulate_load(trace, of, sm::one_degree{}),
      "heddle: served_load: expected degrees that divide the ranks, with tokens and efficiencies above 0");
  for (const auto& [first, second] : {std::pair(2, 3), std::pair(2, 2), std::pair(3, 1)}) {
    sm::served_ranks odd;
    odd.ranks = 6;
    odd.degrees = {{first, 100, 1}, {second, 100, 1}};
    REQUIRE_THROWS_WITH(sm::simulate_load(trace, odd, sm::one_degree{}),
                        "heddle: served_load: expected ascending degrees that each divide the next");
  }
}

TEST_CASE("a merged instance splits when what it has in the cache fits; a request that fits nowhere is rejected",
          "[plan][elastic]") {
  struct watch {
    hd::plan::elastic_degrees rule{.cooldown = 0.01};
    std::int64_t* most;
    bool always;
    sm::served_place place(double now, const sm::served_request& r, std::span<const sm::served_instance> all,
                           const sm::served_ranks& of) const {
      return rule.place(now, r, all, of);
    }
    int split(double now, std::span<const sm::served_instance> all, const sm::served_ranks& of) const {
      int at = rule.split(now, all, of);
      for (std::size_t i = 0; always && i < all.size(); ++i)
        if (all[i].degree > 0) at = static_cast<int>(i);
      if (at >= 0) *most = (std::max)(*most, all[static_cast<std::size_t>(at)].used);
      return at;
    }
  };
  sm::served_ranks of;
  of.degrees = {{1, 100, 1}, {4, 800, 0.4}};
  of.least_step_seconds = 1e-3;
  std::vector<sm::served_request> trace{{0, 150, 20}};
  for (int i = 0; i < 40; ++i) trace.push_back({0.0001 * i, 40, 50});
  std::int64_t rows = 0;
  for (const sm::served_request& r : trace) rows += r.tokens() - 1;
  std::int64_t most = -1;
  const sm::served_load fits = sm::simulate_load(trace, of, watch{.most = &most, .always = false});
  REQUIRE(fits.changes == 2);
  REQUIRE(most >= 0);
  REQUIRE(most <= 4 * 100);
  REQUIRE(fits.served == 41);
  REQUIRE(fits.rows == rows);
  // A scheduler that always splits leaves the long request where there is no room for it.
  const sm::served_load eager = sm::simulate_load(trace, of, watch{.most = &most, .always = true});
  REQUIRE(eager.rejected == 1);
  REQUIRE(eager.served == 40);
}

TEST_CASE("degrees over time are recorded and drawn", "[plan][elastic]") {
  sm::served_ranks of = served_qwen(4);
  of.degrees[1].tokens = 4 * of.degrees[0].tokens;
  of.change_seconds = 0.05;
  std::vector<sm::served_request> trace{{0, 15000, 10}};
  for (int i = 0; i < 2000; ++i) trace.push_back({0.01 * i, 1000, 20});
  std::vector<sm::served_span> spans;
  const sm::served_load load = sm::simulate_load(trace, of, hd::plan::elastic_degrees{.cooldown = 0.5}, 0, &spans);
  REQUIRE(load.changes == 2);
  std::int64_t prompts = 0, answers = 0, merges = 0, splits = 0;
  std::vector<double> busy(4);  // until when
  double end = 0;
  for (const sm::served_span& s : spans) {
    prompts += s.prompt_rows;
    answers += s.answer_rows;
    if (!s.is_step()) (s.ranks == 4 ? merges : splits) += 1;
    REQUIRE(s.end >= s.begin);
    for (int r = s.first_rank; r < s.first_rank + s.ranks; ++r) {  // a rank does one thing at a time
      REQUIRE(s.begin >= busy[static_cast<std::size_t>(r)] - 1e-9);
      busy[static_cast<std::size_t>(r)] = s.end;
    }
    end = (std::max)(end, s.end);
  }
  CHECK(prompts + answers == load.rows + load.rows_again);
  CHECK(merges == 1);
  CHECK(splits == 4);
  CHECK(std::abs(end - load.seconds) < 1e-9);

  const hd::gantt_chart chart = sm::served_chart(spans, {"0", "1", "2", "3"}, "degrees over time");
  CHECK(chart.boxes.size() < spans.size());  // steps of one kind are one box
  CHECK(std::abs(chart.span() - load.seconds) < 1e-9);
  const std::string svg = hd::gantt_svg(chart);
  CHECK(svg_test::well_formed(svg));
  CHECK(svg_test::count(svg, "change of degree") == 1);
  std::int64_t changes = 0, together = 0;
  for (const hd::gantt_box& b : chart.boxes) {
    changes += b.style == 3 ? 1 : 0;
    together += b.label == "4" ? 1 : 0;
  }
  CHECK(changes == 8);  // two of each rank
  CHECK(together >= 8);
  CHECK_THROWS_WITH(sm::served_chart(spans, {"0", "1"}),
                    "heddle: served_chart: expected names of all ranks, got 2 and ranks 0 to 3");
}
