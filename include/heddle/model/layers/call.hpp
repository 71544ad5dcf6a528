// heddle/model/layers/call.hpp: a layer at work: its tensors, children and kernels.
#pragma once

#include <heddle/compute/facets.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/layer.hpp>
#include <heddle/model/layers/placed.hpp>
#include <heddle/model/layers/routing_memory.hpp>
#include <heddle/model/layers/settlement.hpp>
#include <heddle/model/layers/trained.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model::layers {

using compute::transpose;

/// What the loss of a head returns where the sum stays in the backend's memory, at `layer_run::loss`.
struct loss_in_memory {};

namespace detail {
struct no_number {};
// Where a head adds its loss to; on the host it returns the number.
template <class Space>
using loss_place = std::conditional_t<std::is_same_v<Space, host_memory>, no_number, compute::number_in<Space>>;
}  // namespace detail

/// The cache of a run whose calls have whole sequences: none.
struct no_cache {};

/// What layers left for tokens before this call, and where they leave it for the call's rows: of the block at work, the tensors
/// that its layers list (`cached_tensors()`), one behind the other, each [rows, columns].
template <class T, class Space>
struct token_cache {
  T* of_block = nullptr;
  std::int64_t rows = 0;                  ///< of each tensor
  std::int64_t by_head = 0;               ///< rows of a block where keys and values lie head by head; 0: token by token
  compute::token_ids_in<Space> places{};  ///< [rows of the call]: the row that each has in the cache
  compute::key_pages_in<Space> pages{};   ///< where the keys lie that the slices of `layer_run::sequences` count
  compute::key_pages_in<Space> windowed{};    ///< where those lie that the slices of `layer_run::windowed` count
  sum_of_type<T>* states_of_block = nullptr;  ///< of the block at work, one behind the other, each [states, elements]
  std::int64_t states = 0;
  row_view<const compute::state_rows, Space> state_rows{};  ///< the rows of each sequence, and its state
};

namespace detail {
template <class Cache>
inline constexpr bool holds_tokens = false;
template <class T, class Space>
inline constexpr bool holds_tokens<token_cache<T, Space>> = true;
}  // namespace detail

/// What all layers of a stage work with in one call. Addresses are those of the block at work, in the backend's space. With a
/// `token_cache` as `Cache` the rows continue sequences, and layers whose rows see others run `forward_cached`. With
/// `model::context_rows` rows are parts of documents of any length, and attention sees those of other ranks by its verbs.
/// `Trained`: the parameters that have gradients.
template <class T, class Layouts, class Backend, class World, class Cache = no_cache, class Trained = every_parameter>
struct layer_run {
  static constexpr bool has_cache = detail::holds_tokens<Cache>;
  static constexpr bool has_context = !has_cache && !std::is_same_v<Cache, no_cache>;
  using scalar = T;
  using trained = Trained;
  using space = space_of<Backend>;
  using layouts = Layouts;
  using backend_type = Backend;

  Backend& compute;
  World& world;
  extent_of_batch extent{};
  std::array<T*, most_buckets> weights{};                 ///< of each bucket, frozen ones behind the others
  std::array<sum_of_type<T>*, most_buckets> gradients{};  ///< null for frozen ones
  T* saved = nullptr;                                     ///< of one microbatch, from forward to backward
  T* waiting = nullptr;                                   ///< what was computed again and waits for backward_weight
  T* shared = nullptr;                                    ///< what is used up at once
  T* deferred = nullptr;                                  ///< made by backward_input for backward_weight
  T* scratch = nullptr;
  T* constants = nullptr;
  dropping drops = dropping::named;
  bool replays = false;                                         ///< forward runs once more, for what was dropped
  bool waits = false;                                           ///< what was dropped lies in `waiting`
  compute::token_ids_in<space> positions{};                     ///< [rows]: of each token in its sequence
  row_view<const compute::attention_slice, space> sequences{};  ///< causal attention inside each sequence
  row_view<const compute::attention_slice, space> windowed{};   ///< the same of layers with `has_window`
  matrix_view<const T, space> tied{};                           ///< the token embedding, for a head that uses it
  matrix_view<sum_of_type<T>, space> tied_gradient{};
  sum_of_type<T> loss_scale = 1;             ///< of the batch, for layers whose gradient has terms of its own
  routing_memory<space>* routing = nullptr;  ///< for layers that route rows: see `routing_memory`
  std::int64_t first_word = 0;               ///< of this rank's part of the vocabulary
  [[no_unique_address]] detail::loss_place<space> loss{};  ///< not on the host
  [[no_unique_address]] Cache cache{};
};

