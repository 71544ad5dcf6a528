// benchmarks/hybrid_bench.cpp: a hybrid of states and windows beside a Llama of equal size: tokens a second of decoding behind 1,024 and 65,536 tokens, and of
// a prompt of 2,048 tokens. Counter `ratio`: of the hybrid to the Llama; steps of both are measured in turn, and the medians compared.
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/spiking_brain.hpp>
#include HEDDLE_GEMM_HEADER

#include <benchmark/benchmark.h>

#include "llama_100m.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <vector>

namespace hd = heddle;
namespace infer = heddle::infer;

namespace {

using backend = hd::compute::host<HEDDLE_GEMM>;
using mesh_type = hd::mesh<hd::axis<hd::tp, 1>>;
using world_type = hd::world<hd::threads, mesh_type>;
constexpr std::int64_t block = 16, prompt_rows = 256, window = 1024;

// Seconds of a step of `rows` tokens behind `position` others.
template <class Runner>
double seconds_of_step(Runner& runner, std::int64_t position, std::int64_t rows, std::vector<float>& logits) {
  infer::step s;
  s.tokens.resize(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < rows; ++i)
    s.tokens[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 7 % 32000);
  s.blocks.resize(static_cast<std::size_t>((position + rows + block - 1) / block));
  std::iota(s.blocks.begin(), s.blocks.end(), 0);
  s.sequences = {{.rows = rows,
                  .position = position,
                  .blocks = std::ssize(s.blocks),
                  .state = runner.limits().states > 0 ? 0 : -1}};
  s.wanted = {rows - 1};
  const auto begin = std::chrono::steady_clock::now();
  runner.run(s, logits);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ssize(x) / 2, x.end());
  return x[x.size() / 2];
}

// range(0): tokens before; range(1): tokens of a prompt, or 0 for steps of one token.
void hybrid(benchmark::State& state) {
  const std::int64_t before = state.range(0), prompt = state.range(1);
  hd::launch<hd::threads, mesh_type>([&](world_type& world) {
    backend kernels{2};
    hd::model::llama_config config = llama_100m;
    config.context = static_cast<int>(before + prompt + 64);
    const infer::cache_extent cache{.blocks = config.context / block + 1, .block_rows = block, .states = 1};
    infer::model_runner<hd::model::llama<float>, world_type, backend> whole(config, world, kernels, cache, prompt_rows);
    infer::model_runner<hd::model::spiking_brain<float>, world_type, backend> parts(
        hd::model::spiking_brain_config(config, window, 16), world, kernels, cache, prompt_rows);
    whole.stage().initialize(1);
    parts.stage().initialize(1);
    std::vector<float> logits(32000);
    const auto seconds = [&](auto& runner) {
      if (prompt == 0) return seconds_of_step(runner, before, 1, logits);
      double all = 0;
      for (std::int64_t at = 0; at < prompt; at += prompt_rows) all += seconds_of_step(runner, at, prompt_rows, logits);
      return all;
    };
    seconds(whole), seconds(parts);
    std::vector<double> of_whole, of_parts;
    for (auto _ : state) {
      of_whole.push_back(seconds(whole));
      of_parts.push_back(seconds(parts));
    }
    const double rows = prompt == 0 ? 1.0 : static_cast<double>(prompt);
    state.counters["llama"] = rows / median(of_whole);
    state.counters["hybrid"] = rows / median(of_parts);
    state.counters["ratio"] = median(of_whole) / median(of_parts);
  });
}
BENCHMARK(hybrid)->Args({1024, 0})->Args({65536, 0})->Iterations(15)->Unit(benchmark::kMillisecond);
BENCHMARK(hybrid)->Args({0, 2048})->Iterations(3)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
