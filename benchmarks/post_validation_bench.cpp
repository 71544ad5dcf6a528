// benchmarks/post_validation_bench.cpp: how long a step is where the gradient norm is known before it ends, and where it
// travels while the next step's forwards run: stages that sleep for a known time, 4 ranks.
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/generate/zb_h1.hpp>
#include <heddle/schedule/generate/zb_h2.hpp>
#include <heddle/schedule/generate/zb_v.hpp>
#include <heddle/train/step_sums.hpp>
#include <heddle/train/sums_on_the_way.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
namespace tr = heddle::train;

namespace {

using line = hd::mesh<hd::axis<hd::pp>>;
constexpr int ranks = 4, microbatches = 8, steps = 6;
constexpr std::chrono::nanoseconds unit = std::chrono::milliseconds(8);  // F = I = W of a rank

struct batch {
  int samples = 1;
};

struct sleeping_stage {
  using scalar = double;
  std::chrono::nanoseconds time{};
  std::int64_t boundary_elements(int samples) const { return samples; }
  void forward(int, const batch&, std::span<const double>, std::span<double>) { std::this_thread::sleep_for(time); }
  void backward(int, const batch&, std::span<const double>, std::span<double>) {
    std::this_thread::sleep_for(2 * time);
  }
  void backward_input(int, const batch&, std::span<const double>, std::span<double>) {
    std::this_thread::sleep_for(time);
  }
  void backward_weight(int, const batch&) { std::this_thread::sleep_for(time); }
};

struct waiting_hooks {
  void forward_done(int, int, int) {}
  void reduce_gradient(int) {}
};
template <class Sums>
struct ahead_hooks : waiting_hooks {
  Sums& sums;
  bool first;
  std::int64_t& validated;
  ahead_hooks(Sums& s, bool is_first, std::int64_t& at) : sums(s), first(is_first), validated(at) {}
  bool validate() {
    if (!first) sums.finish();
    validated = hd::now_ns();
    return true;
  }
  void redo() {}
};

struct timing {
  double step_ms = 0;   // of all steps, per step
  double ahead_ms = 0;  // by which rank 0 begins a step before the last rank has ended the one before
};

template <class When>
timing run(bool ahead) {
  const sc::plan plan = sc::make_plan(sc::make_table(When{microbatches}, ranks));
  const int chunks = plan.table.view().parts() / ranks;
  const std::vector<batch> batches(microbatches);
  std::vector<std::vector<std::int64_t>> begin(ranks), end(ranks);
  hd::launch<hd::threads>(line(ranks), [&](auto& world) {
    auto& pipe = world.template along<hd::pp>();
    const auto r = static_cast<std::size_t>(pipe.rank());
    std::vector<sleeping_stage> here(static_cast<std::size_t>(plan.table.view().stages()), {unit / chunks});
    std::vector<sleeping_stage*> held;
    for (sleeping_stage& s : here) held.push_back(&s);
    hd::null_observer off;
    hd::model::executor<sleeping_stage, std::remove_reference_t<decltype(pipe)>> executor(plan, held, pipe, 1, off);
    tr::step_sums_on_the_way<std::remove_reference_t<decltype(world)>, hd::type_list<hd::pp>> sums(world);
    std::int64_t validated = 0;
    pipe.barrier();
    for (int k = 0; k < steps; ++k) {
      begin[r].push_back(hd::now_ns());
      if (ahead) {
        executor.run(std::span<const batch>(batches), k, ahead_hooks(sums, k == 0, validated));
        sums.start({1, 1, 1});
      } else {
        executor.run(std::span<const batch>(batches), k, waiting_hooks{});
      }
      end[r].push_back(hd::now_ns());
      double norm = 1;
      if (!ahead) pipe.all_reduce(std::span<double>(&norm, 1), hd::plus{});
    }
    if (ahead) sums.finish();
  });
  timing t;
  t.step_ms = 1e-6 * static_cast<double>(end[ranks - 1].back() - begin[0].front()) / steps;
  for (int k = 1; k < steps; ++k) {
    std::int64_t last = 0;
    for (const auto& e : end) last = (std::max)(last, e[static_cast<std::size_t>(k) - 1]);
    t.ahead_ms += 1e-6 * static_cast<double>(last - begin[0][static_cast<std::size_t>(k)]) / (steps - 1);
  }
  return t;
}

template <class When>
void step(benchmark::State& state) {
  timing best;
  for (auto _ : state) {
    const timing t = run<When>(state.range(0) != 0);
    state.SetIterationTime(1e-3 * t.step_ms);
    if (best.step_ms == 0 || t.step_ms < best.step_ms) best = t;
  }
  state.counters["step_ms"] = best.step_ms;
  state.counters["begins_ms_before_the_end"] = best.ahead_ms;
  state.counters["work_ms"] = microbatches * 3 * 1e-6 * static_cast<double>(unit.count());
}
void both(benchmark::internal::Benchmark* b) {
  b->ArgName("ahead")->Arg(0)->Arg(1)->UseManualTime()->Iterations(3)->Unit(benchmark::kMillisecond);
}
BENCHMARK_TEMPLATE(step, sc::one_f_one_b<>)->Apply(both);
BENCHMARK_TEMPLATE(step, sc::zb_h1<>)->Apply(both);
BENCHMARK_TEMPLATE(step, sc::zb_h2<>)->Apply(both);
BENCHMARK_TEMPLATE(step, sc::zb_v<>)->Apply(both);

}  // namespace

BENCHMARK_MAIN();
