// heddle/train/activations/language_memory.hpp: activation bytes as a formula.
#pragma once

#include <heddle/core/policy.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/recompute_plan.hpp>
#include <heddle/model/saved_activations.hpp>
#include <heddle/model/stage_layers.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::train {

/// A language model on its ranks. `stages`: of the pipeline, with the blocks split evenly; `samples`: of the largest
/// microbatch of one rank; `tp`: ranks that split each layer. In place of `tp` it may have `mesh`, a static mesh with the axes that the
/// model's sharding names, such as that of experts.
template <class S>
concept language_shape = requires {
  { S::config.width } -> std::convertible_to<int>;
  { S::stages } -> std::convertible_to<int>;
  { S::samples } -> std::convertible_to<std::int64_t>;
};

namespace detail {

template <class S>
constexpr int tp_of() noexcept {
  if constexpr (requires { S::tp; })
    return S::tp;
  else
    return 1;
}
// What a policy computes again; with settings given at start-up it may be other.
template <class Activations>
constexpr model::recompute_plan recomputed_by() noexcept {
  if constexpr (requires { Activations::again; })
    return Activations::again;
  else
    return {};
}
template <class Activations>
using kept_member = typename Activations::kept;
template <class Activations>
using keeps_by = member_or<Activations, kept_member, Activations>;

template <class... Axes>
constexpr bool splits_over_dp_and_tp(type_list<Axes...>) {
  return ((std::is_same_v<Axes, dp> || std::is_same_v<Axes, tp>) && ...);
}
template <class S>
struct mesh_of_shape {
  using type = mesh<axis<tp, tp_of<S>()>>;
  static constexpr bool is_given = false;
};
template <class S>
  requires requires { typename S::mesh; }
struct mesh_of_shape<S> {
  using type = typename S::mesh;
  static constexpr bool is_given = true;
  static_assert(type::is_static,
                "heddle: language_memory is a formula: its shape's mesh needs a static size for each axis");
};

}  // namespace detail

/// The activations of a described language model under a policy, from its description: what `trainer::activation_bytes`
/// counts, of the first rank, which has the most. A memory model for `schedule::fits`, with:
/// - `activation_bytes`: what a slot keeps of a microbatch, without what the policy computes again;
/// - `weight_input_bytes`: from I to W the slot stays, and gradients and what W needs of the recomputed come to it;
/// - `offload_bytes`: what leaves memory with OFFLOAD, for policies whose amount is fixed; nothing with
///   `amount::adaptive`, which may come to keep all;
/// - `recompute_bytes`: as `activation_bytes`, since RECOMPUTE writes into memory that all microbatches share;
/// - `resident_bytes`: that memory, and the other scratch of a stage. Not counted: weights, gradients, moments;
/// - `boundary_bytes`: one tensor between stages.
/// Units: bytes. `Model` is what a trainer is given, `Shape` a `language_shape`.
template <class Model, language_shape Shape, policy Activations = activations::keep>
struct language_memory {
  using T = typename Model::scalar;
  using kept = typename detail::keeps_by<Activations>::type;
  using mesh_type = model::stage_mesh<typename detail::mesh_of_shape<Shape>::type, pp, typename Model::how>;
  using layouts = model::layouts<mesh_type, typename Model::how>;
  static_assert(
      detail::mesh_of_shape<Shape>::is_given ||
          detail::splits_over_dp_and_tp(typename model::detail::sharding_rules<typename Model::how>::axes{}),
      "heddle: language_memory counts ranks along dp and tp: the model's sharding must name no other axes, or "
      "the shape must have a mesh");
  static constexpr model::recompute_plan again = detail::recomputed_by<Activations>();
  static constexpr std::int64_t rows = Shape::samples * Shape::config.context;
  static constexpr auto description = Model::describe(Shape::config);

  /// The blocks of a stage; in a table with two chains the second half has the same.
  static constexpr model::stage_layers layers_of(int stage) noexcept {
    return model::split_layers(Shape::config.layers, stage % Shape::stages, Shape::stages);
  }
  /// This rank's part of the vocabulary.
  static constexpr std::int64_t words() noexcept {
    return place.template local<model::dims<dim::vocabulary>>({Shape::config.vocabulary});
  }
  /// What block `layer` of the model keeps of a microbatch.
  static constexpr std::int64_t block_bytes(int layer) noexcept {
    return in_bytes(at.kept(again, layer));
  }
  /// What the final norm and the head keep of one.
  static constexpr std::int64_t end_bytes() noexcept { return stream + in_bytes(at.of_end.saved[0]); }