namespace detail {
template <bool Ok, class Layer>
inline constexpr bool layer_has_whole_samples = Ok;
/// Refuses a layer whose rows see others of their sample, but for attention, where rows are parts of documents.
template <class Layer, class B>
constexpr void require_whole_samples() {
  static_assert(layer_has_whole_samples<!B::has_context, Layer>,
                "heddle: under a context split attention alone sees other rows of a document: this layer reads whole "
                "samples, so leave the context split out of the sharding");
}
template <bool Ok, class Layer, class Tag>
inline constexpr bool layer_lists = Ok;
template <bool Ok, class Layer>
inline constexpr bool layer_has = Ok;
// Concepts, because nvcc takes a requires-expression on a function's own parameters for one that reads them.
template <class Layer, class Call, class... X>
concept runs_forward = requires(const Layer& l, const Call& b, const X&... x) { l.forward(b, x...); };
template <class Layer, class Call, class... X>
concept runs_forward_cached = requires(const Layer& l, const Call& b, const X&... x) { l.forward_cached(b, x...); };
template <class Layer, class Call, class... X>
concept runs_backward_input = requires(const Layer& l, const Call& b, const X&... x) { l.backward_input(b, x...); };
template <class Layer, class Call, class... X>
concept runs_backward_weight = requires(const Layer& l, const Call& b, const X&... x) { l.backward_weight(b, x...); };
struct missing_verb {  // after the sentence that says so
  constexpr operator double() const noexcept { return 0; }
};
// One error for a layer of the residual stream, whichever of its verbs is called first and however many are missing: for
// the first that is. Instantiated for layers only that lack one.
template <class Layer, int Verb>
constexpr void refuse_verb() {
  static_assert(layer_has < Verb != 0, Layer >, "heddle: a layer needs a verb forward(b, x, y)");
  static_assert(
      layer_has < Verb != 1, Layer >,
      "heddle: a layer needs a verb backward_input(b, x, dy, dx), which fills dx; in the place of a norm, and "
      "where several layers add to one gradient, backward_input(b, x, dy, dx, bool add)");
  static_assert(layer_has < Verb != 2, Layer >, "heddle: a layer needs a verb backward_weight(b, x, dy)");
  static_assert(layer_has < Verb != 3, Layer >,
                "heddle: a layer in the place of a norm, or beside others that add to one gradient, needs a verb "
                "backward_input(b, x, dy, dx, bool add), which adds to dx where add is true and fills it where not");
}
template <class Layer, class Call, int Verb, class... X>
constexpr int missing_verb_of() {
  using x = typename Call::const_view;
  using y = typename Call::view;
  if constexpr (!((std::is_convertible_v<X, x> || std::is_same_v<X, bool>) && ...))
    return Verb;  // of a head
  else if constexpr (!runs_forward<Layer, Call, x, y>)
    return 0;
  else if constexpr (!runs_backward_input<Layer, Call, x, x, y> && !runs_backward_input<Layer, Call, x, x, y, bool>)
    return 1;
  else if constexpr (!runs_backward_weight<Layer, Call, x, x>)
    return 2;
  else
    return (std::is_same_v<X, bool> || ...) ? 3 : Verb;
}
}  // namespace detail

/// The rows that a rank has of an edge<Own, Beside> of the batch of a run.
template <class Layouts, class Own, class Beside, class Run>
row_range own_rows_of(const Run& run) {
  if constexpr (Layouts::template splits_rows<Own, Beside>)
    return rows_on_rank<Layouts, Own, Beside>(run.world.mesh(), run.world.rank(), run.extent.rows());
  else
    return {0, run.extent.rows()};
}

/// The rows of a layer's tensor in a run; routed rows are as many as there may be.
template <class Layouts, class Described, class Run>
std::int64_t rows_of_activation(const Run& run, const detail::activation_place& at) {
  if constexpr (detail::is_routed<Described>)
    return at.rows;
  else
    return own_rows_of<Layouts, typename Described::own, typename detail::beside_of<Described>::type>(run).count;
}

