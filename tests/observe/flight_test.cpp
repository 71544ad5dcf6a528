// Flight files: written by a launch, read when its process is gone; the verdict names kind and culprit of each planted fault.
#include <heddle/observe/flight_report.hpp>

#include <heddle/comm/threads.hpp>

#include "catch.hpp"
#include "flight_steps.hpp"
#include "svg.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace flight_test {
namespace {

namespace hd = heddle;
namespace observe = heddle::observe;
using hd::dp;
using kind = observe::flight_report::kind;
using flight_steps::grid, flight_steps::steps;

class folder {
 public:
  explicit folder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / (name + "-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

hd::launch_options kept_in(const std::string& path, int timeout_ms) {
  hd::launch_options options;
  options.flight = path;
  options.flight_calls = 16;
  options.timeout = std::chrono::milliseconds(timeout_ms);
  return options;
}

// The verdict when the process is gone, or, for those that would hang, when it has been left alone for a while.
observe::flight_report verdict_of(const std::string& path, int culprit, const std::string& fault, hd::checking check) {
  const bool hangs = fault == "silent" || fault == "order";
  const ::pid_t child = ::fork();
  if (child == 0) {
    try {
      hd::launch_options options = kept_in(path, hangs ? 30'000 : 5'000);
      options.check = check;
      hd::launch<hd::threads, grid>(options, [&](auto& world) { steps(world, culprit, fault); });
    } catch (const std::exception&) {
    }
    ::_exit(0);
  }
  int status = 0;
  if (!hangs) {
    ::waitpid(child, &status, 0);
    return observe::report_of(observe::read_flights(path));
  }
  observe::flight_report last;
  for (int i = 0; i < 400; ++i) {  // until all who will have come are there
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    try {
      last = observe::report_of(observe::read_flights(path));
    } catch (const hd::error&) {  // not all files are there
      continue;
    }
    if (last.victims.size() + last.culprits.size() == 4 &&
        (fault == "order" ? last.what == kind::circle
                          : last.what == kind::silent && last.culprits == std::vector<int>{culprit}))
      break;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return last;
}

std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(all));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("the verdict names the kind and the culprit of each fault", "[observe][flight]") {
  struct expected {
    const char* fault;
    kind what;
    const char* text;
  };
  for (const expected& e :
       {expected{"none", kind::agreed, "agreed: no rank of 4 waits for another."},
        {"skip", kind::skipped, " made 2 calls in step 2, the others 3"},
        {"twice", kind::skipped, "all_reduce of 8 float with plus in step 2"},
        {"size", kind::disagreed, " entered all_reduce of 4 float with plus in step 2; ranks "},
        {"swap", kind::disagreed, " entered broadcast of 8 float with root 0 in step 2; ranks "},
        {"type", kind::disagreed, " entered all_reduce of 8 double with plus in step 2; ranks "},
        {"operator", kind::disagreed, " entered all_reduce of 8 float with maximum in step 2; ranks "},
        {"root", kind::disagreed, " entered broadcast of 8 float with root 1 in step 2; ranks "},
        {"return", kind::missing, "'s body has returned; its last call was all_reduce of 8 float with plus in step 2"},
        {"throw", kind::missing, " has failed: no more; its last call was"},
        {"silent", kind::silent, " is in no call while others wait for it; its last call was all_reduce"},
        {"order", kind::circle, "on communicator (tp) for rank"}})
    for (const int culprit : {1, 3}) {
      INFO(e.fault << " of rank " << culprit);
      const folder place("heddle-flight");
      const auto report = verdict_of(place.path(), culprit, e.fault, hd::checking::on);
      INFO(report.text);
      CHECK(report.what == e.what);
      CHECK(report.text.find(e.text) != std::string::npos);
      CHECK(report.text.starts_with(to_string(report.what)));
      if (e.what == kind::agreed) {
        CHECK(report.culprits.empty());
      } else if (e.what == kind::circle) {
        CHECK(std::find(report.culprits.begin(), report.culprits.end(), culprit) != report.culprits.end());
        CHECK(report.culprits.size() >= 2);
      } else {
        CHECK(report.culprits == std::vector<int>{culprit});
        CHECK(report.culprits.size() + report.victims.size() == 4);
      }
    }
}

TEST_CASE("calls of two groups that are swapped are named, though nobody waits in a circle", "[observe][flight]") {
  for (const int culprit : {0, 2})
    for (const hd::checking check : {hd::checking::on, hd::checking::off}) {
      const folder place("heddle-flight-turned");
      const auto report = verdict_of(place.path(), culprit, "turn", check);
      INFO(report.text);
      CHECK(report.what == kind::disagreed);
      CHECK(report.culprits == std::vector<int>{culprit});
      const std::string who = std::to_string(culprit), other = culprit == 0 ? "1" : "0";
      CHECK(report.text == "disagreed: rank " + who + " made the calls of step 2 in another order than ranks " +
                               (culprit == 0 ? "1, 2 and 3" : "0, 1 and 3") +
                               ", and nobody waits. In step 1 these had one order. Rank " + who +
                               " entered all_reduce of 8 float with plus in step 2 on communicator (dp) where rank " +
                               other + " entered all_reduce of 8 float with plus in step 2 on communicator (tp).");
    }
}

TEST_CASE("of swapped calls most ranks are right, else the step after says who is, else nobody is blamed",
          "[observe][flight]") {
  const auto report_without = [](observe::flights all, const std::vector<std::int64_t>& steps) {
    for (auto& f : all.ranks)
      std::erase_if(f.calls, [&](const observe::flight_record& c) {
        return std::find(steps.begin(), steps.end(), c.mark) != steps.end();
      });
    return observe::report_of(all);
  };
  struct expected {
    const char* fault;
    std::vector<int> culprits;
  };
  for (const expected& e : {expected{"turn012", {3}}, {"turn01", {0, 1}}, {"turn23", {2, 3}}, {"turn0123", {}}}) {
    INFO(e.fault);
    const folder place("heddle-flight-turned");
    const auto report = verdict_of(place.path(), 0, e.fault, hd::checking::on);
    INFO(report.text);
    CHECK(report.what == (e.culprits.empty() ? kind::agreed : kind::disagreed));
    CHECK(report.culprits == e.culprits);
    const auto all = observe::read_flights(place.path());
    const bool even = e.culprits.size() == 2;
    // The step after is not there yet.
    const auto last = report_without(all, {3});
    INFO(last.text);
    CHECK(last.what == (even ? kind::undecided : report.what));
    CHECK(last.culprits == (even ? std::vector<int>{} : e.culprits));
    CHECK((last.text.find("As many did one as the other, and no later step says which is right.") !=
           std::string::npos) == even);
    // The first step that is kept whole is that of the fault: it has only the step after.
    const auto first = report_without(all, {0});
    INFO(first.text);
    CHECK(first.what == report.what);
    CHECK(first.culprits == e.culprits);
  }
}

TEST_CASE("calls that nobody compares are still kept", "[observe][flight]") {
  const folder place("heddle-flight-unchecked");
  const auto report = verdict_of(place.path(), 2, "skip", hd::checking::off);
  INFO(report.text);
  CHECK(report.what == kind::skipped);
  CHECK(report.culprits == std::vector<int>{2});
}

TEST_CASE("the files of a process that was killed say so", "[observe][flight]") {
  const folder place("heddle-flight-killed");
  const auto report = verdict_of(place.path(), 1, "kill", hd::checking::on);
  INFO(report.text);
  CHECK(report.what ==
        kind::lost);  // all ranks are threads of the process: the one that nobody waited for anything of is named
  CHECK(std::find(report.culprits.begin(), report.culprits.end(), 1) != report.culprits.end());
  CHECK(report.text.find("Rank 1's process is gone; its last call was all_reduce of 8 float with plus in step 2") !=
        std::string::npos);
  const auto all = observe::read_flights(place.path());
  REQUIRE(all.ranks.size() == 4);
  for (const auto& f : all.ranks) {
    CHECK(f.calls_made == f.calls.back().number);
    CHECK(f.calls.size() <= 16);
    CHECK(f.groups.front().members == std::vector<int>{0, 1, 2, 3});
  }
  const std::string svg = observe::hang_svg(all, report);
  CHECK(svg.find("rank 3: lost") != std::string::npos);
}

TEST_CASE("messages that wait for each other are a circle", "[observe][flight]") {
  const folder place("heddle-flight-messages");
  CHECK_THROWS_AS((hd::launch<hd::threads, hd::mesh<hd::axis<dp, 3>>>(kept_in(place.path(), 300),
                                                                      [](auto& world) {
                                                                        std::vector<int> x(4);
                                                                        if (world.rank() < 2)
                                                                          world.all().recv(x, 1 - world.rank());
                                                                        world.all().barrier();
                                                                      })),
                  hd::comm_error);
  // The time-out has ended the waits; the files have where each rank gave up.
  const auto all = observe::read_flights(place.path());
  REQUIRE(all.ranks.size() == 3);
  CHECK(all.ranks[0].calls.back().operation == "recv of 4 int from rank 1 (tag 0)");
  const auto report = observe::report_of(all);
  INFO(report.text);
  CHECK(report.what == kind::circle);
  CHECK(report.culprits == std::vector<int>{0, 1});
  CHECK(report.victims == std::vector<int>{2});
}

TEST_CASE("where calls of a group are no longer kept nobody is blamed who may have entered", "[observe][flight]") {
  for (const bool cut : {false, true}) {
    INFO("calls of rank 3 are cut: " << cut);
    const folder place("heddle-flight-cut");
    const ::pid_t child = ::fork();
    if (child == 0) {
      try {
        hd::launch<hd::threads, grid>(kept_in(place.path(), 30'000), [&](auto& world) {
          // Rank 0 has started what rank 3 never does, and has made more calls since than are kept.
          const auto barriers = [&] {
            for (int i = 0; i < 40; ++i) world.template along<hd::tp>().barrier();
          };
          float x = 1;
          if (world.rank() == 3) {
            if (cut) barriers();
            return std::this_thread::sleep_for(std::chrono::seconds(60));
          }
          auto sum = world.all().start_all_reduce(std::span(&x, 1), hd::plus{});
          if (world.rank() < 2 || cut) barriers();
          if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(60));
          sum.wait();
        });
      } catch (const std::exception&) {
      }
      ::_exit(0);
    }
    const std::vector<int> culprits = cut ? std::vector<int>{0, 3} : std::vector<int>{3};
    observe::flight_report last;
    for (int i = 0; i < 400; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
      try {
        last = observe::report_of(observe::read_flights(place.path()));
      } catch (const hd::error&) {  // not all files are there
        continue;
      }
      if (last.culprits == culprits && last.victims == std::vector<int>{1, 2}) break;
    }
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    INFO(last.text);
    CHECK(last.culprits == culprits);
    CHECK(last.what == (cut ? kind::undecided : kind::silent));
    CHECK((last.text.find("Rank 0: too few of its calls are kept") != std::string::npos) == cut);
  }
}

TEST_CASE("a second run of the same folder leaves the first one its files", "[observe][flight]") {
  const folder place("heddle-flight-twice");
  using two = hd::mesh<hd::axis<dp, 2>>;
  hd::launch<hd::threads, two>(kept_in(place.path(), 5'000), [&](auto& world) {
    world.all().barrier();
    if (world.rank() == 0) {
      hd::launch_options more = kept_in(place.path(), 5'000);
      more.flight_calls = 64;
      hd::launch<hd::threads, two>(more, [](auto& inner) { inner.all().barrier(); });
    }
    for (int i = 0; i < 100; ++i) world.all().barrier();
  });
  const auto all = observe::read_flights(place.path());  // the second run's
  REQUIRE(all.ranks.size() == 2);
  CHECK(all.ranks[0].calls_made == 1);
}

TEST_CASE("files that are no flight files are named, and the others are read", "[observe][flight]") {
  using Catch::Matchers::Contains;
  const folder place("heddle-flight-files");
  hd::launch<hd::threads, hd::mesh<hd::axis<dp, 3>>>(kept_in(place.path(), 5'000), [](auto& world) {
    for (int i = 0; i < 40; ++i) world.all().barrier();
  });
  const std::vector<std::byte> good = bytes_of(place.path() + "/rank-1.flight");
  CHECK(observe::read_flight(good, "one").calls.size() == 16);
  CHECK(observe::read_flight(good, "one").calls_made == 40);
  auto bad = good;
  bad[0] = std::byte{0};
  CHECK_THROWS_WITH(observe::read_flight(bad, "one"),
                    Contains("heddle: one is no flight file that can be read: it does not begin as one"));
  bad = good;
  bad[8] = std::byte{9};
  CHECK_THROWS_WITH(observe::read_flight(bad, "one"), Contains("it is of version 9, this reads version 1"));
  bad = good;
  bad.resize(200);
  CHECK_THROWS_WITH(observe::read_flight(bad, "one"), Contains("it has 200 bytes, its header 464"));
  bad = good;
  bad.pop_back();
  CHECK_THROWS_WITH(observe::read_flight(bad, "one"), Contains("it should have"));
  // Every byte of the file changed to something: an error of ours or a reading, never a fault.
  for (std::size_t i = 0; i < good.size(); i += i < 600 ? 1 : 37)
    for (const int value : {0, 1, 0x7f, 0xff}) {
      bad = good;
      bad[i] = static_cast<std::byte>(value);
      try {
        const auto f = observe::read_flight(bad, "one");
        CHECK(f.calls.size() <= 16);
        observe::flights all{{f}, {}};
        CHECK(!observe::report_of(all).text.empty());
      } catch (const hd::io_error&) {
      }
    }
  std::ofstream(place.path() + "/rank-2.flight", std::ios::binary) << "short";
  const auto all = observe::read_flights(place.path());
  CHECK(all.ranks.size() == 2);
  REQUIRE(all.unread.size() == 1);
  CHECK_THAT(all.unread[0].why, Contains("rank-2.flight is no flight file that can be read: it has 5 bytes"));
  CHECK(observe::report_of(all).what == kind::undecided);
  // Files of another run.
  const folder second("heddle-flight-second");
  hd::launch<hd::threads, hd::mesh<hd::axis<dp, 3>>>(kept_in(second.path(), 5'000), [](auto&) {});
  std::filesystem::copy_file(second.path() + "/rank-2.flight", place.path() + "/rank-2.flight",
                             std::filesystem::copy_options::overwrite_existing);
  CHECK_THROWS_WITH(observe::read_flights(place.path()),
                    Contains("are of two runs: rank 0 of 3 began 20") && Contains("give each run a folder of its own"));
  CHECK_THROWS_WITH(observe::read_flights("/nowhere/at/all"), Contains("cannot be read"));
}

TEST_CASE("a folder that cannot be written ends the launch before any rank begins", "[observe][flight]") {
  using Catch::Matchers::Contains;
  bool began = false;
  const auto run = [&](const hd::launch_options& options) {
    hd::launch<hd::threads, hd::mesh<hd::axis<dp, 2>>>(options, [&](auto&) { began = true; });
  };
  CHECK_THROWS_WITH(run(kept_in("/proc/no/such/folder", 1'000)),
                    Contains("the flight file /proc/no/such/folder cannot be made"));
  hd::launch_options none = kept_in("/tmp", 1'000);
  none.flight_calls = 0;
  CHECK_THROWS_WITH(run(none), Contains("should keep at least 1 call, flight_calls is 0"));
  CHECK(!began);
  const folder place("heddle-flight-environment");
  ::setenv("HEDDLE_FLIGHT", (place.path() + ":8").c_str(), 1);
  run({});
  ::unsetenv("HEDDLE_FLIGHT");
  CHECK(began);
  CHECK(observe::read_flights(place.path()).ranks.size() == 2);
}

}  // namespace flight_test
