// heddle/train/layer_assignment.hpp: policies that assign layers to the stages of a pipeline.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/layer_partition.hpp>

#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0 {

/// The kind of policies that give layers to stages.
struct layers_kind {};

/// As many layers on every stage as even division gives. The default.
struct layers_evenly {
  using kind = layers_kind;
  template <class Model>
  static auto layers_of(const typename Model::config& c, int part, int parts) {
    return Model::layers_of(c, part, parts);
  }
};

/// So that the stage with most work has as little as can be: the stages of embedding and head have fewer layers. Work is
/// what `Model::layer_costs(config)` says. For measured times give `plan::partition_layers(times, stages).counts` to the
/// trainer's options as `layers_per_stage`.
struct layers_by_cost {
  using kind = layers_kind;
  template <class Model>
  static auto layers_of(const typename Model::config& c, int part, int parts) {
    const plan::layer_partition cut = plan::partition_layers(costs<Model>(c), parts);
    return Model::layers_of(c, part, std::span<const int>(cut.counts));
  }
  template <class Model>
  static plan::layer_costs costs(const typename Model::config& c) {
    const auto of = Model::layer_costs(c);
    return {.layers = of.layers, .first = of.first, .last = of.last};
  }
  /// Layers of each of these parts where the loss is a part of its own, computed where the first one is.
  template <class Model>
  static std::vector<int> counts_before_loss(const typename Model::config& c, int parts) {
    plan::layer_costs all = costs<Model>(c);
    all.first += all.last;
    all.last = 0;
    return plan::partition_layers(all, parts).counts;
  }
};

namespace train::detail {

// Layers of the parts that have some, where others have none.
template <class Policy, class Model>
std::vector<int> counts_before_loss(const typename Model::config& c, int parts) {
  if constexpr (requires { Policy::template counts_before_loss<Model>(c, parts); }) {
    return Policy::template counts_before_loss<Model>(c, parts);
  } else {
    std::vector<int> counts;
    for (int part = 0; part < parts; ++part) {
      const auto layers = Policy::template layers_of<Model>(c, part, parts);
      if constexpr (requires { counts.push_back(layers.count); }) counts.push_back(layers.count);
    }
    return counts;
  }
}

// Explicit numbers go before the policy. The first `with_layers` of the parts have layers.
template <class Policy, class Model>
auto assigned_layers(const typename Model::config& c, int part, int parts, int with_layers, std::vector<int> given) {
  if (given.empty() && with_layers == parts) return Policy::template layers_of<Model>(c, part, parts);
  if (given.empty()) given = counts_before_loss<Policy, Model>(c, with_layers);
  if (static_cast<int>(given.size()) != with_layers)
    throw config_error("heddle: layers_per_stage has " + std::to_string(given.size()) +
                       " numbers, the schedule cuts the model into " + std::to_string(with_layers) + " stages");
  given.resize(static_cast<std::size_t>(parts), 0);
  if constexpr (requires { Model::layers_of(c, part, std::span<const int>(given)); })
    return Model::layers_of(c, part, std::span<const int>(given));
  else
    throw config_error("heddle: this model's layers_of does not take layers_per_stage");
}

}  // namespace train::detail
}  // namespace heddle::inline v0
