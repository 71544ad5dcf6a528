// heddle/infer/families.hpp: runners of Hugging Face's models without their types.
#pragma once

#include <heddle/infer/any_model_runner.hpp>
#include <heddle/infer/cache_extent.hpp>
#include <heddle/model/families.hpp>
#include <heddle/tensor/memory_space.hpp>
#if !defined(HEDDLE_COMPILED_FAMILIES)
#include <heddle/infer/family_runner.hpp>
#endif

#include <cstdint>
#include <memory>
#include <type_traits>

namespace heddle::inline v0::infer {

#if defined(HEDDLE_COMPILED_FAMILIES)
namespace detail {
// Bodies in heddle::families, for T of float, double and bf16.
template <class T>
std::unique_ptr<any_model_runner<T>> compiled_runner(const model::any_config& config, model::families_world& world,
                                                     model::families_backend& backend, cache_extent cache,
                                                     std::int64_t max_rows);
template <class T>
std::int64_t compiled_cache_blocks(const model::any_config& config, std::int64_t bytes,
                                   const model::families_mesh& mesh, std::int64_t block_rows);
}  // namespace detail

inline namespace compiled_families {  // units that compile families themselves have other functions
#endif

/// A `model_runner` of a model with elements of type T, without its type: with heddle::families linked, compiled there. Arguments as of the
/// runner's constructor. Errors: as of that; `config_error` for a family that was not compiled into heddle::families, and for DeepSeek in 16 bits.
template <class T, class World, class Backend>
std::unique_ptr<any_model_runner<T, space_of<Backend>>> make_runner(const model::any_config& config, World& world,
                                                                    Backend& backend, cache_extent cache,
                                                                    std::int64_t max_rows) {
#if defined(HEDDLE_COMPILED_FAMILIES)
  if constexpr (model::detail::families_checked<World, Backend>())
    return detail::compiled_runner<T>(config, world, backend, cache, max_rows);
  else
    return nullptr;
#else
  using result = std::unique_ptr<any_model_runner<T, space_of<Backend>>>;
  return detail::with_served_model<T, result>(config, [&]<class Model>(std::type_identity<Model>, const auto& c) -> result {
    return detail::family_runner<Model, World, Backend>::make(c, world, backend, cache, max_rows);
  });
#endif
}

/// As `model_runner::cache_blocks_for`, of the runner that `make_runner` makes of such a world and backend.
template <class T, class World, class Backend>
std::int64_t cache_blocks_for(const model::any_config& config, std::int64_t bytes, const World& world, const Backend&,
                              std::int64_t block_rows) {
#if defined(HEDDLE_COMPILED_FAMILIES)
  if constexpr (model::detail::families_checked<World, Backend>())
    return detail::compiled_cache_blocks<T>(config, bytes, world.mesh(), block_rows);
  else
    return 0;
#else
  return detail::with_served_model<T, std::int64_t>(
      config, [&]<class Model>(std::type_identity<Model>, const auto& c) -> std::int64_t {
        return detail::family_runner<Model, World, Backend>::blocks(c, bytes, world.mesh(), block_rows);
      });
#endif
}

#if defined(HEDDLE_COMPILED_FAMILIES)
}  // namespace compiled_families
#endif

}  // namespace heddle::inline v0::infer
