// heddle/sim/visits_svg.hpp: draws visits of microbatches at nodes over time, as SVG.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/draw/svg.hpp>
#include <heddle/schedule/paths.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {

/// The visits of a timetable: a row per node, by stage, `names` beside them; one colour per origin, forwards full,
/// backwards pale, the loss dark, idle time shaded. `shown`: seconds of the time axis, at least the timetable's (so that several pictures
/// have one scale). The caption says how long all takes and how much of the nodes' time is idle until then.
HEDDLE_INLINE std::string visits_svg(const schedule::path_table& paths, const schedule::timetable& times,
                                     std::span<const std::string> names, const std::string& title, double shown = 0);

}  // namespace heddle::inline v0::sim

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/sim/impl/visits_svg.hpp>
#endif
