// benchmarks/elastic_bench.cpp: how long instances that merge and split pause. Four ranks, a Llama of 8 layers of width 512 in float, 1,664 tokens of text on each rank. Counters, each the
// median of the rounds: `step_ms` of all instances of one rank and `merged_ms` of that of four; `merge` and `split`: how long the transform took, in steps of before it; `piece`: the longest of the
// pauses between two steps in which weights come in pieces, in steps of the merged instance; `pieces`: how many.
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/elastic.hpp>
#include <heddle/model/elastic_llama.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hd = heddle;
namespace infer = heddle::infer;

namespace {

using mesh_type = hd::mesh<hd::axis<hd::tp>>;
using world_type = hd::world<hd::threads, mesh_type>;
using instances_type = infer::elastic<hd::model::elastic_llama<float>, world_type, hd::compute::host<>, 1, 4>;

constexpr hd::model::llama_config config{
    .layers = 8, .heads = 8, .kv_heads = 4, .width = 512, .ffn = 1536, .context = 2048, .vocabulary = 512};

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ssize(x) / 2, x.end());
  return x[x.size() / 2];
}
template <class F>
double ms_of(const F& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

struct rounds {
  std::vector<double> step{}, merged{}, merge{}, split{}, piece{};
  std::int64_t pieces = 0;
};

// `piece`: bytes of weights that come after each step, 0 for all at once when instances split.
rounds pauses(infer::elastic_weights how, std::int64_t piece) {
  rounds all;
  hd::launch<hd::threads>(mesh_type{4}, [&](world_type& world) {
    hd::compute::host<> kernels{1};
    instances_type instances(config, world, kernels,
                             {.blocks = 128, .block_rows = 16, .order = infer::cache_order::by_head}, 64, how);
    instances.stage().initialize(1);
    instances.weights_written();
    for (int i = 0; i < 4; ++i) {
      infer::request r{.max_tokens = 90, .sampling = {.temperature = 0}, .ignore_end_tokens = true};
      for (std::int32_t t = 0; t < 416; ++t) r.prompt.push_back((t * (i + 3) + world.rank()) % 509);
      instances.submit(r);
    }
    for (int i = 0; i < 30; ++i) instances.step();  // the prompts
    // Ranks may share cores: a step of instances of one rank is timed until all of them have taken theirs.
    const auto meet = [&] { world.control().barrier(); };
    for (int round = 0; round < 5; ++round) {
      std::vector<double> alone, together, came;
      for (int i = 0; i < 3; ++i)
        alone.push_back(ms_of([&] {
          instances.step();
          meet();
        }));
      const double merge = ms_of([&] { instances.transform(4); });
      if (!instances.leads()) {
        instances.follow();
        continue;
      }
      std::int64_t left = piece > 0 ? 1 : 0;
      for (int i = 0; i < 4 || left > 0; ++i) {
        together.push_back(ms_of([&] { instances.step(); }));
        if (left > 0) came.push_back(ms_of([&] { left = instances.bring_weights(piece); }));
      }
      const double split = ms_of([&] { instances.transform(1); });
      all.step.push_back(median(alone)), all.merged.push_back(median(together));
      all.merge.push_back(merge / median(alone)), all.split.push_back(split / median(together));
      all.piece.push_back(came.empty() ? 0 : *std::max_element(came.begin(), came.end()) / median(together));
      all.pieces = std::ssize(came);
    }
    while (!instances.idle()) instances.step();
    instances.finish();
  });
  return all;
}

void transforms(benchmark::State& state) {
  for (auto _ : state) {
    const rounds r = pauses(static_cast<infer::elastic_weights>(state.range(0)), state.range(1) << 20);
    state.counters["step_ms"] = median(r.step), state.counters["merged_ms"] = median(r.merged);
    state.counters["merge"] = median(r.merge), state.counters["split"] = median(r.split);
    state.counters["piece"] = median(r.piece), state.counters["pieces"] = static_cast<double>(r.pieces);
  }
}
BENCHMARK(transforms)
    ->ArgNames({"weights", "MiB"})
    ->Args({static_cast<int>(infer::elastic_weights::shared), 0})
    ->Args({static_cast<int>(infer::elastic_weights::released), 0})
    ->Args({static_cast<int>(infer::elastic_weights::released), 16})
    ->Args({static_cast<int>(infer::elastic_weights::released), 8})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
