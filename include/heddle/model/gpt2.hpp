// heddle/model/gpt2.hpp: GPT-2 as a model a trainer can be given.
#pragma once

#include <heddle/model/gpt2_config.hpp>
#include <heddle/model/gpt2_stage.hpp>

#include <span>

namespace heddle::inline v0::model {

/// GPT-2 with elements of type T: names the configuration, the stage that one rank holds and what a stage is fed.
template <class T>
struct gpt2 {
  using scalar = T;
  using config = gpt2_config;
  using batch = model::batch<T>;
  template <class World, class Backend, class Activations = activations::keep>
    requires compute::kernel_set<Backend, T>
  using stage = gpt2_stage<T, World, Backend, Activations>;
  /// The blocks of one pipeline stage when they are split evenly.
  static constexpr stage_layers layers_of(const gpt2_config& c, int stage, int stages) noexcept {
    return split_layers(c.layers, stage, stages);
  }
  /// The same when stage s is given `counts[s]` blocks. Errors: `config_error`.
  static stage_layers layers_of(const gpt2_config& c, int stage, std::span<const int> counts) {
    return given_layers(c.layers, stage, counts);
  }
  /// What layers cost, for `layers_by_cost`.
  static auto layer_costs(const gpt2_config& c) { return c.operations_by_layer(); }
};

}  // namespace heddle::inline v0::model
