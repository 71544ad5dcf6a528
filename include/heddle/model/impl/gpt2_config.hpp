// heddle/model/impl/gpt2_config.hpp: bodies of heddle/model/gpt2_config.hpp.
#pragma once

#include <heddle/model/gpt2_config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/config_checks.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

HEDDLE_INLINE void gpt2_config::validate() const {
  const detail::config_checks check{"gpt2_config"};
  check.in_range(0, most_layers, {{"layers", layers}});
  check.in_range(1, most_width, {{"heads", heads}, {"width", width}});
  check.in_range(1, most_tokens, {{"context", context}, {"vocabulary", vocabulary}});
  if (width % heads != 0)
    throw config_error("heddle: gpt2_config.width = " + std::to_string(width) + " is not a multiple of heads = " +
                       std::to_string(heads) + "; every head has width / heads elements");
  if (!(epsilon > 0 && std::isfinite(epsilon)))
    throw config_error("heddle: gpt2_config.epsilon must be positive and finite, got " + number_text(epsilon));
  check.deviation(initial_deviation);
}

HEDDLE_INLINE std::string to_string(const gpt2_config& c) {
  std::string text = "gpt2 layers=" + std::to_string(c.layers) + " heads=" + std::to_string(c.heads) +
                     " width=" + std::to_string(c.width) + " context=" + std::to_string(c.context) +
                     " vocabulary=" + std::to_string(c.vocabulary);
  if (c.epsilon != gpt2_config{}.epsilon) {
    char digits[40];
    *std::to_chars(digits, digits + sizeof digits - 1, c.epsilon).ptr = '\0';  // the fewest that tell it from others
    text += " epsilon=";
    text += digits;
  }
  return text;
}

}  // namespace heddle::inline v0::model
