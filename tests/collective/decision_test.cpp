// Which algorithm is chosen: the thresholds' one can always run, the fitted one is as good as the best.
#include <heddle/collective/algorithms.hpp>
#include <heddle/collective/decision_text.hpp>
#include <heddle/collective/measured_decisions.hpp>
#include <heddle/collective/rounds_check.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"

namespace {
namespace hd = heddle;
namespace algo = heddle::algo;
using hd::algorithm_name, hd::collective_question, hd::choose;
using enum hd::comm_operation;

using algorithms = hd::known_algorithms;

constexpr collective_question ask(hd::comm_operation what, int p, std::int64_t bytes, bool commutative = true) {
  return {what, p, bytes, commutative, true, true, {}};
}
constexpr std::int64_t ki = 1 << 10, mi = 1 << 20;

// The table, row by row.
static_assert(choose(ask(all_reduce, 16, 8 * ki)) == algorithm_name::recursive_doubling);
static_assert(choose(ask(all_reduce, 64, 8 * ki)) == algorithm_name::rabenseifner);
static_assert(choose(ask(all_reduce, 64, 2 * ki)) == algorithm_name::recursive_doubling);
static_assert(choose(ask(all_reduce, 16, mi)) == algorithm_name::rabenseifner);
static_assert(choose(ask(all_reduce, 12, mi)) == algorithm_name::pat);
static_assert(choose(ask(all_reduce, 12, 64 * mi)) == algorithm_name::ring);
static_assert(choose(ask(all_reduce, 16, 256 * ki, false)) == algorithm_name::recursive_doubling);
static_assert(choose(ask(all_reduce, 16, mi, false)) == algorithm_name::double_tree_8);
static_assert(choose({all_reduce, 16, mi, true, false, true, {}}) == algorithm_name::dyadic);
static_assert(choose({all_reduce, 16, mi, true, true, false, {}}) == algorithm_name::recursive_doubling);
static_assert(choose({all_reduce, 16, mi, true, true, true, {4, false}}) == algorithm_name::hierarchical_4);
static_assert(choose({all_reduce, 16, 512 * ki, true, true, true, {1, true}}) == algorithm_name::swing);
static_assert(choose({all_reduce, 16, 512 * ki, true, true, true, {4, false}}) == algorithm_name::swing);
static_assert(choose({all_reduce, 16, mi, true, true, true, {1, true}}) == algorithm_name::bidirectional_ring);
static_assert(choose({reduce_scatter, 16, mi, true, true, true, {4, false}}) == algorithm_name::recursive_doubling);
static_assert(choose({all_gather, 12, mi, true, true, true, {4, false}}) == algorithm_name::hierarchical_4);
static_assert(choose(ask(reduce_scatter, 16, 512 * ki)) == algorithm_name::recursive_halving);
static_assert(choose(ask(reduce_scatter, 16, mi)) == algorithm_name::pat);
static_assert(choose(ask(reduce_scatter, 16, 64 * mi)) == algorithm_name::ring);
static_assert(choose(ask(reduce_scatter, 16, mi, false)) == algorithm_name::recursive_doubling);
static_assert(choose(ask(reduce_scatter, 12, mi, false)) == algorithm_name::reduce_then_scatter);
static_assert(choose(ask(all_gather, 16, 512 * ki)) == algorithm_name::recursive_doubling);
static_assert(choose(ask(all_gather, 12, 80 * ki)) == algorithm_name::bruck);
static_assert(choose(ask(all_gather, 12, mi)) == algorithm_name::pat);
static_assert(choose(ask(all_gather, 12, 64 * mi)) == algorithm_name::ring);
static_assert(choose(ask(all_to_all, 8, 8 * 256)) == algorithm_name::bruck);
static_assert(choose(ask(all_to_all, 7, 7 * 256)) == algorithm_name::scattered);
static_assert(choose(ask(all_to_all, 8, 8 * 32 * ki)) == algorithm_name::scattered);
static_assert(choose({all_to_all, 8, 8 * 32 * ki, true, true, true, {2, false}}) ==
              algorithm_name::hierarchical_all_to_all_2);
static_assert(choose(ask(all_to_all, 8, 8 * 33 * ki)) == algorithm_name::pairwise);
static_assert(choose(ask(all_to_all, 7, 7 * 33 * ki)) == algorithm_name::direct);
static_assert(choose(ask(broadcast, 16, 12 * ki)) == algorithm_name::binomial);
static_assert(choose(ask(broadcast, 16, 512 * ki)) == algorithm_name::scatter_doubling);
static_assert(choose(ask(broadcast, 7, 512 * ki)) == algorithm_name::binomial);
static_assert(choose(ask(broadcast, 16, 64 * mi)) == algorithm_name::double_tree_8);
static_assert(choose({broadcast, 16, 64 * mi, true, true, true, {1, true}}) == algorithm_name::scatter_ring);
static_assert(choose(ask(reduce, 16, 16 * ki)) == algorithm_name::binomial);
static_assert(choose(ask(reduce, 16, mi)) == algorithm_name::halving_gather);
static_assert(choose(ask(reduce, 12, mi)) == algorithm_name::pat_gather);
static_assert(choose(ask(reduce, 16, mi, false)) == algorithm_name::binomial);
static_assert(choose(ask(exclusive_scan, 16, mi)) == algorithm_name::dissemination);
static_assert(choose(ask(barrier, 16, 0)) == algorithm_name::built_in);

// Thresholds are values.
static_assert(choose(ask(all_reduce, 16, 4 * ki), [] {
                hd::decision_table t;
                t.all_reduce_doubling_few_ranks = ki;
                return t;
              }()) == algorithm_name::rabenseifner);
static_assert(hd::algorithm_named("double_tree<8>") == algorithm_name::double_tree_8);
static_assert(hd::algorithm_named("no such algorithm") == algorithm_name::built_in);

// The seconds an algorithm takes; -1 if it is not among these.
double seconds_of(const std::vector<hd::algorithm_rounds>& ways, algorithm_name name, const hd::hockney& net,
                  std::int64_t bytes) {
  for (const auto& way : ways)
    if (way.name == name) return hd::seconds(way.rounds, net, bytes, 1);
  return -1;
}

constexpr hd::comm_operation choices[] = {broadcast, all_reduce, reduce, reduce_scatter, all_gather, all_to_all};

// The worst ratio of what is chosen to the best, over sizes from 1 byte to 64 MiB.
double worst_ratio(const std::vector<int>& ranks, int sizes, const hd::hockney& net) {
  double worst = 1;
  for (const int p : ranks) {
    hd::measured_decisions fitted;
    hd::add_decisions(fitted, algorithms{}, p, net);
    for (const auto what : choices)
      for (const bool commutative : {true, false}) {
        const auto ways = hd::algorithms_for(algorithms{}, ask(what, p, 0, commutative));
        for (int i = 0; i < sizes; ++i) {
          const auto bytes = static_cast<std::int64_t>(std::pow(2.0, 26.0 * i / (sizes - 1)));
          const auto chosen = fitted.choose(ask(what, p, bytes, commutative));
          const double takes = seconds_of(ways, chosen, net, bytes);
          if (takes < 0) return 1e9;
          const double best = hd::cheapest(ways, net, bytes).seconds;
          if (best > 0) worst = (std::max)(worst, takes / best);
        }
      }
  }
  return worst;
}
}  // namespace

