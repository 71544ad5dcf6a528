// tests/rl/buffer_test.cpp: batches are of the groups that came, each once, whatever came when and was given up; pipelines
// say what they decide.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/m2flow.hpp>
#include <heddle/rl/batch_buffer.hpp>
#include <heddle/rl/pipeline.hpp>
#include <heddle/rl/planned.hpp>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace hd = heddle;
namespace rl = heddle::rl;

namespace {

std::vector<rl::sample> group_of(std::int64_t id, std::int64_t oldest, std::int64_t newest) {
  std::vector<rl::sample> all(2);
  for (rl::sample& s : all) {
    s.group = id;
    s.prompt = {1};
    s.tokens = {1, 2, 3};
    s.segments = {{newest, 0}};
  }
  if (oldest < newest) all[1].segments = {{oldest, 0}, {newest, 2}};
  return all;
}
std::vector<std::int64_t> ids_of(const std::vector<std::vector<rl::sample>>& batch) {
  std::vector<std::int64_t> ids;
  for (const auto& g : batch) ids.push_back(g.front().group);
  return ids;
}

}  // namespace

TEST_CASE("batches are the next groups in order, or those that are finished, the oldest first", "[rl][run]") {
  SECTION("in order") {
    rl::batch_buffer b(rl::hybridflow::flow, 2);
    b.add(1, group_of(1, 0, 0));
    CHECK(b.missing() == 2);
    CHECK(b.until() == 2);
    b.add(0, group_of(0, 0, 0));
    CHECK(ids_of(*b.take()) == std::vector<std::int64_t>{0, 1});
    CHECK_FALSE(b.take());
    CHECK(b.until() == 4);
    CHECK_THROWS_WITH(b.add(1, group_of(1, 0, 0)), "heddle: rl: group 1 came twice");
  }
  SECTION("overtaking") {
    rl::batch_buffer b(rl::april::flow, 2);
    b.add(5, group_of(5, 2, 3));
    b.add(7, group_of(7, 1, 3));
    b.add(3, group_of(3, 3, 3));
    CHECK(b.missing() == 0);
    CHECK(ids_of(*b.take()) == std::vector<std::int64_t>{5, 7});
    CHECK(b.missing() == 1);
    CHECK_THROWS_WITH(b.add(5, group_of(5, 3, 3)), "heddle: rl: group 5 came twice");
  }
  SECTION("in order, with an age") {
    using rule = rl::pipeline<rl::split, rl::one_step_off, rl::max_age<1>>;
    rl::batch_buffer b(rule::flow, 2);
    for (const std::int64_t id : {0, 1, 2}) b.add(id, group_of(id, id, id));
    CHECK(b.give_up(2) == 1);  // group 0, whose tokens are 2 versions old
    CHECK(b.until() == 3);
    CHECK(ids_of(*b.take()) == std::vector<std::int64_t>{1, 2});
    CHECK(b.left() == 3);
  }
  SECTION("only what the newest wrote") {
    rl::batch_buffer b(rl::pipelinerl::flow, 1);
    b.add(0, group_of(0, 0, 4));
    b.add(1, group_of(1, 4, 4));
    b.only_from(4);
    CHECK(b.give_up(4) == 1);
    CHECK(ids_of(*b.take()) == std::vector<std::int64_t>{1});
    b.add(2, group_of(2, 3, 5));
    CHECK(b.give_up(5) == 1);
    CHECK(b.given_up() == 2);
  }
}

TEST_CASE("whatever comes when, each group is used once, given up, or left", "[rl][run]") {
  const std::uint64_t seed = 20;
  std::cout << "random seed: " << seed << "\n";
  const hd::counter_random random(seed, 0);
  std::uint64_t at = 0;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random.integer(at++) % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 400; ++round) {
    rl::flow how;
    how.apart = true;
    how.in_flight = below(2) == 0;
    how.ahead = below(3);
    if (below(2) == 0) how.most_age = below(3);
    const std::int64_t groups = 1 + below(4);
    rl::batch_buffer b(how, groups);
    std::vector<std::int64_t> open;  // begun, not finished
    std::int64_t begun = 0, version = 0, came = 0, given_up = 0;
    std::set<std::int64_t> used;
    for (int i = 0; i < 120; ++i) {
      while (begun < how.may_begin(b.left(), groups)) open.push_back(begun++);
      REQUIRE(!(open.empty() && b.missing() > 0));  // nothing waits for ever
      for (auto n = below(static_cast<std::int64_t>(open.size()) + 1); n > 0; --n) {
        const auto which = below(static_cast<std::int64_t>(open.size()));
        const std::int64_t oldest = (std::max)(std::int64_t{0}, version - below(4));
        b.add(open[static_cast<std::size_t>(which)], group_of(open[static_cast<std::size_t>(which)], oldest, version));
        open.erase(open.begin() + which);
        ++came;
      }
      given_up += b.give_up(version);
      const std::int64_t until = b.until(), missing = b.missing();
      const auto batch = b.take();
      REQUIRE(batch.has_value() == (missing == 0));
      REQUIRE(b.here() == came - given_up - static_cast<std::int64_t>(used.size()) - (batch ? groups : 0));
      if (!batch) continue;
      const auto ids = ids_of(*batch);
      REQUIRE(std::ssize(ids) == groups);
      REQUIRE(std::is_sorted(ids.begin(), ids.end()));
      if (!how.overtakes()) REQUIRE(ids.back() + 1 == until);
      for (const auto& g : *batch)
        for (const rl::sample& s : g)
          if (how.most_age >= 0) REQUIRE(version - rl::versions_of(s).first <= how.most_age);
      for (const std::int64_t id : ids) REQUIRE(used.insert(id).second);
      ++version;
    }
    REQUIRE(b.left() == given_up + static_cast<std::int64_t>(used.size()));
  }
}

