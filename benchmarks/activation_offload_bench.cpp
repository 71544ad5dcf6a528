// benchmarks/activation_offload_bench.cpp: a transformer that keeps its activations beside one that offloads them to files:
// peak memory and step time. The two take turns step by step, so that what else the machine does hits both.
#include HEDDLE_GEMM_HEADER
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/activations/memory_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/trainer.hpp>

#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace act = heddle::activations;

namespace {

using mesh = hd::mesh<hd::axis<hd::dp, 1>>;
template <class Activations, class World>
using trainer_of = hd::train::trainer<
    hd::model::gpt2<float>,
    hd::strategy<mesh, hd::schedule::one_f_one_b<hd::microbatches<>>, hd::compute::host<HEDDLE_GEMM>, Activations>,
    World>;

struct random_tokens {
  std::int64_t context() const { return 256; }
  std::int64_t validation_samples() const { return 0; }
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    const hd::counter_random random(1, 3);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto at = static_cast<std::uint64_t>(block.first * context()) + i;
      tokens[i] = static_cast<std::int32_t>(random.integer(2 * at) % 512);
      targets[i] = static_cast<std::int32_t>(random.integer(2 * at + 1) % 512);
    }
  }
  void fill_validation(hd::io::sample_block block, std::span<std::int32_t> tokens,
                       std::span<std::int32_t> targets) const {
    fill_train(block, tokens, targets);
  }
};

// 12 layers of 384, 512 tokens: about 13 MB of saved activations in each layer.
hd::train::options<hd::model::gpt2_config> options(int microbatches) {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = 12, .heads = 6, .width = 384, .context = 256, .vocabulary = 512};
  o.batch = 2 * microbatches;
  o.microbatches = microbatches;
  o.steps = 1000000;
  return o;
}

// Of all threads of this process: what other processes do does not count.
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all.empty() ? 0 : all[all.size() / 2];
}

template <class Activations>
void offload_beside_keep(benchmark::State& state) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    const int microbatches = static_cast<int>(state.range(0));
    trainer_of<act::keep, world_type> keep(world, options(microbatches));
    trainer_of<Activations, world_type> away(world, options(microbatches));
    auto& memory = away.stage().saved_layers();
    const random_tokens data;
    for (int i = 0; i < 3; ++i) {  // the amount is decided in the third step
      keep.step(data);
      away.step(data);
    }
    const act::offload_report before = memory.report();
    memory.reset_peak();
    std::vector<double> kept, offloaded, ratio, cpu;
    for (auto _ : state) {
      const double begin = cpu_seconds();
      kept.push_back(keep.step(data).seconds);
      const double between = cpu_seconds();
      offloaded.push_back(away.step(data).seconds);
      cpu.push_back((cpu_seconds() - between) / (between - begin));
      ratio.push_back(offloaded.back() / kept.back());
      state.SetIterationTime(offloaded.back());
    }
    const act::offload_report after = memory.report();
    const auto steps = static_cast<double>(offloaded.size());
    const auto all = static_cast<double>(memory.bytes_per_slot());
    state.counters["keep_peak_MB"] = 1e-6 * all;
    state.counters["peak_MB"] = 1e-6 * static_cast<double>(after.peak_bytes);
    state.counters["saved_%"] = 100 * (1 - static_cast<double>(after.peak_bytes) / all);
    state.counters["step_ratio"] = median(ratio);
    state.counters["best_ratio"] =
        *std::min_element(offloaded.begin(), offloaded.end()) / *std::min_element(kept.begin(), kept.end());
    state.counters["cpu_ratio"] = median(cpu);
    state.counters["stall_ms"] = 1e3 * (after.tensors.stall_seconds - before.tensors.stall_seconds) / steps;
    state.counters["layers"] = after.offloaded_layers;
    state.counters["MB_written"] =
        1e-6 * static_cast<double>(after.tensors.bytes_stored - before.tensors.bytes_stored) / steps;
    state.counters["forwarded"] = static_cast<double>(after.tensors.forwarded - before.tensors.forwarded) / steps;
    state.counters["GB_per_s"] = 1e-9 * static_cast<double>(after.store.bytes_written) /
                                 (after.store.write_seconds > 0 ? after.store.write_seconds : 1);
    state.counters["direct_%"] = 100 * static_cast<double>(after.store.bytes_direct) /
                                 static_cast<double>(after.store.bytes_written + after.store.bytes_read + 1);
  });
}

using adaptive_files = act::offload<>;
using all_to_files = act::offload<act::file_store, act::amount::all>;
using all_to_memory = act::offload<act::memory_store, act::amount::all>;

}  // namespace

BENCHMARK(offload_beside_keep<adaptive_files>)
    ->Name("files, adaptive/microbatches")
    ->Arg(1)
    ->Arg(4)
    ->UseManualTime()
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(offload_beside_keep<all_to_files>)
    ->Name("files, all/microbatches")
    ->Arg(1)
    ->UseManualTime()
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(offload_beside_keep<all_to_memory>)
    ->Name("memory, all/microbatches")
    ->Arg(1)
    ->UseManualTime()
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond);

BENCHMARK_MAIN();