  constexpr std::int64_t activation_bytes(int stage) const noexcept {
    const model::stage_layers part = layers_of(stage);
    std::int64_t n = part.has_head() ? end_bytes() : 0;
    for (int l = part.first; l < part.first + part.count; ++l) n += block_bytes(l);
    return n;
  }
  constexpr std::int64_t recompute_bytes(int stage) const noexcept { return activation_bytes(stage); }
  constexpr std::int64_t offload_bytes(int stage) const noexcept {
    std::int64_t n = 0;
    if constexpr (requires { kept::fixed_layers(0); }) {
      const model::stage_layers part = layers_of(stage);
      for (int l = 0; l < kept::fixed_layers(part.count); ++l)
        if (const std::int64_t bytes = block_bytes(part.first + l); bytes >= kept::least_bytes) n += bytes;
    }
    return n;
  }
  /// Between I and W: gradients, and what was computed again and W needs.
  constexpr std::int64_t deferred_bytes(int stage) const noexcept {
    const model::stage_layers part = layers_of(stage);
    std::int64_t n = ends(part) + (part.has_head() ? in_bytes(at.of_end.waiting[0]) : 0);
    for (int l = part.first; l < part.first + part.count; ++l)
      n += stream + in_bytes(at.sizes_of(l).deferred + at.sizes_of(l).waiting[dropping(l)]);
    return n;
  }
  constexpr std::int64_t weight_input_bytes(int stage) const noexcept {
    return activation_bytes(stage) + deferred_bytes(stage);
  }
  constexpr std::int64_t resident_bytes(int stage) const noexcept {
    const model::stage_layers part = layers_of(stage);
    std::int64_t n = ends(part) + 2 * stream;
    n += in_bytes(at.scratch(part.has_embedding(), part.first, part.count, part.has_head()));
    const model::layers::arena_sizes blocks = at.shared_by(part.first, part.count);
    if (part.count > 0)
      n += 2 * (stream + in_bytes(blocks.deferred)) + in_bytes(blocks.shared + blocks.constants) + routing_bytes(stage);
    if (part.has_head()) n += in_bytes(at.of_end.shared + at.of_brief_end.shared + at.all_of_stream);
    return n;
  }
  /// The integers by which mixtures of experts route rows; 0 without. Not those of rows that travel between ranks: on the host these are not in a backend's memory, on a device `activation_bytes` has them, too.
  static constexpr std::int64_t routing_bytes(int stage) noexcept {
    const model::stage_layers part = layers_of(stage);
    model::layers::routing_extents most;
    at.each_kind(part.first, part.count, [&](const auto& block, int) {
      most.cover(model::layers::most_routing<layouts>(block.layer, mesh_type{}, rows));
    });
    return most.bytes();
  }
  constexpr std::int64_t boundary_bytes() const noexcept {
    return in_bytes(model::rows_on_rank<layouts, model::dims<dim::width>>(mesh_type{}, 0, rows).count *
                    Shape::config.width);
  }

 protected:
  using places = model::language_places<T, layouts, std::remove_const_t<decltype(description)>>;
  using placer = typename places::placer;
  static constexpr placer place{mesh_type{}, 0};
  static constexpr std::int64_t in_bytes(std::int64_t elements) noexcept {
    return elements * static_cast<std::int64_t>(sizeof(T));
  }

 private:
  static constexpr places at{description, place, rows, Shape::config.context, Shape::config.width, again};
  static constexpr std::int64_t stream = in_bytes(at.stream);
  static constexpr std::size_t dropping(int layer) noexcept {
    return static_cast<std::size_t>(places::drops(again, layer));
  }
  static constexpr std::int64_t ends(const model::stage_layers& part) noexcept {
    return (part.has_head() ? in_bytes(at.of_end.deferred) : 0) + (part.has_embedding() ? stream : 0);
  }
};

/// The `language_memory` of a GPT-2 with elements `T`.
template <class T, language_shape Shape, policy Activations = activations::keep>
using gpt2_memory = language_memory<model::gpt2<T>, Shape, Activations>;

}  // namespace heddle::inline v0::train
