// tests/plan/nano_batches_test.cpp: lanes that share a device, and plans of nano-batches, against brute force and linear programming.
#include "catch.hpp"

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/draw/gantt.hpp>
#include <heddle/plan/nano_batches.hpp>
#include <heddle/sim/lanes.hpp>

#include "svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace plan = heddle::plan;
namespace sim = heddle::sim;
using Catch::Matchers::Contains;
using sim::lane;

namespace {

// Llama-2 70B on eight A100: milliseconds of all 80 layers, published; seconds of one here, in proportion to the rows.
std::vector<plan::nano_operation> llama_70b() {
  const auto op = [](const char* name, lane where, double ms, std::vector<int> after) {
    return plan::nano_operation{name, where, [ms](int rows) { return ms * 1e-3 / 80 * rows / 2048; }, std::move(after)};
  };
  return {op("kqv", lane::compute, 16.08, {}),        op("decode", lane::memory, 35.60, {0}),
          op("prompt", lane::compute, 4.56, {0}),     op("gather", lane::network, 47.92 / 4, {1, 2}),
          op("o", lane::compute, 16.01, {3}),         op("gather_o", lane::network, 47.92 / 4, {4}),
          op("up_gate", lane::compute, 69.92, {5}),   op("down", lane::compute, 34.96, {6}),
          op("reduce", lane::network, 47.92 / 2, {7})};
}
double tokens_per_second(double seconds) {
  return 2048 / seconds / 8;
}

// The rules once more, without heaps and spans: in each moment the first ready work of each lane in the order.
double nano_makespan(const std::vector<sim::lane_work>& works, const std::vector<int>& order,
                     const sim::lane_speed& speed) {
  std::vector<double> left;
  for (const auto& w : works) left.push_back(w.seconds);
  std::vector<char> begun(works.size(), 0), done(works.size(), 0);
  double now = 0;
  for (std::size_t ended = 0; ended < works.size();) {
    std::array<int, 3> at{-1, -1, -1};
    for (const int preferred : {1, 0})  // those that have begun keep their lane
      for (const int w : order) {
        const auto i = static_cast<std::size_t>(w);
        int& here = at[static_cast<std::size_t>(works[i].where)];
        if (done[i] != 0 || here >= 0 || begun[i] != preferred) continue;
        bool ready = true;
        for (const int a : works[i].after) ready = ready && done[static_cast<std::size_t>(a)] != 0;
        if (ready) here = w;
      }
    double rest = 1;
    std::array<double, 3> share{};
    int filled = -1;
    for (int l = 2; l >= 0; --l)
      if (at[static_cast<std::size_t>(l)] >= 0) filled = l;
    for (int l = 2; l >= 0; --l)
      if (const int w = at[static_cast<std::size_t>(l)]; w >= 0 && works[static_cast<std::size_t>(w)].share == 0)
        filled = l;
    for (std::size_t l = 0; l < 3; ++l)
      if (at[l] >= 0) {
        share[l] = std::min(rest, works[static_cast<std::size_t>(at[l])].share);
        rest -= share[l];
      }
    share[static_cast<std::size_t>(filled)] += rest;
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t l = 0; l < 3; ++l)
      if (at[l] >= 0)
        step = std::min(step, left[static_cast<std::size_t>(at[l])] / speed(static_cast<lane>(l), share[l]));
    now += step;
    for (std::size_t l = 0; l < 3; ++l) {
      if (at[l] < 0) continue;
      const auto i = static_cast<std::size_t>(at[l]);
      begun[i] = 1;
      left[i] -= step * speed(static_cast<lane>(l), share[l]);
      if (left[i] > 1e-12 * works[i].seconds) continue;
      done[i] = 1;
      ++ended;
    }
  }
  return now;
}

}  // namespace

