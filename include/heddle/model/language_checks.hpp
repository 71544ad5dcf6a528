// heddle/model/language_checks.hpp: checks at compile time that a stage can run the layers of a description under a sharding.
#pragma once

#include <heddle/model/flat_layout.hpp>
#include <heddle/model/layers/call.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/description.hpp>
#include <heddle/model/sharding.hpp>

#include <type_traits>

namespace heddle::inline v0::model::detail {

// These carry layer or axes into the compiler's message.
template <bool Ok, class Name>
struct stage_can_run {
  static constexpr bool value = Ok;
};
template <class Mesh, class... Axes>
constexpr bool have_one_rank(type_list<Axes...>) {
  return ((Mesh::template axis_of<Axes>::fixed_size == 1) && ...);
}

template <class Layouts, class In, class Block, class Out>
struct language_stage_is_possible {
  using mesh_type = typename Layouts::mesh_type;
  using sequence_axes = typename sharding_rules<typename Layouts::how>::template axes_of<mesh_type, dim::sequence>;
  static constexpr bool whole_sequences = have_one_rank<mesh_type>(sequence_axes{});
  static_assert(stage_can_run<whole_sequences, sequence_axes>::value,
                "heddle: a language_stage gives every rank whole sequences: leave dim::sequence out of the sharding");
  static constexpr bool bare_embedding = layers::activations_of<In>::size == 0 && layers::children_of<In>::size == 0;
  static_assert(stage_can_run<bare_embedding, In>::value,
                "heddle: a language_stage gives the embedding no memory: it lists no activations and has no children");
  static constexpr bool no_constants_at_ends = !layers::uses_constants<In> && !layers::uses_constants<Out>;
  static_assert(stage_can_run<no_constants_at_ends, Out>::value,
                "heddle: a language_stage prepares the constants of blocks only: embedding and head have none");
  static constexpr bool value = whole_sequences && sums_over_rows<Layouts, In>::value &&
                                sums_over_rows<Layouts, Block>::value && sums_over_rows<Layouts, Out>::value;
};

// A combinator's check for layers that a stage calls itself: they leave the residual stream, or its gradient.
template <class Layouts, class Layer, class Made>
constexpr void require_stream(Made left) {
  layers::detail::require_settled<Layer, typename Layouts::template edge<dims<dim::width>>>(left);
}

}  // namespace heddle::inline v0::model::detail
