// NVTX ranges of observed actions, over a stand-in for NVTX.
#define NVTX_NO_IMPL
#include <heddle/core/error.hpp>
#include <heddle/observe/cuda/ranges.hpp>

#include "catch.hpp"

#include <string>
#include <thread>
#include <vector>

namespace {
namespace hd = heddle;
thread_local std::vector<std::string> told;
hd::event named(const char* name, int rank) {
  hd::event e;
  e.name = name;
  e.rank = rank;
  return e;
}
}  // namespace

extern "C" {
int NVTX_API nvtxRangePushA(const char* message) {
  told.emplace_back(message);
  return 0;
}
int NVTX_API nvtxRangePop(void) {
  told.emplace_back("end");
  return 0;
}
}

TEST_CASE("observed actions are NVTX ranges of their thread, which end when an error ends them", "[cuda][observe]") {
  STATIC_REQUIRE(hd::observer<hd::nvtx_ranges>);
  const auto run = [](int rank) {
    told.clear();
    hd::nvtx_ranges ranges;
    return hd::observed(ranges, named("outer", rank), [&] {
      try {
        hd::observed(ranges, named("inner", rank), [] { throw hd::error("heddle: an error in a range"); });
      } catch (const hd::error&) {
        told.emplace_back("caught");
      }
      return 7;
    });
  };
  std::vector<std::string> of_another;
  std::thread([&] {
    run(3);
    of_another = told;
  }).join();
  CHECK(run(-1) == 7);
  CHECK(told == std::vector<std::string>{"outer", "inner", "end", "caught", "end"});
  CHECK(of_another == std::vector<std::string>{"rank 3: outer", "rank 3: inner", "end", "caught", "end"});
}