/// One layer in one call. Verbs of a child are called with views: `x` what comes in, `y` what goes out, `dy` and `dx` their
/// gradients. When activations are computed again, forward runs once more with empty views for what is there already.
template <class Layer, class Run>
class call {
 public:
  using scalar = typename Run::scalar;
  /// Of sums, statistics, factors and gradients of weights: float for scalars of 16 bits.
  using sum = sum_of_type<scalar>;
  using space = typename Run::space;
  using sum_view = matrix_view<sum, space>;
  using sum_row = row_view<sum, space>;
  using view = matrix_view<scalar, space>;
  using row = row_view<scalar, space>;
  using const_view = matrix_view<const scalar, space>;
  using const_row = row_view<const scalar, space>;
  using layouts = typename Run::layouts;
  using token_ids = compute::token_ids_in<space>;
  /// Whether tensors lie in the host's memory, where kernels have run when their call returns.
  static constexpr bool on_host = std::is_same_v<space, host_memory>;
  /// Whether rows are parts of documents of any length, each with a position of its own.
  static constexpr bool has_context = Run::has_context;
  /// What the forward of a layer with a loss returns: see `add_loss`.
  using loss_type = std::conditional_t<on_host, double, loss_in_memory>;

  call(const placed<Layer>& at, Run& run) : at_(&at), run_(&run) {}

  const Layer& layer() const noexcept { return at_->layer; }
  Run& run() const noexcept { return *run_; }
  auto& compute() const noexcept { return run_->compute; }
  decltype(auto) queue() const noexcept { return compute::queue_of(run_->compute); }
  /// Rows of the whole batch.
  std::int64_t rows() const noexcept { return run_->extent.rows(); }
  /// Those that this rank has of an edge<Own>.
  template <class Own>
  row_range own_rows() const {
    return own_rows_of<layouts, Own, dims<>>(*run_);
  }

