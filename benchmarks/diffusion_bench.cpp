// benchmarks/diffusion_bench.cpp: tokens a second of a masked model that is trained here, of answers of 512 tokens in blocks of 32, with caches `dual` and `none`.
// Counters: tokens a second and tokens a forward of both; `ratio`: of `dual` to `none`, runs in turn, medians.
#include <heddle/heddle.hpp>
#include <heddle/infer/diffusion.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/model/masked.hpp>
#include <heddle/train.hpp>
#include <heddle/train/masked_targets.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;

namespace {

using mesh = hd::mesh<hd::axis<hd::tp, 1>>;
using model = hd::model::llada<float>;
using runner_type = inf::model_runner<model, hd::world<hd::threads, mesh>, hd::compute::host<>>;
using tokens = std::vector<std::int32_t>;
constexpr std::int32_t mask = 27;  // behind letters and a space

struct measured {
  double seconds = 0, tokens_a_forward = 0;
};
template <class Cache>
measured decode(runner_type& runner, const tokens& prompt) {
  using decoding = inf::diffusion<32, inf::threshold, Cache>;
  inf::engine<runner_type, decoding> engine(runner, {}, decoding(inf::threshold{0.9}, mask));
  engine.submit({.prompt = prompt, .max_tokens = 512, .sampling = {.temperature = 0}});
  const auto begin = std::chrono::steady_clock::now();
  while (!engine.idle()) benchmark::DoNotOptimize(engine.step().data());
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  const inf::diffusion_counts c = engine.decoder().counts();
  return {time.count(), static_cast<double>(c.committed) / static_cast<double>(c.forwards)};
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ssize(x) / 2, x.end());
  return x[x.size() / 2];
}

void caches(benchmark::State& state) {
  hd::launch<hd::threads, mesh>([&](auto& world) {
    hd::compute::host<> kernels;
    tokens text;  // words of weaving in any order
    const std::string words[] = {"warp ", "reed ", "heddle ", "loom ", "treadle ", "beam "};
    for (std::uint64_t i = 0; i < 20000; ++i)
      for (const char c : words[hd::counter_random(1, 2).integer(i) % 6]) text.push_back(c == ' ' ? 26 : c - 'a');
    hd::train::options<model::config> options{
        .batch = 4, .steps = 60, .learning_rate = {.peak = 1e-2, .warmup_steps = 10}};
    options.model = {.layers = 2, .heads = 4, .kv_heads = 4, .width = 64, .ffn = 128, .context = 544, .vocabulary = 28};
    const hd::io::basic_dataset<std::int32_t> data(text, {.context = 544, .batch = 4});
    auto trainer = hd::train::make_trainer<hd::strategy<mesh>>(model{}, world, options);
    for (int step = 0; step < options.steps; ++step)
      state.counters["loss"] = trainer.step(hd::train::masked_targets{&data, mask}).loss;
    runner_type runner(options.model, world, kernels, {40, 16}, 544);
    for (const auto& to : runner.stage().parameters())  // one rank: both stages hold whole parameters
      for (const auto& from : trainer.stage(0).parameters())
        if (to.name == from.name)
          std::copy_n(trainer.stage(0).weights().data() + from.offset, from.count,
                      runner.stage().weights().data() + to.offset);
    const tokens prompt(text.begin(), text.begin() + 16);
    std::vector<double> with, without;
    for (auto _ : state) {
      const measured dual = decode<inf::dual>(runner, prompt), none = decode<inf::none>(runner, prompt);
      with.push_back(dual.seconds);
      without.push_back(none.seconds);
      state.counters["dual_a_forward"] = dual.tokens_a_forward;
      state.counters["none_a_forward"] = none.tokens_a_forward;
    }
    state.counters["dual"] = 512 / median(with);
    state.counters["none"] = 512 / median(without);
    state.counters["ratio"] = median(without) / median(with);
  });
}
BENCHMARK(caches)->Iterations(5)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
