// heddle/train/trainable.hpp: concepts of a model and a stage that a trainer can train.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/model/pipeline/stage.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/options.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::train {

namespace detail {

template <class P>
concept parameter_entry = requires(const P& p) {
  { p.offset } -> std::convertible_to<std::int64_t>;
  { p.count } -> std::convertible_to<std::int64_t>;
  { p.counted } -> std::convertible_to<bool>;
  { p.decay } -> std::convertible_to<bool>;
  { p.id } -> std::convertible_to<std::int64_t>;
  std::string(p.name);
};

template <class S>
inline constexpr bool has_parameters = requires(S& s) { requires parameter_entry<decltype(*s.parameters().begin())>; };
template <class S>
inline constexpr bool has_weights = requires(S& s) {
  { s.weights() } -> std::convertible_to<row_view<typename S::scalar, space_of<S>>>;
};
template <class S>
inline constexpr bool has_gradients = requires(S& s) {
  { s.gradients() } -> std::convertible_to<row_view<sum_of_type<typename S::scalar>, space_of<S>>>;
};
template <class S>
inline constexpr bool has_zero_gradients = requires(S& s) { s.zero_gradients(); };
template <class S>
inline constexpr bool has_initialize = requires(S& s) { s.initialize(std::uint64_t{1}); };
template <class S>
inline constexpr bool has_loss_sum = requires(S& s) {
  { s.loss_sum(0) } -> std::convertible_to<double>;
};
template <class S, class Batch>
inline constexpr bool has_forward_only =
    requires(S& s, const Batch& b, row_view<const typename S::scalar, space_of<S>> in,
             row_view<typename S::scalar, space_of<S>> out) {
      { s.forward_only(b, in, out) } -> std::convertible_to<double>;
    };
template <class S>
inline constexpr bool has_flat_weights = requires { requires layout_like<typename S::flat_weights>; };
template <class S>
inline constexpr bool has_loss = requires { requires layout_like<typename S::loss>; };

}  // namespace detail

/// A pipeline stage that a trainer can train. Beside the verbs of `model::pipeline_stage`:
///
/// | member | meaning |
/// |---|---|
/// | constructor `(config, world&, backend&, layers, int slots, std::int64_t max_samples, int deferred)` | `slots` microbatches alive, `deferred` of them between backward_input and backward_weight |
/// | `parameters()` | a range of tensors in the flat buffers: name, id, offset, count, counted, decay, as `model::parameter` has them |
/// | `std::span<scalar> weights()`, `gradients()` | the flat buffers |
/// | `zero_gradients()`, `initialize(std::uint64_t seed)` | backward adds to gradients; weights are the same on every mesh |
/// | `double loss_sum(int slot)` | on the last stage, of the microbatch last sent forward: summed over targets, not scaled |
/// | `double forward_only(batch, in, out)` | forward without saving; the loss sum on the last stage |
/// | `using flat_weights = layout<...>` | the flat buffer as one tensor: a gradient is summed over the axes on which its dual is partial; where these differ: `model::of_stage::buckets` |
/// | `using loss = layout<...>` | `partial<plus>` over axes that see other samples, identical along axes that repeat the computation |
///
/// Rows are spans where the stage keeps its tensors in the host's memory; one that names another space has `queue()`, in whose
/// order it works, and rows there (`row_view<scalar, space>`).
/// `model::of_stage` lists what else it may have, in five groups. Saves (`train::save`) need tables of `model::parameter`.
template <class S, class Batch>
concept trainable_stage =
    model::pipeline_stage<S, Batch> && detail::has_parameters<S> && detail::has_weights<S> &&
    detail::has_gradients<S> && detail::has_zero_gradients<S> && detail::has_initialize<S> && detail::has_loss_sum<S> &&
    detail::has_forward_only<S, Batch> && detail::has_flat_weights<S> && detail::has_loss<S>;

