// tests/testing/reports_test.cpp: every report has one form: ok(), to_string(report), and no way to read it as a bool.
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/comm/launch_order.hpp>
#include <heddle/collective/rounds_check.hpp>
#include <heddle/schedule/actor/actor_graph.hpp>
#include <heddle/schedule/check/memory.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/check/validate_storage.hpp>
#include <heddle/testing/monoid_laws.hpp>
#include <heddle/testing/on_ranks.hpp>
#include <heddle/testing/propagation_laws.hpp>
#include <heddle/testing/split_laws.hpp>

#include "catch.hpp"

#include <concepts>
#include <string>
#include <type_traits>

namespace {
namespace hd = heddle;
namespace ht = heddle::testing;
namespace sc = heddle::schedule;

template <class R>
concept report_like = requires(const R& r) {
  { r.ok() } -> std::same_as<bool>;
  { to_string(r) } -> std::same_as<std::string>;
} && !std::is_constructible_v<bool, R>;

static_assert(report_like<hd::round_fault>);
static_assert(report_like<hd::launch_fault>);
static_assert(report_like<hd::launch_plan>);
static_assert(report_like<sc::report>);
static_assert(report_like<sc::memory_report>);
static_assert(report_like<sc::actor_report>);
static_assert(report_like<ht::report>);
static_assert(report_like<ht::finding>);
static_assert(report_like<ht::propagation_report>);
static_assert(report_like<ht::rank_results<int>>);

struct one_each {
  constexpr long activation_bytes(int) const { return 1; }
};

// What every check_x gives back is one of them.
template <class R>
bool says(const R& found, bool right) {
  static_assert(report_like<R>);
  UNSCOPED_INFO(to_string(found));
  return found.ok() == right && !to_string(found).empty();
}
}  // namespace

TEST_CASE("every check returns a report of one form", "[testing]") {
  CHECK(says(hd::check_rounds<hd::algo::ring, hd::comm_operation::all_reduce>(3), true));
  CHECK(says(hd::check_rounds(hd::algo::ring::rounds<hd::comm_operation::all_reduce>(4, 0), hd::fold_order::rank),
             false));

  hd::launch_program program(2);
  const int both = program.group("both", {0, 1});
  program.call_all(both, hd::comm_operation::all_reduce);
  CHECK(says(hd::check_launch_order(program), true));
  CHECK(says(hd::plan_launch_order(program), true));
  program.call(0, both, hd::comm_operation::all_reduce);
  CHECK(says(hd::check_launch_order(program), false));
  CHECK(to_string(hd::plan_launch_order(program)) == to_string(hd::check_launch_order(program)));

  const sc::action_table table = sc::parse("F0 F1 B0 B1 | F0 B0 F1 B1");
  CHECK(says(sc::check_table(table), true));
  CHECK(says(sc::check_table(sc::parse("F0 F1 B0 B1 | F0 B0 F1")), false));
  const sc::plan plan = sc::make_plan(table);
  CHECK(says(sc::check_storage(plan.table, plan.memory), true));
  CHECK(says(sc::check_storage(plan.table, {}), false));
  CHECK(says(sc::check_memory(table, one_each{}, 2), true));
  CHECK(says(sc::check_memory(plan, one_each{}, 1), false));

  sc::task_graph graph;
  const int values = graph.add_register("values", 1);
  graph.add_actor("reads", "queue", {values}, {});
  CHECK(says(sc::check_actors(graph.view()), false));
  graph.add_actor("writes", "queue", {}, {values});
  CHECK(says(sc::check_actors(graph.view()), true));

  CHECK(says(ht::check_split_policy<hd::split::balanced>(4, 2), true));
  CHECK(says(ht::check_monoid<hd::plus, int>(), true));
  CHECK(says(ht::check_monoid<hd::maximum, int>(std::span<const int>()), false));
}

TEST_CASE("a report names what it found without what it was found in", "[testing]") {
  sc::task_graph graph;
  const int values = graph.add_register("values", 1);
  graph.add_actor("reads", "queue", {values}, {});
  CHECK(to_string(sc::check_actors(graph.view())) ==
        "heddle: actor graph: actor 'reads': register 'values' is written by no actor");
  CHECK_THROWS_AS(sc::require_actors(graph.view()), hd::schedule_error);

  const auto ended = ht::on_ranks(hd::mesh<hd::axis<hd::dp, 2>>{}, [](auto&) {});
  CHECK(to_string(ended) == "all 2 ranks came to their end");
}
