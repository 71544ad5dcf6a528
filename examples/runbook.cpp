// Injects a condition into a simulated serving cluster and prints what the runbook says: runbook CONDITION [PLACE] [SEED]
// run: device_slow_in_node 3
// prints: window 33: device_slow_in_node at rank 3 since window 31
// prints: 13 device_slow_in_node         ALARM at rank 3
// prints:  4 ingress_loss                clear
#include <heddle/observe/conditions.hpp>
#include <heddle/sim/serving_cluster.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace observe = heddle::observe;
namespace sim = heddle::sim;

// 0: found. 1: not found. 2: cannot be asked.
int main(int argc, char** argv) try {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: runbook CONDITION [PLACE] [SEED]\n");
    return 2;
  }
  constexpr int begins = 31, windows = 40;  // a window is 8 steps
  const int wanted = observe::condition_number(argv[1]);
  const int place = argc > 2 ? std::stoi(argv[2]) : 0;
  const auto seed = static_cast<std::uint64_t>(argc > 3 ? std::stoll(argv[3]) : 1);

  const sim::serving_options o;
  sim::serving_cluster cluster(o, seed, {.name = argv[1], .place = place, .from_window = begins});
  observe::runbook book({.replicas = o.replicas,
                         .stages = o.stages,
                         .nodes = o.nodes,
                         .ranks = o.ranks,
                         .links = o.links,
                         .channels = o.channels});
  bool found = false;
  std::vector<int> told;
  for (int w = 0; w < windows; ++w) {
    add_window(book, cluster.next());
    book.end_window();
    for (const auto& v : book.verdicts()) {
      found = found || v.row == wanted;
      bool is_new = true;
      for (const int row : told) is_new = is_new && row != v.row;
      if (!is_new) continue;
      told.push_back(v.row);
      std::printf("window %d: %s\n", w, to_string(v).c_str());
    }
  }
  std::printf("\n%s", book.to_text().c_str());
  return found ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
