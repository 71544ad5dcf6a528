// tests/plan/layer_strategies_test.cpp: spaces of strategies, and the choice per layer against trying all choices.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/layer_strategies.hpp>
#include <heddle/plan/strategy_space.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace hd = heddle;
namespace pl = heddle::plan;

namespace {

// Trees of a group of 2^bits devices by another way: every bit of a rank gets a kind; ranks of a kind are one level.
std::set<std::string> trees_by_bits(int bits, bool pruned) {
  std::set<std::string> all;
  int words = 1;
  for (int b = 0; b < bits; ++b) words *= 3;
  for (int w = 0; w < words; ++w) {
    std::string text;
    std::array<int, 3> runs{}, sizes{1, 1, 1};
    int last = -1;
    std::string levels;
    for (int b = 0, rest = w; b < bits; ++b, rest /= 3) {
      const auto kind = static_cast<std::size_t>(rest % 3);
      if (rest % 3 != last) ++runs[kind], levels += static_cast<char>('0' + rest % 3);
      sizes[kind] *= 2;
      last = rest % 3;
    }
    if (std::max({runs[0], runs[1], runs[2]}) > 1) continue;  // a kind at two levels
    if (pruned && sizes[0] > 1 && sizes[1] > 1) continue;
    for (const char kind : levels)
      text += std::string(",") + pl::level_names[static_cast<std::size_t>(kind - '0')] + '=' +
              std::to_string(sizes[static_cast<std::size_t>(kind - '0')]);
    all.insert(text);
  }
  return all;
}

struct problem {
  std::vector<std::vector<pl::layer_option>> layers{};
  std::vector<double> changes{};
  std::int64_t budget = 0;
};

double best_of_all(const problem& p, int classes, std::size_t l = 0, int layout = -1, double seconds = 0,
                   std::int64_t bytes = 0) {
  if (bytes > p.budget) return std::numeric_limits<double>::infinity();
  if (l == p.layers.size()) return seconds;
  double best = std::numeric_limits<double>::infinity();
  for (const pl::layer_option& o : p.layers[l])
    best = std::min(best, best_of_all(p, classes, l + 1, o.layout,
                                      seconds + o.seconds +
                                          (layout < 0 || p.changes.empty()
                                               ? 0
                                               : p.changes[static_cast<std::size_t>(layout * classes + o.layout)]),
                                      bytes + o.bytes));
  return best;
}

problem drawn(const hd::counter_random& random, std::uint64_t& draw, int layers, int options, int classes,
              std::int64_t most_bytes) {
  problem p;
  p.layers.resize(static_cast<std::size_t>(layers));
  for (auto& layer : p.layers)
    for (int o = 0; o < options; ++o) {
      const bool none = random.integer(draw++) % 5 == 0;
      const auto bytes = static_cast<std::int64_t>(random.integer(draw++) % static_cast<std::uint64_t>(most_bytes));
      const int layout = static_cast<int>(random.integer(draw++) % static_cast<std::uint64_t>(classes));
      layer.push_back({random.uniform(draw++), none ? 0 : bytes, layout});
    }
  for (int i = 0; classes > 1 && i < classes * classes; ++i)
    p.changes.push_back(i % (classes + 1) == 0 ? 0.0 : 0.3 * random.uniform(draw++));
  p.budget = static_cast<std::int64_t>(static_cast<double>(layers) * 0.6 * static_cast<double>(most_bytes) *
                                       random.uniform(draw++));
  return p;
}

// Seconds and bytes of what was chosen, added up anew.
void check_sums(const problem& p, const pl::layer_strategies& found, int classes) {
  double seconds = 0;
  std::int64_t bytes = 0;
  REQUIRE(found.chosen.size() == p.layers.size());
  for (std::size_t l = 0; l < p.layers.size(); ++l) {
    const pl::layer_option& o = p.layers[l][static_cast<std::size_t>(found.chosen[l])];
    seconds += o.seconds;
    bytes += o.bytes;
    if (l > 0 && !p.changes.empty())
      seconds += p.changes[static_cast<std::size_t>(
          p.layers[l - 1][static_cast<std::size_t>(found.chosen[l - 1])].layout * classes + o.layout)];
  }
  REQUIRE(std::abs(seconds - found.seconds) <= 1e-12);
  REQUIRE(bytes == found.bytes);
  REQUIRE(bytes <= p.budget);
}

}  // namespace

TEST_CASE("decision trees are those of the paper and of every assignment of bits", "[plan][strategies]") {
  CHECK(pl::strategy_trees(8, {.pruned = false}).size() == 34);
  CHECK(pl::strategy_trees(8).size() == 22);
  CHECK(pl::strategy_trees(8, {.recompute = true}).size() == 44);
  CHECK(pl::strategy_trees(1).size() == 1);
  for (const int bits : {0, 1, 3, 4, 5})
    for (const bool pruned : {false, true}) {
      CAPTURE(bits, pruned);
      std::set<std::string> expected;
      for (int p = 0; p <= bits; ++p)
        for (const std::string& tree : trees_by_bits(bits - p, pruned))
          expected.insert("pp=" + std::to_string(1 << p) + tree);
      std::set<std::string> listed;
      for (const pl::strategy_tree& tree : pl::strategy_trees(1 << bits, {.pruned = pruned}))
        listed.insert(to_string(tree));
      CHECK(listed == expected);
      CHECK(listed.size() == pl::strategy_trees(1 << bits, {.pruned = pruned}).size());
    }
  CHECK_THROWS_WITH(pl::strategy_trees(12),
                    Catch::Matchers::Contains("a power of two") && Catch::Matchers::Contains("12"));
}