TEST_CASE("what the thresholds choose has rounds for so many ranks and keeps what the operator needs",
          "[comm][decision]") {
  const hd::network_hint hints[] = {{1, false}, {2, false}, {3, false}, {4, false}, {8, false}, {1, true}, {4, true}};
  for (const auto what :
       {broadcast, all_reduce, reduce, reduce_scatter, all_gather, all_to_all, gather, scatter, scan, exclusive_scan})
    for (int p = 1; p <= 18; ++p)
      for (int needs = 0; needs < 8; ++needs) {
        collective_question q{what, p, 0, (needs & 1) == 0, (needs & 2) == 0, (needs & 4) == 0, {}};
        const auto ways = hd::algorithms_for(algorithms{}, q);
        for (const auto& hint : hints) {
          q.network = hint;
          for (q.bytes = 0; q.bytes < 100 * mi; q.bytes = 4 * q.bytes + 1) {
            const auto chosen = choose(q);
            const bool found = std::any_of(ways.begin(), ways.end(), [&](const auto& w) { return w.name == chosen; });
            // Nothing keeps whole vectors of a reduce_scatter, or the grouping of a scan.
            const bool none = (what == reduce_scatter && !q.elementwise) ||
                              ((what == scan || what == exclusive_scan) && !q.associative);
            if (none ? chosen == algorithm_name::built_in : found) continue;
            FAIL_CHECK(to_string(what) << " on " << p << " ranks, " << q.bytes << " bytes, needs " << needs << ", "
                                       << hint.ranks_per_node << " per node, torus " << hint.torus << ": "
                                       << to_string(chosen));
          }
        }
      }
}

