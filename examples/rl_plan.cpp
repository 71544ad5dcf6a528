// Plans reinforcement learning from a profile: which tasks share devices, and what the rules for new weights make of a step.
// run: @SOURCE_DIR@/examples/rl_plan/reasoning.txt
// prints: one after the other   186.4 s  rollout [0-7] ; inference [0-7] ; training [0-7]
// prints: all, no hybrids       164.4 s  rollout [0-2] | inference [3] | training [4-7]
// prints: synchronous              496.5 s a step
// prints: stale by half a step
#include <heddle/core/error.hpp>
#include <heddle/plan/m2flow.hpp>
#include <heddle/sim/rl_flow.hpp>

#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace plan = heddle::plan;
namespace sim = heddle::sim;

namespace {

struct profile {
  int devices = 1;
  plan::flow_options options{};
  plan::workflow flow{};
  std::vector<double> seconds{}, switching{};
  std::vector<bool> by_batch{};
  sim::rl_flow pipeline{};
  sim::rl_times times{};
};

int number_of(const plan::workflow& flow, const std::string& name) {
  for (std::size_t t = 0; t < flow.tasks.size(); ++t)
    if (flow.tasks[t] == name) return static_cast<int>(t);
  throw hd::config_error("heddle: there is no task '" + name + "' before this one");
}

profile read(const char* path) {
  std::ifstream file(path);
  if (!file) throw hd::io_error("heddle: cannot read '" + std::string(path) + "'");
  profile p;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream words(line);
    std::string kind, name, before, growth;
    if (!(words >> kind) || kind[0] == '#') continue;
    if (kind == "devices") {
      words >> p.devices;
    } else if (kind == "chunks") {
      words >> p.options.chunks;
    } else if (kind == "task") {
      words >> name >> before >> p.seconds.emplace_back() >> growth >> p.switching.emplace_back();
      p.by_batch.push_back(growth == "batch");
      if (before != "-") p.flow.edges.emplace_back(number_of(p.flow, before), static_cast<int>(p.flow.tasks.size()));
      p.flow.tasks.push_back(name);
    } else if (kind == "engines") {
      words >> p.pipeline.engines >> p.times.step >> p.times.step_per_answer;
    } else if (kind == "answers") {
      sim::rl_lengths lengths;
      words >> lengths.median >> lengths.between >> lengths.within >> lengths.cap;
      p.times.length = lengths;
    } else if (kind == "step") {
      words >> p.pipeline.groups >> p.pipeline.of_group >> p.times.train;
    } else {
      words.setstate(std::ios::failbit);
    }
    if (!words) throw hd::io_error("heddle: '" + std::string(path) + "', line " + std::to_string(number) + ": " + line);
  }
  return p;
}

void print(const char* name, const sim::rl_flow& flow, const sim::rl_times& times) {
  const sim::rl_flow_report r = sim::simulate(flow, times, 24, 8);
  std::printf("%-23s %6.1f s a step, %s\n", name, r.seconds_per_step(8), to_string(r).c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2 || argv[1][0] == '-') {
    std::printf("usage: rl_plan <profile>\n");
    return argc == 2 ? 0 : 2;
  }
  profile p = read(argv[1]);
  p.flow.seconds = [&p](int task, int n) {
    const auto t = static_cast<std::size_t>(task);
    return p.by_batch[t] ? plan::fewer_devices(p.seconds[t], p.devices, n) : p.seconds[t] * p.devices / n;
  };
  p.flow.switching = [&p](int task, int) { return p.switching[static_cast<std::size_t>(task)]; };
  for (const auto& [name, chunks, hybrids] :
       {std::tuple{"one after the other", 1, false}, std::tuple{"all, no hybrids", p.options.chunks, false},
        std::tuple{"all", p.options.chunks, true}}) {
    const plan::flow_plan best = plan::m2flow(p.flow, p.devices, {chunks, hybrids});
    std::printf("%-20s %6.1f s  %s\n", name, best.seconds, to_string(best, p.flow).c_str());
  }

  sim::rl_flow f = p.pipeline;
  print("synchronous", f, p.times);
  f.completion = sim::rl_completion::partial;
  f.started = 2 * f.groups;
  print("partial, twice started", f, p.times);
  f = p.pipeline;
  f.rule = sim::rl_rule::one_step_off;
  print("one step off", f, p.times);
  f.rule = sim::rl_rule::bounded_stale;
  f.eta = 0.5;
  print("stale by half a step", f, p.times);
  f.rule = sim::rl_rule::in_flight;
  f.window = 3 * f.groups;
  print("in flight", f, p.times);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
