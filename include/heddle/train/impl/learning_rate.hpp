// heddle/train/impl/learning_rate.hpp: bodies of heddle/train/learning_rate.hpp.
#pragma once

#include <heddle/train/learning_rate.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

namespace heddle::inline v0::train {

HEDDLE_INLINE void warmup_cosine::validate() const {
  if (!(peak >= 0) || !std::isfinite(peak))
    throw config_error("heddle: the learning rate must be a finite number >= 0, got " + number_text(peak));
  if (!(minimum >= 0) || minimum > peak)
    throw config_error("heddle: the minimum learning rate must be in [0, peak = " + number_text(peak) + "], got " +
                       number_text(minimum));
  if (warmup_steps < 0 || total_steps < 0)
    throw config_error("heddle: warm-up and total steps must not be negative, got " + std::to_string(warmup_steps) +
                       " and " + std::to_string(total_steps));
}

HEDDLE_INLINE std::string detail::exact_text(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", x);
  return text;
}

HEDDLE_INLINE std::string to_string(const warmup_cosine& rate) {
  return "lr=" + detail::exact_text(rate.peak) + " minimum_lr=" + detail::exact_text(rate.minimum) +
         " warmup_steps=" + std::to_string(rate.warmup_steps) + " total_steps=" + std::to_string(rate.total_steps);
}

HEDDLE_INLINE double any_learning_rate::operator()(std::int64_t step) const {
  const double rate = verbs_->at(rate_.get(), step);
  if (!(rate >= 0 && std::isfinite(rate)))
    throw config_error("heddle: the learning rate of step " + std::to_string(step) +
                       " must be a finite number >= 0, got " + number_text(rate));
  return rate;
}

}  // namespace heddle::inline v0::train
