// A solver of the heat equation whose ranks share a rod, and which sends every field that it computes to an online training: see online_heat.cpp.
// run: --simulation 3 --parameters 1,0,0.5
// mpi: 3
// prints: simulation 3: 40 samples, in the end 0.94 at the left and 0.06 at the right
#include <heddle/comm/launch.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/core/split.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/train/online/sender.hpp>

#include "online_heat/heat_equation.hpp"
#include "tool.hpp"
#include "transport.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace hd = heddle;

namespace {

struct rod {};
using mesh_type = hd::mesh<hd::axis<rod>>;

struct settings {
  std::uint32_t simulation = 0, run = 0;
  std::vector<double> parameters;
  std::vector<std::string> to;
  int ranks = 3, pause_ms = 0;
};

int solve(const settings& s) {
  if (s.parameters.size() != 3) throw tool::usage_error("--parameters has three temperatures: left, right, at the beginning");
  const heat::parameters p{s.parameters[0], s.parameters[1], s.parameters[2]};
  hd::launch<on::transport>(mesh_type(s.ranks), [&](auto& world) {
    auto& ranks = world.template along<rod>();
    const hd::balanced_split cut{heat::points, world.size()};
    const int rank = world.rank(), last = world.size() - 1;
    std::vector<double> u(static_cast<std::size_t>(cut.size(rank)), p[2]), whole(heat::points);
    std::vector<std::int64_t> counts;
    for (int r = 0; r <= last; ++r) counts.push_back(cut.size(r));
    std::unique_ptr<hd::train::zmq_sender> out;
    if (rank == 0 && !s.to.empty()) out = std::make_unique<hd::train::zmq_sender>(s.to, hd::train::sender_options{.run = s.run});
    for (int t = 0; t < heat::samples; ++t) {
      for (int k = 0; k < heat::between; ++k) {
        double left = p[0], right = p[1];
        const double first = u.front(), end = u.back();
        std::vector<typename std::remove_reference_t<decltype(ranks)>::request> going;
        if (rank > 0) {
          going.push_back(ranks.irecv(std::span(&left, 1), rank - 1));
          going.push_back(ranks.isend(std::span<const double>(&first, 1), rank - 1));
        }
        if (rank < last) {
          going.push_back(ranks.irecv(std::span(&right, 1), rank + 1));
          going.push_back(ranks.isend(std::span<const double>(&end, 1), rank + 1));
        }
        for (auto& g : going) g.wait();
        heat::step(u, left, right);
      }
      ranks.gather_v(std::span<const double>(u), std::span(whole), counts, 0);
      if (out) out->send(s.simulation, static_cast<std::uint32_t>(t), heat::inputs(p, t), std::vector<float>(whole.begin(), whole.end()));
      if (s.pause_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(s.pause_ms));
    }
    if (out) out->finish(s.simulation);
    if (rank == 0 && !out)
      std::printf("simulation %u: %d samples, in the end %.2f at the left and %.2f at the right\n", s.simulation, heat::samples, whole.front(),
                  whole.back());
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  on::begin(argc, argv);
  settings s;
  tool::command_line line("Solves the heat equation in a rod, and sends every field to an online training.");
  line.add_option("--simulation", s.simulation, "its number");
  line.add_option("--parameters", s.parameters, "temperatures of the left end, of the right end, and of all at the beginning")->delimiter(',')->required();
  line.add_option("--to", s.to, "endpoints of the ranks that train")->delimiter(',')->otherwise("the last field is printed");
  line.add_option("--run", s.run, "the number of the training's run");
  line.add_option("--ranks", s.ranks, "ranks that share the rod")->range(1, heat::points);
  line.add_option("--pause-ms", s.pause_ms, "after each sample, as if it had taken so long")->at_least(0);
  return tool::run(line, argc, argv, [&] { return solve(s); });
}
