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
// The median, as others want the processors, too.
cost median(std::vector<cost> all) {
  const auto middle = [&](double cost::* of) {
    std::sort(all.begin(), all.end(), [&](const cost& a, const cost& b) { return a.*of < b.*of; });
    return all[all.size() / 2].*of;
  };
  return {middle(&cost::clock), middle(&cost::processor)};
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
  const cost two = median(readings);
  std::printf("two clock readings: %.1f ns\n", two.clock);
  const auto line = [&](const char* name, const cost& c) {
    std::printf("an event for %-24s %7.1f ns: %.2f x (processor %.2f x)\n", name, c.clock, c.clock / two.clock,
                c.processor / two.processor);
  };
  line("observe::step_times:", median(with_times));
  line("observe::recorder:", median(with_recorder));
  std::fflush(stdout);
}

void print_flights(int ranks, int rounds, const std::string& folder) {
  constexpr int calls = 20'000;
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
  for (int round = 0; round < rounds; ++round) {
    off.push_back(once(false));
    on.push_back(once(true));
  }
  const cost without = median(off), with = median(on);
  std::printf(
      "all_reduce of 8 bytes, %d ranks: %6.0f ns (processors %6.0f), with the flight recorder %6.0f (%6.0f): %.2f x "
      "(%.2f x)\n",
      ranks, without.clock, without.processor, with.clock, with.processor, with.clock / without.clock,
      with.processor / without.processor);
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
  for (const int ranks : {1, 2, 4}) print_flights(ranks, rounds, folder.string());
  std::filesystem::remove_all(folder);
}
