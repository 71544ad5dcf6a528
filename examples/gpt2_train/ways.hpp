// examples/gpt2_train/ways.hpp: the schedule that the command line asks for: one by name, or ways of microbatches.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/skippipe.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/routed.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/sim/serial_nodes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "settings.hpp"

namespace ways {

namespace hd = heddle;

/// Links of all pairs of nodes; pairs that the file does not name, and all without a file, take no time.
inline std::vector<double> message_seconds(const std::string& file, int nodes, double bytes) {
  const auto at = [&](int a, int b) { return static_cast<std::size_t>(a * nodes + b); };
  std::vector<double> seconds(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(nodes), 0.0);
  if (file.empty()) return seconds;
  std::ifstream in(file);
  if (!in) throw hd::io_error("heddle: cannot read the links in '" + file + "'");
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    int a = -1, b = -1;
    double milliseconds = 0, megabytes_per_second = 0;
    std::string more;
    if (!(words >> a >> b >> milliseconds >> megabytes_per_second) || std::min(a, b) < 0 || std::max(a, b) >= nodes ||
        !(milliseconds >= 0) || !(megabytes_per_second > 0) || (words >> more && more[0] != '#'))
      throw hd::config_error("heddle: line " + std::to_string(number) + " of '" + file + "' is no link of two of " +
                             std::to_string(nodes) + " nodes: node, node, milliseconds, megabytes per second");
    seconds[at(a, b)] = seconds[at(b, a)] = milliseconds * 1e-3 + bytes / (megabytes_per_second * 1e6);
  }
  return seconds;
}

/// Plans the ways and simulates in which order nodes take their visits. `message_bytes`: one microbatch between stages.
inline hd::schedule::routed plan(const settings& s, double message_bytes) {
  std::vector<int> stage_of_node;
  for (std::size_t stage = 0; stage < s.nodes.size(); ++stage)
    stage_of_node.insert(stage_of_node.end(), static_cast<std::size_t>(s.nodes[stage]), static_cast<int>(stage));
  const int nodes = static_cast<int>(stage_of_node.size()), stages = static_cast<int>(s.nodes.size());
  const int origins = s.nodes.front();
  if (s.skip >= stages)
    throw hd::config_error("heddle: --skip must be less than the " + std::to_string(stages) + " stages of --nodes");
  if (s.microbatches % origins != 0)
    throw hd::config_error("heddle: --microbatches " + std::to_string(s.microbatches) + " do not divide over the " +
                           std::to_string(origins) + " nodes of the first stage; give a multiple of " +
                           std::to_string(origins));
  const hd::schedule::visit_costs costs{.forward = std::vector<double>(stage_of_node.size(), s.forward_ms * 1e-3),
                                        .message = message_seconds(s.links, nodes, message_bytes)};
  hd::plan::skip_options o{.path_length = stages - s.skip, .wave_seconds = 0, .even_visits = true, .exchanges = 500};
  const int each = s.microbatches / origins;
  o.in_order = s.in_order;
  o.per_origin = std::min(each, 3);
  while (each % o.per_origin != 0) --o.per_origin;
  o.waves = each / o.per_origin;
  const int visits = origins * o.per_origin * (o.path_length - 1), others = nodes - origins;
  o.slots = std::max(o.per_origin, others > 0 ? (visits + others - 1) / others : 0);
  const hd::sim::serial_nodes simulated{.slots = o.slots, .gap = 0, .injected_gap = 0};
  const auto found = hd::plan::skippipe(costs, stage_of_node, stages, o, [&](const hd::schedule::path_table& ways) {
    return simulated.seconds(ways, costs);
  });
  return hd::schedule::routed(found.paths, simulated(found.paths, costs));
}

/// A schedule by name. Stages beyond the layers do nothing but take memory: there may be 16 for each rank, or as many as
/// layers, embedding and head fill. Errors: `config_error`, `schedule_error`.
inline hd::schedule::named named(const settings& s, int ranks) {
  const hd::schedule::named when(s.schedule, s.microbatches);
  const std::int64_t most = std::max(s.layers + std::int64_t{2}, 16 * std::int64_t{ranks});
  if (const int stages = when.stages(ranks); stages > most)
    throw hd::config_error("heddle: --schedule " + s.schedule + " has " + std::to_string(stages) + " stages on " +
                           std::to_string(ranks) + " pipeline ranks; with --layers " + std::to_string(s.layers) +
                           " there may be at most " + std::to_string(most));
  return when;
}

/// The table of the schedule for so many pipeline ranks. Errors: `config_error`, `schedule_error`.
inline hd::schedule::tabled schedule_of(const settings& s, int ranks, double message_bytes) {
  if (s.nodes.empty()) {
    if (s.skip > 0 || !s.links.empty())
      throw hd::config_error("heddle: --skip and --links need --nodes, the ranks that hold each stage");
    return {named(s, ranks), ranks};
  }
  const auto n = std::accumulate(s.nodes.begin(), s.nodes.end(), std::int64_t{0});
  if (n > most_nodes)
    throw hd::config_error("heddle: --nodes are " + std::to_string(n) + " pipeline ranks; there may be at most " +
                           std::to_string(most_nodes));
  if (n != ranks)
    throw hd::config_error("heddle: --nodes are " + std::to_string(n) +
                           " pipeline ranks, --mesh has pp=" + std::to_string(ranks));
  return {plan(s, message_bytes), ranks};
}

inline std::string name_of(const settings& s) {
  if (s.nodes.empty()) return s.schedule;
  const int stages = static_cast<int>(s.nodes.size());
  return "ways of " + std::to_string(stages - s.skip) + " of " + std::to_string(stages) + " stages (" +
         (s.in_order ? "in order)" : "neighbours may be swapped)");
}

}  // namespace ways
