// benchmarks/infer_engine_bench.cpp: processor time of the engine in a step that decodes, beside the time in which one thread reads the weights of a
// model of 10 million floats, which no decoding step of that model can undercut. The runner does nothing but that and copy logits.
#include <heddle/infer/engine.hpp>

#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace infer = heddle::infer;

namespace {

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

class reading_runner {
 public:
  using scalar = float;
  explicit reading_runner(std::int64_t vocabulary) : weights_(10'000'000, 1.0f), vocabulary_(vocabulary) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 2.5f);
    for (std::int64_t i = 0; i < 64 * vocabulary; ++i) logits_.push_back(normal(random));
  }
  infer::step_limits limits() const {
    return {.vocabulary = vocabulary_, .context = 4096, .block_rows = 16, .blocks = 8192, .max_rows = 512};
  }
  void run(const infer::step&, std::span<float> logits) {
    const double began = thread_seconds();
    std::array<float, 64> sums{};
    for (std::size_t i = 0; i + 64 <= weights_.size(); i += 64)
      for (std::size_t j = 0; j < 64; ++j) sums[j] += weights_[i + j];
    benchmark::DoNotOptimize(sums);
    const double read = thread_seconds();
    for (std::size_t at = 0; at < logits.size(); at += logits_.size())
      std::copy_n(logits_.begin(), static_cast<std::ptrdiff_t>((std::min)(logits_.size(), logits.size() - at)),
                  logits.begin() + static_cast<std::ptrdiff_t>(at));
    reading += read - began;
    copying += thread_seconds() - read;
  }

  double reading = 0, copying = 0;  ///< seconds

 private:
  std::vector<float> weights_;
  std::vector<float> logits_{};
  std::int64_t vocabulary_;
};

template <class... Policies>
void decode(benchmark::State& state, infer::sampling_options sampling) {
  constexpr std::int64_t vocabulary = 32000;
  const std::int64_t batch = state.range(0);
  reading_runner runner(vocabulary);
  infer::engine<reading_runner, Policies...> engine(runner);
  const auto submit_all = [&] {
    for (std::int64_t i = 0; i < batch; ++i)
      engine.submit({.prompt = {1, 2, 3}, .max_tokens = 4000, .sampling = sampling});
    engine.step();
    runner.reading = runner.copying = 0;
  };
  submit_all();
  double all = 0, reading = 0, copying = 0;
  std::int64_t steps = 0;
  for (auto _ : state) {
    const double began = thread_seconds();
    benchmark::DoNotOptimize(engine.step().data());
    all += thread_seconds() - began;
    ++steps;
    reading += std::exchange(runner.reading, 0);
    copying += std::exchange(runner.copying, 0);
    if (engine.idle()) {
      state.PauseTiming();
      submit_all();
      state.ResumeTiming();
    }
  }
  const double own = all - reading - copying, count = static_cast<double>(steps);
  state.counters["engine_us_per_step"] = own / count * 1e6;
  state.counters["read_us_per_step"] = reading / count * 1e6;
  state.counters["engine_percent_of_read"] = 100 * own / reading;
}

void greedy(benchmark::State& state) {
  decode<>(state, {.temperature = 0});
}
void greedy_prefix_shared(benchmark::State& state) {
  decode<infer::prefix_shared>(state, {.temperature = 0});
}
void top_k_40(benchmark::State& state) {
  decode<>(state, {.top_k = 40, .top_p = 0.95, .seed = 1});
}
void top_p_90(benchmark::State& state) {
  decode<>(state, {.top_p = 0.9, .seed = 1});
}
void whole_distribution(benchmark::State& state) {
  decode<>(state, {.seed = 1});
}

BENCHMARK(greedy)->Arg(1)->Arg(16);
BENCHMARK(greedy_prefix_shared)->Arg(1)->Arg(16);
BENCHMARK(top_k_40)->Arg(1)->Arg(16);
BENCHMARK(top_p_90)->Arg(1)->Arg(16);
BENCHMARK(whole_distribution)->Arg(1)->Arg(16);

}  // namespace

BENCHMARK_MAIN();
