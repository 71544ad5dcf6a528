// heddle/infer/family_runner.hpp: makes runners of one model as runners without a type.
#pragma once

#include <heddle/infer/any_model_runner.hpp>
#include <heddle/infer/cache_extent.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <cstdint>
#include <memory>

namespace heddle::inline v0::infer::detail {

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
