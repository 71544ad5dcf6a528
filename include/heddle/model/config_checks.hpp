// heddle/model/config_checks.hpp: checks of ranges and deviations that all configurations of models share.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

namespace heddle::inline v0::model::detail {

// The checks of one type of configuration. Errors: `config_error` that names the first number that does not fit.
struct config_checks {
  const char* config;

  void in_range(int least, int most, std::initializer_list<std::pair<const char*, int>> numbers) const {
    for (const auto& [name, value] : numbers)
      if (value < least || value > most)
        throw config_error("heddle: " + std::string(config) + "." + name + " must be " + std::to_string(least) +
                           " to " + std::to_string(most) + ", got " + std::to_string(value));
  }
  // Of initial weights.
  void deviation(double value) const {
    if (!(value >= 0 && std::isfinite(value)))
      throw config_error("heddle: " + std::string(config) + ".initial_deviation must be a finite number >= 0, got " +
                         number_text(value));
  }
};

}  // namespace heddle::inline v0::model::detail
