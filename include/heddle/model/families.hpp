// heddle/model/families.hpp: stages of Hugging Face's models without their types.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/any_config.hpp>
#include <heddle/model/any_layers.hpp>
#include <heddle/model/any_stage.hpp>
#include <heddle/model/hugging_face_model.hpp>
#include <heddle/model/stage_layers.hpp>
#include <heddle/tensor/memory_space.hpp>
#if defined(HEDDLE_COMPILED_FAMILIES)
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/mesh.hpp>
#if defined(HEDDLE_COMPILED_GEMM)
#include HEDDLE_COMPILED_GEMM_HEADER
#endif
#else
#include <heddle/model/family_stage.hpp>
#include <heddle/model/with_model.hpp>
#endif

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::model {

#if defined(HEDDLE_COMPILED_FAMILIES)
/// What heddle::families was compiled for: ranks that are threads, on a mesh of dp, pp, ep and tp, and the host with its library of products. Along ep
/// families with experts are split (`megatron_folded`); of others ep has one rank.
using families_mesh = mesh<axis<dp>, axis<pp>, axis<ep>, axis<tp>>;
/// The world of those ranks.
using families_world = world<threads, families_mesh>;
#if defined(HEDDLE_COMPILED_GEMM)
/// Its backend.
using families_backend = compute::host<HEDDLE_COMPILED_GEMM>;
#else
using families_backend = compute::host<>;
#endif

namespace detail {
template <bool Ok, class World, class Backend>
inline constexpr bool families_are_compiled_for = Ok;
template <class World, class Backend>
consteval bool families_checked() {
  constexpr bool same = std::is_same_v<World, families_world> && std::is_same_v<Backend, families_backend>;
  static_assert(families_are_compiled_for<same, World, Backend>,
                "heddle: heddle::families has models for world<threads, mesh<axis<dp>, axis<pp>, axis<ep>, axis<tp>>> "
                "and its own "
                "backend (model::families_world, families_backend); for others compile the program without it");
  return same;
}

// Bodies in heddle::families, for T of float, double and bf16.
template <class T>
std::vector<parameter_outline> compiled_outlines(const any_config& config);
template <class T>
std::unique_ptr<any_weights<T>> compiled_weights(const any_config& config, const families_mesh& mesh, int rank,
                                                 stage_layers part);
template <class T>
std::unique_ptr<any_stage<T>> compiled_stage(const any_config& config, families_world& world, families_backend& backend,
                                             stage_layers part, int slots, std::int64_t max_samples, int deferred,
                                             any_stage<T>* lender, const typename any_layers<T>::settings& saving);
}  // namespace detail

inline namespace compiled_families {  // units that compile families themselves have other functions
#endif

/// Names and shapes of all parameters of a model, in its order, as `parameter_outlines`.
/// Errors: `config_error` for a family that was not compiled into heddle::families.
template <class T>
std::vector<parameter_outline> outlines_of(const any_config& config) {
#if defined(HEDDLE_COMPILED_FAMILIES)
  return detail::compiled_outlines<T>(config);
#else
  return with_family<T>(config.of, [&]<class Model>(std::type_identity<Model>, const auto& c) {
    return detail::family_outlines<Model>::of(config, c);
  });
#endif
}

/// The weights of a model, without adapters, on a rank of a mesh, in the host's memory and without a stage (`described_weights`).
/// Errors: `config_error` for what does not fit, and for a family that was not compiled into heddle::families.
template <class T, class Mesh>
std::unique_ptr<any_weights<T>> make_weights(const any_config& config, const Mesh& mesh, int rank, stage_layers part) {
#if defined(HEDDLE_COMPILED_FAMILIES)
  if constexpr (detail::families_checked<world<threads, Mesh>, families_backend>())
    return detail::compiled_weights<T>(config, mesh, rank, part);
  else
    return nullptr;
#else
  return with_family<T>(config.of, [&]<class Model>(std::type_identity<Model>, const auto& c) {
    return detail::family_weights<Model, Mesh>::make(c, mesh, rank, part);
  });
#endif
}

/// The part of a model on this rank with elements of type T, without its type: with heddle::families linked, compiled there. Arguments as of
/// a stage's constructor; `lender` is one that this function made for the same model, `saving` says what makes the memory of saved
/// activations. `world` and `backend` must outlive it.
/// Errors: as of the stage's constructor; `config_error` for a family that was not compiled into heddle::families.
template <class T, class World, class Backend>
std::unique_ptr<any_stage<T, space_of<Backend>>> make_stage(
    const any_config& config, World& world, Backend& backend, stage_layers part, int slots, std::int64_t max_samples,
    int deferred = 0, any_stage<T, space_of<Backend>>* lender = nullptr,
    [[maybe_unused]] const typename any_layers<T, space_of<Backend>>::settings& saving = {}) {
#if defined(HEDDLE_COMPILED_FAMILIES)
  if constexpr (detail::families_checked<World, Backend>())
    return detail::compiled_stage<T>(config, world, backend, part, slots, max_samples, deferred, lender, saving);
  else
    return nullptr;
#else
  return with_family<T>(config.of, [&]<class Model>(std::type_identity<Model>, const auto& c) {
    return detail::family_stage<Model, World, Backend>::make(config, c, world, backend, part, slots, max_samples,
                                                             deferred, lender, saving);
  });
#endif
}

#if defined(HEDDLE_COMPILED_FAMILIES)
}  // namespace compiled_families
#endif

}  // namespace heddle::inline v0::model
