// heddle/plan/impl/placement_svg.hpp: bodies of heddle/plan/placement_svg.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/placement_svg.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

HEDDLE_INLINE std::string placement_svg(const group_placement& placement, std::span<const int> free_nodes,
                                        std::span<const axis_bytes> axes, const std::string& title) {
  constexpr double box = 34, left = 84, top = 84, bars = 460;
  std::vector<std::vector<std::pair<int, int>>> of_pod(free_nodes.size());  // row and column of its cells
  for (int row = 0; row < placement.rows; ++row)
    for (int column = 0; column < placement.columns; ++column) {
      const auto pod = static_cast<std::size_t>(placement.pod(row, column));
      if (pod >= of_pod.size() || of_pod[pod].size() == static_cast<std::size_t>((std::max)(free_nodes[pod], 0)))
        throw config_error(text_of({"heddle: the picture of a placement needs the free nodes of its request; pod ", pod,
                                    " has fewer than are placed on it"}));
      of_pod[pod].emplace_back(row, column);
    }
  svg_drawing out;
  out.words(24, 34, title, 15, "#111111", "start", true);
  out.words(24, 54, text_of({placement.pods, " pods, a group in at most ", placement.widest}), 12, "#333333");
  double y = top;
  for (std::size_t pod = 0; pod < free_nodes.size(); ++pod, y += box + 6) {
    out.words(left - 8, y + 20, text_of({"pod ", pod}), 11, "#333333", "end");
    for (int node = 0; node < free_nodes[pod]; ++node) {
      const double x = left + box * node;
      const bool used = static_cast<std::size_t>(node) < of_pod[pod].size();
      const auto [row, column] = used ? of_pod[pod][static_cast<std::size_t>(node)] : std::pair{0, 0};
      out.rect(x, y, box - 3, box - 3, used ? rank_colour(row) : "#eef1f4", 3);
      if (used) out.words(x + (box - 3) / 2, y + 20, text_of({row, ".", column}), 10, rank_text_colour(row), "middle");
    }
  }
  double most = 0;
  for (const axis_bytes& a : axes) most = (std::max)({most, a.bytes.in_node, a.bytes.in_pod, a.bytes.between_pods});
  y += 12;
  for (const axis_bytes& a : axes) {
    const std::pair<std::string_view, double> levels[] = {
        {"in a node", a.bytes.in_node}, {"in a pod", a.bytes.in_pod}, {"between pods", a.bytes.between_pods}};
    for (const auto& [name, bytes] : levels) {
      out.words(left + 60, y + 11, text_of({a.axis, " ", name}), 11, "#333333", "end");
      out.rect(left + 68, y, most > 0 ? bars * bytes / most : 0, 14, name == "between pods" ? "#d55e00" : "#56b4e9");
      out.words(left + 74 + (most > 0 ? bars * bytes / most : 0), y + 11, rounded_text(bytes / 1e9, 3) + " GB", 11,
                "#333333");
      y += 18;
    }
    y += 6;
  }
  return out.text("", 20, "#ffffff");
}

}  // namespace heddle::inline v0::plan
