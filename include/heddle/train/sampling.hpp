// heddle/train/sampling.hpp: text from the model in training, token by token, on its mesh.
#pragma once

#include <heddle/core/type_list.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/training_axes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

/// How the next token is drawn.
struct sampling_options {
  int tokens = 200;          ///< how many to draw
  double temperature = 0.8;  ///< logits are divided by it; 0 takes the likeliest token
  std::uint64_t seed = 1;

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    if (tokens < 0) detail::refuse_setting("tokens", std::to_string(tokens), "at least 0");
    if (!(temperature >= 0)) detail::refuse_setting("temperature", number_text(temperature), "at least 0");
  }
};

/// The token at which the cumulative softmax of `logits / temperature` passes `uniform`, a number in [0, 1); the
/// likeliest (the first of equals) for temperature 0.
template <class T>
std::int32_t draw_token(std::span<const T> logits, double temperature, double uniform) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<std::int32_t>(largest - logits.begin());
  double total = 0;
  for (const T l : logits) total += std::exp((static_cast<double>(l) - static_cast<double>(*largest)) / temperature);
  double left = uniform * total;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    left -= std::exp((static_cast<double>(logits[i]) - static_cast<double>(*largest)) / temperature);
    if (left < 0) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(largest - logits.begin());
}

/// Continues `prompt`, which must not be empty; returns prompt and drawn tokens, the same on all ranks. Called on all
/// ranks together. Each token is one forward pass over at most a context of tokens: a look at a model in training, not
/// an inference engine. Errors: `config_error` for an empty prompt, and for options that cannot be.
template <class Trainer>
std::vector<std::int32_t> sample(Trainer& trainer, std::span<const std::int32_t> prompt,
                                 const sampling_options& options) {
  using scalar = typename Trainer::scalar;
  options.validate();
  if (prompt.empty()) throw config_error("heddle: sampling needs a prompt of at least one token");
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  std::vector<scalar> logits(trainer.is_last_stage() ? static_cast<std::size_t>(trainer.options().model.vocabulary)
                                                     : 0);
  const counter_random random(options.seed, 0x73616d706c65u);
  for (int i = 0; i < options.tokens; ++i) {
    const std::size_t window = (std::min)(text.size(), static_cast<std::size_t>(trainer.options().model.context));
    typename Trainer::batch_type batch;
    batch.tokens = std::span<const std::int32_t>(text).last(window);
    batch.samples = 1;
    batch.sequence = static_cast<int>(window);
    trainer.last_logits(batch, std::span<scalar>(logits));
    std::int32_t token = 0;
    if (trainer.is_last_stage())
      token = draw_token(std::span<const scalar>(logits), options.temperature,
                         random.uniform(static_cast<std::uint64_t>(i)));
    detail::control_along(trainer.ranks(), type_list<typename Trainer::pipeline>{})
        .broadcast(std::span<std::int32_t>(&token, 1), trainer.last_stage_rank());
    text.push_back(token);
  }
  return text;
}

}  // namespace heddle::inline v0::train
