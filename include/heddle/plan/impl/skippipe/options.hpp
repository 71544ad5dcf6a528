// heddle/plan/impl/skippipe/options.hpp: bodies of heddle/plan/skippipe/options.hpp.
#pragma once

#include <heddle/plan/skippipe/options.hpp>
#include <heddle/plan/skippipe/way.hpp>
#include <heddle/schedule/paths.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::plan {
namespace detail {

HEDDLE_INLINE std::vector<agent> agents_of_wave(const schedule::visit_costs& costs, std::span<const int> stage_of_node,
                                                const skip_options& o) {
  std::vector<agent> agents;
  for (int node = 0; node < static_cast<int>(stage_of_node.size()); ++node) {
    if (stage_of_node[static_cast<std::size_t>(node)] != 0) continue;
    const double apart = o.start_seconds < 0 ? costs.forward[static_cast<std::size_t>(node)] : o.start_seconds;
    for (int k = 0; k < o.per_origin / o.copies; ++k) {
      agent a{node, {}};
      for (int c = 0; c < o.copies; ++c) a.ready.push_back(k * apart + c * o.copy_seconds);
      agents.push_back(std::move(a));
    }
  }
  return agents;
}

HEDDLE_INLINE schedule::path_table all_waves(const std::vector<agent>& agents,
                                             const std::vector<std::vector<int>>& ways,
                                             std::span<const int> stage_of_node, int stages, const skip_options& o) {
  schedule::path_table t;
  t.stages = stages;
  t.length = o.path_length;
  t.stage_of_node.assign(stage_of_node.begin(), stage_of_node.end());
  for (int d = 0; d < o.waves; ++d)
    for (std::size_t a = 0; a < agents.size(); ++a)
      for (const double ready : agents[a].ready) {
        const int each = static_cast<int>(agents.size()) * o.copies;
        const int i = static_cast<int>(t.ready.size());
        t.way.insert(t.way.end(), ways[a].begin(), ways[a].end());
        t.ready.push_back(d * o.wave_seconds + ready);
        t.after.push_back(d == 0 ? -1 : i - each);
      }
  return t;
}

HEDDLE_INLINE void require_options(const schedule::visit_costs& costs, std::span<const int> stage_of_node, int stages,
                                   const skip_options& o) {
  const auto refuse = [](const char* why) {
    std::string text = "heddle: plan::skippipe: ";
    text += why;
    throw config_error(text);
  };
  if (stage_of_node.size() != costs.forward.size() ||
      costs.message.size() != costs.forward.size() * costs.forward.size())
    refuse("the costs are of another number of nodes than the assignment of nodes to stages");
  if (!costs.complete()) refuse("costs are not negative, and numbers");
  if (o.path_length < 1 || o.path_length > stages) refuse("a way has at least one stage and at most all of them");
  if (o.slots < 1 || o.per_origin < 1 || o.waves < 1) refuse("slots, microbatches and waves are at least one");
  if (o.copies < 1 || o.per_origin % o.copies != 0)
    refuse("the microbatches of an origin do not divide over ways of so many copies; change per_origin or copies");
  if (o.per_origin > o.slots)
    refuse("an origin starts more microbatches in a wave than it has slots; make waves smaller and more");
  std::vector<int> size(static_cast<std::size_t>(stages), 0);
  for (const int s : stage_of_node) {
    if (s < 0 || s >= stages) refuse("a node holds a stage that does not exist");
    ++size[static_cast<std::size_t>(s)];
  }
  for (std::size_t s = 0; s < size.size(); ++s)
    if (size[s] == 0)
      refuse(("stage " + std::to_string(s) + " is held by no node; give it one of the " +
              std::to_string(stage_of_node.size()) + ", or merge it with its neighbour")
                 .c_str());
  const std::int64_t visits = std::int64_t{size[0]} * o.per_origin * (o.path_length - 1);
  if (visits > (static_cast<std::int64_t>(stage_of_node.size()) - size[0]) * (o.slots / o.copies * o.copies))
    refuse(
        "the microbatches of a wave make more visits than the nodes have slots; let fewer start at once, or skip more");
}

HEDDLE_INLINE skip_options with_slots_in_use(skip_options o, std::span<const int> stage_of_node) {
  const std::int64_t origins = std::count(stage_of_node.begin(), stage_of_node.end(), 0);
  o.slots = static_cast<int>((std::min)(std::int64_t{o.slots}, origins * o.per_origin));
  const auto others = static_cast<std::int64_t>(stage_of_node.size()) - origins;
  if (!o.even_visits || others == 0) return o;
  const std::int64_t ways = origins * (o.per_origin / o.copies) * (o.path_length - 1);
  o.slots = (std::min)(o.slots, static_cast<int>((ways + others - 1) / others) * o.copies);
  return o;
}

}  // namespace detail
}  // namespace heddle::inline v0::plan