/// A model that a trainer can train: `scalar`; `config` with `context` (tokens of a sample), `validate()` and a
/// `to_string(config)`; `batch` with targets, samples, loss_scale and sequence, and tokens as `model::batch` or inputs as
/// `model::pair_batch` has them; a template
/// `stage<World, Backend>`; `layers_of(config, part, parts)`, which layers a part of the pipeline has, as the stage's
/// constructor takes them. Optional: `stage<World, Backend, Activations>` for policies on saved activations,
/// `layers_of(config, part, std::span<const int> counts)` for given numbers, `layer_costs(config)` for `layers_by_cost`.
template <class M, class World, class Backend>
concept trainable_model = requires(const typename M::config& c, const typename M::batch& b) {
  typename M::scalar;
  typename M::template stage<World, Backend>;
  M::layers_of(c, 0, 1);
  c.validate();
  { c.context } -> std::convertible_to<std::int64_t>;
  { to_string(c) } -> std::convertible_to<std::string>;
  b.targets, b.samples, b.loss_scale, b.sequence;
  requires requires { b.tokens; } || requires { b.inputs; };
} && trainable_stage<typename M::template stage<World, Backend>, typename M::batch>;

namespace detail {

using model::detail::stage_has_it;

// A constructor in one of the three forms that a trainer calls.
template <class S, class... First>
consteval bool is_made_of() {
  if constexpr (model::of_stage::takes_settings<S>)
    return requires {
      S(std::declval<First>()..., std::declval<S*>(), std::declval<const typename S::layers_memory::settings&>());
    };
  else
    return model::of_stage::takes_lender<S, First...> || std::is_constructible_v<S, First...>;
}

// One error for each member that is missing. `First`: what the constructor takes.
template <class S, class Batch, class... First>
consteval bool trainable_checked() {
  if constexpr (!model::detail::stage_sizes_checked<S>()) {
    return false;
  } else {
    constexpr bool verbs = model::detail::stage_verbs_checked<S, Batch>();
    constexpr bool groups = model::detail::stage_groups_checked<S>();
    constexpr bool made = is_made_of<S, First...>();
    static_assert(stage_has_it<made, S>::value,
                  "heddle: a stage that is trained needs a constructor (const config&, world&, backend&, layers, int "
                  "slots, std::int64_t max_samples, int deferred), where layers is what the model's layers_of returns");
    static_assert(
        stage_has_it<has_parameters<S>, S>::value,
        "heddle: a stage that is trained needs `parameters()`, a range of entries with name, id, offset, count, "
        "counted and decay, such as `const std::vector<model::parameter>& parameters() const`");
    static_assert(
        stage_has_it<has_weights<S>, S>::value,
        "heddle: a stage that is trained needs `std::span<scalar> weights()`, its parameters in one flat buffer");
    static_assert(
        stage_has_it<has_gradients<S>, S>::value,
        "heddle: a stage that is trained needs `std::span<scalar> gradients()`, a flat buffer like `weights()`");
    static_assert(stage_has_it<has_zero_gradients<S>, S>::value,
                  "heddle: a stage that is trained needs `void zero_gradients()`; backward adds to gradients");
    static_assert(stage_has_it<has_initialize<S>, S>::value,
                  "heddle: a stage that is trained needs `void initialize(std::uint64_t seed)`, the first weights, the "
                  "same on every mesh");
    static_assert(stage_has_it<has_loss_sum<S>, S>::value,
                  "heddle: a stage that is trained needs `double loss_sum(int slot) const`, the loss of the microbatch "
                  "that last went forward through this slot, summed over its targets");
    static_assert(
        stage_has_it<has_forward_only<S, Batch>, S>::value,
        "heddle: a stage that is trained needs `double forward_only(const batch&, std::span<const scalar> in, "
        "std::span<scalar> out)`, forward without saving, for validation; it returns the loss sum");
    static_assert(stage_has_it<has_flat_weights<S>, S>::value,
                  "heddle: a stage that is trained needs `using flat_weights = layout<mesh, ...>;`: its dual says over "
                  "which axes gradients are summed");
    static_assert(
        stage_has_it<has_loss<S>, S>::value,
        "heddle: a stage that is trained needs `using loss = layout<mesh, ...>;`: partial<plus> over the axes "
        "that split samples, identical along axes that repeat the computation");
    return verbs && groups && made && has_parameters<S> && has_weights<S> && has_gradients<S> &&
           has_zero_gradients<S> && has_initialize<S> && has_loss_sum<S> && has_forward_only<S, Batch> &&
           has_flat_weights<S> && has_loss<S>;
  }
}

// Sampling alone asks for it.
template <class S, class Batch>
void checked_last_logits(S& stage, const Batch& b, row_view<const typename S::scalar, space_of<S>> in,
                         row_view<typename S::scalar, space_of<S>> out,
                         row_view<typename S::scalar, space_of<S>> logits) {
  constexpr bool has = model::of_stage::has_last_logits<S, Batch>;
  static_assert(stage_has_it<has, S>::value,
                "heddle: text is drawn from a model whose stage has `void last_logits(const batch&, std::span<const "
                "scalar> in, std::span<scalar> out, std::span<scalar> logits)`");
  if constexpr (has) stage.last_logits(b, in, out, logits);
}

// What stands in for a stage that was refused, so that its uses add no errors of their own.
template <class Mesh>
struct refused_stage {
  static constexpr bool is_refused = true;
  using scalar = float;
  using flat_weights = layout<Mesh>;
  using loss = layout<Mesh>;
  using samples = layout<Mesh>;
  struct entry {
    std::string name{};
    std::int64_t offset = 0, count = 0;
    int id = 0;
    bool counted = false, decay = false;
  };
  template <class... Arguments>
  explicit refused_stage(Arguments&&...) {}
  std::int64_t boundary_elements(std::int64_t) const { return 0; }
  template <class... Arguments>
  void forward(Arguments&&...) {}
  template <class... Arguments>
  void backward(Arguments&&...) {}
  template <class... Arguments>
  void backward_input(Arguments&&...) {}
  template <class... Arguments>
  void backward_weight(Arguments&&...) {}
  template <class... Arguments>
  void last_logits(Arguments&&...) {}
  template <class... Arguments>
  double forward_only(Arguments&&...) {
    return 0;
  }
  double loss_sum(int) const { return 0; }
  std::span<const entry> parameters() const { return {}; }
  std::span<float> weights() { return {}; }
  std::span<float> gradients() { return {}; }
  void zero_gradients() {}
  void initialize(std::uint64_t) {}
};
template <class Mesh, class Stage, class Batch, class... First>
using checked_stage = std::conditional_t<trainable_checked<Stage, Batch, First...>(), Stage, refused_stage<Mesh>>;

template <class M>
inline constexpr bool has_scalar = requires { typename M::scalar; };
template <class M>
inline constexpr bool has_config = requires { typename M::config; };
template <class M>
inline constexpr bool has_batch = requires { typename M::batch; };
template <class M, class World, class Backend>
inline constexpr bool has_stage = requires { typename M::template stage<World, Backend>; };
template <class C>
inline constexpr bool is_config = requires(const C& c) {
  { c.context } -> std::convertible_to<std::int64_t>;
  { to_string(c) } -> std::convertible_to<std::string>;
  c.validate();
};
template <class B>
inline constexpr bool is_complete = requires { sizeof(B); };
template <class B>
inline constexpr bool is_batch = requires(B& b) {
  b.targets, b.samples, b.loss_scale, b.sequence;
  requires requires { b.tokens; } || requires { b.inputs; };
};
template <class M>
inline constexpr bool has_layers_of = requires(const typename M::config& c) { M::layers_of(c, 0, 1); };

// Whether `describe(config)` gives layers that can be run; a model that is not described has its own stage.
template <class M>
consteval bool layers_checked() {
  if constexpr (requires { M::template layers_checked<M>(); })
    return M::template layers_checked<M>();
  else
    return true;
}
// One error for the first thing that is missing.
template <class M, class World, class Backend>
consteval bool model_checked() {
  if constexpr (!has_scalar<M> && !has_config<M> && !has_batch<M>) {
    static_assert(stage_has_it<has_scalar<M>, M>::value,
                  "heddle: this is no model: a trainer takes a type such as model::gpt2<float>, which names scalar, "
                  "config, batch and stage (train::trainable_model)");
  } else if constexpr (!has_scalar<M>) {
    static_assert(stage_has_it<has_scalar<M>, M>::value,
                  "heddle: a model that is trained needs `using scalar = ...;`, the type of its weights");
  } else if constexpr (!has_config<M>) {
    static_assert(
        stage_has_it<has_config<M>, M>::value,
        "heddle: a model that is trained needs `using config = ...;`, the settings that make one; options<config> "
        "holds them");
  } else if constexpr (!has_batch<M>) {
    static_assert(stage_has_it<has_batch<M>, M>::value,
                  "heddle: a model that is trained needs `using batch = ...;`, one microbatch: model::batch<scalar>");
  } else if constexpr (!has_stage<M, World, Backend>) {
    static_assert(
        stage_has_it<has_stage<M, World, Backend>, M>::value,
        "heddle: a model that is trained needs `template <class World, class Backend> using stage = ...;` for "
        "this world and backend, the part that one rank holds (train::trainable_stage)");
  } else if constexpr (!is_config<typename M::config>) {
    static_assert(
        stage_has_it<is_config<typename M::config>, typename M::config>::value,
        "heddle: the config of a model that is trained needs `context` (tokens of a sample), `void validate() "
        "const` and a function `std::string to_string(const config&)`");
  } else if constexpr (!has_layers_of<M>) {
    static_assert(
        stage_has_it<has_layers_of<M>, M>::value,
        "heddle: a model that is trained needs `static auto layers_of(const config&, int part, int parts)`, what "
        "its stage's constructor takes as layers");
  } else if constexpr (!is_complete<typename M::batch>) {
    static_assert(stage_has_it<is_complete<typename M::batch>, typename M::batch>::value,
                  "heddle: a sharding with a context split trains on documents: include <heddle/train/context.hpp>");
  } else if constexpr (!is_batch<typename M::batch>) {
    static_assert(
        stage_has_it<is_batch<typename M::batch>, typename M::batch>::value,
        "heddle: the batch of a model that is trained needs tokens, targets, samples, loss_scale and sequence, "
        "as model::batch<scalar> has them, or inputs instead of tokens, as model::pair_batch<scalar>");
  } else {
    return layers_checked<M>();
  }
  return false;
}

// What stands in for a model that was refused.
struct refused_config {
  std::int64_t context = 0;
  void validate() const {}
  friend std::string to_string(const refused_config&) { return {}; }
};
struct refused_options : options<refused_config, any_learning_rate> {
  refused_options() = default;
  template <class Given>
  refused_options(const Given&) {}
};
struct refused_batch {
  static constexpr bool is_refused = true;
  std::span<const std::int32_t> tokens{}, targets{};
  int samples = 0, sequence = 0;
  double loss_scale = 0;
};
template <class Mesh>
struct refused_model {
  using scalar = float;
  using config = refused_config;
  using batch = refused_batch;
  template <class World, class Backend, class Activations = void>
  using stage = refused_stage<Mesh>;
  static int layers_of(const config&, int, int) { return 0; }
};
template <class M, class World, class Backend, class Mesh>
using checked_model = std::conditional_t<model_checked<M, World, Backend>(), M, refused_model<Mesh>>;
template <class M>
struct options_of_model {
  using type = options<typename M::config, any_learning_rate>;
};
template <class Mesh>
struct options_of_model<refused_model<Mesh>> {
  using type = refused_options;
};

}  // namespace detail

}  // namespace heddle::inline v0::train
