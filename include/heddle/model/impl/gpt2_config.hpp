// heddle/model/impl/gpt2_config.hpp: bodies of heddle/model/gpt2_config.hpp.
#pragma once

#include <heddle/model/gpt2_config.hpp>
#include <heddle/core/error.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

HEDDLE_INLINE void gpt2_config::validate() const {
  const auto in_range = [](const char* name, int value, int least, int most) {
    if (value < least || value > most)
      throw config_error("heddle: gpt2_config." + std::string(name) + " must be " + std::to_string(least) + " to " +
                         std::to_string(most) + ", got " + std::to_string(value));
  };
  in_range("layers", layers, 0, most_layers);
  in_range("heads", heads, 1, most_width);
  in_range("width", width, 1, most_width);
  in_range("context", context, 1, most_tokens);
  in_range("vocabulary", vocabulary, 1, most_tokens);
  if (width % heads != 0)
    throw config_error("heddle: gpt2_config.width = " + std::to_string(width) + " is not a multiple of heads = " +
                       std::to_string(heads) + "; every head has width / heads elements");
  if (!(epsilon > 0 && std::isfinite(epsilon)))
    throw config_error("heddle: gpt2_config.epsilon must be positive and finite, got " + std::to_string(epsilon));
  if (!(initial_deviation >= 0 && std::isfinite(initial_deviation)))
    throw config_error("heddle: gpt2_config.initial_deviation must be a finite number >= 0, got " +
                       std::to_string(initial_deviation));
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
