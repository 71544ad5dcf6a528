#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/core/observers.hpp>

#include "catch.hpp"

#include <stdexcept>
#include <string>
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

namespace {
struct told_of_ends {
  static constexpr bool enabled = true;
  std::string* said;
  char name;
  bool refuses = false;
  void begin(const heddle::event&) {
    (*said += '(') += name;
    if (refuses) throw heddle::config_error("heddle: refused");
  }
  void end(const heddle::event&) const { (*said += name) += ')'; }
  void record(const heddle::event&) const {}
};
}  // namespace

TEST_CASE("several observers are one, whose ends are told in reverse, also where one refuses", "[core][observe]") {
  std::string said;
  told_of_ends a{&said, 'a'}, b{&said, 'b'};
  heddle::null_observer off;
  heddle::observers all(a, off, b);
  heddle::observers none(off, off);
  STATIC_REQUIRE(heddle::observer<decltype(all)>);
  STATIC_REQUIRE_FALSE(decltype(none)::enabled);
  CHECK(heddle::observed(all, heddle::event{}, [] { return 7; }) == 7);
  CHECK(said == "(a(bb)a)");
  said.clear();
  a.refuses = true;
  CHECK_THROWS_AS(heddle::observed(all, heddle::event{}, [] {}), heddle::config_error);
  CHECK(said == "(a(bb)a)");
}
