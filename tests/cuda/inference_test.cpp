// An engine whose model, with its cache, is in the memory of a device, over the stand-in for the CUDA runtime: the tokens of the host's backend.
#include "emulated_launcher.hpp"

#include "catch.hpp"
#include "inference_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/qwen.hpp>

namespace {
namespace hd = heddle;
namespace inf = heddle::infer;
namespace md = heddle::model;
using namespace inference_trials;
template <int Threads>
using emulated = hd::compute::basic_cuda<cuda_double::emulated_launcher<Threads>>;

constexpr double tolerance = 1e-10;
}  // namespace

TEST_CASE("an engine answers from a device's memory as from the host's", "[cuda][infer][ranks]") {
  using gpt2 = md::gpt2<double>;
  using llama = md::llama<double>;
  using qwen = md::qwen3<double>;
  for (const char* mesh : {"", "tp=2", "pp=2,tp=2"}) {
    const auto shared =
        check_answers<emulated<1>, gpt2, inf::prefix_shared, inf::chunked_prefill<5>>(small_gpt2, mesh, 24, tolerance);
    CHECK(shared.cache.found > 0);
    for (const std::int64_t blocks : {24, 9}) {  // as in inference_gpu_test.cu
      const auto counts = check_answers<emulated<1>, gpt2, inf::prefix_shared, inf::ngram_speculation<3>>(
          small_gpt2, mesh, blocks, tolerance);
      CHECK(counts.cache.found > 0);
      CHECK((blocks > 9 || counts.preemptions > 0));
    }
    const auto tight = check_answers<emulated<1>, llama, inf::prefix_shared, inf::ngram_speculation<3>>(
        small_llama, mesh, 9, tolerance);
    CHECK(tight.preemptions > 0);
    CHECK(tight.proposed_tokens > 0);
  }
  check_answers<emulated<2>, qwen, inf::paged>(md::qwen3_config(small_llama), "tp=2", 24, tolerance);
}

TEST_CASE("steps with trees, moves and copies give the host's logits from a device's memory", "[cuda][infer][ranks]") {
  check_steps<emulated<2>, md::gpt2<double>>(small_gpt2, "", tolerance);
  check_steps<emulated<3>, md::llama<double>>(small_llama, "pp=2,tp=2", tolerance);
  check_steps<emulated<1>, md::llama<double>>(small_llama, "pp=2", tolerance);
}

TEST_CASE("steps of models with experts give the host's logits from a device's memory", "[cuda][infer][ranks]") {
  auto deepseek = md::deepseek_tiny();
  deepseek.context = 16, deepseek.vocabulary = 20, deepseek.initial_deviation = 0.3, deepseek.dense = 1;
  check_steps<emulated<1>, md::deepseek<double>>(deepseek, "", tolerance);
  constexpr md::mixtral_config mixtral{{.layers = 2,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .width = 12,
                                        .ffn = 7,
                                        .context = 16,
                                        .vocabulary = 20,
                                        .initial_deviation = 0.3,
                                        .head_elements = 4},
                                       5,
                                       2};
  check_steps<emulated<1>, md::mixtral<double>>(mixtral, "", tolerance);
  check_steps<emulated<1>, md::mixtral<double>>(mixtral, "tp=2", tolerance);
}

TEST_CASE("a stage says how many bytes attention takes in a step", "[cuda][infer]") {
  const auto counted = [] { return cuda_double::largest_room().exchange(0); };
  const auto deepseek = [] {
    auto c = md::deepseek_tiny();
    c.dense = c.layers;  // routing has rooms of its own
    return c;
  }();
  counted();
  // 5 rows, heads, 3 parts of 150 keys: a number, a sum and the elements of a head of values each.
  CHECK(attention_bytes<emulated<1>, md::llama<float>>(small_llama, "", counted) == 5 * 6 * 3 * (2 + 4) * 4);
  CHECK(attention_bytes<emulated<1>, md::gpt2<double>>(small_gpt2, "", counted) == 5 * 4 * 3 * (2 + 4) * 8);
  CHECK(attention_bytes<emulated<1>, md::deepseek<double>>(deepseek, "", counted) ==
        5 * 3 * (2 + deepseek.key_latent) * 8);
  CHECK(attention_bytes<emulated<4>, md::gpt2<double>>(small_gpt2, "", counted) == 0);  // goes by tiles, or key by key
  cuda_double::offered_to_groups() = 64 << 10;
  CHECK(attention_bytes<emulated<3>, md::llama<double>>(small_llama, "", counted) == 4 * 6 * 3 * (2 + 4) * 8);  // 4 KiB
  cuda_double::offered_to_groups() = 0;
}

TEST_CASE("a row that decodes in a device's memory has the same bits whatever rows a step has beside it",
          "[cuda][infer]") {
  check_companions<emulated<1>, md::llama<float>>(small_llama, "");
  check_companions<emulated<1>, md::llama<double>>(small_llama, "tp=2");
  check_companions<emulated<1>, md::gpt2<float>>(small_gpt2, "");
  // With a cache of bf16, by matrix instructions.
  auto halves = small_llama;
  halves.head_elements = 8;
  cuda_double::matrix_kernels() = 0;
  check_companions<emulated<1>, md::llama<hd::bf16>>(halves, "");
  CHECK(cuda_double::matrix_kernels() == 2 * 7);  // two layers, six steps; a prompt beside a row takes both kernels
}
