// heddle/model/impl/stage_layers.hpp: bodies of heddle/model/stage_layers.hpp.
#pragma once

#include <heddle/model/stage_layers.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::model {

HEDDLE_INLINE stage_layers given_layers(int layers, int stage, std::span<const int> counts) {
  stage_layers part{0, 0, stage, static_cast<int>(counts.size())};
  int total = 0;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    if (counts[s] < 0)
      throw config_error("heddle: stage " + std::to_string(s) + " cannot have " + std::to_string(counts[s]) +
                         " layers");
    if (static_cast<int>(s) == stage) part.first = total, part.count = counts[s];
    total += counts[s];
  }
  if (total != layers)
    throw config_error("heddle: the stages are given " + std::to_string(total) + " layers, the model has " +
                       std::to_string(layers));
  return part;
}

HEDDLE_INLINE void detail::require_stage(stage_layers part, stage_extents of, double of_token, int slots,
                                         std::int64_t max_samples, int deferred) {
  if (part.first < 0 || part.count < 0 || part.first + part.count > of.layers)
    throw config_error("heddle: a stage of layers [" + std::to_string(part.first) + ", " +
                       std::to_string(part.first + part.count) + ") does not fit a model of " +
                       std::to_string(of.layers) + " layers");
  if (part.stages < 1 || part.stage < 0 || part.stage >= part.stages)
    throw config_error("heddle: stage " + std::to_string(part.stage) + " of " + std::to_string(part.stages) +
                       " does not exist");
  if (slots < 0 || max_samples < 0 || deferred < 0)
    throw config_error("heddle: a stage needs slots, max_samples and deferred that are not negative, got " +
                       std::to_string(slots) + ", " + std::to_string(max_samples) + ", " + std::to_string(deferred));
  const double elements =
      of_token * static_cast<double>(max_samples) * static_cast<double>(of.context) * (slots + deferred + 2.0);
  constexpr double most = 576460752303423488.0;  // 2^59
  if (elements > most)
    throw config_error("heddle: a stage cannot have the activations of " + std::to_string(max_samples) +
                       " samples of " + std::to_string(of.context) + " tokens and width " + std::to_string(of.width) +
                       " in " + std::to_string(slots) + " slots for " + std::to_string(part.count) +
                       " layers: they are more than 2^59 elements");
}

}  // namespace heddle::inline v0::model
