// Which positions the rules of diffusion decoding commit: those of the published loops, by numpy.
#include "catch.hpp"

#include <heddle/infer/diffusion_caches.hpp>
#include <heddle/infer/diffusion_rules.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace {
namespace inf = heddle::infer;

constexpr std::size_t diffusion_rule_words = 11;

std::uint64_t diffusion_rule_mixed(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}
// As the script's.
std::vector<double> diffusion_rule_logits(std::uint64_t number, std::uint64_t step, std::uint64_t place) {
  const auto mixed = diffusion_rule_mixed;
  const std::uint64_t base = mixed(mixed(mixed(number + 1) + step + 1) + place + 1);
  std::vector<double> x;
  for (std::size_t v = 0; v < diffusion_rule_words; ++v)
    x.push_back(static_cast<double>(mixed(base + v) % 4096) / 512 * static_cast<double>(1 + number % 5));
  return x;
}
double diffusion_rule_probability(const std::vector<double>& x, std::size_t token) {
  double sum = 0;
  for (const double v : x) sum += std::exp(v - x[token]);
  return 1 / sum;
}

using diffusion_rule_any = std::variant<inf::threshold, inf::one_per_run, inf::credit, inf::fixed_steps>;
diffusion_rule_any diffusion_rule_named(const std::string& name, const std::vector<double>& s) {
  if (name == "threshold") return inf::threshold{s.at(0)};
  if (name == "one_per_run") return inf::one_per_run{s.at(0), s.at(1)};
  if (name == "credit") return inf::credit{s.at(0), s.at(1), s.at(2), s.at(3)};
  return inf::fixed_steps{static_cast<std::int64_t>(s.at(0))};
}

// A block of masks that a rule decodes: each step, place and token of what it commits.
template <class Rule>
class diffusion_rule_block {
 public:
  diffusion_rule_block(const Rule& rule, std::uint64_t number, std::size_t masks) : rule_(rule), number_(number) {
    for (std::size_t i = 0; i < masks; ++i) open_.insert(i);
    rule_.validate();
    rule_.begin(state_, static_cast<std::int64_t>(masks));
  }
  bool done() const { return open_.empty(); }
  std::vector<std::pair<std::size_t, std::int32_t>> step() {
    std::vector<inf::candidate> candidates;
    constexpr auto mask = static_cast<std::int32_t>(diffusion_rule_words - 1);
    for (const std::size_t place : open_) {
      std::vector<double> x = diffusion_rule_logits(number_, steps_, place);
      if constexpr (requires { rule_.fuse(state_, 0, std::span<double>(x), mask); })
        rule_.fuse(state_, static_cast<std::int64_t>(place), std::span<double>(x), mask);
      const auto best = static_cast<std::size_t>(std::max_element(x.begin(), x.end() - 1) - x.begin());
      candidates.push_back(
          {static_cast<std::int64_t>(place), static_cast<std::int32_t>(best), diffusion_rule_probability(x, best)});
    }
    std::vector<std::uint8_t> taken(candidates.size());
    rule_.choose(state_, candidates, taken);
    std::vector<std::pair<std::size_t, std::int32_t>> committed;
    for (std::size_t i = 0; i < taken.size(); ++i)
      if (taken[i] != 0) committed.emplace_back(static_cast<std::size_t>(candidates[i].place), candidates[i].token);
    for (const auto& [place, token] : committed) open_.erase(place);
    ++steps_;
    return committed;
  }
  /// The sum of credits of open positions, before those of this step were committed.
  double credits(const std::set<std::size_t>& of) const {
    double sum = 0;
    if constexpr (requires { state_.credits; })
      for (const std::size_t place : of)
        if (place < state_.credits.size())
          for (const auto& [token, amount] : state_.credits[place]) sum += amount;
    return sum;
  }
  const std::set<std::size_t>& open() const { return open_; }

 private:
  Rule rule_;
  std::uint64_t number_, steps_ = 0;
  std::set<std::size_t> open_{};
  typename Rule::state state_{};
};

}  // namespace

TEST_CASE("rules of diffusion commit what the published loops do", "[infer][golden]") {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/diffusion_rules_golden.txt");
  REQUIRE(in.good());
  struct expected_case {
    std::string rule{};
    std::vector<double> settings{};
    std::size_t masks = 0;
    std::vector<std::vector<std::pair<std::size_t, std::int32_t>>> steps{};
    std::vector<double> credits{};
  };
  std::map<std::uint64_t, expected_case> cases;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::uint64_t number = 0;
    std::string rule;
    words >> number >> rule;
    expected_case& c = cases[number];
    if (rule == "credits") {
      words >> c.credits.emplace_back();
      continue;
    }
    std::size_t settings = 0, step = 0;
    words >> settings;
    c.rule = rule;
    c.settings.resize(settings);
    for (double& s : c.settings) words >> s;
    words >> c.masks >> step;
    REQUIRE(step == c.steps.size());
    c.steps.emplace_back();
    char colon = 0;
    std::size_t place = 0;
    for (std::int32_t token = 0; words >> place >> colon >> token;) c.steps.back().emplace_back(place, token);
  }
  CHECK(cases.size() == 36);
  for (const auto& [number, c] : cases) {
    CAPTURE(number, c.rule, c.masks);
    const std::uint64_t at = number;
    const expected_case& expected = c;
    std::visit(
        [&](const auto& rule) {
          diffusion_rule_block<std::remove_cvref_t<decltype(rule)>> block(rule, at, expected.masks);
          for (std::size_t s = 0; s < expected.steps.size(); ++s) {
            REQUIRE(!block.done());
            const auto open = block.open();
            CHECK(block.step() == expected.steps[s]);
            if (!expected.credits.empty())
              CHECK(std::abs(block.credits(open) - expected.credits[s]) <= 1e-12 * (1 + expected.credits[s]));
          }
          CHECK(block.done());
        },
        diffusion_rule_named(c.rule, c.settings));
  }
}

