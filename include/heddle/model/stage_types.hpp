// heddle/model/stage_types.hpp: types of stages, by model, world and backend.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/language_places.hpp>
#include <heddle/model/layers/trained.hpp>
#include <heddle/model/sharding.hpp>
#include <heddle/tensor/view.hpp>

#include <type_traits>
#include <utility>

namespace heddle::inline v0::model::detail {

template <class Model, class World, class Backend, class Pipeline>
struct stage_types {
  using scalar = typename Model::scalar;
  using T = scalar;
  // Where its tensors are, and rows of them: `std::span` on the host.
  using space = space_of<Backend>;
  using row = row_view<T, space>;
  using const_row = row_view<const T, space>;
  // Of gradients of weights.
  using sum = sum_of_type<T>;
  using sum_row = row_view<sum, space>;
  using const_sum_row = row_view<const sum, space>;
  using config_type = typename Model::config;
  using whole_mesh = std::remove_cvref_t<decltype(std::declval<World&>().mesh())>;
  using how = typename Model::how;
  using mesh_type = stage_mesh<whole_mesh, Pipeline, how>;
  using layouts = model::layouts<mesh_type, how>;
  using description = std::remove_const_t<decltype(Model::describe(std::declval<const config_type&>()))>;
  using trained = layers::trained_of<description>;
  using places = language_places<T, layouts, description>;
  using in_layer = typename places::in_layer;
  using block_layer = typename places::block_layer;
  using out_layer = typename places::out_layer;
};

}  // namespace heddle::inline v0::model::detail
