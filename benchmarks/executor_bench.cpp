// benchmarks/executor_bench.cpp: what running a table costs per action, and whether a real run idles as long as formulas
// say: stages that sleep for a known time, 4 ranks.
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/schedule/check/formulas.hpp>
#include <heddle/schedule/check/formulas_bidirectional.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/sim/action_table.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;

namespace {

using line = hd::mesh<hd::axis<hd::pp>>;

struct batch {
  int samples = 1;
};

struct no_hooks {
  void forward_done(int, int, int) {}
  void reduce_gradient(int) {}
};

struct empty_stage {
  using scalar = double;
  std::int64_t boundary_elements(int samples) const { return samples; }
  void forward(int slot, const batch&, std::span<const double>, std::span<double>) { benchmark::DoNotOptimize(slot); }
  void backward(int slot, const batch&, std::span<const double>, std::span<double>) { benchmark::DoNotOptimize(slot); }
  void backward_input(int slot, const batch&, std::span<const double>, std::span<double>) {
    benchmark::DoNotOptimize(slot);
  }
  void backward_weight(int slot, const batch&) { benchmark::DoNotOptimize(slot); }
};

// A communicator whose messages take no time, nor arrive.
template <class Communicator>
class silent : public Communicator {
 public:
  class request {
   public:
    request() = default;
    request(request&&) = default;
    request& operator=(request&&) = default;
    void wait() {}
    bool test() { return true; }
  };
  explicit silent(Communicator&& c) : Communicator(std::move(c)) {}
  template <class In>
  request isend(In&& in, int, int = 0) {
    benchmark::DoNotOptimize(in.data());
    return {};
  }
  template <class Out>
  request irecv(Out&& out, int, int = 0) {
    benchmark::DoNotOptimize(out.data());
    return {};
  }
  silent split(int color, int key) { return silent(Communicator::split(color, key)); }
};

// A communicator whose messages arrive `link` after they were sent. Blocking, a send holds up its rank until its message
// has arrived, and a receive until its message is there; if not, both go on beside computations.
constexpr std::chrono::nanoseconds link = std::chrono::milliseconds(3);
template <class Communicator>
class distant : public Communicator {
 public:
  class request {
   public:
    request(typename Communicator::request&& data, typename Communicator::request&& stamp,
            std::unique_ptr<std::int64_t> sent_ns, bool arrives)
        : sent_ns_(std::move(sent_ns)), data_(std::move(data)), stamp_(std::move(stamp)), arrives_(arrives) {}
    void wait() {
      data_.wait();
      stamp_.wait();
      if (arrives_)
        std::this_thread::sleep_until(
            std::chrono::steady_clock::time_point(std::chrono::nanoseconds(*sent_ns_) + link));
    }
    bool test() { return false; }

   private:
    std::unique_ptr<std::int64_t> sent_ns_;
    typename Communicator::request data_, stamp_;
    bool arrives_;
  };
  distant(Communicator&& c, bool blocking) : Communicator(std::move(c)), blocking_(blocking) {}
  template <class In>
  request isend(In&& in, int to, int tag = 0) {
    auto now = std::make_unique<std::int64_t>(hd::now_ns());
    const std::span<const std::int64_t> stamp(now.get(), 1);
    request r(Communicator::isend(in, to, tag), Communicator::isend(stamp, to, tag + 100), std::move(now), blocking_);
    if (blocking_) r.wait();
    return r;
  }
  template <class Out>
  request irecv(Out&& out, int from, int tag = 0) {
    auto then = std::make_unique<std::int64_t>(0);
    const std::span<std::int64_t> stamp(then.get(), 1);
    request r(Communicator::irecv(out, from, tag), Communicator::irecv(stamp, from, tag + 100), std::move(then), true);
    if (blocking_) r.wait();
    return r;
  }
  distant split(int color, int key) { return distant(Communicator::split(color, key), blocking_); }