TEST_CASE("every rule of diffusion commits a masked position in each step, and credit without alpha is threshold",
          "[infer][law]") {
  for (std::uint64_t number = 100; number < 160; ++number)
    for (const std::size_t masks : {1u, 2u, 7u, 33u}) {
      CAPTURE(number, masks);
      for (const diffusion_rule_any& any :
           {diffusion_rule_any(inf::threshold{1}), diffusion_rule_any(inf::one_per_run{1, 1}),
            diffusion_rule_any(inf::credit{}), diffusion_rule_any(inf::fixed_steps{5})})
        std::visit(
            [&](const auto& rule) {
              diffusion_rule_block<std::remove_cvref_t<decltype(rule)>> block(rule, number, masks);
              std::size_t steps = 0;
              while (!block.done()) {
                const std::size_t open = block.open().size(), committed = block.step().size();
                REQUIRE(committed >= 1);
                REQUIRE(block.open().size() == open - committed);
                ++steps;
              }
              CHECK(steps <= masks);
              if (std::is_same_v<std::remove_cvref_t<decltype(rule)>, inf::fixed_steps>) CHECK(steps <= 5);
            },
            any);
      diffusion_rule_block<inf::threshold> plain({0.6}, number, masks);
      diffusion_rule_block<inf::credit> none({0.6, 0, 0.2, 0.8}, number, masks);
      while (!plain.done()) REQUIRE(plain.step() == none.step());
    }
}

TEST_CASE("one_per_run halves runs of masks that are all likely", "[infer]") {
  // Probabilities above `low` and below `tau`: each run has one token, and 31 masks end in five steps where the
  // likeliest is in the middle.
  std::vector<bool> is_mask(31, true);
  inf::one_per_run rule;
  inf::one_per_run::state state;
  int steps = 0;
  for (; std::count(is_mask.begin(), is_mask.end(), true) > 0; ++steps) {
    std::vector<inf::candidate> c;
    for (std::int64_t i = 0; i < 31; ++i)
      if (is_mask[static_cast<std::size_t>(i)]) {
        std::int64_t power = 1;
        while ((i + 1) % (2 * power) == 0) power *= 2;
        c.push_back({i, 1, 0.5 + 0.01 * static_cast<double>(power)});
      }
    std::vector<std::uint8_t> taken(c.size());
    rule.choose(state, c, taken);
    for (std::size_t i = 0; i < c.size(); ++i)
      if (taken[i] != 0) is_mask[static_cast<std::size_t>(c[i].place)] = false;
  }
  CHECK(steps == 5);
}

TEST_CASE("settings of rules that cannot work are refused with what is expected and got", "[infer]") {
  const auto says = [](const auto& rule, const std::string& what) {
    try {
      rule.validate();
    } catch (const heddle::config_error& problem) {
      return std::string(problem.what()).find(what) != std::string::npos;
    }
    return false;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double tau : {0.0, -0.5, 1.0001, nan}) {
    CHECK(says(inf::threshold{tau}, "tau must be above 0 and at most 1, got"));
    CHECK(says(inf::one_per_run{tau, 0.4}, "tau must be above 0 and at most 1, got"));
    CHECK(says(inf::credit{.tau = tau}, "tau must be above 0 and at most 1, got"));
  }
  CHECK(says(inf::one_per_run{0.9, 1.5}, "low must be from 0 to 1, got 1.5"));
  CHECK(says(inf::credit{.alpha = -1}, "alpha must be at least 0 and finite, got -1"));
  CHECK(says(inf::credit{.gamma = nan}, "gamma must be at least 0 and finite"));
  CHECK(says(inf::credit{.beta = 2}, "beta must be from 0 to 1, got 2"));
  CHECK(says(inf::fixed_steps{0}, "steps must be at least 1, got 0"));
  CHECK_NOTHROW(inf::threshold{1}.validate());
}

TEST_CASE("caches of diffusion say which rows are computed again", "[infer][law]") {
  using range = inf::row_range;
  constexpr range block{40, 72};
  STATIC_REQUIRE(inf::none::window(block, 200) == range{0, 200});
  STATIC_REQUIRE(inf::prefix::window(block, 200) == range{40, 200});
  STATIC_REQUIRE(inf::dual::window(block, 200) == block);
  STATIC_REQUIRE(inf::vicinity<16, 16, 4>::window(block, 200) == range{24, 88});
  STATIC_REQUIRE(inf::vicinity<16, 16, 4>::window({8, 190}, 200) == range{0, 200});
  STATIC_REQUIRE(inf::vicinity<1000, 1000, 0>::window(block, 200) == range{0, 200});
  STATIC_REQUIRE(inf::dual::refreshes(7, 0));
  STATIC_REQUIRE(!inf::dual::refreshes(7, 1));
  STATIC_REQUIRE(inf::vicinity<16, 16, 4>::refreshes(3, 3));
  STATIC_REQUIRE(!inf::vicinity<16, 16, 4>::refreshes(4, 3));
  STATIC_REQUIRE((inf::diffusion_cache<inf::none> && inf::diffusion_cache<inf::prefix> &&
                  inf::diffusion_cache<inf::dual> && inf::diffusion_cache<inf::vicinity<>> &&
                  inf::diffusion_cache<inf::exact>));
  STATIC_REQUIRE((inf::diffusion_rule<inf::threshold> && inf::diffusion_rule<inf::one_per_run> &&
                  inf::diffusion_rule<inf::credit> && inf::diffusion_rule<inf::fixed_steps>));
}
