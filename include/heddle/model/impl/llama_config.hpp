// heddle/model/impl/llama_config.hpp: bodies of heddle/model/llama_config.hpp.
#pragma once

#include <heddle/model/llama_config.hpp>
#include <heddle/compute/rotary_table.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/config_checks.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

HEDDLE_INLINE void llama_config::validate() const {
  const detail::config_checks check{"llama_config"};
  check.in_range(0, most_layers, {{"layers", layers}});
  check.in_range(1, most_width, {{"heads", heads}, {"kv_heads", kv_heads}, {"width", width}, {"ffn", ffn}});
  check.in_range(1, most_tokens, {{"context", context}, {"vocabulary", vocabulary}});
  check.in_range(0, most_width / heads, {{"head_elements", head_elements}});
  if (head_elements == 0 && width % heads != 0)
    throw config_error("heddle: llama_config.width = " + std::to_string(width) + " is not a multiple of heads = " +
                       std::to_string(heads) + "; every head has width / heads elements, or head_elements");
  if (heads % kv_heads != 0)
    throw config_error("heddle: llama_config.heads = " + std::to_string(heads) + " is not a multiple of kv_heads = " +
                       std::to_string(kv_heads) + "; every key-value head serves heads / kv_heads query heads");
  if (head_dim() % 2 != 0)
    throw config_error(std::string("heddle: llama_config.") + (head_elements > 0 ? "head_elements" : "width / heads") +
                       " = " + std::to_string(head_dim()) +
                       " must be even; rotary positions turn pairs of a head's elements");
  const auto positive = [](const char* name, double value) {
    if (!(value > 0 && std::isfinite(value)))
      throw config_error("heddle: llama_config." + std::string(name) + " must be positive and finite, got " +
                         number_text(value));
  };
  positive("theta", theta);
  positive("scaling.factor", scaling.factor);
  positive("scaling.low", scaling.low);
  positive("scaling.high", scaling.high);
  positive("scaling.original", scaling.original);
  if (!(scaling.low < scaling.high))
    throw config_error("heddle: llama_config.scaling.low = " + number_text(scaling.low) +
                       " must be less than scaling.high = " + number_text(scaling.high) +
                       "; wavelengths between original / high and original / low are blended");
  check.yarn(yarn, scaling.factor, theta);
  positive("epsilon", epsilon);
  check.deviation(initial_deviation);
}

HEDDLE_INLINE std::string to_string(const llama_config& c) {
  return detail::llama_text("llama", c);
}

HEDDLE_INLINE std::string detail::llama_text(const char* family, const llama_config& c) {
  const auto digits = [](double value, auto... format) {  // the fewest that tell it from others
    char text[400];
    return std::string(text, std::to_chars(text, text + sizeof text, value, format...).ptr);
  };
  std::string text = std::string(family) + " layers=" + std::to_string(c.layers) + " heads=" + std::to_string(c.heads) +
                     " kv_heads=" + std::to_string(c.kv_heads) + " width=" + std::to_string(c.width) +
                     " ffn=" + std::to_string(c.ffn) + " context=" + std::to_string(c.context) +
                     " vocabulary=" + std::to_string(c.vocabulary) +
                     " theta=" + digits(c.theta, std::chars_format::fixed);
  if (c.scaling.factor != 1)
    text += " scaling=" + digits(c.scaling.factor) + "," + digits(c.scaling.low) + "," + digits(c.scaling.high) + "," +
            digits(c.scaling.original);
  if (c.yarn.factor != 1 || c.yarn.table_factor() != 1)
    text += " yarn=" + digits(c.yarn.factor) + "," + digits(c.yarn.fast) + "," + digits(c.yarn.slow) + "," +
            digits(c.yarn.original) + "," + digits(c.yarn.table_factor()) + (c.yarn.whole ? "" : ",parts");
  if (c.head_elements != 0) text += " head_elements=" + std::to_string(c.head_elements);
  if (c.epsilon != llama_config{}.epsilon) text += " epsilon=" + digits(c.epsilon);
  return text;
}

}  // namespace heddle::inline v0::model
