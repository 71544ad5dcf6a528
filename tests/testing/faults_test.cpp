// Faults as an observer: each effect does what it says where it was asked for, and the checks of calls name it.
#include <heddle/testing/faults.hpp>

#include <heddle/comm/threads.hpp>
#include <heddle/core/observers.hpp>

#include "catch.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace faults_test {
namespace {

namespace hd = heddle;
using hd::testing::fault, hd::testing::faults;
using line = hd::mesh<hd::axis<hd::dp>>;

hd::event event_of(hd::activity kind, const char* name, int rank, int step) {
  hd::event e;
  e.kind = kind;
  e.name = name;
  e.rank = rank;
  e.step = step;
  return e;
}

// Three ranks, five steps of two equal sums each, watched. Gives the sums of rank 0, or what it was told.
std::string sums(faults& drill) {
  std::string text;
  hd::launch_options options;
  options.timeout = std::chrono::seconds(20);
  try {
    hd::launch<hd::threads>(line{3}, options, [&](auto& world) {
      std::int64_t sum = 0;
      for (int step = 0; step < 5; ++step) {
        world.mark(step);
        for (int i = 0; i < 2; ++i) {
          int x = 1;
          hd::observed(drill, event_of(hd::activity::collective, "all_reduce", world.rank(), step),
                       [&] { world.all().all_reduce(x, hd::plus{}); });
          sum += x;
        }
      }
      if (world.rank() == 0) text = std::to_string(sum);
    });
  } catch (const hd::error& e) {
    text = e.what();
  }
  return text;
}

struct listening {
  static constexpr bool enabled = true;
  void record(const hd::event& e) { heard.push_back(e); }
  std::vector<hd::event> heard;
};
struct wrapping {
  static constexpr bool enabled = true;
  std::string* said;
  char name;
  void record(const hd::event&) {}
  template <class Work>
  decltype(auto) around(const hd::event&, Work&& work) {
    *said += name;
    return std::forward<Work>(work)();
  }
};

}  // namespace

TEST_CASE("a call that is skipped or doubled is named by the checks of calls", "[testing][faults]") {
  faults none({});
  CHECK(sums(none) == "30");
  CHECK(none.struck() == 0);
  faults skipped{{.rank = 1, .name = "all_reduce", .at = 3, .what = fault::skip}};
  const std::string left_out = sums(skipped);
  INFO(left_out);
  CHECK(left_out.find("call 4 on communicator (dp): rank 1 entered all_reduce of 1 int with plus in step 2; rank 0 "
                      "entered all_reduce of 1 int with plus in step 1") != std::string::npos);
  CHECK(skipped.struck() == 1);
  faults doubled{{.rank = 2, .at = 0, .from_step = 3, .what = fault::twice}};
  const std::string one_more = sums(doubled);
  INFO(one_more);
  CHECK(one_more.find("call 9 on communicator (dp): rank 2 entered all_reduce of 1 int with plus in step 3; rank 0 "
                      "entered all_reduce of 1 int with plus in step 4") != std::string::npos);
  // The same call left out by all ranks is found by nobody but the result.
  faults everywhere{{.at = 3, .what = fault::skip}};
  CHECK(sums(everywhere) == "28");
  CHECK(everywhere.struck() == 3);
}

TEST_CASE("a fault that raises ends the program with rank and name", "[testing][faults]") {
  faults drill{{.rank = 2, .at = 4, .what = fault::raise}};
  const std::string text = sums(drill);
  INFO(text);
  CHECK(text.find("heddle: testing::faults: all_reduce fails on rank 2") != std::string::npos);
}

TEST_CASE("what slows an event is part of its time", "[testing][faults]") {
  using std::chrono::milliseconds;
  listening times;
  faults drill{{.kind = hd::activity::forward, .from_step = 2, .to_step = 3, .delay = milliseconds(20)},
               {.rank = 1, .kind = hd::activity::forward, .from_step = 2, .stretch = 3.0}};
  hd::observers watch(times, drill);
  const auto run = [&](hd::activity kind, int rank, int step, milliseconds work) {
    hd::observed(watch, event_of(kind, "work", rank, step), [&] { std::this_thread::sleep_for(work); });
    return times.heard.back().end_ns - times.heard.back().begin_ns;
  };
  CHECK(run(hd::activity::forward, 0, 2, milliseconds(0)) >= 20'000'000);
  CHECK(run(hd::activity::forward, 1, 3, milliseconds(5)) >= 15'000'000);
  CHECK(drill.struck() == 2);
  run(hd::activity::forward, 1, 1, milliseconds(0));
  run(hd::activity::backward, 1, 2, milliseconds(0));
  run(hd::activity::forward, 0, 3, milliseconds(0));
  CHECK(drill.struck() == 2);  // none of these fits
}

TEST_CASE("observers that run the work are nested as they are named, and pass results on", "[testing][faults]") {
  std::string said;
  wrapping a{&said, 'a'}, b{&said, 'b'};
  listening between;
  hd::observers watch(a, between, b);
  int value = 1;
  hd::observed(watch, {}, [&]() -> int& { return value; }) = 7;
  CHECK(value == 7);
  CHECK(said == "ab");
  CHECK(between.heard.size() == 1);
  CHECK_THROWS_AS(hd::observed(watch, {}, [] { throw std::runtime_error("inside"); }), std::runtime_error);
}

TEST_CASE("a fault that kills ends the process", "[testing][faults]") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    faults drill{{.rank = 0, .what = fault::kill}};
    drill.around(event_of(hd::activity::forward, "work", 0, 0), [] {});
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
}

TEST_CASE("faults that make no sense are refused", "[testing][faults]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH((faults{{.stretch = 0.5}}), Contains("stretch should be at least 1, got 0.5"));
  CHECK_THROWS_WITH((faults{{.delay = std::chrono::nanoseconds(-3)}}), Contains("got -3 ns"));
  CHECK_THROWS_WITH((faults{{.kind = hd::activity::send, .what = fault::skip}}), Contains("skip is for collectives"));
  faults drill{{.what = fault::twice}};
  CHECK_THROWS_WITH(drill.around(event_of(hd::activity::recv, "recv", 0, 0), [] {}),
                    Contains("twice is for collectives"));
  // The end of a call that was started elsewhere.
  CHECK_THROWS_WITH(drill.around(event_of(hd::activity::collective, "wait for weights", 0, 0), [] {}),
                    Contains("twice is for collectives"));
  CHECK_THROWS_WITH(drill.around(event_of(hd::activity::collective, "split", 0, 0), [] { return 1; }),
                    Contains("split has a result, or is only started there"));
}

}  // namespace faults_test