TEST_CASE("costs of an iteration are the published ones", "[plan][nano]") {
  struct row {
    const char* name;
    double gflops, memory, network;
  };
  const row published[]{{"kqv", 27487.8, 19.5, 0},
                        {"o", 21990.2, 16.1, 0},
                        {"up_gate", 153931.6, 96.6, 0},
                        {"down", 76965.8, 49.7, 0},
                        {"decode_attention", 3665.9, 462.2, 0},
                        {"prompt_attention", 916.3, 2.1, 0},
                        {"network", 18.8, 75.2, 75.2}};
  const std::vector<plan::batch_costs> costs = plan::costs_of({});
  REQUIRE(costs.size() == 7);
  for (std::size_t i = 0; i < 7; ++i) {
    CAPTURE(published[i].name);
    CHECK(costs[i].name == published[i].name);
    CHECK(costs[i].flops / 1e9 == Approx(published[i].gflops).epsilon(0.01));
    CHECK(costs[i].memory_bytes / 1e9 == Approx(published[i].memory).epsilon(0.01));
    CHECK(costs[i].network_bytes / 1e9 == Approx(published[i].network).epsilon(0.01));
  }
  CHECK_THROWS_AS(plan::costs_of({.devices = 0}), hd::config_error);
}

TEST_CASE("the published timeline takes the published time", "[plan][nano]") {
  // All layers at once: shares as printed, network operations in the room that these phases leave.
  const double phase = 35.60 / 0.8, prompt = 4.56 / 0.6, o1 = 16.01 * 0.375 / 0.6, o2 = 16.01 * 0.625 / 0.8;
  const double beside_kqv = phase * 0.5, beside_o = (o1 + o2) * 0.5;  // network at 0.2 runs at half speed
  const std::vector<sim::lane_work> works{{"kqv", lane::compute, 16.08, {}, 0.4},
                                          {"decode", lane::memory, 35.60, {}, 0.4},
                                          {"gather", lane::network, beside_kqv, {}, 0.2},
                                          {"prompt", lane::compute, 4.56, {0, 1}, 0.6},
                                          {"o1", lane::compute, 16.01 * 0.375, {3}, 0.6},
                                          {"o2", lane::compute, 16.01 * 0.625, {4}, 0.8},
                                          {"gather o", lane::network, beside_o, {3}, 0.2},
                                          {"up gate down", lane::compute, 104.88, {5, 6}, 0.9},
                                          {"reduce", lane::network, 47.92 - beside_kqv - beside_o, {5, 6}, 0.1}};
  const sim::share_table table = sim::nanoflow_shares();
  const sim::lane_timeline line = sim::simulate_lanes(works, table, {.fill = false});
  CHECK(tokens_per_second(line.seconds / 1000) == Approx(1339).epsilon(0.01));
  CHECK(line.seconds == Approx(phase + prompt + o1 + o2 + 104.88 / 0.9).epsilon(1e-9));
  CHECK(to_string(sim::check_lanes(works, line, table)) == "the timeline is right");
  // One after the other: 1138 tokens a second and device.
  double serial = 0;
  for (const auto& o : llama_70b()) serial += 80 * o.seconds(2048);
  CHECK(tokens_per_second(serial) == Approx(1138).epsilon(1e-3));
}

TEST_CASE("a plan of two nano-batches is as fast as the published one, and near the bound", "[plan][nano]") {
  const std::vector<plan::nano_operation> ops = llama_70b();
  const sim::share_table table = sim::nanoflow_shares();
  const plan::nano_plan found = plan::find_nano_plan(ops, table, {.rows = 2048, .layers = 80});
  INFO(to_string(found));
  CHECK(found.parts.size() == 2);
  CHECK_FALSE(found.serial);
  CHECK(tokens_per_second(found.seconds) >= 1321);
  CHECK(tokens_per_second(found.bound) == Approx(1460).epsilon(1e-3));
  CHECK(found.gap() <= 0.1);
  CHECK(found.serial_seconds / found.seconds >= 1.15);
  const std::vector<sim::lane_work> works = plan::nano_works(ops, found);
  const sim::lane_timeline line = sim::simulate_lanes(works, table);
  CHECK(line.seconds == found.seconds);
  CHECK(to_string(sim::check_lanes(works, line, table)) == "the timeline is right");
  CHECK(plan::find_nano_plan(ops, table, {.rows = 2048, .layers = 80, .least_gain = 0.3}).serial);
  CHECK_THROWS_WITH(plan::find_nano_plan(ops, table, {.rows = 2048, .least_gain = -1}), Contains("0.1 and -1"));
  const plan::nano_plan four = plan::find_nano_plan(ops, table, {.rows = 2048, .parts = 4, .layers = 80});
  CHECK(four.seconds < found.seconds);
  CHECK(four.seconds > four.bound);
}

