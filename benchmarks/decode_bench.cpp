// Decoding one sequence of a Llama of 100 million weights that enter products: tokens per second against the bound of memory, which is
// the measured read bandwidth over the bytes of these weights, in float as they are, and packed in float, bf16 and 8 bits. The bandwidth is
// measured alternately with decoding, in short rounds, whose medians count, so that a machine that others use, too, says something.
// `of_bound` is the share of that bound that a step reaches, whatever the number of its sequences.
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/packed_weights.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/model/llama.hpp>
#include "llama_100m.hpp"
#include "packed_stage.hpp"
#include "read_bandwidth.hpp"
#include HEDDLE_GEMM_HEADER

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;

namespace {

constexpr md::llama_config shape = llama_100m;

// Argument 0: threads; argument 1: tokens that are in the cache before; argument 2: sequences in a step.
template <class Backend>
void decode(benchmark::State& state) {
  const int threads = static_cast<int>(state.range(0));
  const std::int64_t before = state.range(1), sequences = state.range(2);
  using mesh = hd::mesh<hd::axis<hd::tp, 1>>;
  hd::launch<hd::threads, mesh>([&](auto& world) {
    using world_type = std::remove_cvref_t<decltype(world)>;
    Backend kernels{threads};
    const std::int64_t blocks = sequences * (shape.context / 16);
    inf::model_runner<md::llama<float>, world_type, Backend> runner(shape, world, kernels, {blocks, 16}, 256);
    runner.stage().initialize(1);
    pack(kernels, runner.stage());
    inf::step step;
    std::vector<float> logits(static_cast<std::size_t>(sequences * shape.vocabulary));
    for (std::int64_t s = 0; s < sequences; ++s) {
      step.sequences.push_back({s, 1, before, s * (shape.context / 16), shape.context / 16});
      for (std::int64_t b = 0; b < shape.context / 16; ++b)  // not one behind the other
        step.blocks.push_back(static_cast<std::int32_t>(s * (shape.context / 16) + b * 37 % (shape.context / 16)));
      step.tokens.push_back(static_cast<std::int32_t>(17 * s % shape.vocabulary));
      step.wanted.push_back(s);
    }
    runner.run(step, logits);
    const double weights = static_cast<double>(shape.matmul_parameters()) * bytes_per_weight<Backend>();
    constexpr int steps_per_round = 5;
    std::vector<double> read, read_cpu, of_bound, of_bound_cpu;
    double steps = 0;
    for (auto _ : state) {
      const spent first = read_memory(threads);
      const spent all = time_of([&] {
        for (int i = 0; i < steps_per_round; ++i) runner.run(step, logits);
      });
      const spent second = read_memory(threads);
      const double bytes = steps_per_round * weights;
      read.push_back(bytes_of_memory / (std::min)(first.wall, second.wall));
      read_cpu.push_back(bytes_of_memory / (std::min)(first.processor, second.processor));
      of_bound.push_back(bytes / all.wall / read.back());
      of_bound_cpu.push_back(bytes / all.processor /
                             read_cpu.back());  // idle threads of a team spin for a moment, which counts
      state.SetIterationTime(all.wall / steps_per_round);
      steps += 1;
    }
    state.counters["tokens_s"] =
        benchmark::Counter(steps * static_cast<double>(sequences), benchmark::Counter::kIsRate);
    state.counters["GB_s_read"] = median(read) / 1e9;
    state.counters["of_bound"] = median(of_bound);
    state.counters["of_bound_cpu"] = median(of_bound_cpu);
  });
}

// Blocks by_head against blocks by_token: steps of both in turn. Counter `ratio`: speed of by_head to by_token, of the medians. Argument 0: tokens before; 1: sequences; 2: whether
// blocks of a sequence lie apart, as after a while in an engine. Where they follow one another, by_token reads them in place, and by_head copies them first.
void blocks_by_head(benchmark::State& state) {
  using mesh = hd::mesh<hd::axis<hd::tp, 1>>;
  using backend = hd::compute::host<HEDDLE_GEMM>;
  const std::int64_t before = state.range(0), sequences = state.range(1), apart = state.range(2);
  hd::launch<hd::threads, mesh>([&](auto& world) {
    backend kernels{1};
    md::llama_config config = shape;
    config.context = static_cast<int>(before + 16);
    const std::int64_t each = config.context / 16;
    using runner_type = inf::model_runner<md::llama<float>, std::remove_cvref_t<decltype(world)>, backend>;
    const inf::cache_extent cache{.blocks = sequences * each, .block_rows = 16};
    inf::cache_extent heads = cache;
    heads.order = inf::cache_order::by_head;
    runner_type by_token(config, world, kernels, cache, 256), by_head(config, world, kernels, heads, 256);
    by_token.stage().initialize(1);
    by_head.stage().initialize(1);
    inf::step step;
    std::vector<float> logits(static_cast<std::size_t>(sequences * config.vocabulary));
    for (std::int64_t s = 0; s < sequences; ++s) {
      step.sequences.push_back({s, 1, before, s * each, each});
      for (std::int64_t b = 0; b < each; ++b)
        step.blocks.push_back(static_cast<std::int32_t>(s * each + (apart == 0 ? b : b * 37 % each)));
      step.tokens.push_back(static_cast<std::int32_t>(17 * s % config.vocabulary));
      step.wanted.push_back(s);
    }
    std::vector<double> token, head;
    for (bool first = true; auto _ : state) {
      const auto seconds = [&](runner_type& runner) { return time_of([&] { runner.run(step, logits); }).wall; };
      if (first) seconds(by_token), seconds(by_head);
      first = false;
      token.push_back(seconds(by_token));
      head.push_back(seconds(by_head));
    }
    state.counters["by_token"] = static_cast<double>(sequences) / median(token);
    state.counters["by_head"] = static_cast<double>(sequences) / median(head);
    state.counters["ratio"] = median(token) / median(head);
  });
}
BENCHMARK(blocks_by_head)
    ->ArgNames({"before", "sequences", "apart"})
    ->Args({1008, 1, 1})
    ->Args({1008, 8, 1})
    ->Args({8176, 4, 1})
    ->Args({1008, 1, 0})
    ->Args({8176, 4, 0})
    ->Iterations(31)
    ->Unit(benchmark::kMillisecond);

void arguments(benchmark::internal::Benchmark* b) {
  b->ArgNames({"threads", "before", "sequences"})->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(9);
  for (const int threads : {1, 2}) {
    b->Args({threads, 16, 1})->Args({threads, 1000, 1})->Args({threads, 16, 4})->Args({threads, 16, 16});
  }
}
template <class Format>
using packed = hd::compute::packed_weights<hd::compute::host<>, Format>;
BENCHMARK(decode<hd::compute::host<HEDDLE_GEMM>>)->Apply(arguments);
BENCHMARK(decode<hd::compute::host<>>)->Apply(arguments);
BENCHMARK(decode<packed<hd::compute::f32_weights>>)->Apply(arguments);
BENCHMARK(decode<packed<hd::compute::bf16_weights>>)->Apply(arguments);
BENCHMARK(decode<packed<hd::compute::q8_weights<>>>)->Apply(arguments);
BENCHMARK(decode<packed<hd::compute::w8a8_weights<>>>)->Apply(arguments);

}  // namespace

BENCHMARK_MAIN();
