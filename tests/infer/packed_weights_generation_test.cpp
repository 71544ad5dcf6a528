// A model whose products read weights in 8 bits, or round activations, too: logits are those of the stored weights, on any mesh and whatever the company of a row.
#include "cached_generation.hpp"
#include "catch.hpp"

#include <heddle/compute/packed_weights.hpp>
#include <heddle/model/llama.hpp>

#include <cmath>
#include <type_traits>

using namespace infer_test;

namespace {

using llama = md::llama<float>;
using format = hd::compute::q8_weights<4>;
template <class Format>
using runner_of = inf::model_runner<llama, world_type, hd::compute::packed_weights<backend, Format>>;

constexpr md::llama_config config{.layers = 2,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .width = 16,
                                  .ffn = 24,
                                  .context = 20,
                                  .vocabulary = 23,
                                  .initial_deviation = 0.4};

enum class stored : unsigned char { in_float, in_8_bits, rounded_in_float };

// On one rank: each weight of a product becomes what its code and its scale say.
void round_weights(runner_of<format>& runner) {
  for (const md::parameter& p : runner.stage().parameters()) {
    if (p.shape.size() != 2 || p.name.find("embed_tokens") != std::string::npos) continue;
    float* const w = runner.stage().weights().data() + p.offset;
    for (std::int64_t i = 0; i < p.count; i += format::block) {  // an output's weights lie one behind the other
      const auto scale = hd::compute::q8_scale_of(w + i, format::block);
      for (std::int64_t j = i; j < i + format::block; ++j) w[j] = scale.scale * static_cast<float>(scale.code(w[j]));
    }
  }
}

template <class Format = format>
all_logits<float> logits(const mesh_type& mesh, stored how, bool together, std::uint64_t seed,
                         const std::vector<std::vector<std::int32_t>>& sequences) {
  return hd::testing::on_ranks(mesh, [&](world_type& world) {
    using runner_type = runner_of<Format>;
    hd::compute::packed_weights<backend, Format> kernels{1};
    runner_type runner(config, world, kernels, {16, 4}, 64);
    runner.stage().initialize(seed);
    if (how == stored::in_8_bits) kernels.pack(runner.stage().weights());
    if constexpr (std::is_same_v<Format, format>)
      if (how == stored::rounded_in_float) round_weights(runner);
    if (!runner.leads()) {
      runner.follow();
      return all_logits<float>{};
    }
    driver<runner_type> d(runner, sequences, seed);
    std::vector<std::pair<std::size_t, std::int64_t>> whole;
    for (std::size_t s = 0; s < sequences.size(); ++s) whole.emplace_back(s, d.left(s));
    if (together)
      d.feed(whole);
    else
      for (std::size_t s = 0; s < sequences.size(); ++s)
        while (d.left(s) > 0) d.feed({{s, 1}});
    runner.finish();
    return d.found();
  })[0];
}

}  // namespace

TEST_CASE("logits of weights in 8 bits are those of the stored weights, on any mesh", "[infer]") {
  const std::uint64_t seed = 424;
  CAPTURE(seed);
  const std::vector<std::vector<std::int32_t>> sequences{random_tokens(13, 23, seed), random_tokens(20, 23, seed + 1)};
  const auto in_float = logits(mesh_type{1, 1}, stored::in_float, true, seed, sequences);
  const auto rounded = logits(mesh_type{1, 1}, stored::rounded_in_float, true, seed, sequences);
  const auto packed = logits(mesh_type{1, 1}, stored::in_8_bits, true, seed, sequences);
  double greatest = 0;
  for (const auto& row : in_float[1])
    for (const float x : row) greatest = (std::max)(greatest, std::abs(static_cast<double>(x)));
  CHECK(greatest > 0.5);
  CHECK(distance(packed, rounded) < 1e-5 * greatest);  // the rounding of sums
  const double off = distance(packed, in_float) / greatest;
  CAPTURE(off);
  CHECK(off < 0.1);   // weights are within half a scale, the greatest of four over 254: 0.060 here
  CHECK(off > 1e-4);  // they were not read as floats
  // Not a bit depends on the company or on chunks; another mesh, whose parts have the same codes, adds in another order.
  CHECK(distance(logits(mesh_type{1, 1}, stored::in_8_bits, false, seed, sequences), packed) == 0);
  for (const auto& [stages, parts] : {std::pair(1, 2), std::pair(2, 2)}) {
    CAPTURE(stages, parts);
    CHECK(distance(logits(mesh_type{stages, parts}, stored::in_8_bits, true, seed, sequences), packed) <
          1e-5 * greatest);
  }
}

TEST_CASE("weights in 8 bits that were written are packed again", "[infer]") {
  const std::vector<std::vector<std::int32_t>> sequences{random_tokens(13, 23, 5)};
  const auto ranks = hd::testing::on_ranks(mesh_type{1, 1}, [&](world_type& world) {
    using runner_type = runner_of<format>;
    hd::compute::packed_weights<backend, format> kernels{1};
    runner_type runner(config, world, kernels, {16, 4}, 64);
    runner.stage().initialize(8);
    kernels.pack(runner.stage().weights());
    std::vector<all_logits<float>> all;
    for (const std::uint64_t seed : {8U, 9U, 9U}) {
      runner.stage().initialize(seed);
      if (all.size() != 1) runner.stage().weights_written();
      driver<runner_type> d(runner, sequences, 1);
      d.feed({{0, d.left(0)}});
      all.push_back(d.found());
    }
    return all;
  });
  if (!ranks.ok()) FAIL(ranks.error);
  const auto fresh = logits(mesh_type{1, 1}, stored::in_8_bits, true, 9, sequences);
  CHECK(distance(ranks[0][1], fresh) > 0);  // nobody said so
  CHECK(distance(ranks[0][2], fresh) == 0);
}

TEST_CASE("logits with activations in 8 bits do not depend on company, and are near those of floats on any mesh",
          "[infer]") {
  const std::uint64_t seed = 425;
  CAPTURE(seed);
  using both = hd::compute::w8a8_weights<4>;
  const std::vector<std::vector<std::int32_t>> sequences{random_tokens(13, 23, seed), random_tokens(20, 23, seed + 1)};
  const auto in_float = logits<both>(mesh_type{1, 1}, stored::in_float, true, seed, sequences);
  const auto packed = logits<both>(mesh_type{1, 1}, stored::in_8_bits, true, seed, sequences);
  double greatest = 0;
  for (const auto& row : in_float[1])
    for (const float x : row) greatest = (std::max)(greatest, std::abs(static_cast<double>(x)));
  const double off = distance(packed, in_float) / greatest;
  CAPTURE(off, greatest);
  CHECK(off < 0.15);
  CHECK(off > 1e-4);
  CHECK(distance(logits<both>(mesh_type{1, 1}, stored::in_8_bits, false, seed, sequences), packed) == 0);
  // A mesh adds in another order, and activations beside the middle of two codes may then get the other one.
  for (const auto& [stages, parts] : {std::pair(1, 2), std::pair(2, 2)}) {
    const double apart =
        distance(logits<both>(mesh_type{stages, parts}, stored::in_8_bits, true, seed, sequences), packed) / greatest;
    CAPTURE(stages, parts, apart);
    CHECK(apart < 0.05);
  }
}
