// benchmarks/schedule_bench.cpp: what schedules cost at start-up: generating, lowering, checking and simulating tables.
#include <heddle/schedule/check/formulas.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/sim/action_table.hpp>

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace sc = heddle::schedule;

namespace {

using when = sc::one_f_one_b<>;

void actions_per_second(benchmark::State& state, std::size_t actions) {
  state.counters["actions"] = static_cast<double>(actions);
  state.counters["actions/s"] =
      benchmark::Counter(static_cast<double>(actions), benchmark::Counter::kIsIterationInvariantRate);
}

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"ranks", "microbatches"})->Args({4, 8})->Args({16, 64})->Args({64, 512})->Unit(benchmark::kMillisecond);
}

void generate_and_validate(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const when schedule{static_cast<int>(state.range(1))};
  std::size_t actions = 0;
  for (auto _ : state) {
    const auto table = sc::make_table(schedule, ranks);
    if (!sc::check_table(table).ok()) state.SkipWithError("the table is not valid");
    actions = table.actions.size();
  }
  actions_per_second(state, actions);
}
BENCHMARK(generate_and_validate)->Apply(sizes);

// Every schedule there is by name, with 64 ranks and 512 microbatches.
void generate_and_validate_large(benchmark::State& state, std::string_view name) {
  const sc::named schedule{name, 512};
  std::size_t actions = 0;
  for (auto _ : state) {
    const auto table = sc::make_table(schedule, 64);
    if (!sc::check_table(table).ok()) state.SkipWithError("the table is not valid");
    actions = table.actions.size();
  }
  actions_per_second(state, actions);
}
const bool registered = [] {
  for (const std::string_view name : sc::named::names)
    benchmark::RegisterBenchmark(("generate_and_validate_large/" + std::string(name)).c_str(),
                                 generate_and_validate_large, name)
        ->Unit(benchmark::kMillisecond);
  return true;
}();

// All that happens before a run: also lowering, the check with blocking transfers, and storage.
void make_plan(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const when schedule{static_cast<int>(state.range(1))};
  std::size_t actions = 0;
  for (auto _ : state) {
    const auto plan = sc::make_plan(sc::make_table(schedule, ranks));
    benchmark::DoNotOptimize(plan.memory.actions.data());
    actions = plan.table.actions.size();
  }
  actions_per_second(state, actions);
}
BENCHMARK(make_plan)->Apply(sizes);

void simulate(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const when schedule{static_cast<int>(state.range(1))};
  const auto table = sc::lower(sc::make_table(schedule, ranks));
  const double expected = sc::formula::makespan(schedule, ranks, {1, 1, 1});
  for (auto _ : state)
    if (heddle::sim::simulate(table).makespan != expected) state.SkipWithError("the makespan is not the formula's");
  actions_per_second(state, table.actions.size());
}
BENCHMARK(simulate)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
