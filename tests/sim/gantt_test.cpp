// Every schedule as a picture and in letters: each computation once, pairs side by side, captions as counted.
#include "catch.hpp"

#include <heddle/schedule/generate/inference.hpp>
#include <heddle/schedule/lower/lower.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/routed.hpp>
#include <heddle/sim/gantt.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace schedule = heddle::schedule;
namespace sim = heddle::sim;
using heddle::gantt_box;
using heddle::gantt_lane;

namespace {

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

sim::timeline run(schedule::table_view table) {
  const double share = static_cast<double>(table.ranks()) / table.parts();
  return sim::simulate(table, sim::stage_times{share, share, share});
}

}  // namespace

TEST_CASE("1F1B in letters", "[sim][gantt]") {
  const auto table = schedule::make_table(schedule::one_f_one_b<>{4}, 2);
  CHECK(sim::schedule_text(table, run(table), "1F1B", 60) ==
        "1F1B; 15; bubble 20 %; at most 2, 1 microbatches alive\n"
        "rank 0 F0--F1--........B0------F2--B1------F3--B2------....B3------\n"
        "rank 1 ....F0--B0------F1--B1------F2--B2------F3--B3------........\n");
}

TEST_CASE("second stages are small letters, pairs are joined", "[sim][gantt]") {
  const auto v = schedule::make_table(schedule::zb_v<>{1}, 2);
  CHECK(sim::schedule_text(v, run(v), {}, 30) ==
        "5; bubble 40 %; at most 1, 1 microbatches alive\n"
        "rank 0 F0-......f0-i0-w0-......I0-W0-\n"
        "rank 1 ...F0-f0-......i0-w0-I0-W0-...\n");
  const auto pair = schedule::parse("0F0 (0F1;0B0)OVERLAP_F_B 0B1", {});
  const sim::timeline line = sim::simulate(pair, sim::stage_times{1, 1, 1, 2});
  CHECK(sim::schedule_text(pair, line, {}, 15) ==
        "5; bubble 0 %; at most 2 microbatches alive\n"
        "rank 0 F0-F1+B0-B1----\n");
}

TEST_CASE("every computation of every schedule is drawn once, inside its time", "[sim][gantt]") {
  for (const std::string_view name : schedule::named::names) {
    CAPTURE(std::string(name));
    const auto table = schedule::make_table(schedule::named(name, 8), 4);
    const schedule::table_view t = table;
    const sim::timeline line = run(table);
    const heddle::gantt_chart chart = sim::schedule_chart(table, line, std::string(name), "F");
    REQUIRE(chart.boxes.size() == t.actions().size());
    CHECK(chart.rows.size() == 4);
    std::size_t upper = 0, lower = 0, pairs = 0;
    bool right = true;
    for (std::size_t k = 0; k < chart.boxes.size(); ++k) {
      const gantt_box& b = chart.boxes[k];
      const schedule::action& a = t.actions()[k];
      upper += b.lane == gantt_lane::upper ? 1 : 0;
      lower += b.lane == gantt_lane::lower ? 1 : 0;
      pairs += a.overlaps_next ? 1 : 0;
      right = right && b.row == t.rank_of(a.stage) && b.begin == line.start[k] && b.end == line.end[k] &&
              b.label == std::to_string(a.microbatch);
    }
    CHECK(right);
    CHECK(upper == pairs);
    CHECK(lower == pairs);
    CHECK(chart.span() == line.makespan);
    const std::string svg = sim::schedule_svg(table, line, std::string(name), {.unit = "F"});
    CHECK(count(svg, "<rect") >= t.actions().size());
    CHECK(svg.size() < 40000);
    CHECK((count(svg, "darker") == 1) == (t.stages() > t.ranks()));
    // A lowered table has no other picture: transfers take no time.
    const auto lowered = schedule::lower(table);
    if (name != "zb-h1" && !t.has(schedule::action_kind::backward_weight))
      CHECK(sim::schedule_text(lowered, run(lowered)) == sim::schedule_text(table, line));
  }
}

TEST_CASE("captions count in microbatches of a rank's share", "[sim][gantt]") {
  const auto peak = [](const auto& when, int ranks, int rank) {
    return sim::peak_microbatches(schedule::make_table(when, ranks), rank);
  };
  CHECK(peak(schedule::gpipe<>{8}, 4, 0) == 8);
  CHECK(peak(schedule::interleaved<>{8}, 4, 0) == 5.5);
  CHECK(peak(schedule::v_half<>{8}, 4, 0) == 3);
  CHECK(peak(schedule::dual_pipe<>{8}, 4, 0) == 5);
  const auto many = schedule::make_table(schedule::one_f_one_b<>{16}, 12);
  CHECK(sim::schedule_chart(many, run(many)).captions[2] == "at most 12 microbatches alive");
}

TEST_CASE("pipelines without backwards, and what only long transfers show", "[sim][gantt]") {
  const auto table = schedule::make_table(schedule::prefill<>{2}, 2);
  CHECK(sim::schedule_text(table, run(table), {}, 12) ==
        "3; bubble 33.3 %\n"
        "rank 0 F0--F1--....\n"
        "rank 1 ....F0--F1--\n");
  const auto lowered = schedule::lower(table);
  const sim::timeline slow =
      sim::simulate(lowered, sim::stage_times{}, sim::link_time{1}, schedule::transfers::rendezvous);
  const heddle::gantt_chart chart = sim::schedule_chart(lowered, slow);
  const auto strips = std::count_if(chart.boxes.begin(), chart.boxes.end(), [&](const gantt_box& b) {
    return chart.styles[static_cast<std::size_t>(b.style)].strip;
  });
  CHECK(strips == 4);
}

TEST_CASE("colours grow darker", "[sim][gantt]") {
  CHECK(sim::detail::darker("#5aa9f7", 0) == "#5aa9f7");
  CHECK(sim::detail::darker("#ff8000", 0.5) == "#804000");
  CHECK(sim::detail::darker("#ff8000", 1) == "#000000");
}

TEST_CASE("where microbatches skip stages, activations are counted by stages", "[sim][gantt]") {
  // Two nodes of stage 0, one each of stages 1 and 2; every microbatch skips one of them.
  schedule::path_table ways;
  ways.stages = 3;
  ways.length = 2;
  ways.stage_of_node = {0, 0, 1, 2};
  ways.way = {0, 2, 1, 3, 0, 3, 1, 2};
  const auto table = schedule::make_table(schedule::routed(ways), 4);
  const auto text = sim::schedule_text(table, sim::simulate(table), "ways", 80);
  // A node of stage 0 has its two forwards and, one at a time, a loss.
  CHECK(text.find("at most 3, 3, 2, 2 activations of a stage alive") != std::string::npos);
  for (int r = 0; r < 4; ++r) CHECK(sim::peak_microbatches(table, r) == schedule::peak_live(table, r));
}