TEST_CASE("names of algorithms and types agree", "[comm][decision]") {
  int found = 0;
  for (std::size_t i = 0; i < hd::algorithm_names; ++i) {
    const auto name = static_cast<algorithm_name>(i);
    CHECK(hd::algorithm_named(to_string(name)) == name);
    const bool is_one = hd::with_algorithm(algorithms{}, name, [&]<class A>(hd::type_list<A>) {
      CHECK(std::string(A::name) == std::string(to_string(name)));
    });
    found += is_one;
  }
  CHECK(found == static_cast<int>(algorithms::size));
  CHECK(found == static_cast<int>(hd::algorithm_names) - 1);  // all but the communicator's own
}

TEST_CASE("reduce_then_scatter keeps its promise", "[comm][rounds]") {
  for (int p = 1; p <= 33; ++p) CHECK(hd::check_rounds<algo::reduce_then_scatter, reduce_scatter>(p).ok());
}

TEST_CASE("decisions for a network choose within 10 % of the best", "[comm][decision]") {
  const hd::hockney net{2e-6, 1e-10, 5e-11};
  CHECK(worst_ratio({2, 3, 4, 7, 8, 13, 16}, 20, net) <= 1.1);
}

TEST_CASE("decisions for a network choose within 10 % of the best, on a grid of 20 x 20", "[comm][decision][slow]") {
  const std::vector<int> ranks{2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 16, 17, 20, 24, 28, 32, 40, 48, 57, 64};
  CHECK(worst_ratio(ranks, 20, {2e-6, 1e-10, 5e-11}) <= 1.1);
  CHECK(worst_ratio(ranks, 20, {3e-5, 1e-9, 1e-10}) <= 1.1);
  CHECK(worst_ratio(ranks, 20, {1e-6, 4e-11, 0, 4}) <= 1.1);
}

TEST_CASE("what the thresholds choose takes less than twice the time of the best on usual networks",
          "[comm][decision]") {
  for (const hd::hockney& net : {hd::hockney{2e-6, 1e-10, 5e-11}, hd::hockney{3e-5, 1e-9, 1e-10}})
    for (const auto what : {broadcast, all_reduce, reduce, reduce_scatter, all_gather})
      for (const int p : {2, 3, 5, 6, 8, 12, 13, 16, 24}) {
        const auto ways = hd::algorithms_for(algorithms{}, ask(what, p, 0));
        for (std::int64_t bytes = 1; bytes <= 64 * mi; bytes = bytes * 3 + 1) {
          const double best = hd::cheapest(ways, net, bytes).seconds;
          INFO(to_string(what) << " on " << p << ", " << bytes << " bytes");
          CHECK(seconds_of(ways, choose(ask(what, p, bytes)), net, bytes) < 2 * best);
        }
      }
}

TEST_CASE("costs that are no number, or without end, are never the least", "[comm][decision]") {
  const auto ways = hd::algorithms_for(algorithms{}, ask(all_reduce, 8, 0));
  REQUIRE(ways.size() > 3);
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    const auto cost = [&](const hd::algorithm_rounds& way, std::int64_t) { return way.name == ways[2].name ? 1 : bad; };
    CHECK(hd::cheapest(ways, cost, 100).name == ways[2].name);
  }
}

