// Calls of NCCL in flight files, over the stand-in for NCCL and CUDA.
#include <heddle/core/monoid.hpp>
#include <heddle/nccl/nccl.hpp>
#include <heddle/observe/flight_report.hpp>

#include "catch.hpp"
#include "double.hpp"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace nccl_flights {
namespace {

namespace hd = heddle;
namespace observe = heddle::observe;
using line = hd::mesh<hd::axis<hd::dp, 3>>;

// What the files say of three ranks, of which rank 1 does `fault` in step 2.
observe::flight_report report_of(const std::string& fault, std::string& last_call) {
  nccl_double::reset();
  const auto folder = std::filesystem::temp_directory_path() / ("heddle-nccl-flight-" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  hd::launch_options options;
  options.timeout = std::chrono::milliseconds(500);
  options.flight = folder.string();
  options.flight_calls = 8;
  try {
    hd::launch<hd::nccl>(line{}, options, [&](auto& world) {
      std::vector<float> x(8, 1.0f);
      for (int step = 0; step < 4; ++step) {
        world.mark(step);
        const bool now = world.rank() == 1 && step == 2;
        if (now && fault == "throw") throw std::runtime_error("no more");
        if (now && fault == "return") return;
        if (now && fault == "root")
          world.all().broadcast(x, 1);
        else
          world.all().all_reduce(x, hd::plus{});
        auto sum = world.all().start_all_reduce(x, hd::maximum{});
        sum.wait();
        world.all().wait();
      }
    });
  } catch (const std::exception&) {
  }
  const auto all = observe::read_flights(folder.string());
  REQUIRE(all.ranks.size() == 3);
  last_call = all.ranks[0].calls.back().operation;
  auto report = observe::report_of(all);
  std::filesystem::remove_all(folder);
  return report;
}

}  // namespace

TEST_CASE("calls of NCCL are in flight files, with the step and who did not come", "[nccl][flight]") {
  using kind = observe::flight_report::kind;
  std::string last;
  const auto agreed = report_of("none", last);
  CHECK(agreed.what == kind::agreed);
  CHECK(last == "start_all_reduce of 8 float with maximum in step 3");
  for (const std::string fault : {"throw", "return"}) {
    const auto report = report_of(fault, last);
    INFO(fault << ": " << report.text);
    CHECK(last == "start_all_reduce of 8 float with maximum in step 2");  // the last that was queued
    CHECK(report.what == kind::missing);
    CHECK(report.culprits == std::vector<int>{1});
    CHECK(report.number == 6);
  }
  const auto report = report_of("root", last);
  INFO(report.text);
  CHECK(report.what == kind::disagreed);
  CHECK(report.culprits == std::vector<int>{1});
  CHECK(
      report.text.find("rank 1 entered broadcast of 8 float with root 1 in step 2; ranks 0 and 2 entered all_reduce") !=
      std::string::npos);
}

}  // namespace nccl_flights
