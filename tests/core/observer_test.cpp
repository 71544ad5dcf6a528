#include <heddle/core/observer.hpp>

#include "catch.hpp"

#include <stdexcept>
#include <type_traits>
#include <vector>

namespace {
struct listening {
  static constexpr bool enabled = true;
  void record(const heddle::event& e) { heard.push_back(e); }
  std::vector<heddle::event> heard;
};
}  // namespace

TEST_CASE("an observer that is off costs no byte and hears nothing", "[core][law]") {
  STATIC_REQUIRE(heddle::observer<heddle::null_observer>);
  STATIC_REQUIRE(heddle::observer<listening>);
  STATIC_REQUIRE(std::is_empty_v<heddle::null_observer>);
  heddle::null_observer off;
  CHECK(heddle::observed(off, {}, [] { return 7; }) == 7);
}

TEST_CASE("an observer hears what was done, with both ends of its time", "[core]") {
  listening on;
  heddle::event what;
  what.kind = heddle::activity::forward;
  what.name = "layer";
  what.microbatch = 3;
  const auto before = heddle::now_ns();
  CHECK(heddle::observed(on, what, [] { return 7; }) == 7);
  const auto after = heddle::now_ns();
  REQUIRE(on.heard.size() == 1);
  CHECK(on.heard[0].kind == heddle::activity::forward);
  CHECK(on.heard[0].microbatch == 3);
  CHECK(before <= on.heard[0].begin_ns);
  CHECK(on.heard[0].begin_ns <= on.heard[0].end_ns);
  CHECK(on.heard[0].end_ns <= after);
}

TEST_CASE("an observer passes results and exceptions through", "[core]") {
  listening on;
  int value = 1;
  STATIC_REQUIRE(std::is_same_v<decltype(heddle::observed(on, {}, [&]() -> int& { return value; })), int&>);
  heddle::observed(on, {}, [&]() -> int& { return value; }) = 2;
  CHECK(value == 2);
  CHECK_THROWS_AS(heddle::observed(on, {}, [] { throw std::runtime_error("inside"); }), std::runtime_error);
  CHECK(on.heard.size() == 2);  // the failed work was recorded too
}
