// heddle/model/described_weights.hpp: a rank's weights of a model without a stage.
#pragma once

#include <heddle/mesh/axis.hpp>
#include <heddle/model/any_stage.hpp>
#include <heddle/model/language_parameters.hpp>
#include <heddle/model/language_places.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/model/sharding.hpp>
#include <heddle/model/stage_layers.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// The weights of the layers that a rank of a mesh holds, as its stage would have them: to be read, written and saved by programs that compute nothing.
/// `part.lent_weights`: none are there, only their table.
/// Errors: as of a stage's constructor, for what does not fit.
template <class Model, class Mesh>
class described_weights final : public any_weights<typename Model::scalar> {
  using T = typename Model::scalar;
  using config_type = typename Model::config;
  using mesh_type = stage_mesh<Mesh, pp, typename Model::how>;
  using layouts = model::layouts<mesh_type, typename Model::how>;
  using description = std::remove_const_t<decltype(Model::describe(std::declval<const config_type&>()))>;
  using held_type = language_parameters<T, layouts, description>;

 public:
  using row = std::span<T>;
  using const_row = std::span<const T>;

  described_weights(const config_type& config, const Mesh& mesh, int rank, stage_layers part)
      : description_(Model::describe(checked_stage(config, part, 1, 1, 0))),
        at_(description_, {make_stage_mesh<mesh_type>(mesh), rank_in_stage_mesh<mesh_type>(mesh, rank)}, 1, 1,
            config.width, {}),
        held_(queue_, at_, description_, make_stage_mesh<mesh_type>(mesh), rank_in_stage_mesh<mesh_type>(mesh, rank),
              without_gradients(part), nullptr) {
    const detail::rank_of_mesh<mesh_type> here{make_stage_mesh<mesh_type>(mesh),
                                               rank_in_stage_mesh<mesh_type>(mesh, rank)};
    const auto copies = detail::copies_of_buckets(here, typename held_type::buckets::layouts{});
    copies_.assign(copies.begin(), copies.end());
  }

  host_memory::queue& queue() const noexcept override { return queue_; }
  const std::vector<parameter>& parameters() const noexcept override { return held_.store().table(); }
  row weights() noexcept override { return held_.store().weights(); }
  const_row weights() const noexcept override { return held_.store().weights(); }
  std::int64_t flat_elements() const noexcept override { return held_.store().size(); }
  const std::vector<parameter>& frozen_parameters() const noexcept override { return held_.frozen().table(); }
  row frozen_weights() noexcept override { return held_.frozen().weights(); }
  void weights_written() noexcept override {}
  std::span<const std::int64_t> bucket_elements() const noexcept override { return held_.bucket_elements(); }
  std::span<const detail::copy_of> copies_of_buckets() const noexcept override { return copies_; }
  bool has_saved_frozen() const noexcept override {
    return requires { requires layers::trained_of<description>::saves_frozen; };
  }

 private:
  static stage_layers without_gradients(stage_layers part) noexcept {
    part.lent_gradients = true;
    return part;
  }

  mutable host_memory::queue queue_{};
  description description_;
  language_places<T, layouts, description> at_;
  held_type held_;
  std::vector<detail::copy_of> copies_{};
};

}  // namespace heddle::inline v0::model
