// Decoding one sequence of a Llama of 100 million weights that enter products: tokens per second against the bound of memory, which is
// the measured read bandwidth over the bytes of these weights. Run on a quiet machine; the bandwidth is measured right before.
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/model/llama.hpp>
#include HEDDLE_GEMM_HEADER

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;

namespace {

constexpr md::llama_config shape{
    .layers = 12, .heads = 12, .kv_heads = 4, .width = 768, .ffn = 2048, .context = 1024, .vocabulary = 32000};

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// Bytes per second that so many threads read, each its own part of 512 MiB: the best of several passes.
double read_bandwidth(int threads) {
  static const std::vector<float> memory(std::size_t{128} << 20, 1.0f);
  const std::size_t part = memory.size() / static_cast<std::size_t>(threads);
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::jthread> readers;
    for (int t = 0; t < threads; ++t)
      readers.emplace_back([&, t] {
        const float* const from = memory.data() + static_cast<std::size_t>(t) * part;
        float sums[64] = {};
        for (std::size_t i = 0; i + 64 <= part; i += 64)
          for (std::size_t l = 0; l < 64; ++l) sums[l] += from[i + l];
        benchmark::DoNotOptimize(sums);
      });
    readers.clear();
    best = (std::max)(
        best, static_cast<double>(memory.size() * sizeof(float)) / seconds(std::chrono::steady_clock::now() - begin));
  }
  return best;
}

// Argument 0: threads; argument 1: tokens that are in the cache before; argument 2: sequences in a step.
template <class Gemm>
void decode(benchmark::State& state) {
  const int threads = static_cast<int>(state.range(0));
  const std::int64_t before = state.range(1), sequences = state.range(2);
  const double bandwidth = read_bandwidth(threads);
  using mesh = hd::mesh<hd::axis<hd::tp, 1>>;
  hd::launch<hd::threads, mesh>([&](auto& world) {
    using world_type = std::remove_cvref_t<decltype(world)>;
    using backend = hd::compute::host<Gemm>;
    backend kernels{threads};
    const std::int64_t blocks = sequences * (shape.context / 16);
    inf::model_runner<md::llama<float>, world_type, backend> runner(shape, world, kernels, {blocks, 16}, 256);
    runner.stage().initialize(1);
    inf::step step;
    std::vector<float> logits(static_cast<std::size_t>(sequences * shape.vocabulary));
    for (std::int64_t s = 0; s < sequences; ++s) {
      step.sequences.push_back({s, 1, before, s * (shape.context / 16), shape.context / 16});
      for (std::int64_t b = 0; b < shape.context / 16; ++b)  // not one behind the other
        step.blocks.push_back(static_cast<std::int32_t>(s * (shape.context / 16) + b * 37 % (shape.context / 16)));
      step.tokens.push_back(static_cast<std::int32_t>(17 * s % shape.vocabulary));
      step.wanted.push_back(s);
    }
    for (auto _ : state) runner.run(step, logits);
    const double weights = static_cast<double>(shape.matmul_parameters()) * sizeof(float);
    state.counters["tokens/s"] =
        benchmark::Counter(static_cast<double>(state.iterations() * sequences), benchmark::Counter::kIsRate);
    state.counters["GB/s read"] = bandwidth / 1e9;
    state.counters["of bound"] =
        benchmark::Counter(static_cast<double>(state.iterations()) * weights / bandwidth, benchmark::Counter::kIsRate);
  });
}

void arguments(benchmark::internal::Benchmark* b) {
  b->ArgNames({"threads", "before", "sequences"})->Unit(benchmark::kMillisecond)->UseRealTime();
  for (const int threads : {1, 2}) {
    b->Args({threads, 16, 1})->Args({threads, 1000, 1})->Args({threads, 16, 4})->Args({threads, 16, 16});
  }
}
BENCHMARK(decode<HEDDLE_GEMM>)->Apply(arguments);
BENCHMARK(decode<hd::compute::portable>)->Apply(arguments);

}  // namespace

BENCHMARK_MAIN();
