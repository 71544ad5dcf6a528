// heddle/train/impl/learning_rate.hpp: bodies of heddle/train/learning_rate.hpp.
#pragma once

#include <heddle/train/learning_rate.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cmath>
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

}  // namespace heddle::inline v0::train