 private:
  bool blocking_;
};

struct as_it_is {
  template <class Communicator>
  static Communicator& of(Communicator& c) {
    return c;
  }
};
struct silenced {
  template <class Communicator>
  static silent<Communicator> of(Communicator& c) {
    return silent<Communicator>(c.split(0, c.rank()));
  }
};

template <class Observer>
auto make_observer(int ranks) {
  if constexpr (Observer::enabled)
    return Observer(ranks);
  else
    return Observer();
}

// Nanoseconds of one step of a table of empty actions, on the slowest rank: the mean of the fastest quarter of the
// steps, which depends less on what else the machine does. 8 bytes travel per message.
template <class Messages, class Observer>
double step_ns(sc::table_view table, int steps) {
  const sc::plan plan = sc::make_plan(table);
  const std::vector<batch> batches(static_cast<std::size_t>(table.microbatches()));
  std::vector<double> ns(static_cast<std::size_t>(table.ranks()));
  hd::launch<hd::threads>(line(table.ranks()), [&](auto& world) {
    auto&& pipe = Messages::of(world.template along<hd::pp>());
    std::vector<empty_stage> here(static_cast<std::size_t>(table.stages()));
    std::vector<empty_stage*> held;
    for (empty_stage& s : here) held.push_back(&s);
    auto observer = make_observer<Observer>(table.ranks());
    hd::model::executor<empty_stage, std::remove_reference_t<decltype(pipe)>, Observer> executor(plan, held, pipe, 1,
                                                                                                 observer);
    std::vector<double> took;
    for (int k = 0; k < steps + steps / 10; ++k) {
      const std::int64_t begin = hd::now_ns();
      executor.run(std::span<const batch>(batches), k, no_hooks{});
      if (k >= steps / 10) took.push_back(static_cast<double>(hd::now_ns() - begin));
    }
    std::sort(took.begin(), took.end());
    const std::size_t quarter = took.size() / 4;
    for (std::size_t k = 0; k < quarter; ++k)
      ns[static_cast<std::size_t>(pipe.rank())] += took[k] / static_cast<double>(quarter);
  });
  return *std::max_element(ns.begin(), ns.end());
}

template <class When, class Messages, class Observer>
void per_action(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0)), m = 64;
  const sc::action_table table = sc::make_table(When{m}, ranks);
  const auto actions = static_cast<double>(sc::lower(table).view().list(0).size());
  double best = 1e300;
  for (auto _ : state) {
    const double ns = step_ns<Messages, Observer>(table, 400);
    best = (std::min)(best, ns);
    state.SetIterationTime(ns * 1e-9);
  }
  state.counters["actions"] = actions;
  state.counters["ns/action"] = best / actions;
}
void few(benchmark::internal::Benchmark* b) {
  b->ArgName("ranks")->Arg(1)->Arg(2)->UseManualTime()->Iterations(5)->Unit(benchmark::kMicrosecond);
}
BENCHMARK_TEMPLATE(per_action, sc::one_f_one_b<>, silenced, hd::null_observer)->Apply(few);
BENCHMARK_TEMPLATE(per_action, sc::zb_h1<>, silenced, hd::null_observer)->Apply(few);
BENCHMARK_TEMPLATE(per_action, sc::one_f_one_b<>, silenced, hd::observe::recorder)->Apply(few);
BENCHMARK_TEMPLATE(per_action, sc::one_f_one_b<>, as_it_is, hd::null_observer)->Apply(few);

// Sleeps, and measures how long: the operating system wakes it late by a part of a millisecond.
struct sleeping_stage {
  using scalar = double;
  std::chrono::nanoseconds f{}, i{}, w{};
  bool beside = false;
  double slept_f = 0, slept_i = 0, slept_w = 0, slept_b = 0;  // seconds
  int fs = 0, is = 0, ws = 0, bs = 0;

