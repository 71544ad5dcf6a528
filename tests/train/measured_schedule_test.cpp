// Events made from a simulation compare with themselves: same boxes, same bubble, pairs at once, several pipelines.
#include "catch.hpp"

#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/train/measured_schedule.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace schedule = heddle::schedule;
namespace sim = heddle::sim;
namespace train = heddle::train;
using heddle::activity;
using heddle::event;
using heddle::gantt_box;
using heddle::gantt_lane;

namespace {

activity activity_of(schedule::action_kind kind) {
  switch (kind) {
    case schedule::action_kind::forward:
      return activity::forward;
    case schedule::action_kind::backward:
      return activity::backward;
    case schedule::action_kind::backward_input:
      return activity::backward_input;
    default:
      return activity::backward_weight;
  }
}

// What a recorder would have if everything took exactly as long as simulated, in milliseconds. Rank r is first + r.
std::vector<event> events_of(schedule::table_view table, const sim::timeline& line, int step, int first = 0,
                             std::int64_t later_ns = 0) {
  std::vector<event> events;
  for (int r = 0; r < table.ranks(); ++r)
    for (int k = table.offset(r); k < table.offset(r + 1); ++k) {
      event e;
      e.kind = activity_of(table[k].kind);
      e.rank = first + r;
      e.step = step;
      e.stage = table[k].stage;
      e.microbatch = table[k].microbatch;
      e.begin_ns = later_ns + std::llround(line.start[static_cast<std::size_t>(k)] * 1e6);
      e.end_ns = later_ns + std::llround(line.end[static_cast<std::size_t>(k)] * 1e6);
      events.push_back(e);
    }
  return events;
}

}  // namespace

TEST_CASE("a run as simulated is as predicted, for every schedule", "[train][gantt]") {
  for (const std::string_view name : schedule::named::names) {
    CAPTURE(std::string(name));
    const auto table = schedule::make_table(schedule::named(name, 8), 4);
    const sim::timeline line = sim::simulate(table, sim::stage_times{2, 3, 1, 4});
    std::vector<event> events = events_of(table, line, 7, 0, 123456789);
    for (event e : events_of(table, line, 6)) events.push_back(e);  // another step, not shown
    const auto both = train::compare_with_simulation(events, table, 7);
    CHECK(both.predicted.span() == Approx(line.makespan));
    CHECK(both.measured.span() == Approx(line.makespan));
    CHECK(both.measured_bubble == Approx(line.bubble_ratio()));
    CHECK(both.predicted_bubble == Approx(line.bubble_ratio()));
    REQUIRE(both.measured.boxes.size() == both.predicted.boxes.size());
    bool same = true;
    for (std::size_t k = 0; k < both.measured.boxes.size(); ++k) {
      const gantt_box &m = both.measured.boxes[k], &p = both.predicted.boxes[k];
      same = same && m.row == p.row && m.style == p.style && m.label == p.label && std::abs(m.begin - p.begin) < 1e-6 &&
             std::abs(m.end - p.end) < 1e-6 && m.lane == p.lane;
    }
    CHECK(same);
    CHECK(both.svg().find("predicted") != std::string::npos);
  }
}

TEST_CASE("pairs take what they took together", "[train][gantt]") {
  const auto table = schedule::parse("0F0 (0F1;0B0)OVERLAP_F_B 0B1", {});
  const sim::timeline line = sim::simulate(table, sim::stage_times{1, 1, 1, 2.5});
  const train::measured_times times(events_of(table, line, 0), table);
  const schedule::action f{schedule::action_kind::forward, 0, 1}, b{schedule::action_kind::backward, 0, 0};
  CHECK(times(f, b) == Approx(2.5));
  CHECK(times(b, f) == Approx(times(b) + times(f)));
  CHECK(times({schedule::action_kind::forward, 1, 0}) == 0);
  CHECK(times({schedule::action_kind::send_forward, 0, 0, 1}) == 0);
}

TEST_CASE("several pipelines, each with its own bubble", "[train][gantt]") {
  const auto table = schedule::make_table(schedule::one_f_one_b<>{4}, 2);
  const sim::timeline line = sim::simulate(table, sim::stage_times{});
  std::vector<event> events = events_of(table, line, 0);
  for (const event& e : events_of(table, line, 0, 2, 50000000)) events.push_back(e);  // starts 50 ms later
  event waiting;
  waiting.kind = activity::collective;
  waiting.rank = 2;
  waiting.step = 0;
  waiting.begin_ns = 1000000;
  waiting.end_ns = 40000000;
  events.push_back(waiting);
  const auto both =
      train::compare_with_simulation(events, table, 0, {{0, 0, "a"}, {1, 1, "b"}, {2, 0, "c"}, {3, 1, ""}});
  CHECK(both.measured.rows == std::vector<std::string>{"a", "b", "c", "rank 3"});
  CHECK(both.measured_bubble == Approx(line.bubble_ratio()));
  CHECK(both.measured.span() == Approx(50 + line.makespan));
  CHECK(both.measured.boxes.size() == 4 * 8 + 1);
  CHECK(both.measured.styles[static_cast<std::size_t>(both.measured.boxes.back().style)].strip);
  CHECK(both.predicted.boxes.size() == 4 * 8);
  const auto one = train::compare_with_simulation(events, table, 0, {{3, 1, ""}});
  CHECK(one.predicted.boxes.size() == 8);
  CHECK_THROWS_WITH(train::compare_with_simulation(events, table, 0, {{3, 2, ""}}),
                    Catch::Contains("a row shows rank 2 of a pipeline, the table has 2 ranks"));
  const auto nothing = train::compare_with_simulation({}, table, 0);
  CHECK(nothing.measured.boxes.empty());
  CHECK(to_string(nothing).find("measured; 0 ms") == 0);
}
