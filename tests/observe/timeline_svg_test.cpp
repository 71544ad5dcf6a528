// The picture is well-formed, shows every box inside its frame, and writes nothing wider than its box.
#include "catch.hpp"
#include "svg.hpp"

#include <heddle/observe/timeline_svg.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace observe = heddle::observe;
using heddle::activity;
using heddle::event;
using namespace svg_test;

namespace {

observe::timeline_chart some_chart(int rows, int boxes) {
  observe::timeline_chart c;
  c.title = "measured";
  c.captions = {"bubble < 12 %", "peak & more"};
  for (int r = 0; r < rows; ++r) {
    c.rows.push_back("rank " + std::to_string(r) + " (dp 0, pp " + std::to_string(r) + ")");
    for (int b = 0; b < boxes; ++b)
      c.boxes.push_back({r, b % 2 == 0 ? activity::forward : activity::backward, std::to_string(b), 1000000 * (b + r),
                         1000000 * (b + r + 1)});
    c.boxes.push_back({r, activity::collective, "", 100, 2000});
  }
  return c;
}

}  // namespace

TEST_CASE("the picture is well-formed and everything lies inside", "[observe][svg]") {
  for (const int boxes : {0, 1, 8, 64, 500}) {
    CAPTURE(boxes);
    const std::vector<observe::timeline_chart> charts{some_chart(4, boxes), some_chart(2, boxes / 2)};
    const std::string svg = observe::timeline_svg(charts, {.title = "a <b> & \"c\"", .subtitle = "mesh dp=2"});
    CHECK(well_formed(svg));
    CHECK(count(svg, "a &lt;b&gt; &amp; &quot;c&quot;") == 1);
    CHECK(count(svg, "bubble &lt; 12 % \u00b7 peak &amp; more") == 2);
    CHECK(count(svg, "fill=\"#5aa9f7\"") >= static_cast<std::size_t>(boxes / 2));
    const double width = attribute(svg, "width"), height = attribute(svg, "height");
    CHECK(width == 1200.0);
    bool inside = true;
    for (std::size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) {
      const std::string_view tag = std::string_view(svg).substr(at, svg.find('>', at) - at);
      const double x = attribute(tag, "x"), y = attribute(tag, "y");
      inside = inside && x >= 0 && y >= 0 && x + attribute(tag, "width") <= width + 0.01 &&
               y + attribute(tag, "height") <= height + 0.01;
    }
    CHECK(inside);
  }
}

TEST_CASE("numbers appear where there is room, and only there", "[observe][svg]") {
  const auto numbers = [](int boxes) {
    const std::vector<observe::timeline_chart> charts{some_chart(1, boxes)};
    const std::string svg = observe::timeline_svg(charts);  // numbers are in groups, which say how they look
    return count(svg, "<text") - (count(svg, "font-size") - count(svg, "<g font-size"));
  };
  CHECK(numbers(16) == 16);
  CHECK(numbers(500) == 0);
}

TEST_CASE("boxes in rows that do not exist and empty boxes are left out", "[observe][svg]") {
  observe::timeline_chart c;
  c.rows = {"one"};
  c.boxes = {{0, activity::forward, "1", 0, 10},
             {1, activity::forward, "2", 0, 10},
             {-1, activity::forward, "3", 0, 10},
             {0, activity::forward, "4", 5, 5}};
  const std::vector<observe::timeline_chart> charts{c};
  const std::string svg = observe::timeline_svg(charts);
  CHECK(count(svg, "fill=\"#5aa9f7\"") == 2);  // the box and its legend
  CHECK(well_formed(observe::timeline_svg({})));
}

TEST_CASE("two computations of a rank at one time share its row", "[observe][svg]") {
  observe::timeline_chart c;
  c.rows = {"one", "two"};
  c.boxes = {{0, activity::forward, "4", 0, 10},   {0, activity::backward, "1", 2, 30},
             {0, activity::collective, "", 5, 20}, {0, activity::forward, "5", 30, 40},
             {1, activity::forward, "4", 0, 10},   {1, activity::data, "", 5, 8}};
  const heddle::gantt_chart g = observe::to_gantt(c);
  REQUIRE(g.boxes.size() == 6);
  CHECK(g.boxes[0].lane == heddle::gantt_lane::upper);
  CHECK(g.boxes[1].lane == heddle::gantt_lane::lower);
  for (const std::size_t i : {2u, 3u, 4u, 5u}) CHECK(g.boxes[i].lane == heddle::gantt_lane::whole);
  CHECK(g.boxes[1].end == Approx(30e-6));
}

TEST_CASE("the chart of events shows the pipeline of a step and nothing outside", "[observe][svg]") {
  std::vector<event> events;
  const auto add = [&events](activity kind, int step, int rank, int microbatch, std::int64_t begin, std::int64_t end) {
    event e;
    e.kind = kind;
    e.step = step;
    e.rank = rank;
    e.microbatch = microbatch;
    e.begin_ns = begin;
    e.end_ns = end;
    events.push_back(e);
  };
  add(activity::forward, 1, 0, 0, 1000, 2000);
  add(activity::backward, 1, 2, 0, 2000, 5000);
  add(activity::recv, 1, 2, 0, 500, 2000);         // waited since before: cut at the left edge
  add(activity::optimizer, 1, 0, -1, 5500, 9000);  // after the pipeline
  add(activity::forward, 2, 0, 0, 10000, 11000);   // another step
  const std::vector<std::string> names{"zero", "one"};
  const auto chart = observe::timeline_from_events(events, 1, names);
  CHECK(chart.rows == std::vector<std::string>{"zero", "rank 2"});
  REQUIRE(chart.boxes.size() == 3);
  CHECK(chart.boxes[0].label == "0");
  CHECK(chart.boxes[0].begin_ns == 0);
  CHECK(chart.boxes[1].row == 1);
  CHECK(chart.boxes[1].end_ns == 4000);
  CHECK(chart.boxes[2].begin_ns == 0);
  CHECK(chart.boxes[2].end_ns == 1000);
  const std::vector<int> only{2};
  const auto one_row = observe::timeline_from_events(events, -1, names, only);
  CHECK(one_row.rows == std::vector<std::string>{"rank 2"});
  CHECK(one_row.boxes.size() == 1);
  CHECK(observe::timeline_from_events({}, 0, names).boxes.empty());
}

TEST_CASE("a picture that cannot be written is an error", "[observe][svg]") {
  const auto chart = some_chart(1, 2);
  CHECK_THROWS_AS(observe::write_timeline_svg("/nowhere/at/all.svg", chart, chart), heddle::io_error);
  const auto path = std::filesystem::temp_directory_path() / "heddle-timeline-test.svg";
  observe::write_timeline_svg(path.string(), chart, chart);
  CHECK(std::filesystem::file_size(path) > 1000);
  std::filesystem::remove(path);
}
