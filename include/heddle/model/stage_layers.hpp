// heddle/model/stage_layers.hpp: the range of a model's layers on a pipeline stage.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::model {

/// Which layers a pipeline stage holds: blocks [first, first + count), the embedding on stage 0, the final norm and the
/// head on stage `stages - 1`. A stage may hold no block. Where several pipelines run copies of one model, `replica`
/// counts them; parameters count (in norms and saves) on the first. The memory of its weights or gradients may be lent by
/// the caller: then the stage allocates none (`of_stage::can_lend_weights`).
struct stage_layers {
  int first = 0;
  int count = 0;
  int stage = 0;
  int stages = 1;
  int replica = 0;
  bool lent_weights = false;
  bool lent_gradients = false;
  constexpr bool has_embedding() const noexcept { return stage == 0; }
  constexpr bool has_head() const noexcept { return stage == stages - 1; }
  friend constexpr bool operator==(const stage_layers&, const stage_layers&) = default;
};

/// The layers of one of `stages` stages when `layers` blocks are split evenly, the larger stages first.
constexpr stage_layers split_layers(int layers, int stage, int stages) noexcept {
  const balanced_split cut{layers, stages};
  return {static_cast<int>(cut.offset(stage)), static_cast<int>(cut.size(stage)), stage, stages};
}

/// The layers of one stage when stage s has `counts[s]` of the blocks.
/// Errors: `config_error` if the counts are not those of a model of `layers` blocks.
inline stage_layers given_layers(int layers, int stage, std::span<const int> counts) {
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

/// Checks the arguments of a stage and returns its configuration. Errors: `config_error` if a stage cannot be made like
/// this.
template <class Config>
const Config& checked_stage(const Config& config, stage_layers part, int slots, std::int64_t max_samples,
                            int deferred) {
  config.validate();
  if (part.first < 0 || part.count < 0 || part.first + part.count > config.layers)
    throw config_error("heddle: a stage of layers [" + std::to_string(part.first) + ", " +
                       std::to_string(part.first + part.count) + ") does not fit a model of " +
                       std::to_string(config.layers) + " layers");
  if (part.stages < 1 || part.stage < 0 || part.stage >= part.stages)
    throw config_error("heddle: stage " + std::to_string(part.stage) + " of " + std::to_string(part.stages) +
                       " does not exist");
  if (slots < 0 || max_samples < 0 || deferred < 0)
    throw config_error("heddle: a stage needs slots, max_samples and deferred that are not negative, got " +
                       std::to_string(slots) + ", " + std::to_string(max_samples) + ", " + std::to_string(deferred));
  // More than a stage ever keeps for a token: elements of all its memory are then counted by 64 bits.
  double widths = static_cast<double>(config.width), ends = 0;
  if constexpr (requires { config.heads; }) widths += config.heads;
  if constexpr (requires { config.ffn; }) widths += config.ffn;
  if constexpr (requires { config.hidden + config.inputs; })
    widths += static_cast<double>(config.hidden) + config.inputs;
  if constexpr (requires { config.vocabulary; }) ends += 2.0 * config.vocabulary;
  if constexpr (requires { config.outputs; }) ends += 2.0 * config.outputs;
  const double of_token = (part.count + 4.0) * 32.0 * widths + ends;
  const double elements = of_token * static_cast<double>(max_samples) * config.context * (slots + deferred + 2.0);
  constexpr double most = 576460752303423488.0;  // 2^59
  if (elements > most)
    throw config_error("heddle: a stage cannot have the activations of " + std::to_string(max_samples) +
                       " samples of " + std::to_string(config.context) + " tokens and width " +
                       std::to_string(config.width) + " in " + std::to_string(slots) + " slots for " +
                       std::to_string(part.count) + " layers: they are more than 2^59 elements");
  return config;
}

}  // namespace heddle::inline v0::model
