// benchmarks/placement_bench.cpp: seconds of planners: groups on pods, nano-batches, experts and tokens on ranks.
#include <heddle/core/random.hpp>
#include <heddle/plan/co_clustering.hpp>
#include <heddle/plan/nano_batches.hpp>
#include <heddle/plan/place_groups.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace plan = heddle::plan;
namespace sim = heddle::sim;

namespace {

// The third setting of arXiv:2509.15940: 11 pods, 46 pipelines of 8 nodes; free nodes by a seed. Target: 50 ms.
void groups_on_pods(benchmark::State& state) {
  const heddle::counter_random random(static_cast<std::uint64_t>(state.range(0)), 0);
  plan::group_request r{{}, 46, 8};
  for (std::uint64_t k = 0; k < 11; ++k) r.free_nodes.push_back(34 + static_cast<int>(random.integer(k) % 20));
  std::size_t choices = 0;
  for (auto _ : state) choices = plan::place_groups(r).choices.size();
  state.counters["choices"] = static_cast<double>(choices);
}
BENCHMARK(groups_on_pods)->Arg(1)->Arg(2)->Arg(3)->Unit(benchmark::kMillisecond);

// Llama-2 70B on eight A100, 2048 rows, the published seconds. Target: 2 s for two parts.
void nano_batches(benchmark::State& state) {
  const auto op = [](const char* name, sim::lane where, double ms, std::vector<int> after) {
    return plan::nano_operation{name, where, [ms](int rows) { return ms * 1e-3 / 80 * rows / 2048; }, std::move(after)};
  };
  using enum sim::lane;
  const std::vector<plan::nano_operation> ops{
      op("kqv", compute, 16.08, {}),        op("decode", memory, 35.60, {0}), op("prompt", compute, 4.56, {0}),
      op("gather", network, 11.98, {1, 2}), op("o", compute, 16.01, {3}),     op("gather_o", network, 11.98, {4}),
      op("up_gate", compute, 69.92, {5}),   op("down", compute, 34.96, {6}),  op("reduce", network, 23.96, {7})};
  plan::nano_plan found;
  for (auto _ : state)
    found = plan::find_nano_plan(ops, sim::nanoflow_shares(),
                                 {.rows = 2048, .parts = static_cast<int>(state.range(0)), .layers = 80});
  state.counters["tokens/s/device"] = 2048 / found.seconds / 8;
  state.counters["gap %"] = 100 * found.gap();
}
BENCHMARK(nano_batches)->Arg(2)->Arg(4)->Unit(benchmark::kMillisecond);

// 64 experts, 32k tokens, 24 layers on 8 ranks, a planted placement. Target: 30 s.
void experts_and_tokens(benchmark::State& state) {
  const int layers = 24, tokens = static_cast<int>(state.range(0)), experts = 64, ranks = 8;
  plan::expert_counts counts(layers, tokens, experts);
  const heddle::counter_random random(20261129, 0);
  std::uint64_t draw = 0;
  for (int l = 0; l < layers; ++l)
    for (int t = 0; t < tokens; ++t)
      for (int k = 0; k < 12; ++k) {
        const std::uint64_t bits = random.integer(draw++);
        const int own = t % ranks + ranks * static_cast<int>(bits % 8), any = static_cast<int>(bits >> 8 & 63);
        ++counts.at(l, t, ((bits >> 32) % 10 == 0 ? any : own) * (2 * l + 1) % experts);
      }
  plan::expert_placement found;
  for (auto _ : state) found = plan::co_cluster(counts, {.ranks = ranks});
  state.counters["local share"] = found.local_share;
  state.counters["load"] = found.load;
}
BENCHMARK(experts_and_tokens)->Arg(2048)->Arg(32768)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
