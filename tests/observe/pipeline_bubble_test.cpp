// The measured bubble, against pipelines whose bubble is known.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/observe/pipeline_bubble.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace observe = heddle::observe;
using heddle::activity;
using heddle::event;

namespace {
event make(activity kind, int step, int rank, std::int64_t begin, std::int64_t end) {
  event e;
  e.kind = kind;
  e.step = step;
  e.rank = rank;
  e.begin_ns = begin;
  e.end_ns = end;
  return e;
}
}  // namespace

TEST_CASE("GPipe with equal stages has bubble (p-1)/(m+p-1)", "[observe][bubble]") {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 9; ++m) {
      std::vector<event> events;
      for (int r = 0; r < p; ++r)
        for (int i = 0; i < m; ++i) {
          events.push_back(make(activity::forward, 7, r, 10 * (r + i), 10 * (r + i + 1)));
          const int turn = 10 * (m + p - 1);  // backward takes twice as long
          events.push_back(make(activity::backward, 7, r, turn + 20 * (p - 1 - r + i), turn + 20 * (p - r + i)));
          events.push_back(make(activity::recv, 7, r, 0, 10 * r));  // waiting is idle time
        }
      const auto reports = observe::pipeline_bubbles(events);
      REQUIRE(reports.size() == 1);
      CHECK(reports[0].step == 7);
      CHECK(reports[0].makespan_ns == 30 * (m + p - 1));
      CHECK(reports[0].bubble() == Approx((p - 1.0) / (m + p - 1.0)).margin(1e-12));
    }
}

TEST_CASE("busy and idle add up to the makespan on every rank", "[observe][bubble]") {
  const heddle::counter_random random(99, 0);
  INFO("seed 99");
  for (std::uint64_t round = 0; round < 50; ++round) {
    std::vector<event> events;
    std::array<std::vector<bool>, 4> busy;  // the slow, obvious way: a flag per nanosecond
    for (auto& b : busy) b.assign(400, false);
    int first = 400, last = 0;
    for (std::uint64_t i = 0; i < 40; ++i) {
      const auto b = random.bits(round * 100 + i);
      const int rank = static_cast<int>(b[0] % 4), begin = static_cast<int>(b[1] % 300);
      const int end = begin + 1 + static_cast<int>(b[2] % 60);
      const auto kind = static_cast<activity>(b[3] % 11);
      events.push_back(make(kind, 0, rank, begin, end));  // overlaps and nesting included
      if (!observe::is_stage_work(kind)) continue;
      for (int t = begin; t < end; ++t) busy[static_cast<std::size_t>(rank)][static_cast<std::size_t>(t)] = true;
      first = (std::min)(first, begin);
      last = (std::max)(last, end);
    }
    const auto reports = observe::pipeline_bubbles(events);
    REQUIRE(reports.size() == 1);
    const auto& report = reports[0];
    CHECK(report.makespan_ns == last - first);
    double idle = 0.0;
    for (std::size_t i = 0; i < report.ranks.size(); ++i) {
      const auto& flags = busy[static_cast<std::size_t>(report.ranks[i])];
      CHECK(report.busy_ns[i] == std::count(flags.begin(), flags.end(), true));
      CHECK(report.busy_ns[i] + report.idle_ns(i) == report.makespan_ns);
      idle += static_cast<double>(report.idle_ns(i));
    }
    CHECK(report.bubble() ==
          Approx(idle / (static_cast<double>(report.ranks.size()) * static_cast<double>(report.makespan_ns)))
              .margin(1e-12));
  }
}

TEST_CASE("steps are separate, and one pipeline can be chosen", "[observe][bubble]") {
  std::vector<event> events;
  for (int step = 0; step < 3; ++step) {
    events.push_back(make(activity::forward, step, 0, 100 * step, 100 * step + 50));
    events.push_back(make(activity::backward, step, 1, 100 * step + 50, 100 * step + 100));
    events.push_back(make(activity::forward, step, 2, 100 * step, 100 * step + 80));
  }
  const auto all = observe::pipeline_bubbles(events);
  REQUIRE(all.size() == 3);
  CHECK(all[2].step == 2);
  CHECK(all[0].ranks == std::vector<int>{0, 1, 2});
  CHECK(all[0].bubble() == Approx(1.0 - 180.0 / 300.0));
  const std::array<int, 2> chosen{0, 1};
  CHECK(observe::pipeline_bubbles(events, chosen)[1].bubble() == Approx(0.5));
  const std::array<int, 2> with_idle{2, 5};  // a rank without any work was idle throughout
  CHECK(observe::pipeline_bubbles(events, with_idle)[0].bubble() == Approx(0.5));
  CHECK(observe::pipeline_bubbles({}).empty());
}