  /// The layer's own tensor with this tag: a parameter (to read) or an activation [rows, columns]; routed rows are as many as there
  /// may be.
  template <class Tag>
  auto operator[](Tag) const {
    constexpr std::size_t p = place_of<Tag, parameters_of<Layer>>, a = place_of<Tag, activations_of<Layer>>;
    constexpr bool is_parameter = p < parameters_of<Layer>::size, is_activation = a < activations_of<Layer>::size;
    static_assert(
        detail::layer_lists<(is_parameter || is_activation), Layer, Tag>,
        "heddle: b[tag{}]: the layer lists no parameter and no activation with this tag; add it to parameters() "
        "or activations()");
    if constexpr (is_parameter) {
      const auto& at = at_->parameters[p];
      return const_view(run_->weights[at.bucket] + at.offset, dynamic_shape<2>(at.rows, at.columns));
    } else if constexpr (is_activation) {
      return place_of_activation<a>();
    }
  }
  /// What the layer has left in the cache under this tag: [rows of the cache, columns].
  template <class Tag>
  view cached(Tag) const {
    constexpr std::size_t c = place_of<Tag, cached_of<Layer>>;
    static_assert(detail::layer_lists<(c < cached_of<Layer>::size), Layer, Tag>,
                  "heddle: b.cached(tag{}): the layer lists no such tensor; add it to cached_tensors()");
    if constexpr (c < cached_of<Layer>::size) {
      const auto& at = at_->cached[c];
      const auto& cache = run_->cache;
      return view(cache.of_block + at.first * cache.rows, dynamic_shape<2>(cache.rows, at.columns));
    }
  }
  /// The states of sequences under this tag, one behind the other.
  template <class Tag>
  sum_row states(Tag) const {
    constexpr std::size_t s = place_of<Tag, states_of<Layer>>;
    static_assert(detail::layer_lists<(s < states_of<Layer>::size), Layer, Tag>,
                  "heddle: b.states(tag{}): the layer lists no such state; add it to state_tensors()");
    if constexpr (s < states_of<Layer>::size) {
      const auto& at = at_->states[s];
      const auto& cache = run_->cache;
      return row_at<space>(cache.states_of_block + at.first * cache.states, cache.states * at.columns);
    }
  }
  /// Whether the layer's own parameter with this tag is trained. Only then it has a gradient; backward_weight is called if any parameter of
  /// the layer and its children is.
  template <class Tag>
  static constexpr bool trains =
      Run::trained::template trains<std::tuple_element_t<place_of<Tag, parameters_of<Layer>>, parameters_of<Layer>>>;
  /// The gradient of a parameter, to which backward_weight adds.
  template <class Tag>
  sum_view gradient(Tag) const {
    constexpr std::size_t p = place_of<Tag, parameters_of<Layer>>;
    static_assert(detail::layer_lists<(p < parameters_of<Layer>::size), Layer, Tag>,
                  "heddle: b.gradient(tag{}): the layer lists no parameter with this tag; add it to parameters()");
    if constexpr (p < parameters_of<Layer>::size) {
      static_assert(detail::layer_lists<trains<Tag>, Layer, Tag>,
                    "heddle: b.gradient(tag{}): this parameter is frozen and has no gradient; a backward_weight that "
                    "may be called for other parameters asks `if constexpr (B::template trains<tag>)` before");
      const auto& at = at_->parameters[p];
      return sum_view(run_->gradients[at.bucket] + at.offset, dynamic_shape<2>(at.rows, at.columns));
    }
  }
  /// A parameter, to be changed between steps.
  template <class Tag>
  view weight_to_change(Tag) const {
    constexpr std::size_t p = place_of<Tag, parameters_of<Layer>>;
    static_assert(detail::layer_lists<(p < parameters_of<Layer>::size), Layer, Tag>,
                  "heddle: b.weight_to_change(tag{}): the layer lists no parameter with this tag");
    const auto& at = at_->parameters[p];
    return view(run_->weights[at.bucket] + at.offset, dynamic_shape<2>(at.rows, at.columns));
  }
  /// A row of each, as kernels of vectors take them.
  template <class Tag>
  auto vector(Tag tag) const {
    return elements_of((*this)[tag]);
  }
  template <class Tag>
  sum_row gradient_vector(Tag tag) const {
    return elements_of(gradient(tag));
  }
  /// Copies numbers of the host to a tensor of the layer, and waits for it: for `prepare`.
  template <class Tag>
  void copy_from_host(Tag tag, std::span<const element_of_tag<Tag, scalar>> values) const {
    if constexpr (on_host) {
      compute::run<compute::ops::copy>(compute(), values, vector(tag));
    } else {
      queue().copy(values, vector(tag));
      queue().wait();
    }
  }

  /// `auto [gate, up] = b.children();`
  auto children() const { return children(*run_); }
  /// Called in another run, such as one of another extent.
  auto children(Run& run) const {
    return [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      return list(call<typename std::remove_cvref_t<decltype(at_->children.template get<Is>())>::layer_type, Run>(
          at_->children.template get<Is>(), run)...);
    }(std::make_index_sequence<children_of<Layer>::size>{});
  }

