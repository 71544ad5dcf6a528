// heddle/train/explain_page.hpp: an explained strategy as one HTML page with pictures.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/train/explain.hpp>

#include <string>
#include <string_view>

namespace heddle::inline v0::train {

/// One HTML file with nothing from elsewhere and no script: what the strategy is, memory of each class of ranks by kind beside
/// the device's line, what is sent along each axis, the timeline of one pipeline, the mesh on the cluster, and the part of
/// each tensor that the first rank of each class has. `search`: the table of a search that led here, shown as it is.
HEDDLE_INLINE std::string explain_page(const explanation& e, std::string_view search = {});
/// A page of the same kind with a text only.
HEDDLE_INLINE std::string text_page(std::string_view title, std::string_view text);

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/explain_page.hpp>
#endif
