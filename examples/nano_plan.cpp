// Plans nano-batches (NanoFlow): cuts an iteration so that compute, memory and network of a device work at the same time, and draws it.
// run: @SOURCE_DIR@/examples/nano_plan/llama2_70b_a100.txt --svg nano_llama2_70b.svg
// prints: up_gate             153931.6      96.6       0.0
// prints: one after the other                              1138 tokens/s a device
// prints: 2048 rows as 1024 + 1024
// prints: no plan is faster than                           1460 tokens/s a device
#include <heddle/core/error.hpp>
#include <heddle/plan/nano_batches.hpp>
#include <heddle/sim/lanes.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace hd = heddle;
namespace plan = heddle::plan;
namespace sim = heddle::sim;

namespace {
struct profile {
  plan::nano_options options{.rows = 2048, .parts = 2, .layers = 1};
  int devices = 1;
  std::vector<plan::nano_operation> operations{};
};

profile read(const char* path) {
  std::ifstream file(path);
  if (!file) throw hd::io_error("heddle: cannot read '" + std::string(path) + "'");
  profile p;
  const std::map<std::string, int*> settings{
      {"rows", &p.options.rows}, {"layers", &p.options.layers}, {"parts", &p.options.parts}, {"devices", &p.devices}};
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string kind, lane, read;
    if (!(words >> kind)) continue;
    if (const auto set = settings.find(kind); set != settings.end()) {
      words >> *set->second;
    } else if (kind == "operation") {
      plan::nano_operation op;
      double ms = -1;
      words >> op.name >> lane >> ms;
      const auto at = std::find(sim::lane_names.begin(), sim::lane_names.end(), lane) - sim::lane_names.begin();
      bool known = at < static_cast<std::ptrdiff_t>(sim::lanes) && ms >= 0;
      if (known) op.where = static_cast<sim::lane>(at);
      while (known && words >> read) {
        const auto same = [&](const plan::nano_operation& o) { return o.name == read; };
        op.after.push_back(static_cast<int>(std::ranges::find_if(p.operations, same) - p.operations.begin()));
        known = op.after.back() < static_cast<int>(p.operations.size());
      }
      if (known) words.clear();
      op.seconds = [ms, o = p.options](int rows) { return ms * 1e-3 / o.layers * rows / o.rows; };
      p.operations.push_back(op);
      if (!known) words.setstate(std::ios::failbit);
    } else {
      words.setstate(std::ios::failbit);
    }
    if (!words)
      throw hd::io_error("heddle: '" + std::string(path) + "', line " + std::to_string(number) + ": '" + line + "'");
  }
  return p;
}
}  // namespace

int main(int argc, char** argv) try {
  if ((argc != 2 && argc != 4) || argv[1][0] == '-' || (argc == 4 && std::string(argv[2]) != "--svg"))
    return std::printf("usage: nano_plan <operations> [--svg FILE]\n"), argc == 2 ? 0 : 2;
  const profile p = read(argv[1]);
  std::printf("Llama-2 70B            GFLOP  GB memory  GB network\n");
  for (const auto& c : plan::costs_of({}))
    std::printf("%-17s %10.1f %9.1f %9.1f\n", c.name.c_str(), c.flops / 1e9, c.memory_bytes / 1e9,
                c.network_bytes / 1e9);

  plan::nano_plan best = plan::find_nano_plan(p.operations, sim::nanoflow_shares(), p.options);
  const auto print = [&](const char* what, double seconds) {
    std::printf("%-45s %7.0f tokens/s a device\n", what, best.rows / seconds / p.devices);
  };
  std::puts(to_string(best).c_str());
  print("one after the other", best.serial_seconds);
  print("planned", best.seconds);
  print("no plan is faster than", best.bound);

  best.layers = std::min(best.layers, 2);
  const auto works = plan::nano_works(p.operations, best);
  const auto line = sim::simulate_lanes(works, sim::nanoflow_shares());
  if (argc == 4 &&
      !(std::ofstream(argv[3]) << hd::gantt_svg(sim::lanes_chart(works, line, "the first layers: shares in per cent"))))
    throw hd::io_error("heddle: cannot write '" + std::string(argv[3]) + "'");
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
