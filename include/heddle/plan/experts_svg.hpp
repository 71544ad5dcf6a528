// heddle/plan/experts_svg.hpp: draws experts by layer and rank with their local share, as SVG.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/draw/svg.hpp>
#include <heddle/plan/co_clustering.hpp>

#include <string>

namespace heddle::inline v0::plan {

/// A row for each layer, a column for each rank, in it a box for each of its experts with its number: the darker, the more of its activations in
/// `counts` are of tokens of its rank. Experts without activations are grey.
/// Errors: as `local_share_of`.
HEDDLE_INLINE std::string experts_svg(const expert_placement& placement, const expert_counts& counts,
                                      const std::string& title = {});

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/experts_svg.hpp>
#endif
