// benchmarks/plan_bench.cpp: actions per second of simulated steps, and what steps at scale take.
// With --executor [scale]: stages that sleep on 8 ranks in this process, ten schedules, beside their simulation; a
// larger scale lets them sleep longer, for machines on which other programs run.
// With --ranking: the strategies of one and two ranks, predicted from kernels measured here, beside their steps.
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/plan/place_groups.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/sim/action_table.hpp>
#include <heddle/sim/world_step.hpp>
#include <heddle/train/search.hpp>

#include "plan_ranking.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace {

namespace hd = heddle;
namespace sc = hd::schedule;
namespace sim = hd::sim;
using large = hd::mesh<hd::axis<hd::pp, 8>, hd::axis<hd::dp, 192>, hd::axis<hd::tp, 8>>;

const sim::levels cluster({{1, 5e-6, 280e9}, {8, 10e-6, 22e9, 8}, {512, 20e-6, 10e12}});

sc::action_table table_of(const char* name, int microbatches, int ranks) {
  return sc::lowered_to_run(sc::make_table(sc::named(name, microbatches), ranks));
}
void per_second(benchmark::State& state, double actions) {
  state.counters["actions"] = actions;
  state.counters["actions/s"] = benchmark::Counter(actions, benchmark::Counter::kIsIterationInvariantRate);
}

// One pipeline: the measure of the others.
void simulate(benchmark::State& state) {
  const auto table = table_of("interleaved:6", static_cast<int>(state.range(0)), 8);
  for (auto _ : state) {
    const sim::timeline line = sim::simulate(table, sim::stage_times{0.01, 0.011, 0.009}, sim::link_time{1e-4});
    benchmark::DoNotOptimize(line.end.data());
  }
  per_second(state, static_cast<double>(table.actions.size()));
}
BENCHMARK(simulate)->Arg(32)->Arg(256)->Unit(benchmark::kMillisecond);

// 12,288 ranks with a slow one: all 192 pipelines, or the two that differ.
void simulate_step(benchmark::State& state) {
  const auto table = table_of("interleaved:6", static_cast<int>(state.range(0)), 8);
  const sim::step_times<> times{{0.01, 0.011, 0.009}, 6e6, {1e9}};
  const sim::step_options options{
      .slow = {{large::rank_of({3, 77, 5}), 1.1}}, .share_equal = state.range(1) == 0, .skip_repeated = false};
  double actions = 0;
  for (auto _ : state) {
    const sim::step s = sim::simulate_step(table, large{}, times, cluster, options);
    benchmark::DoNotOptimize(s.seconds);
    actions = static_cast<double>(s.simulated);
  }
  per_second(state, actions);
}
BENCHMARK(simulate_step)
    ->ArgNames({"microbatches", "all"})
    ->Args({32, 0})
    ->Args({32, 1})
    ->Args({256, 1})
    ->Unit(benchmark::kMillisecond);

// 100,000 microbatches on 8 ranks, repetitions copied or not; making the table is not counted.
void long_pipeline(benchmark::State& state, const char* name) {
  const auto table = table_of(name, 100'000, 8);
  std::int64_t simulated = 0;
  for (auto _ : state) {
    const sim::step s =
        sim::simulate_step(table, hd::mesh<hd::axis<hd::pp, 8>>{}, sim::step_times<>{{1, 1.1, 0.9}, 1e6}, cluster,
                           {.skip_repeated = state.range(0) != 0});
    benchmark::DoNotOptimize(s.seconds);
    simulated = s.simulated;
  }
  per_second(state, static_cast<double>(table.actions.size()));
  state.counters["simulated"] = static_cast<double>(simulated);
}
BENCHMARK_CAPTURE(long_pipeline, one_f_one_b, "1f1b")->ArgName("copied")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(long_pipeline, interleaved_2, "interleaved:2")
    ->ArgName("copied")
    ->Arg(0)
    ->Arg(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(long_pipeline, zb_h1, "zb-h1")->ArgName("copied")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

// 1,024 devices, 80 layers, four schedules, four ZeRO stages, from made-up costs; seconds of a candidate.
void search(benchmark::State& state) {
  namespace tr = hd::train;
  tr::search_space space{.ranks = 1024, .layers = 80, .batch = 2048};
  std::int64_t candidates = 0;
  for (auto _ : state) {
    const tr::search_result found = tr::search(space, [](const tr::search_point& p) {
      tr::search_costs c;
      tr::search_layer block;
      const double samples = p.samples, tp = p.extent("tp"), dp = p.extent("dp");
      block.forward = block.backward_input = block.backward_weight = 0.004 * samples / tp + 1e-4 * (tp > 1);
      const double shared = p.zero == 0 ? 16 : p.zero == 1 ? 8 + 8 / dp : p.zero == 2 ? 4 + 12 / dp : 16 / dp;
      block.state_bytes = static_cast<std::int64_t>(0.86e9 / tp * shared);
      block.saved_bytes = static_cast<std::int64_t>(1.1e9 * samples / tp);
      block.input_bytes = block.saved_bytes / 8;
      c.layers = {block};
      return c;
    });
    candidates = found.candidates;
    benchmark::DoNotOptimize(found.best.data());
  }
  state.counters["candidates"] = static_cast<double>(candidates);
  per_second(state, static_cast<double>(candidates));
}
BENCHMARK(search)->Unit(benchmark::kMillisecond);

// A strategy of a Llama 2 7B on 64 devices.
void explain(benchmark::State& state) {
  namespace tr = hd::train;
  const auto mesh = hd::parse_mesh<plan_ranking::mesh_type>("dp=2,pp=4,tp=8");
  const tr::cluster on{.devices = 64,
                       .memory = 80'000'000'000,
                       .device = {.flops = 989e12, .bytes_per_second = 3.35e12},
                       .levels = {{"node", 8, 450e9, 3e-6}, {"network", 64, 50e9, 1e-5}}};
  tr::options<hd::model::llama_config> o;
  o.model = hd::model::llama2_7b();
  o.batch = 64;
  o.microbatches = 16;
  o.schedule = "1f1b";
  o.recompute = "none";
  for (auto _ : state)
    benchmark::DoNotOptimize(tr::explain<hd::model::llama<float>, plan_ranking::strategy>(o, mesh, on).seconds);
}
BENCHMARK(explain)->Unit(benchmark::kMillisecond);

// 11 pods, 46 pipelines of four nodes.
void place(benchmark::State& state) {
  const hd::plan::group_request r{{18, 17, 20, 16, 21, 18, 15, 19, 17, 18, 18}, 46, 4};
  for (auto _ : state) benchmark::DoNotOptimize(hd::plan::place_groups(r).choices.size());
}
BENCHMARK(place)->Unit(benchmark::kMillisecond);

// ---- the executor with stages that sleep ----

struct batch {
  int samples = 1;
};
// Forward, gradient of the input and of the weights: 6, 7 and 5 ms of a whole rank, times a scale, spread over its
// stages.
struct sleeping_stage {
  using scalar = float;
  double shorter = 1;
  void sleep(double ms) const { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms / shorter)); }
  std::int64_t boundary_elements(int samples) const { return samples; }
  void forward(int, const batch&, std::span<const float>, std::span<float>) { sleep(6); }
  void backward(int, const batch&, std::span<const float>, std::span<float>) { sleep(12); }
  void backward_input(int, const batch&, std::span<const float>, std::span<float>) { sleep(7); }
  void backward_weight(int, const batch&) { sleep(5); }
};
struct no_hooks {
  void forward_done(int, int, int) {}
  void reduce_gradient(int) {}
};

