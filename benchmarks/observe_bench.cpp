// benchmarks/observe_bench.cpp: what observers and the flight recorder add: an observed event beside two clock readings,
// an all_reduce of 8 bytes between threads with the recorder on and off, a window of the runbook, and steps of GPT-2
// small with and without `step_times`. Rounds alternate.
// run: observe_bench [rounds = 15] [layers = 12; 0: no steps]
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/observe/conditions.hpp>
#include <heddle/observe/linux_counters.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/observe/step_times.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include "random_tokens.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

namespace hd = heddle;
namespace observe = heddle::observe;

namespace {

// Nanoseconds of one of so many, by the clock and of all processors.
struct cost {
  double clock = 0, processor = 0;
};
template <class Work>
cost cost_of(int times, const Work& work) {
  const std::int64_t began = hd::now_ns();
  const std::clock_t before = std::clock();
  for (int i = 0; i < times; ++i) work(i);
  return {static_cast<double>(hd::now_ns() - began) / times,
          static_cast<double>(std::clock() - before) * (1e9 / CLOCKS_PER_SEC) / times};
}
// Of a part of all; where others want the processors, too, the lower quarter is of rounds that had them.
cost part_of(std::vector<cost> all, double part) {
  const auto at = [&](double cost::* of) {
    std::sort(all.begin(), all.end(), [&](const cost& a, const cost& b) { return a.*of < b.*of; });
    return all[static_cast<std::size_t>(part * static_cast<double>(all.size()))].*of;
  };
  return {at(&cost::clock), at(&cost::processor)};
}

void print_events(int rounds) {
  constexpr int events = 200'000, events_of_step = 100;
  volatile std::int64_t sink = 0;
  std::vector<cost> readings, with_times, with_recorder;
  observe::step_times times(1);
  const auto observed = [&](auto& observer) {
    return cost_of(events, [&](int i) {
      hd::event e;
      e.kind = i % 4 == 3 ? hd::activity::collective : hd::activity::forward;
      e.rank = 0;
      e.step = i / events_of_step;
      e.bytes = 8;
      hd::observed(observer, e, [&] { sink = i; });
    });
  };
  for (int round = 0; round <= rounds; ++round) {
    const cost two = cost_of(events, [&](int i) {
      const std::int64_t began = hd::now_ns();
      sink = i;
      sink = hd::now_ns() - began;
    });
    const cost by_times = observed(times);
    observe::recorder recorder(1);
    const cost by_recorder = observed(recorder);
    if (round == 0) continue;  // memory is touched
    readings.push_back(two), with_times.push_back(by_times), with_recorder.push_back(by_recorder);
  }
  const cost two = part_of(readings, 0.5);
  std::printf("two clock readings: %.1f ns\n", two.clock);
  const auto line = [&](const char* name, const cost& c) {
    std::printf("an event for %-24s %7.1f ns: %.2f x (processor %.2f x)\n", name, c.clock, c.clock / two.clock,
                c.processor / two.processor);
  };
  line("observe::step_times:", part_of(with_times, 0.5));
  line("observe::recorder:", part_of(with_recorder, 0.5));
  std::fflush(stdout);
}

void print_flights(int ranks, int rounds, const std::string& folder) {
  constexpr int calls = 500;
  std::vector<cost> off, on;
  const auto once = [&](bool flight) {
    cost mine;
    hd::launch_options options;
    if (flight) options.flight = folder;
    hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{ranks}, options, [&](auto& world) {
      double x = 1;
      const auto call = [&](int) { world.all().all_reduce(std::span<double>(&x, 1), hd::maximum{}); };
      for (int i = 0; i < 300; ++i) call(i);  // more than the recorder keeps
      const cost c = cost_of(calls, call);
      if (world.rank() == 0) mine = c;
    });
    return mine;
  };
  const std::int64_t end = hd::now_ns() + 5'000'000'000;  // where others have the processors fewer rounds do
  for (int round = 0; round < rounds && (round < 5 || hd::now_ns() < end); ++round) {
    off.push_back(once(false));
    on.push_back(once(true));
  }
  std::printf("all_reduce of 8 bytes, ranks: %d, rounds: %d; with the flight recorder / without, ns:", ranks,
              static_cast<int>(off.size()));
  for (const double part : {0.05, 0.25, 0.5}) {
    const cost without = part_of(off, part), with = part_of(on, part);
    std::printf("  at %.0f %% %.0f / %.0f: %.2f x (processors %.2f x)", 100 * part, with.clock, without.clock,
                with.clock / without.clock, with.processor / without.processor);
  }
  std::printf("\n");
  std::fflush(stdout);
}

