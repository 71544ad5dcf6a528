// heddle/model/pipeline/optional_members.hpp: optional members of a stage.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

/// What a stage may have beside the members it must have (`model::pipeline_stage`, `train::trainable_stage`), as functions
/// that stand for the member where the stage has it and for its default elsewhere. The executor and the trainer ask here
/// and nowhere else. Five groups; `docs/tutorial/own_stage.md` has a table of each, with the defaults:
///
/// - how it runs: members that stand for themselves;
/// - `lends_memory`, `ties_embedding`, `moves_activations`, `reports_memory`: concepts of stages that have the group. A
///   stage with half of a group does not compile (`train::trainable_stage`).
namespace heddle::inline v0::model::of_stage {

// ---- how it runs -----------------------------------------------------------------------------------------------------

/// Whether the stage has no backwards.
template <class Stage>
inline constexpr bool forward_only = [] {
  if constexpr (requires { requires static_cast<bool>(Stage::forward_only); })
    return true;
  else
    return false;
}();

/// Elements of the tensor of one microbatch before (`input`) or behind a stage.
template <class Stage, class Batch>
std::int64_t boundary_elements(Stage& stage, const Batch& batch, bool input) {
  if constexpr (requires { stage.input_elements(batch) + stage.output_elements(batch); })
    return input ? stage.input_elements(batch) : stage.output_elements(batch);
  else if constexpr (requires { stage.boundary_elements(batch.samples, batch.sequence); })
    return stage.boundary_elements(batch.samples, batch.sequence);
  else
    return stage.boundary_elements(batch.samples);
}

/// Whether the stage can say what may run at the same time.
template <class Stage>
inline constexpr bool has_runs_beside = requires(Stage& a, Stage& b) {
  { a.runs_beside(b) } -> std::convertible_to<bool>;
};
/// Whether stage `a` may work at the same time as `b`, on threads of their own.
template <class Stage>
bool runs_beside(Stage& a, Stage& b) {
  if constexpr (has_runs_beside<Stage>)
    return a.runs_beside(b);
  else
    return false;
}

namespace detail {
template <class Stage, class Mesh>
struct samples_of {
  using type = layout_if<Mesh, shard<0, dp>>;
};
template <class Stage, class Mesh>
  requires requires { typename Stage::samples; }
struct samples_of<Stage, Mesh> {
  using type = typename Stage::samples;
};
}  // namespace detail
/// Whether the stage has something to do with an axis.
template <class Stage, class Tag>
inline constexpr bool names_axis = [] {
  if constexpr (requires { typename Stage::axes; })
    return []<class... Tags>(type_list<Tags...>) { return contains<Tag, Tags...>; }(typename Stage::axes{});
  else
    return Stage::flat_weights::mesh_type::template has<Tag>;
}();
/// Whether ranks along an axis have other rows of the same documents (`context_axes`).
template <class Stage, class Tag>
inline constexpr bool splits_context = [] {
  if constexpr (requires { typename Stage::context_axes; })
    return []<class... Tags>(type_list<Tags...>) { return contains<Tag, Tags...>; }(typename Stage::context_axes{});
  else
    return false;
}();
/// Whether it is given whole samples, and not documents that ranks share.
template <class Stage>
inline constexpr bool takes_samples = [] {
  if constexpr (requires { Stage::rows_type::of_samples; })
    return Stage::rows_type::of_samples;
  else
    return true;
}();
/// The layout of a step's samples: the axes that split its dimension 0 share them out.
template <class Stage, class Mesh>
using samples = typename detail::samples_of<Stage, Mesh>::type;

namespace detail {
template <class List>
inline constexpr std::size_t layouts_in = 0;
template <layout_like... Layouts>
inline constexpr std::size_t layouts_in<type_list<Layouts...>> = sizeof...(Layouts);
template <class Stage>
struct buckets_of {
  using type = type_list<typename Stage::flat_weights>;
};
template <class Stage>
  requires(layouts_in<typename Stage::buckets> > 0)
struct buckets_of<Stage> {
  using type = typename Stage::buckets;
};
template <class First, class... More>
First first_of(type_list<First, More...>);
}  // namespace detail
/// The buckets of a stage's parameters: a list of layouts, as `flat_weights` is one. Each is a part of the flat buffers, one
/// behind the other in the order of the list, `bucket_elements()[k]` elements of the k-th; none of the parameters lies in two.
/// A gradient is summed over the axes on which the dual of its bucket's layout is partial. The first is `flat_weights`.
template <class Stage>
using buckets = typename detail::buckets_of<Stage>::type;
/// How many buckets the stage's flat buffers have.
template <class Stage>
inline constexpr std::size_t bucket_count = buckets<Stage>::size;
/// Not where `Stage::buckets` is something else than a list of layouts.
template <class Stage>
inline constexpr bool buckets_are_layouts = [] {
  if constexpr (requires { typename Stage::buckets; })
    return detail::layouts_in<typename Stage::buckets> > 0;
  else
    return true;
}();
/// Whether the first bucket has the layout `flat_weights`.
template <class Stage>
inline constexpr bool first_bucket_is_flat_weights =
    std::is_same_v<decltype(detail::first_of(buckets<Stage>{})), typename Stage::flat_weights>;
/// Whether the stage says how many elements each bucket has.
template <class Stage>
inline constexpr bool has_bucket_elements = requires(const Stage& s) {
  { *s.bucket_elements().begin() } -> std::convertible_to<std::int64_t>;
};

/// Whether the stage gives the logits of each sample's last position.
template <class Stage, class Batch>
inline constexpr bool has_last_logits =
    requires(Stage& s, const Batch& b, row_view<const typename Stage::scalar, space_of<Stage>> in,
             row_view<typename Stage::scalar, space_of<Stage>> out) { s.last_logits(b, in, out, out); };

/// Whether forwards add to the gradients, not backwards.
template <class Stage>
inline constexpr bool adds_gradients_in_forward =
    requires { requires static_cast<bool>(Stage::adds_gradients_in_forward); };

/// Whether the stage itself counts the targets that enter the loss.
template <class Stage>
inline constexpr bool counts_targets = requires(const Stage& s) {
  { s.counted_targets() } -> std::convertible_to<std::int64_t>;
};

/// Whether the stage copies its loss to memory that the host may not touch.
template <class Stage>
inline constexpr bool copies_loss = !std::is_same_v<space_of<Stage>, host_memory> &&
                                    requires(Stage& s, scalar_view<double, space_of<Stage>> to) { s.copy_loss(0, to); };

/// Whether the stage says that the verbs of a step read nothing on the host that its queue computes, and wait for nothing.
template <class Stage>
inline constexpr bool only_queues = [] {
  if constexpr (requires { requires static_cast<bool>(Stage::only_queues); })
    return copies_loss<Stage> && !counts_targets<Stage>;
  else
    return false;
}();

/// A place in the model; index -1: none.
struct no_place {
  int index = -1;
  const char* name = "";
};
/// The first activation that holds a number which is not finite; index -1: none, or the stage does not know.
template <class Stage>
auto first_nonfinite_activation(Stage& stage) {
  if constexpr (requires { stage.first_nonfinite_activation(); })
    return stage.first_nonfinite_activation();
  else
    return no_place{};
}

// ---- lends memory ----------------------------------------------------------------------------------------------------

/// A stage whose weights, or gradients, may lie in memory of the caller's: `lend_weights(w)` makes the flat buffer `w`, which has
/// `flat_elements()` elements; an empty one takes it away. While weights are away the caller runs no forward, backward or
/// backward_input, and no recompute; while gradients are away no backward, backward_input or backward_weight.
/// backward_weight reads no weights. A stage that is made with `layers.lent_weights` (`lent_gradients`) allocates none.
template <class Stage>
inline constexpr bool can_lend_weights = requires(Stage& s, row_view<typename Stage::scalar, space_of<Stage>> w) {
  s.lend_weights(w);
  { s.flat_elements() } -> std::convertible_to<std::int64_t>;
};
/// Whether the stage takes its gradients from a buffer of the trainer.
template <class Stage>
inline constexpr bool can_lend_gradients =
    requires(Stage& s, row_view<sum_of_type<typename Stage::scalar>, space_of<Stage>> g) {
      s.lend_gradients(g);
      { s.flat_elements() } -> std::convertible_to<std::int64_t>;
    };
/// From here to the same with `false` whoever writes weights of the stage calls `weights_written` before its next pass, so that a backend may
/// keep what it makes of them (`compute::weight_keeper`).
template <class Stage>
void weights_stay(Stage& stage, bool stay) {
  if constexpr (requires { stage.weights_stay(stay); }) stage.weights_stay(stay);
}
/// The weights of the stage have been written.
template <class Stage>
void weights_written(Stage& stage) noexcept {
  if constexpr (requires { stage.weights_written(); }) stage.weights_written();
}
/// The memory of what the stage's backend keeps of weights (`Memory`: `compute::kept_weight_memory`, whose header is not needed here).
template <class Memory, class Stage>
Memory kept_weights([[maybe_unused]] const Stage& stage) noexcept {
  if constexpr (requires { stage.kept_weights(); })
    return stage.kept_weights();
  else
    return {};
}
/// The backend of the stage releases what it has for weights that it keeps later.
template <class Stage>
void release_kept_weights(Stage& stage) noexcept {
  if constexpr (requires { stage.release_kept_weights(); }) stage.release_kept_weights();
}
/// Elements of the stage's flat buffer of weights, which need not be there now.
template <class Stage>
std::int64_t flat_elements(Stage& stage) {
  if constexpr (requires { stage.flat_elements(); })
    return stage.flat_elements();
  else
    return static_cast<std::int64_t>(stage.weights().size());
}
/// Elements of weights that are in no flat buffer, because they are not trained.
template <class Stage>
std::int64_t frozen_elements([[maybe_unused]] Stage& stage) {
  if constexpr (requires { stage.frozen_weights(); })
    return static_cast<std::int64_t>(stage.frozen_weights().size());
  else
    return 0;
}
/// A stage that takes the memory of its weights, its gradients or both from the trainer, and says how large they are.
template <class Stage>
concept lends_memory = can_lend_weights<Stage> || can_lend_gradients<Stage>;

// ---- ties its embedding ----------------------------------------------------------------------------------------------

/// A stage with a weight that another stage has too.
template <class Stage>
concept ties_embedding = requires(Stage& s, const Stage& c) {
  s.tied_gradient();
  { s.tied_elements() } -> std::convertible_to<std::int64_t>;
  { c.borrows_embedding() } -> std::convertible_to<bool>;
};
/// The gradient of the weight that two stages use; empty where there is none.
template <class Stage>
row_view<sum_of_type<typename Stage::scalar>, space_of<Stage>> tied_gradient(Stage& stage) {
  if constexpr (requires { stage.tied_gradient(); })
    return stage.tied_gradient();
  else
    return {};
}
/// Elements of the weight that two stages use; 0 where there is none.
template <class Stage>
std::int64_t tied_elements(Stage& stage) {
  if constexpr (requires { stage.tied_elements(); })
    return stage.tied_elements();
  else
    return static_cast<std::int64_t>(tied_gradient(stage).size());
}

/// Whether the tied weight is that of another stage on this rank.
template <class Stage>
bool borrows_embedding(const Stage& stage) noexcept {
  if constexpr (requires { stage.borrows_embedding(); })
    return stage.borrows_embedding();
  else
    return false;
}

// ---- moves activations, or computes them again -----------------------------------------------------------------------

/// Computes again, ahead of its backward, what the forward of a slot did not keep.
template <class Stage>
void recompute(Stage& stage, int slot) {
  if constexpr (requires { stage.recompute(slot); }) stage.recompute(slot);
}
/// Drops what a slot holds.
template <class Stage>
void release(Stage& stage, int slot) {
  if constexpr (requires { stage.release(slot); }) stage.release(slot);
}

/// Whether the constructor takes settings for saved activations as its last argument.
template <class Stage>
inline constexpr bool takes_settings = requires { typename Stage::layers_memory::settings; };
/// Whether those settings say which activations are computed again.
template <class Stage>
inline constexpr bool takes_recompute = requires(const typename Stage::layers_memory::settings& s) { s.again; };
/// `First`: the arguments of the constructor before the lender.
template <class Stage, class... First>
inline constexpr bool takes_lender = requires { Stage(std::declval<First>()..., std::declval<Stage*>()); };

/// Tells the saved activations of a stage that a step begins.
template <class Stage>
void begin_step(Stage& stage) {
  if constexpr (requires { stage.saved_layers().begin_step(); }) stage.saved_layers().begin_step();
}
/// The backward of this slot's microbatch is near.
template <class Stage>
void reload(Stage& stage, int slot) {
  if constexpr (requires { stage.saved_layers().reload(slot); }) stage.saved_layers().reload(slot);
}
/// A stage whose saved activations may be elsewhere, or computed again, until its backward.
template <class Stage>
concept moves_activations = takes_settings<Stage> && requires(Stage& s) {
  s.saved_layers();
  s.recompute(0);
  s.release(0);
};

// ---- reports its memory ----------------------------------------------------------------------------------------------

/// A stage that counts the memory it has besides weights and gradients.
template <class Stage>
concept reports_memory = requires(const Stage& s) {
  { s.saved_bytes_per_slot() } -> std::convertible_to<std::int64_t>;
  { s.deferred_bytes() } -> std::convertible_to<std::int64_t>;
  { s.workspace_bytes() } -> std::convertible_to<std::int64_t>;
};
/// Bytes of the activations that one slot keeps.
template <class Stage>
std::int64_t saved_bytes_per_slot(const Stage& stage) noexcept {
  if constexpr (requires { stage.saved_bytes_per_slot(); })
    return stage.saved_bytes_per_slot();
  else
    return 0;
}
/// Bytes that a backward of inputs keeps for the backward of weights.
template <class Stage>
std::int64_t deferred_bytes(const Stage& stage) noexcept {
  if constexpr (requires { stage.deferred_bytes(); })
    return stage.deferred_bytes();
  else
    return 0;
}
/// Bytes that the stage needs while it computes.
template <class Stage>
std::int64_t workspace_bytes(const Stage& stage) noexcept {
  if constexpr (requires { stage.workspace_bytes(); })
    return stage.workspace_bytes();
  else
    return 0;
}

}  // namespace heddle::inline v0::model::of_stage
