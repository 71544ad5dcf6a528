// heddle/schedule/impl/lower/reorder.hpp: bodies of heddle/schedule/lower/reorder.hpp.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/schedule/lower/reorder.hpp>

#include <string_view>

namespace heddle::inline v0::schedule::detail {

HEDDLE_INLINE void throw_not_reordered(std::string_view pass, std::string_view why, std::string_view found) {
  throw schedule_error(text_of({"heddle: passes::", pass, ": ", why, without_prefix(found)}));
}

}  // namespace heddle::inline v0::schedule::detail
