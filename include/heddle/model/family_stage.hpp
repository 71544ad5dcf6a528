// heddle/model/family_stage.hpp: makes stages of one model as stages without a type.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/any_config.hpp>
#include <heddle/model/any_layers.hpp>
#include <heddle/model/any_stage.hpp>
#include <heddle/model/described_weights.hpp>
#include <heddle/model/stage_layers.hpp>
#include <heddle/model/with_lora.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace heddle::inline v0::model::detail {

// Calls f(model, configuration), of the model with adapters where there are any.
template <class Model, class F>
decltype(auto) with_adapters(const any_config& all, const typename Model::config& c, F&& f) {
  using adapted = with_lora<Model>;
  return all.adapter_rank > 0 ? f(adapted{}, typename adapted::config{c, all.adapter_rank, all.adapter_alpha})
                              : f(Model{}, c);
}

// No bodies in the classes: units that have them from elsewhere would compile them all the same.
template <class Model>
struct family_outlines {
  static std::vector<parameter_outline> of(const any_config& all, const typename Model::config& c);
};
template <class Model>
std::vector<parameter_outline> family_outlines<Model>::of(const any_config& all, const typename Model::config& c) {
  return with_adapters<Model>(all, c, []<class M>(M, const auto& of) { return parameter_outlines(M::describe(of)); });
}

template <class Model, class Mesh>
struct family_weights {
  using any = any_weights<typename Model::scalar>;
  static std::unique_ptr<any> make(const typename Model::config& c, const Mesh& mesh, int rank, stage_layers part);
};
template <class Model, class Mesh>
auto family_weights<Model, Mesh>::make(const typename Model::config& c, const Mesh& mesh, int rank, stage_layers part)
    -> std::unique_ptr<any> {
  return std::make_unique<described_weights<Model, Mesh>>(c, mesh, rank, part);
}

template <class Model, class World, class Backend>
struct family_stage {
  using any = any_stage<typename Model::scalar, space_of<Backend>>;
  using saving = typename any_layers<typename Model::scalar, space_of<Backend>>::settings;
  static std::unique_ptr<any> make(const any_config& all, const typename Model::config& c, World& world,
                                   Backend& backend, stage_layers part, int slots, std::int64_t max_samples,
                                   int deferred, any* lender, const saving& how);
};
template <class Model, class World, class Backend>
auto family_stage<Model, World, Backend>::make(const any_config& all, const typename Model::config& c, World& world,
                                               Backend& backend, stage_layers part, int slots, std::int64_t max_samples,
                                               int deferred, any* lender, const saving& how) -> std::unique_ptr<any> {
  return with_adapters<Model>(all, c, [&]<class M>(M, const auto& of) -> std::unique_ptr<any> {
    using stage = typename M::template stage<World, Backend, activations::chosen_at_run_time>;
    return std::make_unique<held_stage<stage>>(of, world, backend, part, slots, max_samples, deferred, lender, how);
  });
}

}  // namespace heddle::inline v0::model::detail