  /// Whether a kept tensor is made in this call: when activations are computed again, only where it was dropped.
  template <class Tag>
  bool makes(Tag) const noexcept {
    return !run_->replays || dropped<place_of<Tag, activations_of<Layer>>>();
  }
  /// Makes a kept tensor: calls `f` with it, where it is made in this call.
  template <class Tag, class F>
  void make(Tag tag, F&& f) const {
    if (makes(tag)) f((*this)[tag]);
  }
  /// A kept tensor that a child makes: empty where it need not be made again. The child is called in any case, for what it
  /// has dropped of its own.
  template <class Tag>
  view edge(Tag tag) const {
    return makes(tag) ? (*this)[tag] : view{};
  }
  /// Makes the output: calls `f`, unless nobody wants it.
  template <class F>
  static void give(view y, F&& f) {
    if (is_wanted(y)) f(y);
  }
  static bool is_wanted(view y) noexcept { return y.address() != nullptr || y.size() > 0; }
  template <class From, class To, class T>
  void redistribute_in_place(matrix_view<T, space> x) const {
    auto&& in_order = queue();
    settle_in<From, To>(run_->world, in_order, elements_of(x));
  }
  /// Whether the ranks of an axis have other rows in one of these layouts than in the other, so that values of one are brought to
  /// the other in other memory.
  template <class From, class To>
  static constexpr bool moves_rows = detail::rows_moved<From, To>::what != detail::settlement::nothing;
  /// Brings `from` to `to`, which is the same tensor where their rows are the same (`room`).
  template <class From, class To>
  void redistribute_in_place(view from, view to) const {
    if constexpr (moves_rows<From, To>) {
      auto&& in_order = queue();
      settle_in<From, To>(run_->world, in_order, rows(), elements_of(from), elements_of(to));
    } else {
      redistribute_in_place<From, To>(to);
    }
  }
  /// Where to make values in layout `From` that `redistribute_in_place<From, To>(from, to)` brings to `to`: there, or, where `From` has other rows,
  /// in the tensor `tag` of the layer (`gathered_rows`).
  template <class From, class To, class Tag, class View>
  auto room([[maybe_unused]] Tag tag, View to) const {
    if constexpr (moves_rows<From, To>)
      return (*this)[tag];
    else
      return to;
  }
  /// `x`, of layout `From`, in layout `To`: itself, or, where `To` has other rows, gathered in the tensor `tag` of the layer, if
  /// they are `needed` in this call.
  template <class From, class To, class Tag>
  const_view gathered(Tag tag, const_view x, [[maybe_unused]] bool needed = true) const {
    if constexpr (moves_rows<From, To>) {
      auto&& in_order = queue();
      if (needed) settle_in<From, To>(run_->world, in_order, rows(), elements_of(x), elements_of((*this)[tag]));
    }
    return room<From, To>(tag, x);
  }
  /// The loss that the kernel `f(number)` adds to: the number on the host; elsewhere it stays in memory, where the stage has a
  /// place for each microbatch.
  template <class F>
  loss_type add_loss(F&& f) const {
    if constexpr (on_host) {
      double loss = 0;
      f(&loss);
      return loss;
    } else {
      f(run_->loss);
      return {};
    }
  }

  /// Whether the backend has the kernels that the layer's own verbs call: the facets that it lists (`using needs =
  /// compute::facet_list<...>`; with a cache `needs_cached`, where it has that). One error names the layer and the facet that is missing, and no verb of it is compiled.
  static consteval bool has_kernels() {
    if constexpr (Run::has_cache && requires { typename Layer::needs_cached; })
      return Layer::needs_cached::template required<Layer, typename Run::backend_type, scalar>();
    else if constexpr (requires { typename Layer::needs; })
      return Layer::needs::template required<Layer, typename Run::backend_type, scalar>();
    else
      return true;
  }

  // ---- verbs ---------------------------------------------------------------------------------------------------
  template <class... X>
  auto forward(const X&... x) const {
    if constexpr (!has_kernels()) {
      return detail::missing_verb{};
    } else if constexpr (continues<X...>()) {
      return result_of([&] { return at_->layer.forward_cached(*this, x...); });
    } else {
      constexpr bool sees_one = !Run::has_cache || !requires { requires Layer::reads_sequences; };
      static_assert(
          detail::layer_has<sees_one, Layer>,
          "heddle: a layer whose rows see others of their sequence needs a verb forward_cached(b, x, y) to run "
          "with a cache");
      constexpr bool has = detail::runs_forward<Layer, call, X...>;
      if constexpr (!has) detail::refuse_verb<Layer, detail::missing_verb_of<Layer, call, 0, X...>()>();
      if constexpr (has && sees_one)
        return result_of([&] { return at_->layer.forward(*this, x...); });
      else
        return detail::missing_verb{};
    }
  }
  template <class... X>
  auto backward_input(const X&... x) const {
    if constexpr (!has_kernels()) {
      return detail::missing_verb{};
    } else {
      constexpr bool has = detail::runs_backward_input<Layer, call, X...>;
      if constexpr (has) {
        return result_of([&] { return at_->layer.backward_input(*this, x...); });
      } else {
        detail::refuse_verb<Layer, detail::missing_verb_of<Layer, call, 1, X...>()>();
        return detail::missing_verb{};
      }
    }
  }
  /// Nothing where the layer and its children are frozen.
  template <class... X>
  void backward_weight(const X&... x) const {
    if constexpr (has_kernels() && trains_in<typename Run::trained, Layer>) {
      constexpr bool has = detail::runs_backward_weight<Layer, call, X...>;
      if constexpr (has)
        at_->layer.backward_weight(*this, x...);
      else
        detail::refuse_verb<Layer, detail::missing_verb_of<Layer, call, 2, X...>()>();
    }
  }

