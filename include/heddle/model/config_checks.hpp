// heddle/model/config_checks.hpp: checks that all configurations of models share.
#pragma once

#include <heddle/compute/yarn_scaling.hpp>
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
  // YaRN beside frequencies with another scaling, of this factor.
  void yarn(const compute::yarn_scaling& y, double other_factor, double theta) const {
    const std::string name = "heddle: " + std::string(config) + ".yarn.";
    const auto must = [&](bool holds, const char* setting, const char* expected, double value) {
      if (!holds) throw config_error(name + setting + " must be " + expected + ", got " + number_text(value));
    };
    const auto positive = [&](const char* setting, double value) {
      must(value > 0 && value <= 1e12, setting, "a positive number", value);
    };
    positive("factor", y.factor);
    positive("original", y.original);
    positive("slow", y.slow);
    must(y.fast >= y.slow && y.fast <= 1e12, "fast", ("at least yarn.slow = " + number_text(y.slow)).c_str(), y.fast);
    const auto at_least_zero = [&](const char* setting, double value) {
      must(value >= 0 && value <= 1e12, setting, "0 to 1e12", value);
    };
    at_least_zero("mscale", y.mscale);
    at_least_zero("mscale_all", y.mscale_all);
    at_least_zero("attention_factor", y.attention_factor.value_or(1));
    if ((y.factor != 1 && theta <= 1) || ((y.factor != 1 || y.attention_factor) && other_factor != 1))
      throw config_error("heddle: a " + std::string(config) +
                         " with yarn must have scaling.factor 1 and theta above 1, got " + number_text(other_factor) +
                         " and " + number_text(theta));
  }
};

}  // namespace heddle::inline v0::model::detail
