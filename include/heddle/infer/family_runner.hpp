// heddle/infer/family_runner.hpp: makes runners of one model as runners without a type.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/infer/any_model_runner.hpp>
#include <heddle/infer/cache_extent.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/model/any_config.hpp>
#include <heddle/model/with_model.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <cstdint>
#include <memory>
#include <type_traits>

namespace heddle::inline v0::infer::detail {

// Calls f(model, configuration) of a model that can be served with elements of type T.
template <class T, class Result, class F>
Result with_served_model(const model::any_config& config, F&& f) {
  return model::with_family<T>(config.of, [&]<class Model>(std::type_identity<Model> of, const auto& c) -> Result {
    if constexpr (is_half_precision<T> && std::is_same_v<typename Model::config, model::deepseek_config>)
      throw config_error(
          "heddle: a DeepSeek chooses its experts in float: take another element type than one of 16 bits");
    else
      return f(of, c);
  });
}

// No bodies in the class: units that have them from elsewhere would compile them all the same.
template <class Model, class World, class Backend>
struct family_runner {
  using runner = model_runner<Model, World, Backend>;
  using any = any_model_runner<typename Model::scalar, space_of<Backend>>;
  static std::unique_ptr<any> make(const typename Model::config& config, World& world, Backend& backend,
                                   cache_extent cache, std::int64_t max_rows);
  static std::int64_t blocks(const typename Model::config& config, std::int64_t bytes,
                             const typename World::mesh_type& mesh, std::int64_t block_rows);
};
template <class Model, class World, class Backend>
auto family_runner<Model, World, Backend>::make(const typename Model::config& config, World& world, Backend& backend,
                                                cache_extent cache, std::int64_t max_rows) -> std::unique_ptr<any> {
  return std::make_unique<held_runner<runner>>(config, world, backend, cache, max_rows);
}
template <class Model, class World, class Backend>
std::int64_t family_runner<Model, World, Backend>::blocks(const typename Model::config& config, std::int64_t bytes,
                                                          const typename World::mesh_type& mesh,
                                                          std::int64_t block_rows) {
  return runner::cache_blocks_for(bytes, config, mesh, block_rows);
}

}  // namespace heddle::inline v0::infer::detail
