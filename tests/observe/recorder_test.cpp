// The recorder keeps what ranks report, in bounds, without locks.
#include "catch.hpp"

#include <heddle/observe/activity.hpp>
#include <heddle/observe/recorder.hpp>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

namespace observe = heddle::observe;
using heddle::activity;
using heddle::event;

namespace {
event make(int rank, int step, std::int64_t begin, std::int64_t end) {
  event e;
  e.kind = activity::forward;
  e.rank = rank;
  e.step = step;
  e.begin_ns = begin;
  e.end_ns = end;
  return e;
}
}  // namespace

TEST_CASE("the recorder is an observer, and null costs nothing", "[observe]") {
  STATIC_REQUIRE(heddle::observer<observe::recorder>);
  STATIC_REQUIRE(heddle::observer<observe::null>);
  STATIC_REQUIRE(observe::recorder::enabled);
  STATIC_REQUIRE_FALSE(observe::null::enabled);
  STATIC_REQUIRE(std::is_empty_v<observe::null>);
}

TEST_CASE("ranks record at once and nothing is lost", "[observe]") {
  constexpr int ranks = 8, each = 5000;
  observe::recorder recorder(ranks);
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&recorder, r] {
        for (int i = 0; i < each; ++i) {
          event e = make(r, i, 0, 0);
          heddle::observed(recorder, e, [] {});
        }
      });
  }
  CHECK(recorder.dropped() == 0);
  const auto all = recorder.events();
  REQUIRE(all.size() == std::size_t{ranks} * each);
  CHECK(std::is_sorted(all.begin(), all.end(), observe::earlier));
  for (int r = 0; r < ranks; ++r) {
    const auto mine = recorder.events(r);
    REQUIRE(mine.size() == std::size_t{each});
    bool in_order = true;
    for (int i = 0; i < each; ++i) {
      const event& e = mine[static_cast<std::size_t>(i)];
      in_order = in_order && e.rank == r && e.step == i && e.end_ns >= e.begin_ns;
    }
    CHECK(in_order);
  }
  recorder.clear();
  CHECK(recorder.events().empty());
}

TEST_CASE("what does not fit is counted, not lost silently", "[observe]") {
  observe::recorder recorder(2, {.events_per_rank = 3});
  for (int i = 0; i < 10; ++i) recorder.record(make(0, 0, i, i + 1));
  recorder.record(make(1, 0, 5, 6));
  CHECK(recorder.events(0).size() == 3);
  CHECK(recorder.events(0)[2].begin_ns == 2);
  CHECK(recorder.events(1).size() == 1);
  CHECK(recorder.dropped() == 7);
  recorder.record(make(2, 0, 0, 1));
  recorder.record(make(-1, 0, 0, 1));
  CHECK(recorder.dropped() == 9);
  recorder.clear();
  CHECK(recorder.dropped() == 0);
}

TEST_CASE("a window of steps passes over the others", "[observe]") {
  observe::recorder recorder(1, {.events_per_rank = 2, .first_step = 5, .last_step = 6});
  for (int s = 0; s < 10; ++s) recorder.record(make(0, s, s, s + 1));
  REQUIRE(recorder.events(0).size() == 2);
  CHECK(recorder.events(0)[0].step == 5);
  CHECK(recorder.events(0)[1].step == 6);
  CHECK(recorder.dropped() == 0);  // passed over is not dropped
}

TEST_CASE("merging puts an enclosing event before what it encloses", "[observe]") {
  observe::recorder recorder(2);
  recorder.record(make(1, 0, 10, 20));  // inner, ends first
  recorder.record(make(1, 0, 10, 90));
  recorder.record(make(0, 0, 10, 90));
  const auto all = recorder.events();
  REQUIRE(all.size() == 3);
  CHECK(all[0].rank == 0);
  CHECK(all[1].end_ns == 90);
  CHECK(all[2].end_ns == 20);
}

TEST_CASE("a recorder without ranks or room is refused", "[observe]") {
  CHECK_THROWS_AS(observe::recorder(0), heddle::config_error);
  CHECK_THROWS_AS(observe::recorder(1, {.events_per_rank = 0}), heddle::config_error);
  CHECK_THROWS_AS(observe::recorder(2).events(2), heddle::config_error);
}

TEST_CASE("every activity has a name, and what is none is another", "[observe]") {
  STATIC_REQUIRE(std::string_view(observe::activity_name(activity::checkpoint)) == "checkpoint");
  STATIC_REQUIRE(std::string_view(observe::activity_name(static_cast<activity>(200))) == "other");
}