double executed_seconds(const sc::plan& plan, double shorter, int microbatches) {
  using pipeline = hd::mesh<hd::axis<hd::pp, 8>>;
  std::vector<double> steps;
  hd::launch<hd::threads, pipeline>([&](auto& world) {
    auto& line = world.template along<hd::pp>();
    std::vector<sleeping_stage> stages(static_cast<std::size_t>(plan.table.view().stages()), sleeping_stage{shorter});
    std::vector<sleeping_stage*> held;
    for (sleeping_stage& s : stages) held.push_back(&s);
    hd::null_observer observer;
    hd::model::executor<sleeping_stage, std::remove_reference_t<decltype(line)>, hd::null_observer> run(
        plan, held, line, 1, observer);
    const std::vector<batch> batches(static_cast<std::size_t>(microbatches));
    for (int step = 0; step < 6; ++step) {
      world.all().barrier();
      const std::int64_t begin = hd::now_ns();
      run.run(std::span<const batch>(batches), step, no_hooks{});
      world.all().barrier();
      if (world.rank() == 0 && step > 0) steps.push_back(1e-9 * static_cast<double>(hd::now_ns() - begin));
    }
  });
  std::sort(steps.begin(), steps.end());
  return steps[steps.size() / 2];
}

// On a busy machine a thread that has slept goes on up to 4 ms late, which adds up along the critical path. Threads of a
// real-time priority go on at once; these need no time of a core.
bool wake_at_once() {
#if defined(__linux__)
  sched_param first{};
  first.sched_priority = 1;
  return ::sched_setscheduler(0, SCHED_FIFO, &first) == 0;
#else
  return false;
#endif
}

int compare_with_executor(double scale) {
  double worst = 0;
  if (!wake_at_once()) std::printf("no real-time priority: under load sleeps take longer than they should\n");
  std::printf("%-16s %12s %12s %8s\n", "8 ranks", "executed", "simulated", "ratio");
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "interleaved:4", "breadth-first:2", "zb-h1", "zb-h2",
                           "zb-v", "v-half", "hanayo:1"}) {
    const int m = 16;
    const sc::plan plan = sc::make_plan(sc::make_table(sc::named(name, m), 8));
    const double shorter = plan.table.view().stages() / 8 / scale, c = 1e-3 / shorter;
    const double predicted = sim::simulate_step(plan.table, hd::mesh<hd::axis<hd::pp, 8>>{},
                                                sim::step_times<>{{6 * c, 7 * c, 5 * c}}, sim::levels{})
                                 .seconds;
    const double executed = executed_seconds(plan, shorter, m);
    std::printf("%-16s %9.2f ms %9.2f ms %8.4f\n", name, 1e3 * executed, 1e3 * predicted, executed / predicted);
    worst = (std::max)(worst, (std::max)(executed / predicted, predicted / executed) - 1);
  }
  std::printf("largest difference: %.2f %%\n", 100 * worst);
  return worst <= 0.05 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--executor")
    return compare_with_executor(argc > 2 ? std::atof(argv[2]) : 1);
  if (argc > 1 && std::string_view(argv[1]) == "--ranking") return plan_ranking::run();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
