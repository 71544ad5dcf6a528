// benchmarks/search_bench.cpp: measures the search of strategies and the choice of a strategy per layer.
#include <heddle/plan/layer_strategies.hpp>
#include <heddle/train/search.hpp>

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace pl = heddle::plan;
namespace tr = heddle::train;

namespace {

// A block of 1e9 bytes of weights whose time falls with tp, less what its sums take.
tr::search_costs costs_of(const tr::search_point& p) {
  const int tp = p.extent("tp"), dp = p.extent("dp");
  const double weights = 1e9 / tp, work = 0.004 * p.samples / tp + (tp > 1 ? 0.0007 * p.samples : 0.0);
  const double share = 1.0 / dp;
  tr::search_layer l;
  l.forward = l.backward_input = l.backward_weight = work;
  l.gather = p.zero == 3 ? 0.0003 * dp : 0;
  l.reduction = dp > 1 ? 0.002 : 0;
  l.state_bytes = static_cast<std::int64_t>(
      weights * ((p.zero == 3 ? share : 1) + (p.zero >= 2 ? share : 1) + 2 * (p.zero >= 1 ? share : 1)));
  l.saved_bytes = static_cast<std::int64_t>(4e8 * p.samples / tp);
  l.input_bytes = static_cast<std::int64_t>(3e7 * p.samples / tp);
  tr::search_costs costs;
  costs.layers = {l};
  costs.last.forward = costs.last.backward_input = costs.last.backward_weight = 0.0015 / tp * p.samples;
  costs.message_seconds = 0.0001;
  return costs;
}

void search(benchmark::State& state) {
  tr::search_space space{.ranks = static_cast<int>(state.range(0)), .layers = 80, .batch = 2 * state.range(0)};
  std::int64_t candidates = 0;
  for (auto _ : state) {
    const tr::search_result found = tr::search(space, costs_of);
    if (found.best.empty()) state.SkipWithError("nothing fits");
    candidates = found.candidates;
  }
  state.counters["candidates"] = static_cast<double>(candidates);
  state.counters["candidates/s"] =
      benchmark::Counter(static_cast<double>(candidates), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(search)->ArgName("ranks")->Arg(64)->Arg(1024)->Unit(benchmark::kMillisecond);

// 80 layers, 44 strategies in 8 classes of layouts; `equal`: of all layers the same.
void choice_per_layer(benchmark::State& state) {
  const bool equal = state.range(0) != 0;
  std::mt19937 draw(7);
  const auto uniform = [&] { return static_cast<double>(draw()) / 4294967296.0; };
  std::vector<pl::layer_option> one;
  for (int s = 0; s < 44; ++s) {
    const double mib = std::ceil(uniform() * 4000);
    one.push_back({1 + 2000 / (mib + 500) + 0.3 * uniform(), static_cast<std::int64_t>(mib) << 20, s % 8});
  }
  std::vector<std::vector<pl::layer_option>> layers(80, one);
  if (!equal)
    for (auto& layer : layers)
      for (pl::layer_option& o : layer) {
        o.seconds *= 0.9 + 0.2 * uniform();
        o.bytes = static_cast<std::int64_t>(static_cast<double>(o.bytes) * (0.9 + 0.2 * uniform()));
      }
  std::vector<double> changes;
  for (int i = 0; i < 64; ++i) changes.push_back(i % 9 == 0 ? 0.0 : 0.1 + 0.3 * uniform());
  std::size_t labels = 0;
  for (auto _ : state) {
    const auto found = pl::choose_layer_strategies(layers, std::int64_t{60000} << 20, changes);
    if (!found.fits()) state.SkipWithError("nothing fits");
    labels = found.labels;
  }
  state.counters["labels"] = static_cast<double>(labels);
}
BENCHMARK(choice_per_layer)->ArgName("equal")->Arg(1)->Arg(0)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