TEST_CASE("the bound is not above that of linear programming, nor far below", "[plan][nano]") {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/nano_golden.txt");
  int cases = 0;
  for (std::string line; std::getline(in, line); ++cases) {
    std::istringstream words(line);
    double work[3]{}, least = 0;
    words >> work[0] >> work[1] >> work[2] >> least;
    std::vector<plan::nano_operation> ops;
    for (std::size_t l = 0; l < 3; ++l)
      ops.push_back({"", static_cast<lane>(l), [seconds = work[l]](int) { return seconds; }, {}});
    INFO(line);
    const double bound =
        plan::find_nano_plan(ops, sim::nanoflow_shares(), {.rows = 1, .parts = 1, .share_step = 0.5}).bound;
    CHECK(bound <= least * (1 + 1e-6));
    CHECK(bound >= least * (cases == 0 ? 1 - 1e-6 : 0.98));
  }
  CHECK(cases == 31);
}

TEST_CASE("small graphs are planned as well as by brute force", "[plan][nano]") {
  constexpr std::uint64_t seed = 20261129;
  INFO("seed " << seed);
  const hd::counter_random random(seed, 7);
  std::uint64_t at = 0;
  const auto draw = [&](int n) { return static_cast<int>(random.integer(at++) % static_cast<std::uint64_t>(n)); };
  const sim::share_table table = sim::nanoflow_shares();
  int different = 0, serial = 0, split = 0;
  std::string wrong;
  for (int round = 0; round < 200; ++round) {
    const int count = 1 + draw(6);
    std::vector<plan::nano_operation> ops;
    for (int o = 0; o < count; ++o) {
      plan::nano_operation op{"o" + std::to_string(o), static_cast<lane>(draw(3)), {}, {}};
      const double fixed = 0.2 * random.uniform(at++), per_row = (0.2 + random.uniform(at++)) / 256;
      op.seconds = [fixed, per_row](int rows) { return fixed + per_row * rows; };
      for (int a = 0; a < o; ++a)
        if (draw(3) == 0) op.after.push_back(a);
      ops.push_back(std::move(op));
    }
    const plan::nano_options options{.rows = 256 + 128 * draw(2), .parts = count <= 3 ? 2 : 1, .share_step = 0.4};
    const plan::nano_plan found = plan::find_nano_plan(ops, table, options);
    double best = 0;
    for (const auto& o : ops) best += o.seconds(options.rows);
    const double one_by_one = best;
    for (int parts = 1; parts <= options.parts; ++parts)
      for (int first = 128; first < (parts == 1 ? 256 : options.rows); first += 128) {
        const std::vector<int> cut = parts == 1 ? std::vector{options.rows} : std::vector{first, options.rows - first};
        std::vector<double> shares(ops.size(), 0.0);
        for (int choice = 0; choice < 1 << count; ++choice) {
          bool needless = false;
          for (std::size_t o = 0; o < ops.size(); ++o) {
            const bool high = (choice >> o & 1) != 0;
            needless = needless || (ops[o].where == lane::compute && high);
            shares[o] = ops[o].where == lane::compute ? 0.0 : high ? 0.8 : 0.4;
          }
          if (needless) continue;
          const auto works = plan::nano_works(ops, std::vector<std::vector<int>>(ops.size(), cut), shares, 1);
          // All orders of each lane.
          std::array<std::vector<int>, 3> of_lane;
          for (std::size_t w = 0; w < works.size(); ++w)
            of_lane[static_cast<std::size_t>(works[w].where)].push_back(static_cast<int>(w));
          do do
              do {
                std::vector<int> order;
                for (const auto& l : of_lane) order.insert(order.end(), l.begin(), l.end());
                best = std::min(best, nano_makespan(works, order, table));
              } while (std::next_permutation(of_lane[0].begin(), of_lane[0].end()));
            while (std::next_permutation(of_lane[1].begin(), of_lane[1].end()));
          while (std::next_permutation(of_lane[2].begin(), of_lane[2].end()));
        }
      }
    different += std::abs(found.seconds - best) > 1e-9 * best;
    serial += found.serial;
    split += found.parts.size() > 1;
    different += found.bound > found.seconds * (1 + 1e-9);
    const auto works = plan::nano_works(ops, found);
    const auto line = sim::simulate_lanes(works, table);
    if (wrong.empty()) wrong = sim::check_lanes(works, line, table).wrong;
    different += std::abs(line.seconds - found.seconds) > 1e-9 * best;
    // Cut, but one after the other, is never faster: parts pay the fixed time again.
    double cut_serially = 0;
    for (const auto& o : ops) cut_serially += o.seconds(128) + o.seconds(options.rows - 128);
    different += cut_serially < one_by_one;
  }
  CHECK(different == 0);
  CHECK(wrong == "");
  CHECK(serial > 5);
  CHECK(split > 5);
}