TEST_CASE("meshes of a number of ranks are all factorisations", "[plan][strategies]") {
  const std::vector<pl::space_axis> axes{{"dp"}, {"pp", 8}, {"cp"}, {"tp", 4}};
  for (const int ranks : {1, 7, 12, 48, 64}) {
    CAPTURE(ranks);
    std::vector<std::vector<int>> expected;
    for (int d = 1; d <= ranks; ++d)
      for (int p = 1; p <= 8; ++p)
        for (int c = 1; c <= ranks; ++c)
          for (int t = 1; t <= 4; ++t)
            if (d * p * c * t == ranks) expected.push_back({d, p, c, t});
    CHECK(pl::mesh_extents(ranks, axes) == expected);
  }
  CHECK(pl::mesh_text(axes, std::vector<int>{2, 4, 1, 3}) == "dp=2,pp=4,cp=1,tp=3");
  CHECK_THROWS_AS(pl::mesh_extents(0, axes), hd::config_error);
  CHECK_THROWS_WITH(pl::mesh_extents(8, std::vector<pl::space_axis>{{"dp"}, {"dp"}}),
                    Catch::Matchers::Contains("two axes") && Catch::Matchers::Contains("dp"));
}

TEST_CASE("the choice per layer is the best of all choices", "[plan][strategies]") {
  const hd::counter_random random(20261130, 0);
  INFO("seed 20261130");
  std::uint64_t draw = 0;
  int without = 0;
  for (int round = 0; round < 1000; ++round) {
    INFO("round " << round);
    const int layers = 1 + static_cast<int>(random.integer(draw++) % 6);
    const int options = 1 + static_cast<int>(random.integer(draw++) % 6);
    const int classes = 1 + static_cast<int>(random.integer(draw++) % 3);
    problem p = drawn(random, draw, layers, options, classes, 1000);
    const double best = best_of_all(p, classes);
    const auto found = pl::choose_layer_strategies(p.layers, p.budget, p.changes);
    REQUIRE(found.fits() == std::isfinite(best));
    REQUIRE(!found.rounded);
    if (!found.fits()) {
      ++without;
      CHECK(found.chosen.empty());
      CHECK(found.least_bytes > p.budget);
      CHECK(std::isfinite(best_of_all({p.layers, p.changes, found.least_bytes}, classes)));
      continue;
    }
    REQUIRE(std::abs(found.seconds - best) <= 1e-12);
    check_sums(p, found, classes);
    // More memory is never slower.
    double last = found.seconds;
    for (int i = 0; i < 5; ++i) {
      p.budget += 150;
      const double now = pl::choose_layer_strategies(p.layers, p.budget, p.changes).seconds;
      REQUIRE(now <= last);
      last = now;
    }
  }
  CHECK(without > 50);
  CHECK(without < 950);
}

TEST_CASE("with fewer labels bytes are rounded up, and the result says so", "[plan][strategies]") {
  const hd::counter_random random(20261130, 1);
  INFO("seed 20261130, 1");
  std::uint64_t draw = 0;
  constexpr std::size_t most = 12;
  int rounded = 0;
  for (int round = 0; round < 100; ++round) {
    INFO("round " << round);
    problem p = drawn(random, draw, 12, 5, 1 + round % 3, 1000000);
    const auto exact = pl::choose_layer_strategies(p.layers, p.budget, p.changes, 1000000);
    const auto few = pl::choose_layer_strategies(p.layers, p.budget, p.changes, most);
    REQUIRE(!exact.rounded);
    REQUIRE(few.fits() == exact.fits());
    if (!few.fits()) continue;
    CHECK(few.labels <= most + 2);
    check_sums(p, few, 1 + round % 3);
    CHECK(few.seconds >= exact.seconds - 1e-12);
    if (few.rounded) ++rounded;
    if (!few.rounded) CHECK(few.seconds == exact.seconds);
    const auto within = p.budget - 12 * (p.budget / static_cast<std::int64_t>(most) + 1);
    if (within >= 0)
      CHECK(few.seconds <= pl::choose_layer_strategies(p.layers, within, p.changes, 1000000).seconds + 1e-12);
  }
  CHECK(rounded > 20);
}

TEST_CASE("layers that make no sense are refused", "[plan][strategies]") {
  using layers = std::vector<std::vector<pl::layer_option>>;
  CHECK_THROWS_WITH(pl::choose_layer_strategies(layers{{{1, 1}}, {}}, 1), Catch::Matchers::Contains("layer 1 has no"));
  CHECK_THROWS_WITH(pl::choose_layer_strategies(layers{{{1, 1, 2}}}, 1), Catch::Matchers::Contains("layout class 2"));
  CHECK_THROWS_AS(pl::choose_layer_strategies(layers{{{-1, 1}}}, 1), hd::config_error);
  CHECK_THROWS_AS(pl::choose_layer_strategies(layers{{{1, -1}}}, 1), hd::config_error);
  CHECK_THROWS_AS(pl::choose_layer_strategies(layers{{{1, 1}}}, -1), hd::config_error);
  CHECK_THROWS_AS(pl::choose_layer_strategies(layers{{{1, 1}}}, 1, std::vector<double>{0, 0}), hd::config_error);
  CHECK_THROWS_AS(pl::choose_layer_strategies(layers{{{1, 1}}}, 1, {}, 0), hd::config_error);
  CHECK(pl::choose_layer_strategies(layers{}, 0).fits());
  CHECK(pl::choose_layer_strategies(layers{{{1, 0}, {0.5, 3}}}, 0).chosen == std::vector<int>{0});
}
