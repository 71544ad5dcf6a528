// heddle/train/make_trainer.hpp: makes a trainer from a strategy, a model, a world and options; types are deduced.
#pragma once

#include <heddle/train/trainable.hpp>
#include <heddle/train/trainer.hpp>

#include <concepts>
#include <utility>

namespace heddle::inline v0::train {

namespace detail {
// `options<Model::config>`, also where a model without a config is to have its error first.
template <class Model>
struct options_argument {
  using type = refused_options;
};
template <class Model>
  requires has_config<Model>
struct options_argument<Model> {
  using type = options<typename Model::config>;
};
// Whether ranks of the world are those of the strategy; a strategy without a mesh has its own error.
template <class World, class Strategy>
inline constexpr bool on_mesh_of_strategy = [] {
  if constexpr (requires { typename World::mesh_type; })
    return std::same_as<typename World::mesh_type, typename Strategy::mesh>;
  else
    return true;
}();
// What stands in for a trainer on another mesh, after its error.
struct refused_trainer {
  template <class... Any>
  void run(const Any&...) {}
};
}  // namespace detail

/// The trainer of this rank: `auto trainer = train::make_trainer<strategy>(model::gpt2<float>{}, world, options);` in the
/// body of `launch`, whatever its transport. `more`: a schedule, then an observer, as the constructors of `trainer` take
/// them. The model is a name only: its settings are in `options.model`. Called on all ranks together.
/// Errors: as `trainer`; a compile error names what model or stage lack (`trainable_model`, `trainable_stage`).
template <class Strategy, class Model, class World, class... More>
  requires detail::on_mesh_of_strategy<World, Strategy>
trainer<Model, Strategy, World> make_trainer(Model, World& world,
                                             const typename detail::options_argument<Model>::type& options,
                                             More&&... more) {
  return trainer<Model, Strategy, World>(world, options, std::forward<More>(more)...);
}
template <class Strategy, class Model, class World, class... More>
detail::refused_trainer make_trainer(Model, World&, const typename detail::options_argument<Model>::type&, More&&...) {
  static_assert(detail::on_mesh_of_strategy<World, Strategy>,
                "heddle: the ranks are launched on another mesh than that of the strategy; give launch<...> and "
                "strategy<...> one mesh, or the trainer the world.sub<...>() on the strategy's axes");
  return {};
}

}  // namespace heddle::inline v0::train
