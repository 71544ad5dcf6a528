// benchmarks/activation_offload_bench.cpp: transformers that keep their activations beside ones that offload them: peak memory,
// step time and processor time, by width. The two take turns step by step, so that what else the machine does hits both.
#include HEDDLE_GEMM_HEADER
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/plan/offload_amount.hpp>
#include <heddle/train/activations/default_file_store.hpp>
#include <heddle/train/activations/memory_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/trainer.hpp>

#include "random_tokens.hpp"

#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
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

// 12 layers of a width, heads of 64, microbatches of 2 x 512 tokens; a small vocabulary, so that the layers are what counts.
constexpr int layers = 12, context = 512;
hd::train::options<hd::model::gpt2_config> options(int width, int microbatches) {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = layers, .heads = width / 64, .width = width, .context = context, .vocabulary = 512};
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
double rate(std::int64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

template <class Activations>
void offload_beside_keep(benchmark::State& state) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    const auto o = options(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
    trainer_of<act::keep, world_type> keep(world, o);
    trainer_of<Activations, world_type> away(world, o);
    auto& memory = away.stage().saved_layers();
    const random_tokens data{context, o.model.vocabulary};
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
    const auto per_step = [&](auto act::cache_counters::* what) {
      return static_cast<double>(after.tensors.*what - before.tensors.*what) / steps;
    };
    const auto all = static_cast<double>(memory.bytes_per_slot());
    auto& out = state.counters;
    out["keep_ms"] = 1e3 * median(kept);
    out["keep_peak_MB"] = 1e-6 * all;
    out["peak_MB"] = 1e-6 * static_cast<double>(after.peak_bytes);
    out["saved_%"] = 100 * (1 - static_cast<double>(after.peak_bytes) / all);
    out["step_ratio"] = median(ratio);
    out["least_ratio"] =
        *std::min_element(offloaded.begin(), offloaded.end()) / *std::min_element(kept.begin(), kept.end());
    out["cpu_ratio"] = median(cpu);
    out["stall_ms"] = 1e3 * per_step(&act::cache_counters::stall_seconds);
    out["layers"] = after.offloaded_layers;
    out["MB_written"] = 1e-6 * rate(after.store.bytes_written - before.store.bytes_written, steps);
    out["forwarded"] = per_step(&act::cache_counters::forwarded);
    out["declined"] = static_cast<double>(after.declined - before.declined) / steps;
    out["write_GB/s"] = 1e-9 * rate(after.store.bytes_written - before.store.bytes_written,
                                    after.store.write_seconds - before.store.write_seconds);
    out["read_GB/s"] = 1e-9 * rate(after.store.bytes_read - before.store.bytes_read,
                                   after.store.read_seconds - before.store.read_seconds);
    out["direct_%"] = 100 * static_cast<double>(after.store.bytes_direct) /
                      static_cast<double>(after.store.bytes_written + after.store.bytes_read + 1);
    // What the rule of the amount asks for, if a third of the step is forward, in equal layers.
    const std::vector<hd::plan::offload_scope> scopes(
        layers, {all / layers, median(kept) / 3 / static_cast<double>(layers * state.range(1))});
    out["need_GB/s"] = 1e-9 * hd::plan::needed_bytes_per_second(scopes, layers - 2);  // the last layer stays
  });
}

template <class Store>
using all_to = act::offload<Store, act::amount::all>;

using halves_to_memory = act::offload<act::memory_store, act::amount::all, act::prefetch::ahead<2>,
                                      act::min_bytes<(std::int64_t{1} << 20)>, act::granularity::halves>;

template <class Activations>
void add(const char* name, std::vector<std::vector<std::int64_t>> shapes, int steps) {
  auto* const b = benchmark::RegisterBenchmark(name, offload_beside_keep<Activations>);
  for (const auto& width_and_microbatches : shapes) b->Args(width_and_microbatches);
  b->UseManualTime()->Iterations(steps)->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  add<act::offload<>>("threads, adaptive/width/microbatches", {{384, 1}, {768, 1}, {1024, 1}, {1024, 4}, {1536, 1}}, 5);
  add<all_to<act::file_store>>("threads, all/width/microbatches", {{384, 1}, {1024, 1}}, 5);
#if defined(HEDDLE_HAS_URING)  // what found_file_store is then
  if (act::uring_store::available()) {
    add<act::offload<act::uring_store>>("io_uring, adaptive/width/microbatches", {{384, 1}, {768, 1}, {1024, 1}}, 5);
    add<all_to<act::uring_store>>("io_uring, all/width/microbatches", {{384, 1}, {1024, 1}}, 5);
  } else {
    std::puts("no rows of io_uring: the system refuses it");
  }
#else
  std::puts("no rows of io_uring: liburing was not found");
#endif
  add<all_to<act::memory_store>>("memory, all/width/microbatches", {{384, 1}, {1024, 1}}, 5);
  add<halves_to_memory>("memory, all, halves/width/microbatches", {{384, 1}, {1024, 1}}, 5);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
