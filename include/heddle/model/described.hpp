// heddle/model/described.hpp: a model to train: description, sizes, initial weights.
#pragma once

#include <heddle/model/language_checks.hpp>
#include <heddle/model/language_stage.hpp>
#include <heddle/model/layer_operations.hpp>
#include <heddle/model/reach.hpp>
#include <heddle/model/stage_layers.hpp>

#include <span>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model {

template <class T, class Context>
struct context_batch;  // of a sharding with a context split: <heddle/model/context_batch.hpp>

namespace detail {
template <class Batch, class Context>
struct batch_under {
  using type = Batch;
};
template <class T, class... Policies>
struct batch_under<batch<T>, context<Policies...>> {
  using type = context_batch<T, context<Policies...>>;
};
}  // namespace detail

/// A model from its description: `struct mine : model::described<mine, float, model::pair_batch<float>,
/// model::network_config> { static auto describe(const config& c) { ... } };`, where `describe` returns a `layers::network` or `layers::language_model`. `How` is
/// its sharding.
template <class Model, class T, class Batch, class Config, class How = megatron<>>
struct described {
  using scalar = T;
  using config = Config;
  using how = How;
  /// What its stages are given: documents of any length where the sharding has a context split.
  using batch = typename detail::batch_under<Batch, typename detail::sharding_rules<How>::context_policies>::type;
  template <class World, class Backend, class Activations = activations::keep, class Pipeline = pp>
  using stage = language_stage<Model, World, Backend, Activations, Pipeline>;
  /// The blocks of one pipeline stage when they are split evenly.
  static constexpr stage_layers layers_of(const Config& c, int stage, int stages) noexcept {
    return split_layers(c.layers, stage, stages);
  }
  /// The same when stage s is given `counts[s]` blocks. Errors: `config_error`.
  static stage_layers layers_of(const Config& c, int stage, std::span<const int> counts) {
    return given_layers(c.layers, stage, counts);
  }
  /// Whether stages can be made of the layers of `M`, a model with this base. Does not compile otherwise.
  template <class M>
  static consteval bool layers_checked() {
    return detail::description_checked<std::remove_cvref_t<decltype(M::describe(std::declval<const Config&>()))>>();
  }
  /// What layers cost, for `layers_by_cost`.
  static layer_operations layer_costs(const Config& c) { 
    return operations_by_layer(Model::describe(c), causal_length<reach_of<Model>>(c.context));
  }
};

namespace detail {
// A model made of another: its types are those of `Base`.
template <class Model, class Base, class Config = typename Base::config>
struct described_as : described<Model, typename Base::scalar, typename Base::batch, Config, typename Base::how> {
  using base = Base;
};
}  // namespace detail

}  // namespace heddle::inline v0::model
