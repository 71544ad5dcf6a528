#include <heddle/core/error.hpp>
#include <heddle/draw/svg.hpp>
#include <heddle/observe/conditions.hpp>
#include <heddle/sim/serving_cluster.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace hd = heddle;
namespace observe = heddle::observe;
namespace sim = heddle::sim;

namespace {

constexpr int serving_begin = 30, serving_end = 40;

observe::runbook_places serving_places(const sim::serving_options& o) {
  return {.replicas = o.replicas,
          .stages = o.stages,
          .nodes = o.nodes,
          .ranks = o.ranks,
          .links = o.links,
          .channels = o.channels};
}

// What a runbook said of one run: the first window in which the fault's own row alarmed at its place, and the top row of that window.
struct serving_outcome {
  int detected = -1, top = -1;
  bool early = false;          // an alarm before the fault
  std::vector<int> elsewhere;  // places of the fault's row that are not its place
};
serving_outcome watched_serving(int row, int place, std::uint64_t seed) {
  const sim::serving_options options;
  observe::runbook book(serving_places(options));
  sim::serving_cluster cluster(
      options, seed,
      {row < 0 ? std::string_view() : observe::catalogue[static_cast<std::size_t>(row)].name, place, serving_begin});
  serving_outcome out;
  for (int w = 0; w < serving_end; ++w) {
    add_window(book, cluster.next());
    book.end_window();
    const auto now = book.verdicts();
    if (w < serving_begin || row < 0) out.early = out.early || !now.empty();
    if (w >= serving_begin)
      for (const auto& v : now) {
        if (v.row != row) continue;
        if (v.place == place && out.detected < 0) {
          out.detected = w;
          out.top = now.front().row;
        } else if (v.place != place) {
          out.elsewhere.push_back(v.place);
        }
      }
    if (w == serving_begin + 4 && out.detected < 0 && !now.empty()) out.top = now.front().row;
  }
  return out;
}

int serving_places_of(int row) {
  const observe::runbook book(serving_places({}));
  return book.places_of(observe::catalogue[static_cast<std::size_t>(row)].tests[0].of);
}

// Rows: what was injected; columns: what stood on top; darker: more often.
std::string confusion_svg(const std::vector<std::vector<int>>& counts, int seeds) {
  hd::svg_drawing picture;
  constexpr double left = 190, top = 190, cell = 20;
  picture.words(16, 26, "injected (rows) and verdict on top (columns), " + std::to_string(seeds) + " seeds", 14,
                "#1b1f24", "start", true);
  for (std::size_t r = 0; r < counts.size(); ++r) {
    picture.words(left - 8, top + cell * static_cast<double>(r) + 14, observe::catalogue[r].name, 11, "#1b1f24", "end");
    picture.words(left + cell * static_cast<double>(r) + cell / 2, top - 8, std::to_string(r + 1), 11, "#57606a",
                  "middle");
    for (std::size_t c = 0; c < counts[r].size(); ++c) {
      const int part = seeds > 0 ? 255 - 200 * counts[r][c] / seeds : 255;
      char fill[8];
      std::snprintf(fill, sizeof fill, "#%02x%02xff", static_cast<unsigned>(part), static_cast<unsigned>(part));
      picture.rect(left + cell * static_cast<double>(c), top + cell * static_cast<double>(r), cell - 1, cell - 1,
                   counts[r][c] > 0 ? fill : "#f3f4f6");
      if (counts[r][c] > 0)
        picture.words(left + cell * static_cast<double>(c) + cell / 2, top + cell * static_cast<double>(r) + 14,
                      std::to_string(counts[r][c]), 9, "#1b1f24", "middle");
    }
  }
  return picture.text("", 16, "#ffffff");
}

void all_conditions_are_told(int seeds) {
  std::vector<std::vector<int>> confusion(28, std::vector<int>(28, 0));
  int alarms = 0;
  for (int s = 0; s < seeds; ++s) alarms += watched_serving(-1, 0, static_cast<std::uint64_t>(s)).early ? 1 : 0;
  CHECK(alarms == 0);
  for (int row = 0; row < 28; ++row) {
    int detected = 0, own = 0, early = 0, blamed = 0;
    const int places = serving_places_of(row);
    for (int s = 0; s < seeds; ++s) {
      int place = s % places;
      if (row == 18) place = place / 16 * 16 + place % 8;  // rows are held by first stages
      const serving_outcome out = watched_serving(row, place, 1000 + static_cast<std::uint64_t>(s));
      early += out.early ? 1 : 0;
      blamed += out.elsewhere.empty() ? 0 : 1;
      detected += out.detected >= serving_begin && out.detected < serving_begin + 5 ? 1 : 0;
      if (out.top >= 0) ++confusion[static_cast<std::size_t>(row)][static_cast<std::size_t>(out.top)];
      own += out.top == row ? 1 : 0;
    }
    INFO("condition " << row + 1 << " " << observe::catalogue[static_cast<std::size_t>(row)].name << ", " << seeds
                      << " seeds: detected " << detected << ", on top " << own);
    CHECK(detected * 100 >= 95 * seeds);
    CHECK(own * 100 >= 90 * seeds);
    CHECK(early == 0);
    if (row == 12) CHECK(blamed == 0);
  }
  if (const char* file = std::getenv("HEDDLE_CONFUSION_SVG")) std::ofstream(file) << confusion_svg(confusion, seeds);
}

}  // namespace

