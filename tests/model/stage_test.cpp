// Parameter counts, the table, memory, initial values and what a stage refuses.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/compute/host/host.hpp>

#include <cmath>
#include <set>

using namespace model_test;

namespace {
using backend = hd::compute::host<>;
using stage = md::gpt2_stage<double, alone_world, backend>;
constexpr md::gpt2_config small{.layers = 2, .heads = 2, .width = 16, .context = 8, .vocabulary = 21};
// As a user may write one: no extent is an int.
struct unsigned_config {
  std::size_t layers = 2, heads = 2, width = 16, context = 8, vocabulary = 21;
  void validate() const {}
};
}  // namespace

TEST_CASE("a configuration may count in any integer", "[model]") {
  const unsigned_config c;
  CHECK(&md::checked_stage(c, md::split_layers(2, 0, 1), 1, 4, 0) == &c);
  CHECK_THROWS_WITH(md::checked_stage(c, md::split_layers(3, 0, 1), 1, 4, 0),
                    Catch::Matchers::Contains("does not fit a model of 2 layers"));
}

TEST_CASE("the published sizes have the published numbers of parameters", "[model]") {
  STATIC_REQUIRE(md::gpt2_124m().parameters() == 124439808);
  STATIC_REQUIRE(md::gpt2_355m().parameters() == 354823168);
  STATIC_REQUIRE(md::gpt2_774m().parameters() == 774030080);
  STATIC_REQUIRE(md::gpt2_1558m().parameters() == 1557611200);
  CHECK_NOTHROW(md::gpt2_1558m().validate());
  // 6 N + attention: 191 GFLOP per step of 4 x 64 tokens, as llm.c counts it.
  CHECK(md::gpt2_124m().flops_per_token(64) * 256 == Approx(191e9).epsilon(0.01));
}

TEST_CASE("a configuration that cannot work is refused with its numbers", "[model]") {
  md::gpt2_config c = small;
  c.heads = 3;
  CHECK_THROWS_WITH(c.validate(), Catch::Matchers::Contains("width = 16 is not a multiple of heads = 3"));
  c = small;
  c.vocabulary = 0;
  CHECK_THROWS_WITH(c.validate(), Catch::Matchers::Contains("vocabulary must be 1 to 16777216, got 0"));
  c = small;
  c.width = 2147483644;
  CHECK_THROWS_WITH(c.validate(), Catch::Matchers::Contains("width must be 1 to 1048576, got 2147483644"));
  c = {.layers = md::gpt2_config::most_layers,
       .heads = 1,
       .width = 1048576,
       .context = 16777216,
       .vocabulary = 16777216};
  CHECK_NOTHROW(c.validate());
  CHECK(static_cast<double>(c.parameters()) == Approx(12.0 * 65536 * 1048576 * 1048576).epsilon(1e-3));  // in 64 bits
  // Counted as activations they would not be.
  backend b{1};
  alone_world world;
  c.layers = 1;
  CHECK_THROWS_WITH(stage(c, world, b, md::split_layers(1, 0, 1), 4, 1 << 20),
                    Catch::Matchers::Contains("1048576 samples of 16777216 tokens") &&
                        Catch::Matchers::Contains("more than 2^59 elements"));
}

TEST_CASE("the parameter table names every tensor once, in the published shapes", "[model]") {
  backend b{1};
  alone_world world;
  const stage s(small, world, b, md::split_layers(2, 0, 1), 1, 1);
  std::set<std::string> names;
  std::set<int> ids;
  std::int64_t total = 0, end = 0;
  for (const md::parameter& p : s.parameters()) {
    names.insert(p.name);
    ids.insert(p.id);
    CHECK(p.count == p.global_count());
    CHECK(p.counted);
    CHECK(p.decay == (p.shape.size() == 2));
    CHECK(p.offset >= end);
    CHECK(p.offset % 8 == 0);
    end = p.offset + p.count;
    total += p.count;
  }
  CHECK(names.size() == s.parameters().size());
  CHECK(*ids.rbegin() == static_cast<int>(ids.size()) - 1);
  CHECK(total == small.parameters());
  CHECK(names.count("wte.weight") == 1);
  CHECK(names.count("h.1.attn.c_attn.weight") == 1);
  CHECK(names.count("h.0.mlp.c_proj.bias") == 1);
  CHECK(names.count("ln_f.bias") == 1);
  CHECK(s.weights().size() == s.gradients().size());
  CHECK(static_cast<std::int64_t>(s.weights().size()) >= end);
}

TEST_CASE("for_each_run visits the rank's part in order, in the longest runs", "[model]") {
  md::parameter p;
  p.shape = {2, 24};
  p.logical = {2, 3, 4, 2};
  p.local = {2, 3, 2, 2};
  p.start = {0, 0, 1, 0};
  p.count = 24;
  std::vector<std::array<std::int64_t, 3>> runs;
  md::for_each_run(p, [&](std::int64_t g, std::int64_t l, std::int64_t n) { runs.push_back({g, l, n}); });
  REQUIRE(runs.size() == 6);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    CHECK(runs[i] == std::array<std::int64_t, 3>{8 * at + 2, 4 * at, 4});
  }
  p.local = p.logical;
  p.start = {0, 0, 0, 0};
  p.count = 48;
  runs.clear();
  md::for_each_run(p, [&](std::int64_t g, std::int64_t l, std::int64_t n) { runs.push_back({g, l, n}); });
  CHECK(runs == std::vector<std::array<std::int64_t, 3>>{{0, 0, 48}});
  p.count = 0;
  md::for_each_run(p, [&](std::int64_t, std::int64_t, std::int64_t) { FAIL("an empty part has no runs"); });
}