  bool runs_beside(const sleeping_stage& other) const { return beside && &other != this; }
  static void sleep(std::chrono::nanoseconds time, double& total, int& count) {
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_until(begin + time);
    total += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ++count;
  }
  std::int64_t boundary_elements(int samples) const { return samples; }
  void forward(int, const batch&, std::span<const double>, std::span<double>) { sleep(f, slept_f, fs); }
  void backward(int, const batch&, std::span<const double>, std::span<double>) { sleep(i + w, slept_b, bs); }
  void backward_input(int, const batch&, std::span<const double>, std::span<double>) { sleep(i, slept_i, is); }
  void backward_weight(int, const batch&) { sleep(w, slept_w, ws); }
};

// One step of 4 ranks and 8 microbatches, F = I = W = 12 ms per rank: how long it took, and how long a microbatch's
// F, I and W on one rank were slept. B where it was not split counts as half I, half W: formulas see the sum.
struct slept_step {
  double seconds = 0;
  sc::formula::times times;
};
constexpr int bubble_ranks = 4, bubble_microbatches = 8;

template <class Messages = as_it_is>
slept_step sleep_through(const sc::plan& plan, bool beside, const Messages& messages = {}) {
  constexpr int ranks = bubble_ranks, m = bubble_microbatches;
  constexpr std::chrono::nanoseconds unit = std::chrono::milliseconds(12);
  const sc::table_view table = plan.table;
  const int chunks = table.parts() / ranks;
  const std::vector<batch> batches(m);
  std::vector<std::int64_t> begin(ranks), end(ranks);
  std::vector<std::vector<sleeping_stage>> of_rank(ranks);
  hd::launch<hd::threads>(line(ranks), [&](auto& world) {
    auto&& pipe = messages.of(world.template along<hd::pp>());
    const auto r = static_cast<std::size_t>(pipe.rank());
    auto& here = of_rank[r];
    here.assign(static_cast<std::size_t>(table.stages()), {unit / chunks, unit / chunks, unit / chunks, beside});
    std::vector<sleeping_stage*> held;
    for (sleeping_stage& s : here) held.push_back(&s);
    hd::null_observer off;
    hd::model::executor<sleeping_stage, std::remove_reference_t<decltype(pipe)>> executor(plan, held, pipe, 1, off);
    pipe.barrier();
    begin[r] = hd::now_ns();
    executor.run(std::span<const batch>(batches), 0, no_hooks{});
    end[r] = hd::now_ns();
  });
  double f = 0, i = 0, w = 0, b = 0;
  int fs = 0, is = 0, ws = 0;
  for (const auto& here : of_rank)
    for (const sleeping_stage& s : here) {
      f += s.slept_f, i += s.slept_i, w += s.slept_w, b += s.slept_b;
      fs += s.fs, is += s.is, ws += s.ws;
    }
  slept_step result;
  result.seconds = 1e-9 * static_cast<double>(*std::max_element(end.begin(), end.end()) -
                                              *std::min_element(begin.begin(), begin.end()));
  sc::formula::times& t = result.times;
  const double backward = (i + w + b) / (ranks * m);
  const bool all_split = is == fs;
  t.f = chunks * f / fs;
  t.i = all_split ? chunks * i / is : backward / 2;
  t.w = all_split ? chunks * w / ws : backward / 2;
  if (beside) t.pair = (std::max)(t.f, t.b());
  return result;
}

// Seconds as measured and as expected, of the iteration least disturbed by what else runs on the machine.
struct least_disturbed {
  double measured = 0, expected = 0;

  void add(double seconds, double of) {
    if (expected == 0 || seconds / of < measured / expected) measured = seconds, expected = of;
  }
  void show(benchmark::State& state, const char* measured_name, const char* expected_name) const {
    state.counters[measured_name] = 1e3 * measured;
    state.counters[expected_name] = 1e3 * expected;
    state.counters["ratio"] = measured / expected;
  }
};

