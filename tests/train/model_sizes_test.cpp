// tests/train/model_sizes_test.cpp: parameters, operations and memory that follow from descriptions, against published numbers
// and counts by hand.
#include "../model/gpt2_activations.hpp"
#include "catch.hpp"

#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/masked.hpp>
#include <heddle/model/mistral.hpp>
#include <heddle/model/spiking_brain.hpp>
#include <heddle/schedule/check/memory.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/language_state.hpp>

namespace hd = heddle;
namespace md = heddle::model;

namespace {

template <class Model, auto Config, int Stages, int Tp>
struct shape_of {
  static constexpr auto config = Config();
  static constexpr int stages = Stages, tp = Tp;
  static constexpr std::int64_t samples = 1;
};
template <class Model, auto Config, int Stages = 1, int Tp = 1, class Activations = hd::activations::keep>
using memory_of = hd::train::language_with_state<Model, shape_of<Model, Config, Stages, Tp>, hd::zero<1>, Activations>;

// Elements per token: the stream into the block and between its halves, two norms with one number per row, queries, keys,
// values, heads with the log-sum-exp of their scores, and three times the hidden units.
constexpr std::int64_t llama_block(const md::llama_config& c, int tp) {
  const std::int64_t d = c.width;
  return 4 * d + 2 + (2 * d + 2 * c.kv_width() + c.heads + 3 * c.ffn) / tp;
}

}  // namespace

// Radford et al. 2019 count the embedding once.
static_assert(md::layers::count_parameters(md::describe_gpt2(md::gpt2_124m())) == 124439808);
static_assert(md::layers::count_parameters(md::describe_gpt2(md::gpt2_355m())) == 354823168);
static_assert(md::layers::count_parameters(md::describe_gpt2(md::gpt2_774m())) == 774030080);
static_assert(md::layers::count_parameters(md::describe_gpt2(md::gpt2_1558m())) == 1557611200);
static_assert(md::layers::count_parameters(md::describe_llama(md::llama2_7b())) == 6738415616);
static_assert(md::layers::count_parameters(md::describe_llama(md::llama3_8b())) == 8030261248);

// 6 L (12 D^2) + 6 V D, and 6 L D (S + 1) for attention.
static_assert(md::layers::training_flops(md::describe_gpt2(md::gpt2_124m()), 1024) ==
              6.0 * (12.0 * 12 * 768 * 768 + 50257.0 * 768) + 6.0 * 12 * 768 * 1025);
static_assert(md::layers::training_flops(md::describe_gpt2(md::gpt2_355m()), 1024) ==
              md::gpt2_355m().flops_per_token());
static_assert(md::layers::training_flops(md::describe_gpt2(md::gpt2_774m()), 1024) ==
              md::gpt2_774m().flops_per_token());
static_assert(md::layers::training_flops(md::describe_gpt2(md::gpt2_1558m()), 1024) ==
              md::gpt2_1558m().flops_per_token());
static_assert(md::layers::training_flops(md::describe_llama(md::llama2_7b()), 4096) ==
              md::llama2_7b().flops_per_token());
static_assert(md::layers::training_flops(md::describe_llama(md::llama3_8b()), 8192) ==
              md::llama3_8b().flops_per_token());

// What a block keeps of one context, in whole cache lines throughout.
static_assert(memory_of<md::gpt2<float>, md::gpt2_124m>::block_bytes(0) ==
              1024 * 4 * model_test::kept_elements({768, 12, 64, 3072}, {}));
static_assert(memory_of<md::gpt2<float>, md::gpt2_774m>::block_bytes(35) ==
              1024 * 4 * model_test::kept_elements({1280, 20, 64, 5120}, {}));
static_assert(memory_of<md::gpt2<float>, md::gpt2_1558m>::block_bytes(7) ==
              1024 * 4 * model_test::kept_elements({1600, 25, 64, 6400}, {}));
static_assert(memory_of<md::gpt2<float>, md::gpt2_355m, 1, 2>::block_bytes(0) ==
              1024 * 4 * model_test::kept_elements({1024, 8, 64, 2048}, {}));
static_assert(memory_of<md::llama<float>, md::llama2_7b>::block_bytes(0) == 4096 * 4 * llama_block(md::llama2_7b(), 1));
static_assert(memory_of<md::llama<float>, md::llama3_8b>::block_bytes(0) == 8192 * 4 * llama_block(md::llama3_8b(), 1));
static_assert(memory_of<md::llama<float>, md::llama3_8b, 1, 8>::block_bytes(0) ==
              8192 * 4 * llama_block(md::llama3_8b(), 8));
static_assert(memory_of<md::llama<float>, md::llama3_8b, 1, 1,
                        hd::activations::recompute<hd::activations::full>>::block_bytes(0) == 8192 * 4 * 4096);

// Weights: all of the model on one rank; a tied embedding is there twice where its ends are apart.
static_assert(memory_of<md::gpt2<float>, md::gpt2_124m>::weight_bytes(0) == 4 * 124439808);
static_assert(memory_of<md::gpt2<float>, md::gpt2_124m, 2>::weight_bytes(0) +
                  memory_of<md::gpt2<float>, md::gpt2_124m, 2>::weight_bytes(1) ==
              4 * (124439808 + 50257 * 768));