TEST_CASE("initial values follow GPT-2's rules", "[model]") {
  backend b{1};
  alone_world world;
  const md::gpt2_config c{.layers = 2, .heads = 4, .width = 64, .context = 16, .vocabulary = 300};
  stage s(c, world, b, md::split_layers(2, 0, 1), 1, 1);
  s.initialize(3);
  for (const md::parameter& p : s.parameters()) {
    CAPTURE(p.name);
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < p.count; ++i) {
      const double w = s.weights()[static_cast<std::size_t>(p.offset + i)];
      sum += w;
      squares += w * w;
    }
    const double n = static_cast<double>(p.count), mean = sum / n;
    if (p.shape.size() == 1) {
      const bool norm = p.name.find("ln_") != std::string::npos && p.name.find("weight") != std::string::npos;
      CHECK(mean == (norm ? 1.0 : 0.0));
      CHECK(squares == (norm ? n : 0.0));
    } else {
      const double expected = p.name.find("c_proj") != std::string::npos ? 0.02 / 2 : 0.02;  // sqrt(2 * 2 layers)
      CHECK(std::sqrt(squares / n) == Approx(expected).epsilon(0.1));
      CHECK(std::abs(mean) < 5 * expected / std::sqrt(n));
    }
  }
}

TEST_CASE("saved bytes are what the formula says", "[model]") {
  backend b{1};
  alone_world world;
  const std::int64_t samples = 2, rows = samples * small.context, d = small.width, v = small.vocabulary;
  const stage s(small, world, b, md::split_layers(2, 0, 1), 3, samples);
  // Per token: a block keeps 4 D (input, norms' outputs, mid) + 4 D (qkv, heads) + 8 D (hidden) + 4 + H numbers;
  // the head 2 D + V + 5. Every piece ends at a cache line.
  const auto lines = [](std::int64_t n) { return (n + 7) / 8 * 8; };
  const std::int64_t block = 16 * rows * d + 4 * rows + rows * small.heads;
  const std::int64_t head = 2 * rows * d + lines(rows * v) + 5 * rows;
  CHECK(s.saved_bytes_per_slot() == 8 * (2 * block + head));
  const std::int64_t deferred_block = 4 * rows * d + 4 * rows * d + 3 * rows * d;
  CHECK(s.deferred_bytes() == 8 * (2 * deferred_block + 2 * rows * d));
  CHECK(s.boundary_elements(3) == 3 * small.context * small.width);
}

TEST_CASE("verbs out of order and batches that do not fit are refused", "[model]") {
  backend b{1};
  alone_world world;
  stage s(small, world, b, md::split_layers(2, 0, 1), 2, 2, 1);
  s.initialize(1);
  auto tokens = random_ids(2 * small.context, small.vocabulary, 1);
  const auto targets = random_ids(2 * small.context, small.vocabulary, 2);
  const md::batch<double> batch{tokens, targets, 2, 1.0};
  CHECK_THROWS_WITH(s.backward(0, batch, {}, {}), Catch::Matchers::Contains("before its forward"));
  CHECK_THROWS_WITH(s.forward(2, batch, {}, {}), Catch::Matchers::Contains("slot 2 of a stage with 2 slots"));
  s.forward(0, batch, {}, {});
  CHECK_THROWS_WITH(s.forward(0, batch, {}, {}), Catch::Matchers::Contains("still holds a microbatch"));
  CHECK_THROWS_WITH(s.backward_weight(0, batch), Catch::Matchers::Contains("before its backward_input"));
  s.forward(1, batch, {}, {});
  s.backward_input(0, batch, {}, {});
  CHECK_THROWS_WITH(s.backward_input(1, batch, {}, {}), Catch::Matchers::Contains("larger `deferred`"));
  s.backward_weight(0, batch);
  s.release(1);
  CHECK_NOTHROW(s.forward(1, batch, {}, {}));

  md::batch<double> wrong = batch;
  wrong.samples = 3;
  CHECK_THROWS_WITH(s.forward(0, wrong, {}, {}), Catch::Matchers::Contains("room for 2"));
  wrong.samples = 1;
  CHECK_THROWS_WITH(s.forward(0, wrong, {}, {}), Catch::Matchers::Contains("1 x 8 tokens came with 16 tokens"));
  tokens[5] = small.vocabulary;
  CHECK_THROWS_WITH(s.forward(0, batch, {}, {}), Catch::Matchers::Contains("hold the id 21"));
}

TEST_CASE("a shorter sequence gives what the first positions of a longer one give", "[model]") {
  backend b{1};
  alone_world world;
  stage s(small, world, b, md::split_layers(2, 0, 1), 1, 1);
  s.initialize(9);
  const auto tokens = random_ids(small.context, small.vocabulary, 5),
             targets = random_ids(small.context, small.vocabulary, 6);
  std::vector<std::int32_t> masked(targets.begin(), targets.end());
  for (std::size_t i = 3; i < masked.size(); ++i) masked[i] = -1;
  const double expected = s.forward_only({tokens, masked, 1, 1.0}, {}, {});
  const md::batch<double> shorter{std::span(tokens).first(3), std::span(targets).first(3), 1, 1.0, 3};
  CHECK(s.forward_only(shorter, {}, {}) == Approx(expected).epsilon(1e-13));
  s.forward(0, shorter, {}, {});
  CHECK(s.loss_sum(0) == Approx(expected).epsilon(1e-13));
  s.backward(0, shorter, {}, {});
}