// The bubble, measured and by formula.
template <class When>
void bubble(benchmark::State& state) {
  const When when{bubble_microbatches};
  const sc::plan plan = sc::make_plan(sc::make_table(when, bubble_ranks));
  least_disturbed best;
  for (auto _ : state) {
    const slept_step step = sleep_through(plan, false);
    const double idle = step.seconds - sc::formula::work(when, bubble_ranks, step.times);
    const double formula = sc::formula::bubble(when, bubble_ranks, step.times);
    state.SetIterationTime(step.seconds);
    best.add(idle, formula);
  }
  best.show(state, "bubble_ms", "formula_ms");
}
using two_chunks = sc::interleaved<hd::microbatches<>, 2>;
void few_steps(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Iterations(5)->Unit(benchmark::kMillisecond);
}
BENCHMARK_TEMPLATE(bubble, sc::gpipe<>)->Apply(few_steps);
BENCHMARK_TEMPLATE(bubble, sc::one_f_one_b<>)->Apply(few_steps);
BENCHMARK_TEMPLATE(bubble, two_chunks)->Apply(few_steps);
BENCHMARK_TEMPLATE(bubble, sc::zb_h1<>)->Apply(few_steps);

// The step of a schedule with pairs, its two computations one after the other and at the same time.
template <class When>
void pairs(benchmark::State& state) {
  const When when{bubble_microbatches};
  const sc::plan plan = sc::make_plan(sc::make_table(when, bubble_ranks));
  const bool beside = state.range(0) != 0;
  least_disturbed best;
  for (auto _ : state) {
    const slept_step step = sleep_through(plan, beside);
    const double formula = sc::formula::makespan(when, bubble_ranks, step.times);
    state.SetIterationTime(step.seconds);
    best.add(step.seconds, formula);
  }
  best.show(state, "step_ms", "formula_ms");
}
BENCHMARK_TEMPLATE(pairs, sc::dual_pipe<>)->ArgName("beside")->Arg(0)->Arg(1)->Apply(few_steps);
BENCHMARK_TEMPLATE(pairs, sc::dual_pipe_v<>)->ArgName("beside")->Arg(0)->Arg(1)->Apply(few_steps);

// Messages that take a quarter of a forward, beside computations and blocking: the step, and what the simulator says.
struct from_afar {
  bool blocking = false;
  template <class Communicator>
  distant<Communicator> of(Communicator& c) const {
    return distant<Communicator>(c.split(0, c.rank()), blocking);
  }
};
template <class When>
void messages(benchmark::State& state) {
  const When when{bubble_microbatches};
  const bool blocking = state.range(0) != 0;
  const sc::plan plan = sc::make_plan(sc::make_table(when, bubble_ranks));
  const sc::table_view table = plan.table;
  const sc::transfers mode = blocking ? sc::transfers::rendezvous : sc::transfers::asynchronous;
  const double chunks = table.parts() / bubble_ranks;
  least_disturbed best;
  for (auto _ : state) {
    const slept_step step = sleep_through(plan, false, from_afar{blocking});
    const hd::sim::stage_times times{step.times.f / chunks, step.times.i / chunks, step.times.w / chunks};
    const hd::sim::link_time per_message{1e-9 * static_cast<double>(link.count())};
    const double simulated = hd::sim::simulate(table, times, per_message, mode).makespan;
    state.SetIterationTime(step.seconds);
    best.add(step.seconds, simulated);
  }
  best.show(state, "step_ms", "simulated_ms");
}
BENCHMARK_TEMPLATE(messages, sc::one_f_one_b<>)->ArgName("blocking")->Arg(0)->Arg(1)->Apply(few_steps);
BENCHMARK_TEMPLATE(messages, two_chunks)->ArgName("blocking")->Arg(0)->Arg(1)->Apply(few_steps);
BENCHMARK_TEMPLATE(messages, sc::zb_h1<>)->ArgName("blocking")->Arg(0)->Arg(1)->Apply(few_steps);

}  // namespace

BENCHMARK_MAIN();
