// heddle/model/language_stage_sizes.hpp: memory of a language stage, before it is made.
#pragma once

#include <heddle/model/language_checks.hpp>
#include <heddle/model/language_parameters.hpp>
#include <heddle/model/language_places.hpp>
#include <heddle/model/recompute_plan.hpp>
#include <heddle/model/stage_layers.hpp>
#include <heddle/model/stage_memory.hpp>
#include <heddle/model/stage_sizes.hpp>
#include <heddle/model/stream_rows.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0::model {

template <class Model, class World, class Backend, class Activations, class Pipeline>
class language_stage;

/// Those of a `language_stage`, by the code that places its tensors.
template <class Model, class World, class Backend, class Activations, class Pipeline>
struct sizes_of_stage<language_stage<Model, World, Backend, Activations, Pipeline>> {
  using stage = language_stage<Model, World, Backend, Activations, Pipeline>;
  static constexpr bool known = true;
  static constexpr int buckets =
      static_cast<int>(language_parameters<typename stage::scalar, typename stage::layouts, typename stage::description,
                                           typename stage::space>::buckets::count);

  stage_sizes sizes{};
  std::array<std::int64_t, static_cast<std::size_t>(buckets)> bucket_elements{};

  /// Arguments as of the stage's constructor; `world` may be any of the same ranks. `lent`: another stage of the rank lends its embedding.
  template <class Ranks>
  sizes_of_stage(const typename stage::config_type& config, Ranks& world, stage_layers part, std::int64_t max_samples,
                 bool lent, const typename stage::layers_memory::settings& saving) {
    using T = typename stage::scalar;
    using layouts = typename stage::layouts;
    using places = typename stage::places;
    using space = typename stage::space;
    using mesh_type = typename stage::mesh_type;
    const auto mesh = make_stage_mesh<mesh_type>(world.mesh());
    const int rank = rank_in_stage_mesh<mesh_type>(world.mesh(), world.rank());
    const typename stage::description described = Model::describe(config);
    const recompute_plan again = recompute_plan_of(saving);
    const std::int64_t rows = max_samples * stage::rows_type::of_sample(config);
    places at(described, {mesh, rank}, rows, config.context, config.width, again);
    const language_parameters<T, layouts, typename stage::description, space> held(at, described, mesh, rank, part,
                                                                                   lent);
    sizes.flat_elements = held.store().size();
    sizes.frozen_elements = held.frozen().size();
    sizes.tied_elements = held.tied_elements();
    sizes.borrows_embedding =
        lent && stage::tied && part.has_head() && !part.has_embedding() && held.tied_elements() > 0;
    bucket_elements = held.bucket_elements();

    const auto bytes = [](std::int64_t elements) { return elements * static_cast<std::int64_t>(sizeof(T)); };
    const stage_memory<T, places, space> memory(at, part, again);
    std::int64_t saved = memory.slot_elements();
    for (int l = part.first; l < part.first + part.count; ++l) saved += at.kept(again, l);
    sizes.saved_bytes_per_slot = bytes(saved);
    sizes.deferred_bytes = bytes(memory.set_elements());
    sizes.workspace_bytes = bytes(memory.work_elements());
    if constexpr (layers::uses_routing<typename places::block_layer>) {
      layers::routing_extents most;
      at.each_kind(part.first, part.count,
                   [&](const auto& block, int) { most.cover(layers::most_routing<layouts>(block.layer, mesh, rows)); });
      sizes.workspace_bytes += most.template bytes_in<space>();
    }
    sizes.boundary_elements = stream_rows<layouts, Ranks, space>(world, config.width).elements(rows);
  }
};

}  // namespace heddle::inline v0::model
