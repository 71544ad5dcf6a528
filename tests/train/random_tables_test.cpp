// tests/train/random_tables_test.cpp: tables made at random, and all that a validator lets through, have the gradients
// of one rank when they really run.
#include "../schedule/mutants.hpp"
#include "../schedule/pairs.hpp"
#include "catch.hpp"
#include "small_model.hpp"

#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/schedule/lower/plan.hpp>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace sc = heddle::schedule;
using kind = sc::action_kind;

namespace {

using generator = std::mt19937;
int below(generator& random, int n) {
  return static_cast<int>(random() % static_cast<unsigned>(n));
}
std::size_t at(int n) {
  return static_cast<std::size_t>(n);
}

// Any stage on any rank, so that some ranks have many and some none; each rank's list is an order in which some run of
// the step could have gone, with whole and split backwards.
sc::action_table random_table(int ranks, int stages, int m, int chains, generator& random) {
  sc::action_table t;
  t.microbatches = m;
  t.form.chains = chains;
  for (int s = 0; s < stages; ++s) t.rank_of_stage.push_back(below(random, ranks));
  const sc::table_view way(t.actions, t.offsets, t.rank_of_stage, m, t.form);
  std::vector<int> done(at(stages * m));  // 0: nothing, 1: F, 2: I, 3: all
  const auto cell = [&](int s, int i) -> int& { return done[at(s * m + i)]; };
  std::vector<std::vector<sc::action>> lists(at(ranks));
  const bool greedy = below(random, 2) == 0;  // backwards as soon as they can be
  for (;;) {
    std::vector<sc::action> forwards, backwards;
    for (int s = 0; s < stages; ++s)
      for (int i = 0; i < m; ++i) {
        if (!way.handles(s, i)) continue;
        const int next = way.next(s, i), previous = way.previous(s, i), now = cell(s, i);
        if (now == 0 && (previous < 0 || cell(previous, i) >= 1)) forwards.push_back({kind::forward, s, i});
        if (now == 1 && (next < 0 || cell(next, i) >= 2))
          backwards.push_back({below(random, 2) ? kind::backward : kind::backward_input, s, i});
        if (now == 2) backwards.push_back({kind::backward_weight, s, i});
      }
    if (forwards.empty() && backwards.empty()) break;
    if (forwards.empty() || (greedy && !backwards.empty() && below(random, 4) > 0)) forwards.clear();
    forwards.insert(forwards.end(), backwards.begin(), backwards.end());
    const sc::action a = forwards[at(below(random, static_cast<int>(forwards.size())))];
    cell(a.stage, a.microbatch) = a.kind == kind::forward ? 1 : a.kind == kind::backward_input ? 2 : 3;
    lists[at(t.rank_of_stage[at(a.stage)])].push_back(a);
  }
  t.offsets = {0};
  for (const auto& list : lists) {
    t.actions.insert(t.actions.end(), list.begin(), list.end());
    t.offsets.push_back(static_cast<int>(t.actions.size()));
  }
  return t;
}

// Some of the passes, as the usual row has them.
sc::action_table passed(sc::action_table t, generator& random) {
  if (below(random, 3) == 0) t = sc::lower(t, sc::passes::merge_backward{below(random, 2) == 0});
  if (below(random, 3) == 0) t = sc::lower(t, sc::passes::recompute<>{});
  if (below(random, 3) == 0) t = sc::lower(t, sc::passes::offload<>{.ahead = 1 + below(random, 3)});
  if (below(random, 3) == 0) t = sc::lower(t, sc::passes::unshard{2});
  if (below(random, 2) == 0) t = sc::lower(t, sc::passes::place_transfers{});
  return t;
}

// Runs the table and compares; sometimes the forwards that begin the step are done again.
void check_run(sc::table_view table, generator& random) {
  const bool beside = below(random, 2) == 0, again = below(random, 3) == 0;
  const int in_flight = below(random, 3);
  INFO((beside ? "pairs beside each other, " : "")
       << (again ? "begun twice, " : "") << in_flight << " sends in flight\n"
       << sc::to_text(table));
  const auto expected = small_model::serial(table.parts(), table.microbatches());
  const auto result =
      again ? small_model::run_again(table, in_flight, beside) : small_model::run(table, in_flight, beside);
  const bool same_order = table.chains() == 1 && small_model::weights_in_order(table);
  for (int k = 0; k < table.parts(); ++k) {
    const auto g = small_model::gradient_of(table, result, k);
    CHECK(small_model::difference(g, expected.gradients[at(k)]) <= 1e-12);
    if (same_order) CHECK(g == expected.gradients[at(k)]);
  }
  CHECK(small_model::total_loss(result) == Approx(expected.loss).epsilon(1e-12));
  for (int r = 0; r < table.ranks(); ++r) CHECK(result[at(r)].peak_live == sc::peak_live(table, r));
}

// Pairs whose two computations may add to one gradient at the same time are left out by `with_pairs`.
void random_tables(int rounds, unsigned seed) {
  CAPTURE(seed);
  generator random(seed);
  int mutants = 0;
  for (int round = 0; round < rounds; ++round) {
    const int p = transport_test::on_threads ? 1 + below(random, 4) : 2;
    const int chains = 1 + below(random, 2);
    const int parts = 1 + below(random, 5), m = chains + below(random, 6);
    sc::action_table t = random_table(p, chains * parts, m, chains, random);
    if (below(random, 2) == 0) t = schedules::with_pairs(t, random, 0.4);
    t = passed(t, random);
    CAPTURE(round, p, chains, parts, m, sc::to_text(t), sc::to_string(sc::check_table(t)));
    REQUIRE(sc::check_table(t).ok());
    check_run(t, random);
    for (int trial = 0; trial < 6; ++trial) {
      const auto other = schedules::mutant(t, random);
      if (!sc::check_table(other, sc::transfers::buffered).ok() || !sc::check_table(other).ok()) continue;
      ++mutants;
      check_run(other, random);
    }
  }
  CHECK(mutants > 0);
}

}  // namespace

TEST_CASE("tables made at random have the gradients of one rank", "[train][executor][property][ranks]") {
  const auto seed = GENERATE(7u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  transport_test::on_threads ? random_tables(30, seed) : random_tables(10, 7);
}

TEST_CASE("many tables made at random have the gradients of one rank", "[train][executor][property][slow]") {
  const auto seed = GENERATE(8u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  random_tables(2000, seed);
}