// A window of the runbook with what a server measures, and the reading of the counters of Linux.
void print_windows() {
  observe::runbook book({.ranks = 8});
  observe::linux_counters counters;
  constexpr int windows = 300;
  const cost c = cost_of(windows, [&](int i) {
    const auto seen = counters.next(1);
    if (seen.nic_share) book.add(observe::signal::nic_share, *seen.nic_share);
    for (const auto s :
         {observe::signal::arrivals, observe::signal::queued, observe::signal::rows, observe::signal::step})
      book.add(s, 1 + 0.01 * (i % 7));
    for (int rank = 0; rank < 8; ++rank) book.add(observe::signal::compute, rank, 0.1 + 0.001 * ((i + rank) % 5));
    book.end_window();
  });
  std::printf("a window of the runbook: %.1f us, of one second %.4f %%\n", 1e-3 * c.clock, 1e-7 * c.clock);
}

struct counting {
  using kind = hd::observer_kind;
  static constexpr bool enabled = true;
  observe::step_times& to;
  std::int64_t events = 0;
  void record(const hd::event& e) {
    to.record(e);
    ++events;
  }
};

// GPT-2 small, 4 x 64 tokens, one rank with one thread.
void print_steps(int rounds, int layers) {
  namespace train = hd::train;
  using model = hd::model::gpt2<float>;
  using backend = hd::compute::host<HEDDLE_GEMM>;
  using schedule = hd::schedule::one_f_one_b<hd::microbatches<1>>;
  train::options<hd::model::gpt2_config> options;
  options.model = hd::model::gpt2_124m();
  options.model.context = 64;
  options.model.layers = layers;
  options.batch = 4;
  options.steps = rounds + 1;
  options.threads_per_rank = 1;
  observe::step_times times(1);
  counting watch{times};
  std::vector<cost> off, on;
  hd::launch<hd::threads, hd::mesh<>>([&](auto& world) {
    train::trainer<model, hd::strategy<hd::mesh<>, schedule, backend>> without(world, options);
    train::trainer<model, hd::strategy<hd::mesh<>, schedule, backend, counting>> with(world, options, watch);
    const random_tokens data{.length = 64, .vocabulary = 50257};
    for (int round = 0; round <= rounds; ++round)
      for (const bool first : {round % 2 == 0, round % 2 != 0}) {
        const cost c = first ? cost_of(1, [&](int) { without.step(data); }) : cost_of(1, [&](int) { with.step(data); });
        if (round > 0) (first ? off : on).push_back(c);
      }
  });
  std::printf("a step of GPT-2 with %d layers, ms: %.1f, with step_times %.1f", layers, 1e-6 * part_of(off, 0.5).clock,
              1e-6 * part_of(on, 0.5).clock);
  for (const double part : {0.0, 0.25, 0.5})
    std::printf("; at %.0f %% %.4f x (processors %.4f x)", 100 * part,
                part_of(on, part).clock / part_of(off, part).clock,
                part_of(on, part).processor / part_of(off, part).processor);
  std::printf("; events of a step: %d\n", static_cast<int>(watch.events / (rounds + 1)));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const int layers = argc > 2 ? std::atoi(argv[2]) : 12;
  if (rounds < 1 || layers < 0) {
    std::fprintf(stderr, "usage: observe_bench [rounds = 15] [layers = 12; 0: no steps]\n");
    return 2;
  }
  print_events(rounds);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("heddle-observe-bench-" + std::to_string(::getpid()));
  for (const int ranks : {1, 2, 4}) print_flights(ranks, 10 * rounds, folder.string());
  std::filesystem::remove_all(folder);
  print_windows();
  if (layers > 0) print_steps(rounds, layers);
}
