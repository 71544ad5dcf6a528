// Twenty nodes in twelve cities train a model of six stages: microbatches skip a third of the stages, each on a way of its own.
// run: images
// prints: full pipeline                  27     79.68   1.000
// prints: published: SkipPipe            30     33.05   0.415
// prints: planned: balanced              30     33.31   0.418
// prints: planned: no collisions         30     33.05   0.415
// prints: wrote images/skippipe_planned.svg
#include <heddle/plan/skippipe.hpp>
#include <heddle/plan/skippipe/assign.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/routed.hpp>
#include <heddle/sim/serial_nodes.hpp>
#include <heddle/sim/visits_svg.hpp>

#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "skippipe_cities/published.hpp"

namespace hd = heddle;
namespace plan = heddle::plan;

int main(int argc, char** argv) try {
  if (argc > 1 && argv[1][0] == '-') {
    std::printf("usage: skippipe_cities [folder for pictures]\n");
    return 0;
  }
  const std::filesystem::path folder = argc > 1 ? argv[1] : ".";
  std::filesystem::create_directories(folder);
  std::vector<std::string> names;  // "Bel 0"
  for (std::size_t n = 0; n < published::twenty_nodes.size(); ++n) {
    names.push_back(published::twelve_city_names[static_cast<std::size_t>(published::twenty_nodes[n])]);
    names.back() += ' ';
    names.back() += std::to_string(n);
  }

  // [plan]
  const hd::schedule::visit_costs costs = published::costs();  // 0.44 s per forward, measured links, 32 MiB messages
  const hd::sim::serial_nodes nodes{.slots = 3};               // one visit at a time, three activations at most
  const auto seconds = [&](const hd::schedule::path_table& ways) { return nodes.seconds(ways, costs); };
  // Rules are types: at most three stages skipped at a time, neighbours may change places, stage 0 comes first.
  using rules = plan::skip_rules<plan::max_jump<4>, plan::swap_limit<1, 2, 2>, plan::keep_first_stage>;
  plan::skip_options options{.path_length = 4, .slots = 3, .per_origin = 3, .exchanges = 2000};
  options.avoid_collisions = false;
  const plan::skip_plan balanced =
      plan::skippipe<rules>(costs, published::stage_of_node, published::stages, options, seconds);
  options.avoid_collisions = true;
  options.copies = 3;  // three microbatches on each way, a second apart
  const plan::skip_plan planned =
      plan::skippipe<rules>(costs, published::stage_of_node, published::stages, options, seconds);
  // [plan]

  struct row {
    const char *name, *file;
    hd::schedule::path_table ways;
  };
  const std::array rows{row{"full pipeline", "skippipe_full.svg", published::full_pipeline()},
                        row{"published: blind to costs", "skippipe_blind.svg", published::cost_blind()},
                        row{"published: balanced", "skippipe_balanced.svg", published::balanced()},
                        row{"published: SkipPipe", "skippipe_published.svg", published::collision_aware()},
                        row{"planned: balanced", nullptr, balanced.paths},
                        row{"planned: no collisions", "skippipe_planned.svg", planned.paths}};
  const double full = seconds(rows[0].ways);
  std::printf("%-29s %3s %9s %7s\n", "plan", "m", "seconds", "ratio");
  for (const row& r : rows)
    std::printf("%-29s %3d %9.2f %7.3f\n", r.name, r.ways.microbatches(), seconds(r.ways), seconds(r.ways) / full);

  std::printf("\nthe planned ways, each of three microbatches:\n");
  for (int i = 0; i < planned.paths.microbatches() / 2; i += 3) {
    for (const int n : planned.paths.path(i))
      std::printf("  %-6s (stage %d)", names[static_cast<std::size_t>(n)].c_str(),
                  planned.paths.stage_of_node[static_cast<std::size_t>(n)]);
    std::printf("\n");
  }
  // [run]
  const hd::schedule::routed schedule(planned.paths, nodes(planned.paths, costs));  // what an executor runs
  const hd::schedule::plan ready = hd::schedule::make_plan(hd::schedule::make_table(schedule, 20));
  std::printf("its schedule is valid: %d actions, %lld messages\n", static_cast<int>(ready.table.actions.size()),
              static_cast<long long>(hd::schedule::sends(ready.table)));
  // [run]

  const plan::assignment own = plan::assign_nodes(costs, std::array{5, 3, 3, 3, 3, 3}, {.offspring = 500});
  std::printf("assignment to stages: published costs %.2f, our own %.2f\n",
              plan::cost_of_assignment(costs, published::stage_of_node, published::stages).total(), own.cost.total());
  for (const row& r : rows) {
    if (r.file == nullptr) continue;
    const std::filesystem::path file = folder / r.file;
    std::ofstream out(file, std::ios::binary);
    out << hd::sim::visits_svg(r.ways, nodes(r.ways, costs), names, r.name, full);
    if (!out.flush()) throw hd::io_error("cannot write " + file.string());
    std::printf("wrote %s\n", file.string().c_str());
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
