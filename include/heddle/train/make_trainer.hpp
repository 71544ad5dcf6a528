// heddle/train/make_trainer.hpp: makes a trainer, with deduced types.
#pragma once

#include <heddle/train/trainable.hpp>
#include <heddle/train/trainer.hpp>

#include <concepts>
#include <type_traits>
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
  using type = options<typename Model::config, any_learning_rate>;
};
// Whether ranks of the world are those of the strategy.
template <class World, class Strategy>
inline constexpr bool on_mesh_of_strategy = [] {
  if constexpr (requires { typename World::mesh_type; })
    return std::same_as<typename World::mesh_type, typename Strategy::mesh>;
  else
    return true;
}();
template <class World, class Strategy>
inline constexpr bool trains_on = on_mesh_of_strategy<World, Strategy> && !v0::detail::is_refused_strategy<Strategy>;
// After an error.
template <class Model, class World>
using refused_trainer = trainer<Model, v0::detail::refused_strategy, World>;
}  // namespace detail

/// The trainer of this rank: `auto trainer = train::make_trainer<strategy>(model::gpt2<float>{}, world, options);` in the
/// body of `launch`, whatever its transport. `more`: a schedule, then an observer, as the constructors of `trainer` take
/// them. The model is a name only: its settings are in `options.model`. Called on all ranks together.
/// Errors: as `trainer`; a compile error names what model or stage lack (`trainable_model`, `trainable_stage`).
template <class Strategy, class Model, class World, class... More>
  requires detail::trains_on<World, Strategy>
trainer<Model, Strategy, World> make_trainer(Model, World& world,
                                             const typename detail::options_argument<Model>::type& options,
                                             More&&... more) {
  return trainer<Model, Strategy, World>(world, options, std::forward<More>(more)...);
}
template <class Strategy, class Model, class World, class... More>
detail::refused_trainer<Model, World> make_trainer(Model, World& world,
                                                   const typename detail::options_argument<Model>::type&, More&&...) {
  static_assert(v0::detail::is_refused_strategy<Strategy> || detail::on_mesh_of_strategy<World, Strategy>,
                "heddle: the ranks are launched on another mesh than that of the strategy; give launch<...> and "
                "strategy<...> one mesh, or the trainer the world.sub<...>() on the strategy's axes");
  return detail::refused_trainer<Model, World>(world);
}
template <class Strategy, class Model, class World, class Options, class... More>
  requires(!std::is_convertible_v<const Options&, const typename detail::options_argument<Model>::type&>)
detail::refused_trainer<Model, World> make_trainer(Model, World& world, const Options&, const More&...) {
  if constexpr (detail::trains_on<World, Strategy>)
    static_cast<void>(detail::options_of_trainer<typename detail::options_argument<Model>::type, Options>());
  return detail::refused_trainer<Model, World>(world);
}

}  // namespace heddle::inline v0::train
