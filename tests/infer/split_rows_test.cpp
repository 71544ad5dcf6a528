// tests/infer/split_rows_test.cpp: engines whose ranks share the rows of a step, in any order, and replicas that share experts, answer as one rank.
#include "cached_generation.hpp"
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/rows_by_experts.hpp>
#include <heddle/model/mixtral.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace split_rows {

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;
namespace plan = heddle::plan;
using Catch::Matchers::Contains;
using infer_test::backend, infer_test::mesh_type, infer_test::world_type;

namespace {

// Attention, experts and rows over tp.
using shared_rows =
    hd::sharding<hd::dim::split<hd::dim::heads, hd::tp>, hd::dim::split<hd::dim::vocabulary, hd::tp>,
                 hd::dim::split<hd::dim::sequence, hd::tp>, hd::dim::split<hd::dim::experts, hd::tp>>;
using model_type = md::mixtral<double, shared_rows>;
using runner_type = inf::model_runner<model_type, world_type, backend>;

constexpr md::mixtral_config small{{.layers = 3,
                                    .heads = 6,
                                    .kv_heads = 3,
                                    .width = 12,
                                    .ffn = 7,
                                    .context = 40,
                                    .vocabulary = 23,
                                    .initial_deviation = 0.4,
                                    .head_elements = 4},
                                   12,
                                   2};
constexpr std::uint64_t seed = 20261130;

// A table of random ranks.
plan::expert_placement random_table(int ranks, std::uint64_t stream) {
  const hd::counter_random random(seed, stream);
  plan::expert_placement p;
  p.ranks = ranks;
  p.layers = static_cast<int>(small.layers);
  p.experts = static_cast<int>(small.experts);
  for (std::uint64_t t = 0; t < static_cast<std::uint64_t>(small.vocabulary); ++t) {
    p.rank_of_token.push_back(static_cast<int>(random.integer(t) % static_cast<std::uint64_t>(ranks + 1)) - 1);
    p.confidence.push_back(static_cast<std::uint8_t>(random.integer(100 + t)));
  }
  return p;
}

std::vector<inf::request> requests() {
  std::vector<inf::request> all;
  for (const std::size_t n : {7u, 1u, 19u, 12u, 4u}) {
    inf::request r{.max_tokens = 6, .log_probabilities = 0};
    r.prompt = infer_test::random_tokens(n, static_cast<int>(small.vocabulary), 300 + n);
    if (n != 12) r.sampling.temperature = 0;
    all.push_back(r);
  }
  return all;
}

struct answers {
  std::map<inf::request_id, std::vector<std::int32_t>> tokens{};
  std::vector<double> log_probabilities{};
};

// Requests come one by one, so that steps have one row, fewer than ranks, and many.
answers answer(const mesh_type& mesh, const plan::expert_placement* table) {
  answers found;
  hd::launch<hd::threads>(mesh, [&](world_type& world) {
    backend kernels{1};
    runner_type runner(small, world, kernels, {40, 4}, 9);
    runner.stage().initialize(seed);
    if (table != nullptr) runner.stage().order_rows(inf::rows_by_experts(*table, table->ranks, small.vocabulary));
    if (!runner.leads()) {
      runner.follow();
      return;
    }
    inf::engine<runner_type> engine(runner, {.seed = 5});
    const auto all = requests();
    for (std::size_t next = 0; next < all.size() || !engine.idle();) {
      if (next < all.size()) engine.submit(all[next++]);
      for (const inf::event& x : engine.step()) {
        if (x.token) found.tokens[x.id].push_back(*x.token);
        if (x.log_probability) found.log_probabilities.push_back(*x.log_probability);
      }
    }
    runner.finish();
  });
  return found;
}

}  // namespace

TEST_CASE("ranks that share the rows of a step answer as one rank, in any order of rows", "[infer][experts][ranks]") {
  INFO("seed " << seed);
  const answers alone = answer(mesh_type{1, 1}, nullptr);
  REQUIRE(alone.log_probabilities.size() == 30);
  for (const auto& [stages, ranks] : {std::pair(1, 2), std::pair(1, 3), std::pair(1, 4), std::pair(2, 2)})
    for (const bool ordered : {false, true}) {
      CAPTURE(stages, ranks, ordered);
      const plan::expert_placement table = random_table(ranks, 40 + static_cast<std::uint64_t>(ranks));
      const answers found = answer(mesh_type{stages, ranks}, ordered ? &table : nullptr);
      CHECK(found.tokens == alone.tokens);
      REQUIRE(found.log_probabilities.size() == alone.log_probabilities.size());
      double worst = 0;
      for (std::size_t i = 0; i < found.log_probabilities.size(); ++i)
        worst = std::max(worst, std::abs(found.log_probabilities[i] - alone.log_probabilities[i]));
      CHECK(worst < 1e-10);
    }
}

TEST_CASE("an order of rows of another model is refused", "[infer][experts]") {
  hd::launch<hd::threads>(mesh_type{1, 1}, [&](world_type& world) {
    backend kernels{1};
    runner_type runner(small, world, kernels, {8, 4}, 9);
    const auto with = [&](int ranks, int experts, int tokens) {
      plan::expert_placement p = random_table(ranks, 1);
      p.experts = experts;
      p.rank_of_token.resize(static_cast<std::size_t>(tokens));
      p.confidence.resize(static_cast<std::size_t>(tokens));
      runner.stage().order_rows(inf::rows_by_experts(p, ranks, tokens));
    };
    CHECK_NOTHROW(with(1, 12, 23));
    CHECK_THROWS_WITH(with(2, 12, 23), Contains("the model has 1 ranks that share rows, the order 2"));
    CHECK_THROWS_WITH(with(1, 16, 23), Contains("the model has 12 experts, the order 16"));
    CHECK_THROWS_WITH(with(1, 12, 22), Contains("the model has 23 tokens, the order 22"));
  });
}

}  // namespace split_rows
