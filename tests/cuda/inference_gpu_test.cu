// Engines whose models, with their caches, are in the memory of a GPU, their ranks threads that share it: the tokens of the host's backend.
#include "catch.hpp"
#include "inference_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>

namespace {
namespace hd = heddle;
namespace inf = heddle::infer;
namespace md = heddle::model;
using namespace inference_trials;
using device = hd::compute::cuda;
}  // namespace

TEST_CASE("an engine answers from a GPU's memory as from the host's", "[cuda][gpu][infer]") {
  for (const char* mesh : {"", "tp=2", "pp=2,tp=2"})
    for (const std::int64_t blocks : {24, 9}) {
      const auto counts = check_answers<device, md::gpt2<double>, inf::prefix_shared, inf::ngram_speculation<3>>(
          small_gpt2, mesh, blocks, 1e-9);
      CHECK(counts.cache.found > 0);
      CHECK((blocks > 9 || counts.preemptions > 0));
    }
}

TEST_CASE("steps with trees, moves and copies give the host's logits from a GPU's memory", "[cuda][gpu][infer]") {
  for (const char* mesh : {"", "pp=2,tp=2"}) check_steps<device, md::llama<float>>(small_llama, mesh, 1e-4);
}

TEST_CASE("an engine of a model in bf16 draws on a GPU what the host's sampler draws", "[cuda][gpu][infer]") {
  auto config = small_llama;
  config.head_elements = 8;
  for (const char* mesh : {"", "tp=2"})
    CHECK(check_drawn_answers<device, md::llama<hd::bf16>, inf::prefix_shared>(config, mesh, 24).cache.found > 0);
}
