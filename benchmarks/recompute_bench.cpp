// benchmarks/recompute_bench.cpp: a transformer that keeps its activations beside one that computes some of them again:
// memory for activations and step time. The two take turns step by step, so that what else the machine does hits both.
#include HEDDLE_GEMM_HEADER
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/trainer.hpp>

#include "random_tokens.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;

namespace {

using mesh = hd::mesh<hd::axis<hd::dp, 1>>;
template <class World>
using trainer_of = hd::train::trainer<hd::model::gpt2<float>,
                                      hd::strategy<mesh, hd::schedule::gpipe<hd::microbatches<>>,
                                                   hd::compute::host<HEDDLE_GEMM>, hd::activations::recompute<>>,
                                      World>;

void recompute_beside_keep(benchmark::State& state, const std::string& again) {
  hd::train::options<hd::model::gpt2_config> options;
  options.model = {.layers = 8, .heads = 4, .width = 256, .context = 128, .vocabulary = 512};
  options.batch = 8;
  options.microbatches = 4;  // all of them wait for their backward
  options.steps = 1000000;
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    trainer_of<world_type> keep(world, options);
    options.recompute = again;
    trainer_of<world_type> less(world, options);
    const random_tokens data{.length = 128, .vocabulary = 512};
    keep.step(data);
    less.step(data);
    std::vector<double> ratio;
    for (auto _ : state) {
      const double kept = keep.step(data).seconds, recomputed = less.step(data).seconds;
      ratio.push_back(recomputed / kept);
      state.SetIterationTime(recomputed);
    }
    std::sort(ratio.begin(), ratio.end());
    const auto all = keep.activation_bytes(), some = less.activation_bytes();
    state.counters["keep_MB"] = 1e-6 * static_cast<double>(all.total());
    state.counters["MB"] = 1e-6 * static_cast<double>(some.total());
    state.counters["slots_saved_%"] = 100 * (1 - static_cast<double>(some.saved) / static_cast<double>(all.saved));
    state.counters["step_ratio"] = ratio[ratio.size() / 2];
  });
}

const int registered = [] {
  for (const char* again : {"none", "full", "full,head.logits", "every 2", "mlp.activated",
                            "mlp.activated,ln_1.out,ln_2.out", "attn.qkv,attn.out", "mlp.hidden,mlp.activated"})
    benchmark::RegisterBenchmark((std::string("recompute ") + again).c_str(),
                                 [again](benchmark::State& state) { recompute_beside_keep(state, again); })
        ->UseManualTime()
        ->Iterations(7)
        ->Unit(benchmark::kMillisecond);
  return 0;
}();

}  // namespace

BENCHMARK_MAIN();
