// heddle/train/explain_page.hpp: an explained strategy as one HTML page with pictures.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/train/explain.hpp>

#include <string>

namespace heddle::inline v0::train {

/// One HTML file with nothing from elsewhere and no script: what the strategy is, memory of each class of ranks by kind beside
/// the device's line, what is sent along each axis, the timeline of one pipeline, the mesh on the cluster, and the part of
/// each tensor that the first rank of each class has.
HEDDLE_INLINE std::string explain_page(const explanation& e);

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/explain_page.hpp>
#endif