static_assert(memory_of<md::llama<float>, md::llama2_7b, 2>::weight_bytes(0) +
                  memory_of<md::llama<float>, md::llama2_7b, 2>::weight_bytes(1) ==
              4 * 6738415616);

// Weights, gradients and two moments are 16 bytes a parameter in float, up to the padding of parts to whole lines.
template <class Memory>
constexpr bool state_of(std::int64_t parameters) {
  return Memory::state_bytes(0) >= 16 * parameters && Memory::state_bytes(0) < 16 * parameters + (1 << 16);
}
static_assert(state_of<memory_of<md::gpt2<float>, md::gpt2_124m>>(124439808));
static_assert(state_of<memory_of<md::gpt2<float>, md::gpt2_355m>>(354823168));
static_assert(state_of<memory_of<md::gpt2<float>, md::gpt2_774m>>(774030080));
static_assert(state_of<memory_of<md::gpt2<float>, md::gpt2_1558m>>(1557611200));
static_assert(state_of<memory_of<md::llama<float>, md::llama2_7b>>(6738415616));
static_assert(state_of<memory_of<md::llama<float>, md::llama3_8b>>(8030261248));

// The most that one rank holds with one context at a time: what stays, and what all blocks and the end keep.
template <class Memory>
constexpr std::int64_t peak = hd::schedule::memory_of<hd::schedule::one_f_one_b<hd::microbatches<1>>, 1, Memory>.bytes;
template <class Memory>
constexpr bool peak_is(std::int64_t bytes) {
  const std::int64_t blocks = Memory::layers_of(0).count * Memory::block_bytes(0) + Memory::end_bytes();
  return peak<Memory> == bytes && peak<Memory> == Memory{}.resident_bytes(0) + blocks;
}
static_assert(peak_is<memory_of<md::gpt2<float>, md::gpt2_124m>>(3'149'172'736));
static_assert(peak_is<memory_of<md::gpt2<float>, md::gpt2_355m>>(7'890'321'408));
static_assert(peak_is<memory_of<md::gpt2<float>, md::gpt2_774m>>(16'055'693'312));
static_assert(peak_is<memory_of<md::gpt2<float>, md::gpt2_1558m>>(30'667'422'720));
static_assert(peak_is<memory_of<md::llama<float>, md::llama2_7b>>(146'699'681'792));
static_assert(peak_is<memory_of<md::llama<float>, md::llama3_8b>>(216'857'444'352));

TEST_CASE("costs of layers follow from descriptions", "[train][model]") {
  const auto c = md::llama3_8b();
  const auto costs = md::llama<float>::layer_costs(c);
  REQUIRE(costs.layers.size() == 32);
  double all = costs.first + costs.last;
  for (const double one : costs.layers) all += one;
  CHECK(all == c.flops_per_token());
  CHECK(costs.last == 6.0 * 128256 * 4096);
}

TEST_CASE("configurations of Mistral and SpikingBrain count what their descriptions do", "[train][model]") {
  static_assert(md::spiking_brain_7b().parameters() == 7616542976);
  for (const int sequence : {1, 4, 5, 13, 4096, 32768}) {
    CAPTURE(sequence);
    for (const md::mistral_config& c : {md::mistral_tiny(), md::mistral_7b()})
      CHECK(c.flops_per_token(sequence) ==
            Approx(md::layers::training_flops(md::describe_mistral(c), sequence)).epsilon(1e-12));
    for (const md::spiking_brain_config& c : {md::spiking_brain_tiny(), md::spiking_brain_7b()})
      CHECK(c.flops_per_token(sequence) ==
            Approx(md::layers::training_flops(md::describe_spiking_brain(c), sequence)).epsilon(1e-12));
  }
  for (const md::spiking_brain_config& c : {md::spiking_brain_tiny(), md::spiking_brain_7b()})
    CHECK(c.parameters() == md::layers::count_parameters(md::describe_spiking_brain(c)));
  md::spiking_brain_config other = md::spiking_brain_tiny();
  CHECK(to_string(other).find("gate_normalizer") == std::string::npos);
  other.gate_normalizer = 0.5;
  CHECK(to_string(other).find(" gate_normalizer=0.5") != std::string::npos);
}

TEST_CASE("attention of masked models costs what their rows see", "[train][model]") {
  md::llama_config c = md::llama_tiny();
  c.context = 12;
  const auto attention = [&](const md::layer_operations& costs) {
    const auto causal = md::llama<float>::layer_costs(c);
    const double products = 6.0 * (static_cast<double>(c.matmul_parameters()) - c.vocabulary * c.width) / c.layers;
    CHECK(costs.layers.size() == causal.layers.size());
    CHECK(costs.last == causal.last);
    return costs.layers[0] - products;
  };
  // Per token 12 operations for each element of the queries and each token that is seen.
  const double one = 12.0 * c.query_width();
  CHECK(attention(md::llama<float>::layer_costs(c)) == Approx(one * 13 / 2.0));
  CHECK(attention(md::llada<float>::layer_costs(c)) == Approx(one * 12));
  using in_fours = md::masked<md::llama<float>, md::blocks<4>>;
  CHECK(attention(in_fours::layer_costs(c)) == Approx(one * (4 + 8 + 12) / 3.0));
}
