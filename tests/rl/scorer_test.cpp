// tests/rl/scorer_test.cpp: log-probabilities of answers by a reference are those of a forward on one rank, on any mesh and in any number of passes.
#include "catch.hpp"
#include "infer/cached_generation.hpp"

#include <heddle/core/random.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/rl/objective.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/rl/scorer.hpp>
#include <heddle/testing/on_ranks.hpp>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace rl = heddle::rl;

namespace {

using infer_test::backend, infer_test::mesh_type, infer_test::world_type;
using policy = rl::policy<md::gpt2<double>, rl::any_objective>;
using scorer = rl::scorer<policy, world_type, backend>;

policy::config config_at(double temperature) {
  policy::config c;
  static_cast<md::gpt2_config&>(c) = {
      .layers = 3, .heads = 2, .width = 8, .context = 10, .vocabulary = 13, .initial_deviation = .6};
  c.temperature = temperature;
  return c;
}
std::vector<rl::sample> random_samples(std::uint64_t seed) {
  std::vector<rl::sample> all;
  for (std::uint64_t i = 0; i < 7; ++i) {
    rl::sample& s = all.emplace_back();
    s.prompt = infer_test::random_tokens(1 + i % 3, 13, seed + i);
    s.tokens = infer_test::random_tokens(i == 4 ? 0 : 2 + i % 6, 13, seed + 20 + i);
    s.weights.assign(s.tokens.size(), .5);  // not read
  }
  return all;
}
// By softmax of all logits of each prefix.
std::vector<std::vector<double>> by_logits(const std::vector<rl::sample>& samples, std::uint64_t weights, double temperature) {
  std::vector<std::vector<std::int32_t>> texts;
  for (const rl::sample& s : samples) {
    texts.push_back(s.prompt);
    texts.back().insert(texts.back().end(), s.tokens.begin(), s.tokens.end());
  }
  const auto logits = infer_test::logits_of_prefixes<md::gpt2<double>>(config_at(1), weights, texts);
  std::vector<std::vector<double>> all;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    auto& of = all.emplace_back();
    for (std::size_t t = 0; t < samples[i].tokens.size(); ++t) {
      const auto& row = logits[i][samples[i].prompt.size() + t - 1];
      double sum = 0;
      for (const double l : row) sum += std::exp(l / temperature);
      of.push_back(row[static_cast<std::size_t>(samples[i].tokens[t])] / temperature - std::log(sum));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("a reference's log-probabilities are softmax of its logits on any mesh, in any number of passes", "[rl][scorer][ranks]") {
  const std::uint64_t seed = 11;
  CAPTURE(seed);
  const auto samples = random_samples(seed);
  for (const double temperature : {1.0, .6}) {
    const auto expected = by_logits(samples, 3, temperature);
    for (const auto& [stages, parts] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2), std::pair(3, 2)})
      for (const std::int64_t max_samples : {1, 3, 16}) {
        CAPTURE(temperature, stages, parts, max_samples);
        const auto ranks = hd::testing::on_ranks(mesh_type{stages, parts}, [&](world_type& world) {
          backend kernels{1};
          scorer s(config_at(temperature), world, kernels, max_samples);
          s.stage().initialize(3);
          std::vector<rl::sample> mine = samples;
          s.score(mine);
          s.score(mine, &rl::sample::proximal);
          return mine;
        });
        if (!ranks.ok()) FAIL(ranks.error);
        for (int r = 0; r < stages * parts; ++r)
          for (std::size_t i = 0; i < samples.size(); ++i) {
            REQUIRE(ranks[r][i].reference.size() == samples[i].tokens.size());
            CHECK(ranks[r][i].proximal == ranks[r][i].reference);
            CHECK(ranks[r][i].reference == ranks[0][i].reference);
            for (std::size_t t = 0; t < expected[i].size(); ++t)
              CHECK(std::abs(ranks[r][i].reference[t] - expected[i][t]) <= 1e-12);
          }
      }
  }
}

TEST_CASE("a scorer refuses samples that do not fit", "[rl][scorer][error]") {
  const auto refused = [&](std::int64_t max_samples, rl::sample s) {
    return hd::testing::on_ranks(mesh_type{1, 1}, [&](world_type& world) {
             backend kernels{1};
             scorer of(config_at(1), world, kernels, max_samples);
             of.stage().initialize(3);
             std::vector<rl::sample> all{{.prompt = {1}, .tokens = {2}}, s};
             of.score(all);
             return 0;
           })
        .error;
  };
  CHECK(refused(2, {.prompt = {1}, .tokens = {2}}).empty());
  CHECK_THAT(refused(0, {}), Catch::Contains("max_samples should be at least 1, got 0"));
  CHECK_THAT(refused(2, {}), Catch::Contains("has no prompt"));
  CHECK_THAT(refused(2, {.prompt = {1}, .tokens = {13}}), Catch::Contains("13"));
  CHECK_THAT(refused(2, {.prompt = std::vector<std::int32_t>(9, 1), .tokens = {1, 2, 3}}), Catch::Contains("has 12 tokens"));
}