 private:
  // Whether forward runs as forward_cached.
  template <class... X>
  static consteval bool continues() {
    if constexpr (Run::has_cache)
      return detail::runs_forward_cached<Layer, call, X...>;
    else
      return false;
  }
  template <class Verb>
  static auto result_of(Verb&& verb) {
    if constexpr (std::is_void_v<decltype(verb())>) {
      verb();
      return made<void>{};
    } else {
      return verb();
    }
  }
  template <std::size_t A>
  bool dropped() const noexcept {
    if constexpr (A < activations_of<Layer>::size) {
      if (run_->drops == dropping::transient) return true;
      return at_->activations[A].dropped[static_cast<std::size_t>(run_->drops)];
    } else {
      return false;
    }
  }
  template <class Described>
  std::int64_t rows_of(const detail::activation_place& at) const {
    return rows_of_activation<layouts, Described>(*run_, at);
  }
  template <std::size_t A>
  auto place_of_activation() const {
    using described = type_of<A>;
    using element = element_of_tag<typename described::tag, scalar>;
    const auto& at = at_->activations[A];
    const auto matrix_at = [](scalar* memory, const dynamic_shape<2>& shape) {
      if constexpr (std::is_same_v<element, scalar>)
        return matrix_view<element, space>(memory, shape);
      else
        return matrix_view<element, space>(reinterpret_cast<element*>(memory), shape);
    };
    if constexpr (described::lives == life::constant) {
      return matrix_at(run_->constants + at.shared, dynamic_shape<2>(at.rows, at.columns));
    } else {
      const auto shape = dynamic_shape<2>(rows_of<described>(at), at.columns);
      if constexpr (described::lives == life::deferred) {
        return matrix_at(run_->deferred + at.shared, shape);
      } else if constexpr (described::lives == life::scratch) {
        return matrix_at(run_->scratch + at.shared, shape);
      } else {
        if (dropped<A>()) {
          if (described::lives == life::until_weight && run_->waits)
            return matrix_at(run_->waiting + at.waiting[static_cast<std::size_t>(run_->drops)], shape);
          return matrix_at(run_->shared + at.shared, shape);
        }
        return matrix_at(run_->saved + at.saved[static_cast<std::size_t>(run_->drops)], shape);
      }
    }
  }
  template <std::size_t A>
  using type_of = std::tuple_element_t<A, activations_of<Layer>>;

  const placed<Layer>* at_;
  Run* run_;
};

namespace detail {
template <class Layer>
struct asks_of_stage;
template <class List>
struct children_ask;
template <class... C>
struct children_ask<list<C...>> {
  static constexpr bool sequences = (asks_of_stage<C>::sequences || ...);
  static constexpr bool constants = (asks_of_stage<C>::constants || ...);
  static constexpr bool routing = (asks_of_stage<C>::routing || ...);
};
template <class... A>
constexpr bool lists_constants(std::type_identity<list<A...>>) {
  return ((A::lives == life::constant) || ...);
}
template <class Layer>
struct asks_of_stage {
  using children = children_ask<children_of<Layer>>;
  static constexpr bool sequences = requires { requires Layer::reads_sequences; } || children::sequences;
  static constexpr bool constants = lists_constants(std::type_identity<activations_of<Layer>>{}) || children::constants;
  static constexpr bool routing = requires { requires Layer::routes_rows; } || children::routing;
};
}  // namespace detail

/// Whether the layer, or one of its children, reads the positions of tokens and the slices of sequences. A layer that does
/// says so: `static constexpr bool reads_sequences = true`.
template <class Layer>
inline constexpr bool uses_sequences = detail::asks_of_stage<Layer>::sequences;
/// Whether the layer, or one of its children, lists constants, which it fills in its `prepare(b)`.
template <class Layer>
inline constexpr bool uses_constants = detail::asks_of_stage<Layer>::constants;

/// Whether the layer, or one of its children, routes rows. A layer that does says so, `static constexpr bool routes_rows = true`, and
/// has `routing_of<Layouts>(mesh, rows)`, the `routing_extents` of its microbatches.
template <class Layer>
inline constexpr bool uses_routing = detail::asks_of_stage<Layer>::routing;

