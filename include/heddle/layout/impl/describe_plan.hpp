// heddle/layout/impl/describe_plan.hpp: bodies of heddle/layout/describe_plan.hpp.
#pragma once

#include <heddle/layout/describe_plan.hpp>
#include <heddle/layout/describe.hpp>
#include <heddle/layout/redistribution.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

HEDDLE_INLINE std::string placements_text(const std::vector<held_axis>& axes) {
  std::string text;
  const auto open = [&text](const std::string& what) {
    if (!text.empty()) text += ", ";
    text += what;
  };
  int dims = 0;
  for (const held_axis& a : axes) dims = (std::max)(dims, a.use.dim + 1);
  for (int d = 0; d < dims; ++d) {
    std::vector<const held_axis*> cuts;
    for (const held_axis& a : axes)
      if (a.use.role == axis_role::sharded && a.use.dim == d) cuts.push_back(&a);
    std::sort(cuts.begin(), cuts.end(), [](const auto* a, const auto* b) { return a->use.level < b->use.level; });
    if (cuts.empty()) continue;
    open("shard<" + std::to_string(d));
    std::string split;
    for (const held_axis* a : cuts) {
      if (a->split != split) {
        text += ", ";
        text += a->split.empty() ? "balanced" : a->split;
        split = a->split;
      }
      text += ", ";
      text += a->name;
    }
    text += ">";
  }
  for (const axis_role role : {axis_role::partial, axis_role::identical, axis_role::varying}) {
    std::string names;
    for (const held_axis& a : axes) {
      if (a.use.role != role) continue;
      if (names.empty() && role == axis_role::partial) names = a.op;
      if (!names.empty()) names += ", ";
      names += a.name;
    }
    if (names.empty()) continue;
    open(role == axis_role::partial ? "partial<" : role == axis_role::identical ? "identical<" : "varying<");
    text += names;
    text += ">";
  }
  return text.empty() ? "replicated" : text;
}

HEDDLE_INLINE std::string largest_part_text(const tensor_holdings& h) {
  const auto largest = std::max_element(h.ranks.begin(), h.ranks.end(), [](const held_part& a, const held_part& b) {
    return stored_size(a) < stored_size(b);
  });
  std::vector<std::int64_t> extents;
  for (const held_dimension& d : largest->dims) extents.push_back(d.stored);
  return extents_text(extents);
}

HEDDLE_INLINE std::string described_text(const described_plan& p) {
  std::vector<std::vector<std::string>> rows{
      {"step", "most bytes a rank sends", "all ranks send", "peak bytes of a rank", "largest part", "layout"}};
  rows.push_back({"start", "", "", "", largest_part_text(p.states.front()), p.states.front().layout});
  for (std::size_t i = 0; i < p.steps.size(); ++i) {
    const described_step& s = p.steps[i];
    rows.push_back({std::to_string(i + 1) + " " + s.what, std::to_string(s.most_sent), std::to_string(s.all_sent),
                    std::to_string(s.peak), largest_part_text(p.states[i + 1]), p.states[i + 1].layout});
  }
  rows.push_back({"together", std::to_string(p.most_sent), std::to_string(p.all_sent), std::to_string(p.peak), "", ""});
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = (std::max)(widths[c], row[c].size());
  std::string text = p.title;
  text += "\ntensor ";
  text += extents_text(p.extents);
  text += ", ";
  text += std::to_string(p.element_size);
  text += " bytes per element\n";
  if (p.steps.empty()) text += "nothing to do\n";
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      line += "  ";
      const std::string space(widths[c] - row[c].size(), ' ');
      line += c >= 1 && c <= 3 ? space + row[c] : row[c] + space;  // numbers to the right
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line;
    text += '\n';
  }
  return text;
}

}  // namespace detail
}  // namespace heddle::inline v0
