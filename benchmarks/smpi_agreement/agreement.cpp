// Compares heddle's network model with SimGrid: the same rounds on the same platform, once through sim::simulate, once as an
// MPI program under smpirun.
//
//   agreement <smpirun> <the program of rounds.cpp> [ranks...]
//
// Prints both times of each case, and fails if one differs by more than 10 %. Each case runs twice: with the links as they
// are, all of SimGrid's corrections off, and with SMPI's default corrections for the size of a message ("Stampede").
#include "cases.hpp"

#include <heddle/mesh/simgrid.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/sim/network.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;

namespace {

double under_smpi(const std::string& smpirun, const std::string& program, const std::string& algorithm,
                  const hd::topology& t, long long elements, bool stampede) {
  std::ofstream("platform.xml") << hd::simgrid_platform(t);
  std::ofstream("hosts.txt") << hd::simgrid_hostfile(t);
  std::string command = smpirun;
  command += " -np ";
  command += std::to_string(t.ranks());
  command +=
      " -platform platform.xml -hostfile hosts.txt --cfg=network/crosstraffic:0 --cfg=network/TCP-gamma:0"
      " --cfg=smpi/simulate-computation:no --log=root.thres:critical ";
  if (!stampede)
    command +=
        "--cfg=network/model:CM02 --cfg=network/bandwidth-factor:1 --cfg=network/latency-factor:1"
        " --cfg=network/weight-S:0 ";
  command += program;
  command += " ";
  command += algorithm;
  command += " ";
  command += std::to_string(elements);
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start " + command);
  double seconds = -1;
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) std::sscanf(line, "seconds %lf", &seconds);
  if (pclose(pipe) != 0 || seconds < 0) throw std::runtime_error("failed: " + command);
  return seconds;
}

std::vector<std::pair<const char*, hd::topology>> networks(int ranks) {
  const hd::link_class fast{1e-6, 20e9, hd::link_kind::nvlink}, slow{10e-6, 1e9, hd::link_kind::ethernet};
  int rows = 1;
  while (rows * rows * 4 <= ranks) rows *= 2;
  return {{"switch", hd::topologies::star(ranks, slow)},
          {"ring", hd::topologies::ring(ranks, slow)},
          {"torus", hd::topologies::torus({rows, ranks / rows}, slow)},
          {"nodes of 8", hd::topologies::nodes(ranks / 8, 8, fast, slow)}};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) throw std::runtime_error("usage: agreement <smpirun> <rounds> [ranks...]");
  std::vector<int> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {16, 32, 64};
  std::printf("%-11s %5s  %-18s %9s  %-8s %12s %12s %8s\n", "topology", "ranks", "rounds", "bytes", "links", "heddle",
              "SimGrid", "ratio");
  double worst = 0;
  for (const int ranks : sizes)
    for (const auto& [name, network] : networks(ranks))
      for (const char* algorithm : {"ring", "recursive_doubling", "all_to_all", "random"})
        for (const long long elements : {64LL, 65536LL}) {
          const hd::round_table rounds = agreement::rounds_of(algorithm, ranks);
          for (const bool stampede : {false, true}) {
            hd::sim::message_costs costs;
            costs.eager_bytes = 65536;  // SMPI's: a sender of less does not wait
            if (stampede) costs.sizes = hd::sim::stampede_sizes();
            const double ours = hd::sim::simulate(rounds, network, elements, 8, costs, hd::routing::single).seconds;
            const double theirs = under_smpi(argv[1], argv[2], algorithm, network, elements, stampede);
            std::printf("%-11s %5d  %-18s %9lld  %-8s %9.1f us %9.1f us %8.4f\n", name, ranks, algorithm, 8 * elements,
                        stampede ? "Stampede" : "as is", ours * 1e6, theirs * 1e6, ours / theirs);
            worst = std::fmax(worst, std::fabs(ours / theirs - 1));
          }
        }
  std::printf("largest difference: %.2f %%\n", 100 * worst);
  return worst <= 0.1 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