TEST_CASE("parts depend on each other exactly where rows meet", "[plan][nano]") {
  const auto second = [](int) { return 1.0; };
  const std::vector<plan::nano_operation> ops{{"a", lane::compute, second, {}}, {"b", lane::memory, second, {0}}};
  // Operations may be cut differently: a at 3 and 6, b at 5.
  const std::vector<std::vector<int>> rows{{3, 3, 2}, {5, 3}};
  const auto works = plan::nano_works(ops, rows, std::vector<double>{0, 0.5}, 2);
  REQUIRE(works.size() == 10);
  for (std::size_t w = 0; w < works.size(); ++w) {
    const std::size_t layer = w / 5, i = w % 5;
    std::vector<int> wanted;
    const int begins[]{0, 3, 6, 0, 5}, ends[]{3, 6, 8, 5, 8};
    const std::size_t from = i < 3 ? 3 : 0, to = i < 3 ? 5 : 3;  // a reads b of the layer before
    if (i >= 3 || layer > 0)
      for (std::size_t q = from; q < to; ++q)
        if (begins[q] < ends[i] && begins[i] < ends[q])
          wanted.push_back(static_cast<int>(q + 5 * (i < 3 ? layer - 1 : layer)));
    CHECK(works[w].after == wanted);
  }
  CHECK_THROWS_WITH(plan::nano_works(ops, std::vector<std::vector<int>>{{3, 3, 2}, {5, 2}}, {}, 1),
                    Contains("as many together"));
  CHECK_THROWS_WITH(plan::nano_works(ops, rows, {}, 1, std::vector<int>{0, 1, 2, 3, 3}),
                    Contains("each of the 5 nano-operations"));
}

TEST_CASE("wrong timelines are told, right ones are drawn", "[plan][nano]") {
  const sim::share_table table = sim::nanoflow_shares();
  const std::vector<sim::lane_work> works{
      {"a", lane::compute, 1, {}, 0}, {"b", lane::memory, 1, {0}, 0.4}, {"c", lane::compute, 1, {}, 0}};
  const sim::lane_timeline right = sim::simulate_lanes(works, table);
  CHECK(right.seconds == Approx(2.5));  // a alone; b in 1.25 at 0.4, beside c at 0.6, which then has all
  CHECK(sim::check_lanes(works, right, table).ok());
  const auto wrong = [&](auto&& change) {
    sim::lane_timeline line = right;
    change(line.spans);
    return to_string(sim::check_lanes(works, line, table));
  };
  CHECK_THAT(wrong([](auto& s) { s[0].end = 0.5; }), Contains("'a' ran for 0.5 of 1 seconds"));
  CHECK_THAT(wrong([](auto& s) {
               for (auto& x : s)
                 if (x.work == 1) x.begin -= 0.5, x.end -= 0.5;
             }),
             Contains("'b' begins before 'a' has ended"));
  CHECK_THAT(wrong([](auto& s) {
               for (auto& x : s)
                 if (x.work == 2) x.begin -= 1, x.end -= 1;
             }),
             Contains("shares add up to 1.6"));
  CHECK_THAT(wrong([](auto& s) { s[0].work = 7; }), Contains("work 7"));
  const hd::gantt_chart chart = sim::lanes_chart(works, right, "lanes");
  const std::string svg = hd::gantt_svg(chart);
  CHECK(svg_test::well_formed(svg));
  CHECK(svg_test::count(svg, ">100<") == 2);
  CHECK_THAT(hd::gantt_text(chart), Contains("memory"));
  CHECK_THROWS_WITH(
      sim::simulate_lanes(std::vector<sim::lane_work>{{"a", lane::compute, 1, {1}, 0}, {"b", lane::memory, 1, {0}, 0}},
                          table),
      Contains("wait for each other"));
  CHECK_THROWS_WITH(sim::simulate_lanes(std::vector<sim::lane_work>{{"a", lane::compute, -1, {}, 0}}, table),
                    Contains("'a' needs seconds"));
  CHECK_THROWS_WITH(sim::simulate_lanes(std::vector<sim::lane_work>{{"a", lane::compute, 1, {3}, 0}}, table),
                    Contains("after work 3"));
  CHECK_THROWS_WITH(sim::simulate_lanes(works, [](lane, double) { return 0.0; }), Contains("none of them moves"));
  CHECK_THROWS_WITH(sim::simulate_lanes(works, [](lane, double) { return std::nan(""); }),
                    Contains("a number that is not negative"));
  CHECK_THROWS_WITH(sim::simulate_lanes(works, table, {.order = {0, 0, 1}}), Contains("each of the 3 works once"));
}

