// heddle/train/impl/optimizer_rule.hpp: bodies of heddle/train/optimizer_rule.hpp.
#pragma once

#include <heddle/train/optimizer_rule.hpp>
#include <heddle/core/text.hpp>

#include <cmath>
#include <string>

namespace heddle::inline v0::train::detail {

HEDDLE_INLINE void require_rates(const parameter_rates& rates) {
  for (const auto& [name, factor] : rates)
    if (!(factor >= 0 && std::isfinite(factor)))
      refuse_setting("rates", number_text(factor) + " for '" + name + "'", "at least 0 and finite");
}
HEDDLE_INLINE std::string text_of_rates(const parameter_rates& rates) {
  std::string text;
  for (const auto& [name, factor] : rates) text += " lr*" + name + "=" + exact_text(factor);
  return text;
}

}  // namespace heddle::inline v0::train::detail