namespace detail {
template <class Layouts, class Space, class Layer>
constexpr bool reads_routes();
template <class Layouts, class Space, class... C>
constexpr bool any_reads_routes(std::type_identity<list<C...>>) {
  return (reads_routes<Layouts, Space, C>() || ...);
}
template <class Layouts, class Space, class Layer>
constexpr bool reads_routes() {
  if constexpr (!uses_routing<Layer>)
    return false;
  else if constexpr (requires { static_cast<bool>(Layer::template routes_on_host<Layouts, Space>); })
    return Layer::template routes_on_host<Layouts, Space> ||
           any_reads_routes<Layouts, Space>(std::type_identity<children_of<Layer>>{});
  else
    return requires { requires Layer::routes_rows; } ||
           any_reads_routes<Layouts, Space>(std::type_identity<children_of<Layer>>{});
}
}  // namespace detail
/// Whether the layer, or one of its children, reads on the host where rows go, as it must where they travel between ranks: its verbs then wait for the
/// queue. A layer that routes rows says so, `template <class Layouts, class Space> static constexpr bool routes_on_host`; one that does not say is taken to.
template <class Layer, class Layouts, class Space>
inline constexpr bool routes_on_host = detail::reads_routes<Layouts, Space, Layer>();

namespace detail {
struct no_routing {
  static constexpr std::int64_t bytes() noexcept { return 0; }
};
}  // namespace detail
/// What a stage of such layers has as `layer_run::routing`; an empty type for others.
template <class Layer, class Space>
using routing_memory_of = std::conditional_t<uses_routing<Layer>, routing_memory<Space>, detail::no_routing>;

/// The most that one of the layers needs for the routes of at most `rows` rows.
template <class Layouts, class Layer, class Mesh>
constexpr routing_extents most_routing(const Layer& layer, const Mesh& mesh, std::int64_t rows) {
  routing_extents most;
  if constexpr (uses_routing<Layer>) {
    if constexpr (requires { requires Layer::routes_rows; }) most.cover(layer.template routing_of<Layouts>(mesh, rows));
    layer.children().each([&](auto, const auto& child) { most.cover(most_routing<Layouts>(child, mesh, rows)); });
  }
  return most;
}

/// Lets every layer fill its constants.
template <class Layer, class Run>
void prepare_all(const call<Layer, Run>& b) {
  if constexpr (uses_constants<Layer>) {
    if constexpr (detail::lists_constants(std::type_identity<activations_of<Layer>>{})) {
      // Apart, since nvcc takes no requirement as an argument of a template.
      constexpr bool prepares = requires { b.layer().prepare(b); };
      static_assert(detail::layer_has<prepares, Layer>,
                    "heddle: a layer that lists a constant needs prepare(b), which fills it");
      if constexpr (prepares) b.layer().prepare(b);
    }
    b.children().each([](auto, const auto& child) { prepare_all(child); });
  }
}

/// Merges the adapters of a layer and of its children into the weights that they adapt: calls their `merge(b)`.
template <class Layer, class Run>
void merge_all(const call<Layer, Run>& b) {
  if constexpr (requires { typename Layer::base_layer; })
    b.layer().merge(b);
  else
    b.children().each([](auto, const auto& child) { merge_all(child); });
}

/// Copies what was dropped, and lies in the shared memory, to where backward_weight finds it.
template <class Layer, class Run>
void move_to_waiting(const placed<Layer>& at, Run& run) {
  const auto v = static_cast<std::size_t>(run.drops);
  at.layer.activations().each([&](auto index, const auto& described) {
    using described_type = std::remove_cvref_t<decltype(described)>;
    const detail::activation_place& place = at.activations[index];
    if (described_type::lives != life::until_weight || !place.dropped[v]) return;
    const std::int64_t n = rows_of_activation<typename Run::layouts, described_type>(run, place) * place.columns;
    using T = typename Run::scalar;
    using space = typename Run::space;
    if (n > 0)
      compute::run<compute::ops::copy>(run.compute, row_at<space>(static_cast<const T*>(run.shared + place.shared), n),
                                       row_at<space>(run.waiting + place.waiting[v], n));
  });
  at.children.each([&](auto, const auto& child) { move_to_waiting(child, run); });
}

}  // namespace heddle::inline v0::model::layers