TEST_CASE("each condition of serving is detected where it was injected, and clean runs raise no alarm",
          "[sim][conditions]") {
  all_conditions_are_told(8);
}

TEST_CASE("the same with 100 seeds of each condition", "[sim][conditions][slow]") {
  all_conditions_are_told(100);
}

TEST_CASE("a simulated serving cluster keeps the formulas of its parts", "[sim][conditions]") {
  // One replica, always full, without noise, host and network: only compute is left.
  sim::serving_options o{.replicas = 1, .stages = 1, .nodes = 1, .ranks = 8, .slots = 8, .noise = 0, .arrivals = 64};
  o.lengths = {5};
  o.exchange_bytes = 0;
  o.host = 0;
  o.expert_part = 0;
  const auto steady = [](const sim::serving_options& with) {
    sim::serving_cluster cluster(with);
    for (int w = 0; w < 4; ++w) cluster.next();
    return cluster.next().step / with.microbatches;
  };
  const auto close = [](double a, double b) { return std::abs(a - b) <= 1e-12 * std::abs(b); };
  SECTION("tensor parallel: the slowest rank") {
    o.slower = {1, 1.1, 0.9, 1.37, 1.2, 1, 1, 1.05};
    CHECK(close(steady(o), o.compute * 1.37));
  }
  SECTION("pipeline: the slowest stage") {
    o.stages = 3;
    o.ranks = 2;
    o.slower = {1, 1.1, 1.6, 0.9, 1.2, 1.3};
    CHECK(close(steady(o), o.compute * 1.6));
  }
  SECTION("experts: the busiest node over the mean") {
    o.nodes = 4;
    o.ranks = 2;
    o.expert_part = 1;
    o.node_load = {1, 2.5, 0.5, 1.2};
    CHECK(close(steady(o), o.compute * 2.5 / ((1 + 2.5 + 0.5 + 1.2) / 4)));
  }
  SECTION("static batching: 1 - mean/max of the lengths") {
    o.refill = false;
    o.lengths = {3, 7, 12, 1, 5, 9, 16, 2};
    o.steps_per_window = 16;  // one batch
    sim::serving_cluster cluster(o);
    for (int w = 0; w < 3; ++w) cluster.next();
    CHECK(close(cluster.wasted(), 1 - (55 / 8.0) / 16));
  }
}

TEST_CASE("a runbook has rows of a user's, says what is not seen, and refuses what does not fit", "[sim][conditions]") {
  const observe::signal heat = observe::own_signal(0);
  const std::array<observe::condition, 1> own{{{"too_hot", {observe::above(heat, 80)}, "open a window"}}};
  const auto rows = observe::catalogue_and(own);
  observe::runbook book({}, {.skipped = 0, .learned = 2}, rows);
  CHECK(book.not_seen_here().size() == 29);
  for (int w = 0; w < 6; ++w) {
    book.add(heat, w < 3 ? 70 : 95);
    book.end_window();
  }
  REQUIRE(book.verdicts().size() == 1);
  CHECK(to_string(book.verdicts()[0]) == "too_hot at the service since window 3 (1.2 x its threshold): open a window");
  CHECK(book.not_seen_here().size() == 28);
  CHECK(book.to_text().find("egress_loss                 not seen here") != std::string::npos);
  // Hysteresis: what is hardly below the threshold is still an alarm, what is far below three times is none.
  book.add(heat, 70);
  book.end_window();
  CHECK(book.verdicts().size() == 1);
  for (int w = 0; w < 3; ++w) {
    book.add(heat, 40);
    book.end_window();
  }
  CHECK(book.verdicts().empty());

  const auto says = [](auto&& act, std::string_view what) {
    try {
      act();
    } catch (const hd::config_error& e) {
      INFO(e.what());
      CHECK(std::string_view(e.what()).find(what) != std::string_view::npos);
      return;
    }
    FAIL("no error");
  };
  says([&] { (void)observe::condition_number("sun_spots", rows); },
       "there is no condition 'sun_spots'; there are admission_burst");
  says([&] { (void)observe::condition_number("sun_spots", rows); }, "too_hot");
  says([&] { book.add(observe::signal::compute, 1, 1); }, "signal compute has places 0 to 0, not 1");
  says([] { (void)observe::runbook({.ranks = 0}); }, "at least one place of each kind, not 0");
  says([] { (void)observe::runbook({}, {.windows = 0}); }, "alarms after at least 1, got 16 and 0");
  const std::array<observe::condition, 1> empty{{{"nothing", {}, ""}}};
  says([&] { (void)observe::runbook({}, {}, empty); }, "condition 'nothing' has no test");
  says([] { (void)sim::serving_cluster({}, 1, {"sun_spots", 0, 0}); },
       "there is no fault 'sun_spots'; there are admission_burst");
  says([] { (void)sim::serving_cluster({}, 1, {"stage_stall", 4, 0}); }, "has places 0 to 3, not 4");
  says([] { (void)sim::serving_cluster({.slower = {1, 2}}); }, "32 factors of ranks are needed or none, got 2");
  const std::array<observe::condition, 1> beyond{{{"beyond", {observe::above(observe::own_signal(16), 1)}, ""}}};
  says([&] { (void)observe::runbook({}, {}, beyond); }, "condition 'beyond' tests a signal that does not exist");
  // Every condition has a fault of its name.
  const auto faults = sim::serving_faults();
  REQUIRE(faults.size() == observe::catalogue.size());
  for (std::size_t i = 0; i < faults.size(); ++i) CHECK(faults[i] == observe::catalogue[i].name);
}
