// heddle/model/language_checks.hpp: compile-time checks of a description under a sharding.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/layers/call.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/description.hpp>
#include <heddle/model/pair_batch.hpp>
#include <heddle/model/parameter_buckets.hpp>
#include <heddle/model/reach.hpp>
#include <heddle/model/recompute_plan.hpp>
#include <heddle/model/sharding.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

namespace heddle::inline v0::model::detail {

// These carry layer or axes into the compiler's message.
template <bool Ok, class Name>
inline constexpr bool stage_can_run = Ok;
template <class... A>
constexpr bool keeps_nothing(std::type_identity<layers::list<A...>>) {
  return (requires { A::copies; } && ...);
}

template <class Out>
inline constexpr bool compares_numbers = requires { requires !Out::takes_classes; };
template <class Out>
inline constexpr bool compares_classes = requires { requires Out::takes_classes; };
template <class Out>
inline constexpr bool takes_means = requires { requires Out::takes_means; };

// Whether layers can be placed; one error for the first that cannot.
template <class L>
consteval bool layer_checked() {
  constexpr bool has = requires(const L& l) {
    { l.name } -> std::convertible_to<const char*>;
    l.parameters();
    l.activations();
    l.children();
  };
  static_assert(stage_can_run<has, L>,
                "heddle: a layer needs `const char* name` and parameters(), activations() and children(), which return "
                "list(...): one that has none of the three derives from layers::leaf");
  if constexpr (has)
    return []<class... C>(std::type_identity<layers::list<C...>>) {
      return (layer_checked<C>() && ...);
    }(std::type_identity<layers::children_of<L>>{});
  else
    return false;
}
template <class Description>
consteval bool description_checked() {
  constexpr bool has = requires(const Description& d) { d.in, d.block, d.other, d.others, d.out; };
  static_assert(stage_can_run<has, Description>,
                "heddle: describe(config) returns layers::network(in, name, count, block, out) or a "
                "layers::language_model of embedding, blocks and head");
  if constexpr (has)
    return layer_checked<decltype(Description::in)>() && layer_checked<decltype(Description::block)>() &&
           layer_checked<decltype(Description::other)>() && layer_checked<decltype(Description::out)>();
  else
    return false;
}

// A tail of the rows of documents is kept by models of documents.
template <class Activations, class Layouts>
consteval bool tail_checked() {
  constexpr bool keeps = requires { requires Activations::again.tail.any(); };
  static_assert(stage_can_run<!keeps || Layouts::context_axes::size == 1, Activations>,
                "heddle: activations::keep_tail keeps outputs of attention of the last rows of documents: it needs a "
                "sharding with a context split, such as model::megatron_context");
  return true;
}

// Carriers of documents move parts of causal attention.
template <class Model, class Layouts>
consteval bool reach_checked() {
  static_assert(stage_can_run<Layouts::context_axes::size == 0 || reach_rows<reach_of<Model>> == 0, Model>,
                "heddle: a context split divides causal attention: train a masked model, whose rows see later ones, "
                "without context<...> in its sharding");
  return true;
}

template <class Layouts>
const recompute_plan& checked_plan(const recompute_plan& plan) {
  if (plan.tail.any() && Layouts::context_axes::size == 0)
    throw config_error("heddle: recompute \"keep-tail\" is for models whose sharding has a context split");
  return plan;
}

// What a batch holds, against the layers that read it.
template <class T, class In, class Out, class Batch>
struct batch_is_possible {
  using target = typename batch_contents<Batch>::target;
  static constexpr bool classes = std::is_integral_v<target>;
  static constexpr bool has_scalar = std::is_same_v<decltype(Batch::loss_scale), sum_of_type<T>>;
  static_assert(stage_can_run<has_scalar, Batch>,
                "heddle: the batch of a model is of the model's scalar: model::batch<scalar>, or "
                "model::pair_batch<scalar, ...>");
  static constexpr bool ids = !classes || std::is_same_v<target, std::int32_t>;
  static_assert(stage_can_run<ids, Batch>, "heddle: classes are std::int32_t: model::pair_batch<T, std::int32_t>");
  static constexpr bool fits = !(classes ? compares_numbers<Out> : compares_classes<Out>);
  static_assert(stage_can_run<fits, Out>,
                "heddle: squared_error compares numbers (model::pair_batch<T>), language_head takes classes "
                "(model::pair_batch<T, std::int32_t>) or tokens (model::batch<T>)");
  static constexpr bool embeds = !Out::tied || requires(const In& in) { in.vocabulary; };
  static_assert(stage_can_run<embeds, In>,
                "heddle: a tied head uses the token embedding: the first layer must be layers::embedding");
  static constexpr bool value = true;  // one sentence is enough
};

template <class Layouts, class In, class Block, class Out, class Trained = layers::every_parameter>
struct language_stage_is_possible {
  using stream_axes = typename Layouts::template sequence_axes<dims<dim::width>>;
  static constexpr bool known_ends =
      stream_axes::size == 0 ||
      (requires(const In& in) { in.vocabulary; } && requires(const Out& out) { out.vocabulary; });
  static_assert(
      stage_can_run<known_ends, stream_axes>,
      "heddle: dim::sequence is split between the embedding and the head of a language model, layers::embedding "
      "and layers::language_head: for other ends leave it out of the sharding");
  static constexpr bool bare_embedding =
      keeps_nothing(std::type_identity<layers::activations_of<In>>{}) && layers::children_of<In>::size == 0;
  static_assert(stage_can_run<bare_embedding, In>,
                "heddle: a language_stage gives the embedding no memory: it lists no activations and has no children");
  static constexpr bool no_constants_at_ends = !layers::uses_constants<In> && !layers::uses_constants<Out>;
  static_assert(stage_can_run<no_constants_at_ends, Out>,
                "heddle: a language_stage prepares the constants of blocks only: embedding and head have none");
  static constexpr bool no_routing_at_ends = !layers::uses_routing<In> && !layers::uses_routing<Out>;
  static_assert(stage_can_run<no_routing_at_ends, Out>,
                "heddle: a language_stage routes rows in blocks only: embedding and head have no experts");
  using buckets = trained_buckets<Layouts, Trained, In, Block, Out>;
  static constexpr bool few_buckets = buckets::count + (buckets::freezes ? 1 : 0) <= model::layers::most_buckets;
  static_assert(
      stage_can_run<few_buckets, typename buckets::axes>,
      "heddle: the gradients of a language_stage's parameters are summed over more than four different sets of "
      "axes; split fewer of the dimensions that parameters are used with");
  static constexpr bool value = true;  // one sentence is enough
};

// Errors: `config_error` if samples of several rows, in a batch of one's own, come with one target that no layer takes their mean for.
template <class Out, class Batch, class Config>
const Config& checked_rows(const Config& config) {
  if constexpr (!requires(Batch b) { b.tokens; } && (compares_numbers<Out> || compares_classes<Out>) &&
                !takes_means<Out> && !has_targets_of_rows<Batch, Out>)
    if (config.context != 1)
      throw config_error("heddle: this model has one target for each sample, and a head of one row, but a context of " +
                         std::to_string(config.context) +
                         " rows; layers::pooled gives a head the mean of a sample's rows");
  return config;
}

// A combinator's check for layers that a stage calls itself: they leave the residual stream, or its gradient.
template <class Layouts, class Layer, class Made>
constexpr void require_stream(Made left) {
  layers::detail::require_settled<Layer, typename Layouts::template edge<dims<dim::width>>>(left);
}

// Calls `f` with the block of a layer of the model, to be run by `run`; what `f` returns, if anything, is what was left.
template <class Places, class Run, class F>
void call_block(const Places& at, int layer, Run& run, F&& f) {
  at.with_block(layer, [&]<class Layer>(const layers::placed<Layer>& placed) {
    const layers::call<Layer, Run> block(placed, run);
    if constexpr (std::is_void_v<decltype(f(block))>)
      f(block);
    else
      require_stream<typename Run::layouts, Layer>(f(block));
  });
}
// Lets the blocks of a stage, the layers [first, first + count), fill their constants: `run_of(layer)` is what each kind runs with.
template <class Places, class RunOf>
void prepare_blocks(const Places& at, int first, int count, RunOf&& run_of) {
  if constexpr (layers::uses_constants<typename Places::block_layer>)
    at.each_kind(first, count, [&](const auto&, int layer) {
      auto run = run_of(layer);
      call_block(at, layer, run, [](const auto& block) { layers::prepare_all(block); });
    });
}
// Reserves what rows are routed by in such blocks, for at most `rows` rows.
template <class Layouts, class Places, class Memory, class Queue, class Mesh>
void reserve_blocks(const Places& at, int first, int count, Memory& routing, Queue& queue, const Mesh& mesh,
                    std::int64_t rows) {
  if constexpr (layers::uses_routing<typename Places::block_layer>)
    at.each_kind(first, count, [&](const auto& block, int) {
      routing.reserve(queue, layers::most_routing<Layouts>(block.layer, mesh, rows));
    });
}

// Whether nothing is sent inside a block: every axis has one rank, or splits samples and neither routed rows nor parts of documents
// travel along it.
template <class Layouts, class Block, class World, class... Tags>
bool layers_are_whole(World& world, type_list<Tags...>) {
  using exchange = typename Layouts::template exchange_axes<dim::experts, dim::ffn>;
  constexpr bool routes = layers::uses_routing<Block>;
  return (((list_has<typename Layouts::row_axes, Tags> && !list_has<typename Layouts::context_axes, Tags> &&
            !(routes && list_has<exchange, Tags>)) ||
           world.template along_if<Tags>().size() == 1) &&
          ...);
}

}  // namespace heddle::inline v0::model::detail
