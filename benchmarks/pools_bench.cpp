// benchmarks/pools_bench.cpp: the longest gap between tokens of an answer while long prompts are computed. Steps sleep: 10 ms for one of answers, 0.5 ms for each row of
// a prompt. Counters: the longest gap of decoding alone, of pools at the same time and of pools in turn, in ms, the least of the rounds, as other programs of the machine
// make gaps longer; `ratio`: at the same time to alone;
// `in_turn`: the same of pools in turn.
#include <heddle/infer/engine.hpp>
#include <heddle/infer/pools.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace infer = heddle::infer;

namespace {

using clock_type = std::chrono::steady_clock;

class sleeping_runner {
 public:
  using scalar = float;
  infer::step_limits limits() const {
    return {.vocabulary = 4, .context = 1024, .block_rows = 16, .blocks = 512, .max_rows = 256};
  }
  void run(const infer::step& s, std::span<float> logits) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    std::this_thread::sleep_for(std::chrono::microseconds(10000 + 500 * (s.rows() - std::ssize(s.sequences))));
  }
};

// Rows of a sleeping runner are nowhere: they have arrived at once.
struct nothing_to_carry {
  void begin(const infer::row_transfer&) {}
  infer::row_progress progress(infer::request_id) { return {.all = true}; }
  void end(infer::request_id) {}
};

template <class Engine>
double longest_gap(Engine& engine, bool prompts) {
  const infer::request_id talks = engine.submit({.prompt = {1, 2}, .max_tokens = 50, .ignore_end_tokens = true});
  clock_type::time_point last{};
  double longest = 0;
  for (int tokens = 0; !engine.idle();)
    for (const infer::event& e : engine.step()) {
      if (!e.token || e.id != talks) continue;
      const auto now = clock_type::now();
      if (++tokens > 3) longest = (std::max)(longest, std::chrono::duration<double, std::milli>(now - last).count());
      last = now;
      if (prompts && tokens % 25 == 5)
        engine.submit({.prompt = std::vector<std::int32_t>(500, 1), .max_tokens = 2, .ignore_end_tokens = true});
    }
  return longest;
}

template <class Lane>
double of_pools() {
  sleeping_runner from, to;
  infer::engine<sleeping_runner> prefill(from), decode(to);
  nothing_to_carry link;
  Lane lane;
  std::thread other;
  if constexpr (std::is_same_v<Lane, infer::engine_lane>) other = std::thread([&] { lane.serve(); });
  infer::pools<decltype(prefill), decltype(decode), nothing_to_carry, Lane> pools(prefill, decode, link, lane);
  const double longest = longest_gap(pools, true);
  if constexpr (std::is_same_v<Lane, infer::engine_lane>) lane.finish(), other.join();
  return longest;
}

double least(const std::vector<double>& x) {
  return *std::min_element(x.begin(), x.end());
}

void gaps(benchmark::State& state) {
  std::vector<double> alone, apart, turn;
  for (auto _ : state) {
    sleeping_runner runner;
    infer::engine<sleeping_runner> engine(runner);
    alone.push_back(longest_gap(engine, false));
    apart.push_back(of_pools<infer::engine_lane>());
    turn.push_back(of_pools<infer::in_turn>());
  }
  state.counters["alone_ms"] = least(alone);
  state.counters["same_time_ms"] = least(apart);
  state.counters["in_turn_ms"] = least(turn);
  state.counters["ratio"] = least(apart) / least(alone);
  state.counters["in_turn"] = least(turn) / least(alone);
}
BENCHMARK(gaps)->Iterations(12)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
