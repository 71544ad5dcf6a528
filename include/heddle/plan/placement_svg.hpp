// heddle/plan/placement_svg.hpp: draws a placement on pods and its bytes per level, as SVG.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/draw/svg.hpp>
#include <heddle/plan/level_bytes.hpp>
#include <heddle/plan/place_groups.hpp>

#include <span>
#include <string>

namespace heddle::inline v0::plan {

/// What an axis sends in a step, for a picture.
struct axis_bytes {
  std::string axis{};
  level_bytes bytes{};
};

/// A row of boxes for each pod, a box for each of its free nodes: the group's colour and "row.column" of the cell, grey where nothing is
/// placed. Below it, for each axis, what it sends inside of nodes, inside of pods and between them.
/// Errors: `config_error` if a pod has fewer free nodes than are placed on it.
HEDDLE_INLINE std::string placement_svg(const group_placement& placement, std::span<const int> free_nodes,
                                        std::span<const axis_bytes> axes, const std::string& title = {});

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/placement_svg.hpp>
#endif
