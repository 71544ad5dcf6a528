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

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

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

TEST_CASE("an engine of a model in bf16 draws on the device what the host's sampler draws", "[cuda][infer][ranks]") {
  using llama = md::llama<hd::bf16>;
  using gpt2 = md::gpt2<hd::bf16>;
  auto matrices = small_llama;
  matrices.head_elements = 8;
  cuda_double::matrix_kernels() = 0;
  for (const char* mesh : {"", "tp=2", "pp=2,tp=2"}) {
    const auto shared =
        check_drawn_answers<emulated<1>, llama, inf::prefix_shared, inf::ngram_speculation<3>>(matrices, mesh, 24);
    CHECK(shared.cache.found > 0);
    CHECK(shared.proposed_tokens > 0);
    check_greedy_answers<emulated<1>, llama, inf::prefix_shared, inf::chunked_prefill<5>>(matrices, mesh);
  }
  CHECK(cuda_double::matrix_kernels() > 0);
  CHECK(check_drawn_answers<emulated<2>, gpt2, inf::paged>(small_gpt2, "tp=2", 9).preemptions > 0);
  constexpr md::mixtral_config mixtral{{.layers = 2,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .width = 16,
                                        .ffn = 8,
                                        .context = 20,
                                        .vocabulary = 23,
                                        .initial_deviation = 0.4,
                                        .head_elements = 8},
                                       5,
                                       2};
  check_greedy_answers<emulated<1>, md::mixtral<hd::bf16>, inf::prefix_shared>(mixtral, "tp=2");
}

TEST_CASE("steps with trees, moves and copies give the host's logits from a device's memory", "[cuda][infer][ranks]") {
  check_steps<emulated<2>, md::gpt2<double>>(small_gpt2, "", tolerance);
  check_steps<emulated<3>, md::llama<double>>(small_llama, "pp=2,tp=2", tolerance);
  check_steps<emulated<1>, md::llama<double>>(small_llama, "pp=2", tolerance);
  check_steps<emulated<2>, md::gpt2<hd::bf16>>(small_gpt2, "", 0.1);
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

TEST_CASE("a step gives tokens of some rows and logits of others", "[cuda][infer][ranks]") {
  constexpr auto config = [] {
    auto c = small_gpt2;
    c.context = 64;
    return c;
  }();
  for (const char* mesh : {"", "pp=2,tp=2"}) {
    CAPTURE(mesh);
    std::vector<double> all, some;
    std::vector<hd::compute::token_draw> draws;
    std::vector<hd::compute::token_drawn> drawn;
    std::vector<std::string> refused;
    on_leader<md::gpt2<double>, emulated<2>>(config, mesh, {20, 4}, 50, [&](auto& runner) {
      inf::step s{.tokens = {}, .sequences = {{0, 45, 0, 0, 12}}};
      for (std::int32_t i = 0; i < 45; ++i) s.tokens.push_back(i * i % 23);
      for (std::int32_t i = 0; i < 12; ++i) s.blocks.push_back(i);
      for (std::int64_t i = 0; i < 45; ++i) s.wanted.push_back(i);  // more than the head takes at once
      all.resize(45 * 23);
      runner.run(s, std::span<double>(all));
      for (const std::int64_t row : {0, 3, 4, 31, 32, 40, 44})
        draws.push_back({.temperature = row % 2 == 0 ? 0.0 : 0.8, .uniform = inf::drawing_number(5, row), .row = row});
      drawn.resize(draws.size());
      const auto memory = runner.logits_memory(all.size());
      std::fill(memory.begin(), memory.end(), -1);
      runner.run(s, memory, std::span<const hd::compute::token_draw>(draws),
                 std::span<hd::compute::token_drawn>(drawn));
      some.assign(memory.begin(), memory.end());
      const auto refuse = [&](std::vector<hd::compute::token_draw> wrong, std::size_t room) {
        std::vector<hd::compute::token_drawn> to(room);
        try {
          runner.run(s, memory, std::span<const hd::compute::token_draw>(wrong),
                     std::span<hd::compute::token_drawn>(to));
          refused.emplace_back("nothing");
        } catch (const hd::config_error& e) {
          refused.emplace_back(e.what());
        }
      };
      refuse({{.row = 4}, {.row = 4}}, 2);
      refuse({{.row = 45}}, 1);
      refuse({{.row = 4}}, 0);
    });
    inf::token_sampler sampler;
    std::size_t next = 0;
    for (std::int64_t r = 0; r < 45; ++r) {
      CAPTURE(r);
      const auto row = std::span<const double>(all).subspan(static_cast<std::size_t>(r) * 23, 23);
      const auto got = std::span<const double>(some).subspan(static_cast<std::size_t>(r) * 23, 23);
      const bool is_drawn = next < draws.size() && draws[next].row == r;
      CHECK(std::all_of(got.begin(), got.end(), [](double x) { return x == -1; }) == is_drawn);
      if (!is_drawn) {
        CHECK(std::equal(row.begin(), row.end(), got.begin()));
        continue;
      }
      inf::request asked{};
      asked.sampling.temperature = draws[next].temperature;
      CHECK(drawn[next++].token == sampler.draw(row, asked, 5, r, {}, {}).token);
    }
    REQUIRE(refused.size() == 3);
    CHECK(refused[0].find("should ascend below the 45 wanted rows, got 4 after 4") != std::string::npos);
    CHECK(refused[1].find("should ascend below the 45 wanted rows, got 45 after -1") != std::string::npos);
    CHECK(refused[2].find("1 draws have room for 0 tokens") != std::string::npos);
  }
}