TEST_CASE("pipelines say what they decide", "[rl][run]") {
  CHECK(to_string(rl::hybridflow::flow) == "colocated, synchronous");
  CHECK(to_string(rl::llamarl::flow) == "apart, ahead by 1/1 batch");
  CHECK(to_string(rl::asyncflow::flow) ==
        "apart, ahead by 1/1 batch, loaded by 1 generators at a time, loaded beside those in use");
  CHECK(to_string(rl::april::flow) == "colocated, synchronous, interrupted, 2 batches begun");
  CHECK(to_string(rl::pipelinerl::flow) ==
        "apart, weights in flight (keep keys and values), ahead by 1/1 batch, 64 slots, effective share at least 0.6");
  for (const char* name : {"hybridflow", "llamarl", "asyncflow", "april", "pipelinerl"})
    CHECK_NOTHROW(rl::flow_named(name));
  CHECK_THROWS_WITH(
      rl::flow_named("verl"),
      "heddle: rl: there is no pipeline \"verl\"; there are hybridflow, llamarl, asyncflow, april, pipelinerl");

  // Windows and greatest lags, by counting batches of one version.
  using four = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<1, 2>, 4>>;
  CHECK(four::flow.may_begin(8, 4) == 8 + 24);
  CHECK(four::flow.greatest_lag() == 5);
  CHECK(rl::hybridflow::flow.may_begin(8, 4) == 12);
  CHECK(rl::hybridflow::flow.greatest_lag() == 0);
  CHECK(rl::llamarl::flow.greatest_lag() == 1);
  CHECK(rl::april::flow.may_begin(8, 4) == 16);
  CHECK(rl::april::flow.greatest_lag() == -1);
  using aged = rl::pipeline<rl::max_age<2>, rl::partial<2>>;
  CHECK(aged::flow.greatest_lag() == 2);
  using zero = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<0>>>;
  using split_sync = rl::pipeline<rl::split, rl::sync>;
  CHECK(zero::flow == split_sync::flow);
  using all_of_one = rl::pipeline<rl::partial<1>>;
  CHECK(all_of_one::flow == rl::hybridflow::flow);
}

TEST_CASE("a plan says whether a run is in turn or side by side, and on how many ranks", "[rl][run]") {
  hd::plan::workflow work{.tasks = {"rollout", "training"}, .edges = {{0, 1}}};
  const auto planned = [&](double switching, double rollout_at_least) {
    work.seconds = [=](int task, int devices) { return task == 0 ? rollout_at_least + 8.0 / devices : 24.0 / devices; };
    work.switching = [=](int, int) { return switching; };
    return rl::planned_run(hd::plan::m2flow(work, 8), work, "training", "rollout");
  };
  // Loading costs nothing, and both use all devices as well as some: in turn. Loading costs much: side by side.
  const rl::planned in_turn = planned(0, 0), beside = planned(30, 0);
  CHECK_FALSE(in_turn.flow.apart);
  CHECK(in_turn.train == 8);
  CHECK(in_turn.generate == 8);
  CHECK(beside.flow.apart);
  CHECK(beside.train == 6);  // 24 / 6 = 8 / 2
  CHECK(beside.generate == 2);
  CHECK_THROWS_WITH(rl::planned_run(hd::plan::m2flow(work, 8), work, "training", "judge"),
                    "heddle: rl::planned_run: the workflow has no task \"judge\"");
  hd::plan::flow_plan odd = hd::plan::m2flow(work, 8);
  for (hd::plan::flow_step& s : odd.steps)
    if (s.task == 1) s.first = 1, s.devices = 7;
  CHECK_THROWS_WITH(rl::planned_run(odd, work, "training", "rollout"),
                    Catch::Contains("training and rollout share some of their devices in this plan"));
}