TEST_CASE("a choice is explained by what the others cost", "[comm][decision]") {
  using few = hd::type_list<algo::ring, algo::recursive_doubling, algo::pat>;
  const hd::hockney net{1e-6, 1e-9, 0};
  // Doubling: 2 (1 us + 8 us). Ring: 6 (1 us + 2 us). PAT: 4 us and 12 us.
  CHECK(hd::explain_choice(few{}, ask(all_reduce, 4, 8000), net) ==
        "all_reduce of 8000 bytes on 4 ranks: recursive_doubling, 1.12 times the least\n"
        "  pat                         16 us\n"
        "  ring                        18 us\n"
        "  recursive_doubling          18 us  <\n");
  hd::measured_decisions known;
  known.add({all_reduce, 4, true, 0, algorithm_name::built_in});
  CHECK(hd::explain_choice(hd::type_list<algo::ring>{}, ask(all_reduce, 4, 8000), net, known) ==
        "all_reduce of 8000 bytes on 4 ranks: the communicator's own call, for which no cost is known\n"
        "  ring          18 us\n");
  const auto costs = hd::costs_of(hd::algorithms_for(algorithms{}, ask(broadcast, 6, 0)), net, 100'000);
  CHECK(std::is_sorted(costs.begin(), costs.end(), [](auto a, auto b) { return a.seconds < b.seconds; }));
  CHECK(hd::explain_choice(few{}, ask(all_reduce, 1, 8), net) ==
        "all_reduce of 8 bytes on 1 rank: recursive_doubling\n"
        "  ring                         0 us\n"
        "  recursive_doubling           0 us  <\n"
        "  pat                          0 us\n");
}

TEST_CASE("decisions are found by size, and thresholds decide the rest", "[comm][decision]") {
  hd::measured_decisions known;
  known.add({all_reduce, 8, true, 1000, algorithm_name::ring});
  known.add({all_reduce, 8, true, 0, algorithm_name::built_in});
  known.add({all_reduce, 8, false, 0, algorithm_name::recursive_doubling});
  known.add({broadcast, 8, true, 10, algorithm_name::double_tree});
  CHECK(known.size() == 4);
  known.add({broadcast, 8, true, 10, algorithm_name::binomial});  // measured again: what is known last holds
  CHECK(known.size() == 4);
  CHECK(known.choose(ask(broadcast, 8, 10)) == algorithm_name::binomial);
  known.add({broadcast, 8, true, 10, algorithm_name::double_tree});
  // Calls with a count per rank are decided as those without.
  known.add({all_gather, 6, true, 0, algorithm_name::pat});
  known.add({reduce_scatter, 6, false, 0, algorithm_name::reduce_then_scatter});
  known.add({all_to_all, 6, true, 0, algorithm_name::grid_all_to_all});
  CHECK(known.choose(ask(all_gather_v, 6, 9)) == algorithm_name::pat);
  CHECK(known.choose(ask(reduce_scatter_v, 6, 9, false)) == algorithm_name::reduce_then_scatter);
  CHECK(known.choose(ask(all_to_all_v, 6, 9)) == algorithm_name::grid_all_to_all);
  CHECK(known.choose(ask(all_reduce, 8, 999)) == algorithm_name::built_in);
  CHECK(known.choose(ask(all_reduce, 8, 1000)) == algorithm_name::ring);
  CHECK(known.choose(ask(all_reduce, 8, 1 << 30)) == algorithm_name::ring);
  CHECK(known.choose(ask(all_reduce, 8, 1 << 30, false)) == algorithm_name::recursive_doubling);
  CHECK(known.choose(ask(broadcast, 8, 10, false)) == algorithm_name::double_tree);  // it folds nothing
  for (const auto& q : {ask(broadcast, 8, 9), ask(all_reduce, 9, 1000), ask(all_gather, 8, 1000),
                        collective_question{all_reduce, 8, 1000, true, false, true, {}}})
    CHECK(known.choose(q) == choose(q));
}