TEST_CASE("a nano plan's text is read back, and refused where it is cut or changed", "[plan][nano]") {
  const plan::nano_plan p = plan::find_nano_plan(llama_70b(), sim::nanoflow_shares(), {.rows = 2048, .layers = 2});
  const std::string text = to_text(p);
  CHECK(plan::parse_nano_plan(text) == p);
  int accepted = 0;
  for (std::size_t n = 0; n + 1 < text.size(); ++n) try {
      accepted += plan::parse_nano_plan(text.substr(0, n)) == p;
    } catch (const hd::config_error& e) {
      CHECK_THAT(e.what(), Contains("the nano plan's text, line "));
    }
  CHECK(accepted == 0);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  CHECK_THROWS_WITH(plan::parse_nano_plan(with("rows 2048", "rows 2047"), "x"),
                    Contains("x, line 6: the parts have 2048 rows together, not 2047"));
  CHECK_THROWS_WITH(plan::parse_nano_plan(with("serial no", "serial perhaps")),
                    Contains("\"perhaps\" is no answer; known are no yes"));
  CHECK_THROWS_WITH(plan::parse_nano_plan(with("plan 1", "plan 2")), Contains("expected heddle nano_plan 1"));
  CHECK_THROWS_WITH(plan::parse_nano_plan(text + "more\n"), Contains("the plan ends before this line"));
  const std::string shares = to_text(sim::nanoflow_shares());
  CHECK(sim::parse_share_table(shares) == sim::nanoflow_shares());
  for (std::size_t n = 0; n + 1 < shares.size(); ++n)
    CHECK_THROWS_WITH(sim::parse_share_table(shares.substr(0, n), "table"), Contains("table, line "));
  const auto table_with = [&](const std::string& from, const std::string& to) {
    std::string changed = shares;
    return changed.replace(changed.find(from), from.size(), to);
  };
  CHECK_THROWS_WITH(sim::parse_share_table(table_with("0.2 0.3", "0.1 0.3")), Contains("shares that rise from 0"));
  CHECK_THROWS_WITH(sim::parse_share_table(table_with("0.2 0.3", "0.2 1.3")), Contains("1.3 is not from 0 to 1"));
  CHECK_THROWS_WITH(sim::parse_share_table(table_with("network 6", "network 5")), Contains("expected network"));
  CHECK_THROWS_WITH(sim::parse_share_table(shares + "more\n"), Contains("line 5: the table ends before"));
  CHECK_THROWS_WITH(plan::find_nano_plan({}, sim::nanoflow_shares()), Contains("at least one operation"));
  CHECK_THROWS_WITH(plan::find_nano_plan(llama_70b(), sim::nanoflow_shares(), {.rows = 0}), Contains("got 0, 128"));
}
