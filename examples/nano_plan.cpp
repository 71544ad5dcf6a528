// Plans nano-batches (NanoFlow): cuts an iteration so that compute, memory and network of a device work at the same time, and draws it.
// With --table it plans for a table of shares such as benchmarks/nano_batches_bench writes.
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
#include <utility>
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

std::string text_of(const std::string& path) {
  std::stringstream text;
  if (!(text << std::ifstream(path).rdbuf())) throw hd::io_error("heddle: cannot read '" + path + "'");
  return text.str();
}
profile read(const std::string& path) {
  std::istringstream file(text_of(path));
  profile p;
  const std::map<std::string, int*> settings{
      {"rows", &p.options.rows}, {"layers", &p.options.layers}, {"parts", &p.options.parts}, {"devices", &p.devices}};
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string kind, lane;
    double ms = -1;
    if (!(words >> kind)) continue;
    bool known = kind == "operation";
    if (const auto set = settings.find(kind); set != settings.end()) {
      known = static_cast<bool>(words >> *set->second);
    } else if (known) {
      plan::nano_operation op;
      words >> op.name >> lane >> ms;
      const auto at = std::ranges::find(sim::lane_names, lane);
      known = words && at != sim::lane_names.end() && ms >= 0;
      op.where = static_cast<sim::lane>(at - sim::lane_names.begin());
      for (std::string read; known && words >> read;) {
        const auto by = std::ranges::find(p.operations, read, &plan::nano_operation::name);
        op.after.push_back(static_cast<int>(by - p.operations.begin()));
        known = by != p.operations.end();
      }
      op.seconds = [ms, o = p.options](int rows) { return ms * 1e-3 / o.layers * rows / o.rows; };
      p.operations.push_back(op);
    }
    if (!known) throw hd::io_error("heddle: '" + path + "', line " + std::to_string(number) + ": '" + line + "'");
  }
  return p;
}
}  // namespace

int main(int argc, char** argv) try {
  std::map<std::string, std::string> files{{"--svg", ""}, {"--table", ""}};
  bool known = argc >= 2 && argc % 2 == 0 && argv[1][0] != '-';
  for (int i = 2; known && i + 1 < argc; i += 2)
    if (known = files.contains(argv[i]); known) files[argv[i]] = argv[i + 1];
  if (!known) return std::printf("usage: nano_plan <operations> [--table FILE] [--svg FILE]\n"), argc == 2 ? 0 : 2;
  const profile p = read(argv[1]);
  const std::string &svg = files["--svg"], &table = files["--table"];
  const auto shares = table.empty() ? sim::nanoflow_shares() : sim::parse_share_table(text_of(table), table);
  std::printf("Llama-2 70B            GFLOP  GB memory  GB network\n");
  for (const auto& c : plan::costs_of({}))
    std::printf("%-17s %10.1f %9.1f %9.1f\n", c.name.c_str(), c.flops / 1e9, c.memory_bytes / 1e9,
                c.network_bytes / 1e9);
  plan::nano_plan best = plan::find_nano_plan(p.operations, shares, p.options);
  std::puts(to_string(best).c_str());
  for (const auto& [what, seconds] :
       {std::pair("one after the other", best.serial_seconds), std::pair("planned", best.seconds),
        std::pair("no plan is faster than", best.bound)})
    std::printf("%-45s %7.0f tokens/s a device\n", what, best.rows / seconds / p.devices);
  best.layers = std::min(best.layers, 2);  // drawn
  const auto works = plan::nano_works(p.operations, best);
  const auto line = sim::simulate_lanes(works, shares);
  const auto chart = sim::lanes_chart(works, line, "the first layers: shares in per cent");
  if (!svg.empty() && !(std::ofstream(svg) << hd::gantt_svg(chart)))
    throw hd::io_error("heddle: cannot write '" + svg + "'");
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
