// benchmarks/observe_bench.cpp: what observers and the flight recorder add: an observed event beside two clock readings,
// and an all_reduce of 8 bytes between threads with the recorder on and off. Rounds alternate.
// run: observe_bench [rounds = 15]
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/observe/step_times.hpp>

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
  const cost low = part_of(off, 0.25), low_on = part_of(on, 0.25), half = part_of(off, 0.5), half_on = part_of(on, 0.5);
  std::printf(
      "all_reduce of 8 bytes, ranks: %d, rounds: %d; with the flight recorder / without, ns: lower quarter %.0f / "
      "%.0f: %.2f x "
      "(processors %.2f x); median %.0f / %.0f: %.2f x (%.2f x)\n",
      ranks, static_cast<int>(off.size()), low_on.clock, low.clock, low_on.clock / low.clock,
      low_on.processor / low.processor, half_on.clock, half.clock, half_on.clock / half.clock,
      half_on.processor / half.processor);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: observe_bench [rounds = 15]\n");
    return 2;
  }
  print_events(rounds);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("heddle-observe-bench-" + std::to_string(::getpid()));
  for (const int ranks : {1, 2, 4}) print_flights(ranks, 10 * rounds, folder.string());
  std::filesystem::remove_all(folder);
}
