// Valid tables changed at random: the validator must reject what does not compute what a serial run does.
#include <heddle/schedule/generate/inference.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/plan.hpp>

#include "catch.hpp"
#include "emulator.hpp"
#include "mutants.hpp"
#include "pairs.hpp"
#include "schedules.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace sc = heddle::schedule;
using kind = sc::action_kind;
using sc::problem;

namespace {

constexpr sc::transfers modes[] = {sc::transfers::asynchronous, sc::transfers::buffered, sc::transfers::grouped,
                                   sc::transfers::rendezvous};

struct tally {
  std::map<problem, int> rejections;
  int accepted = 0, harmless = 0;
};

// What a mutant of a table is: rejected, or equivalent.
void judge(const sc::action_table& t, std::mt19937& random, tally& count) {
  const auto whole = emulator::serial(t);
  bool passed[4] = {};
  for (const auto mode : modes) {
    const auto report = sc::check_table(t, mode);
    const auto result = emulator::run(t, mode);
    passed[static_cast<int>(mode)] = report.ok();
    CAPTURE(static_cast<int>(mode), sc::to_string(report), sc::to_text(t));
    if (report.ok()) {
      ++count.accepted;
      REQUIRE(result.has_value());
      REQUIRE(*result == whole);
      continue;
    }
    ++count.rejections[report.what];
    if (!result.has_value() || *result != whole) continue;
    // Rejected although it computes the same: for what is done twice or in vain, never for how it runs.
    ++count.harmless;
    INFO("problem " << static_cast<int>(report.what));
    const bool runs = report.what == problem::deadlock || report.what == problem::transfer_order ||
                      report.what == problem::dependent_pair || report.what == problem::pair_of_one_gradient;
    REQUIRE_FALSE(runs);
  }
  // What a stricter way of transferring finishes, the others finish.
  const auto pass = [&](sc::transfers mode) { return passed[static_cast<int>(mode)]; };
  REQUIRE((!pass(sc::transfers::rendezvous) || (pass(sc::transfers::buffered) && pass(sc::transfers::grouped))));
  REQUIRE((pass(sc::transfers::asynchronous) || (!pass(sc::transfers::buffered) && !pass(sc::transfers::grouped))));
  // One without transfers is valid exactly if it can be lowered.
  if (!t.view().has_transfers() && pass(sc::transfers::buffered)) {
    const auto lowered = sc::lower(t);
    CAPTURE(sc::to_text(t), sc::to_text(lowered), sc::to_string(sc::check_table(lowered)));
    REQUIRE(sc::check_table(lowered).ok());
    REQUIRE(emulator::run(lowered, sc::transfers::rendezvous) == whole);
  }
  if (t.view().has_transfers() && pass(sc::transfers::rendezvous)) {
    const auto storage = sc::assign_storage(t, static_cast<int>(random() % 3));
    CAPTURE(sc::to_text(t));
    REQUIRE(emulator::run(sc::plan_view{t, storage}) == whole);
  }
}

void mutate_and_judge(std::string_view name, int ranks_up_to, int mutants, unsigned seed, tally& count) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < mutants;) {
    const int p = 1 + below(ranks_up_to);
    const int m = 1 + below(3 * p + 1);
    const sc::named when(name, m);
    if (!when.fits(p)) continue;
    ++trial;
    auto t = sc::make_table(when, p);
    if (below(3) == 0) t = schedules::with_pairs(t, random, 0.3);
    if (below(4) != 0) t = sc::lower(t);
    CAPTURE(name, seed, trial, p, m, sc::to_text(t));
    judge(schedules::mutant(t, random), random, count);
  }
}

void mutate_all(int ranks_up_to, int mutants, unsigned seed) {
  tally count;
  for (const std::string_view name : sc::named::names) mutate_and_judge(name, ranks_up_to, mutants, seed, count);
  std::string summary;
  for (const auto& [what, n] : count.rejections)
    summary += " " + std::to_string(static_cast<int>(what)) + ":" + std::to_string(n);
  INFO("accepted " << count.accepted << ", rejected" << summary << ", of which harmless " << count.harmless);
  CHECK(count.accepted > 100);
  for (const problem what : {problem::missing, problem::repeated, problem::out_of_order, problem::deadlock,
                             problem::transfer_order, problem::not_a_pair})
    CHECK(count.rejections[what] > 0);
}

// Every microbatch goes its own way over some of the stages; forwards of all, then backwards.
sc::action_table random_ways(int stages, int ranks, int m, bool forward_only, std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  sc::action_table t;
  t.microbatches = m;
  t.form.forward_only = forward_only;
  for (int s = 0; s < stages; ++s) t.rank_of_stage.push_back(s % ranks);
  t.next.assign(at(stages * m), sc::not_on_path);
  t.previous = t.next;
  std::vector<std::vector<sc::action>> lists(at(ranks));
  std::vector<std::vector<int>> ways;
  for (int i = 0; i < m; ++i) {
    std::vector<int> way;
    for (int s = 0; s < stages; ++s) way.push_back(s);
    std::shuffle(way.begin(), way.end(), random);
    way.resize(at(1 + below(stages)));
    for (std::size_t k = 0; k < way.size(); ++k) {
      t.previous[at(way[k] * m + i)] = k > 0 ? way[k - 1] : -1;
      t.next[at(way[k] * m + i)] = k + 1 < way.size() ? way[k + 1] : -1;
      lists[at(way[k] % ranks)].push_back({kind::forward, way[k], i});
    }
    ways.push_back(way);
  }
  for (int i = 0; i < m && !forward_only; ++i)
    for (auto s = ways[at(i)].rbegin(); s != ways[at(i)].rend(); ++s) {
      lists[at(*s % ranks)].push_back({kind::backward_input, *s, i});
      lists[at(*s % ranks)].push_back({kind::backward_weight, *s, i});
    }
  t.offsets = {0};
  for (const auto& list : lists) {
    t.actions.insert(t.actions.end(), list.begin(), list.end());
    t.offsets.push_back(static_cast<int>(t.actions.size()));
  }
  return t;
}

}  // namespace

TEST_CASE("what changed at random is rejected or computes the same", "[schedule][property]") {
  const auto seed = GENERATE(1u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  mutate_all(3, 250, seed);
}

TEST_CASE("1,000 mutants of every schedule are rejected or compute the same", "[schedule][property][slow]") {
  const auto seed = GENERATE(20261120u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  mutate_all(5, 1000, seed);
}

TEST_CASE("mutants of tables with ways and of forward-only tables are rejected or compute the same",
          "[schedule][property]") {
  const auto seed = GENERATE(2u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  tally count;
  for (int trial = 0; trial < 1000; ++trial) {
    const int p = 1 + below(3);
    const int stages = p * (1 + below(2));
    const int m = 1 + below(5);
    sc::action_table t;
    switch (below(3)) {
      case 0:
        t = sc::make_table(sc::prefill<>{m}, p);
        break;
      case 1:
        t = sc::make_table(sc::decode<heddle::microbatches<>, 3>{m}, p);
        break;
      default:
        t = random_ways(stages, p, m, below(2) == 0, random);
    }
    CAPTURE(trial, p, m, sc::to_text(t), sc::to_string(sc::check_table(t)));
    REQUIRE(sc::check_table(t).ok());
    if (below(3) == 0) t = schedules::with_pairs(t, random, 0.3);
    if (below(4) != 0) t = sc::lower(t);
    judge(t, random, count);
    judge(schedules::mutant(t, random), random, count);
  }
  CHECK(count.accepted > 2000);
}
