// heddle/model/layers/call.hpp: a layer at work: its tensors, its children and the kernels, as its verbs see them.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/model/layer.hpp>
#include <heddle/model/layers/placed.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model::layers {

using compute::transpose;

/// What a verb leaves in the tensor that it fills, as a layout: a combinator compares it with what it needs, so that a
/// settlement that was left out does not compile.
template <class Layout>
struct made {
  using layout = Layout;
};

/// What all layers of a stage work with in one call. Addresses are those of the block at work.
template <class T, class Layouts, class Backend, class World>
struct layer_run {
  using scalar = T;
  using layouts = Layouts;
  using backend_type = Backend;

  Backend& compute;
  World& world;
  extent_of_batch extent{};
  const T* weights = nullptr;
  T* gradients = nullptr;
  T* saved = nullptr;     ///< of one microbatch, from forward to backward
  T* waiting = nullptr;   ///< what was computed again and waits for backward_weight
  T* shared = nullptr;    ///< what is used up at once
  T* deferred = nullptr;  ///< made by backward_input for backward_weight
  T* scratch = nullptr;
  T* constants = nullptr;
  dropping drops = dropping::named;
  bool replays = false;                                   ///< forward runs once more, for what was dropped
  bool waits = false;                                     ///< what was dropped lies in `waiting`
  std::span<const std::int32_t> positions{};              ///< [rows]: of each token in its sequence
  std::span<const compute::attention_slice> sequences{};  ///< causal attention inside each sequence
  matrix_view<const T> tied{};                            ///< the token embedding, for a head that uses it
  matrix_view<T> tied_gradient{};
  std::int64_t first_word = 0;  ///< of this rank's part of the vocabulary
};

namespace detail {
template <bool Ok, class Layer, class Tag>
struct layer_lists {
  static constexpr bool value = Ok;
};
template <bool Ok, class Layer>
struct layer_has {
  static constexpr bool value = Ok;
};
struct missing_verb {  // after the sentence that says so
  constexpr operator double() const noexcept { return 0; }
};
template <bool Ok, class From, class To>
struct settles {
  static constexpr bool value = Ok;
};

// What brings a result from one layout to another in place, axis by axis: nothing, or an all_reduce.
enum class settlement : unsigned char { nothing, reduce, refused };
template <class From, class To, class Tag>
constexpr settlement settlement_along() {
  using heddle::detail::axis_role;
  using mesh_type = typename From::mesh_type;
  constexpr std::size_t a = mesh_type::template position<Tag>;
  constexpr auto from = From::table.use[a];
  constexpr auto to = To::table.use[a];
  constexpr bool same_op = from.role != axis_role::partial || std::is_same_v<typename From::ops, typename To::ops>;
  constexpr bool whole = to.role == axis_role::replicated || to.role == axis_role::identical;
  if (mesh_type::template axis_of<Tag>::fixed_size == 1 || (from == to && same_op)) return settlement::nothing;
  if (from.role == axis_role::identical && whole) return settlement::nothing;
  return from.role == axis_role::partial && whole ? settlement::reduce : settlement::refused;
}
template <class From, class To, class... Tags>
constexpr bool can_settle(type_list<Tags...>) {
  return ((settlement_along<From, To, Tags>() != settlement::refused) && ...);
}
}  // namespace detail

/// Brings values from layout `From` to layout `To`, in place: contributions that are still to be combined along an axis
/// become an all_reduce with their operator, equal layouts cost nothing, nor does using an identical value as copies;
/// everything else does not compile. An axis of one rank sends nothing.
template <class From, class To, class World, class T>
void settle_in([[maybe_unused]] World& world, [[maybe_unused]] std::span<T> values) {
  using tags = typename From::mesh_type::tags;
  static_assert(
      detail::settles<detail::can_settle<From, To>(tags{}), From, To>::value,
      "heddle: settle<From, To> combines contributions, with one all_reduce along each axis; for another change "
      "of layout use redistribute");
  [[maybe_unused]] const auto along = [&]<class Tag>(std::type_identity<Tag>) {
    if constexpr (detail::settlement_along<From, To, Tag>() == detail::settlement::reduce) {
      auto&& group = world.template along_if<Tag>();
      if (group.size() > 1 && !values.empty()) group.all_reduce(values, typename From::template op_of<Tag>{});
    }
  };
  if constexpr (detail::can_settle<From, To>(tags{}))
    [&]<class... Tags>(type_list<Tags...>) { (along(std::type_identity<Tags>{}), ...); }(tags{});
}

/// One layer in one call. Verbs of a child are called with views: `x` what comes in, `y` what goes out, `dy` and `dx` their
/// gradients. When activations are computed again, forward runs once more with empty views for what is there already.
template <class Layer, class Run>
class call {
 public:
  using scalar = typename Run::scalar;
  using layouts = typename Run::layouts;
  using view = matrix_view<scalar>;
  using const_view = matrix_view<const scalar>;

  call(const placed<Layer>& at, Run& run) : at_(&at), run_(&run) {}

  const Layer& layer() const noexcept { return at_->layer; }
  Run& run() const noexcept { return *run_; }
  auto& compute() const noexcept { return run_->compute; }
  std::int64_t rows() const noexcept { return run_->extent.rows(); }

  /// The layer's own tensor with this tag: a parameter (to read) or an activation [rows, columns].
  template <class Tag>
  auto operator[](Tag) const {
    constexpr std::size_t p = place_of<Tag, parameters_of<Layer>>, a = place_of<Tag, activations_of<Layer>>;
    constexpr bool is_parameter = p < parameters_of<Layer>::size, is_activation = a < activations_of<Layer>::size;
    static_assert(
        detail::layer_lists < is_parameter || is_activation, Layer, Tag > ::value,
        "heddle: b[tag{}]: the layer lists no parameter and no activation with this tag; add it to parameters() "
        "or activations()");
    if constexpr (is_parameter) {
      const auto& at = at_->parameters[p];
      return const_view(run_->weights + at.offset, dynamic_shape<2>(at.rows, at.columns));
    } else if constexpr (is_activation) {
      return place_of_activation<a>();
    }
  }
  /// The gradient of a parameter, to which backward_weight adds.
  template <class Tag>
  view gradient(Tag) const {
    constexpr std::size_t p = place_of<Tag, parameters_of<Layer>>;
    static_assert(detail::layer_lists<(p < parameters_of<Layer>::size), Layer, Tag>::value,
                  "heddle: b.gradient(tag{}): the layer lists no parameter with this tag; add it to parameters()");
    if constexpr (p < parameters_of<Layer>::size) {
      const auto& at = at_->parameters[p];
      return view(run_->gradients + at.offset, dynamic_shape<2>(at.rows, at.columns));
    }
  }
  /// A row of each, as kernels of vectors take them.
  template <class Tag>
  auto vector(Tag tag) const {
    return (*this)[tag].elements();
  }
  template <class Tag>
  std::span<scalar> gradient_vector(Tag tag) const {
    return gradient(tag).elements();
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
  static bool is_wanted(view y) noexcept { return y.data() != nullptr || y.size() > 0; }
  template <class From, class To>
  void settle(view x) const {
    settle_in<From, To>(run_->world, x.elements());
  }

  // ---- verbs ---------------------------------------------------------------------------------------------------
  template <class... X>
  auto forward(const X&... x) const {
    constexpr bool has = requires(const Layer& l, const call& b) { l.forward(b, x...); };
    static_assert(detail::layer_has<has, Layer>::value, "heddle: a layer needs a verb forward(b, x, y)");
    if constexpr (has)
      return result_of([&] { return at_->layer.forward(*this, x...); });
    else
      return detail::missing_verb{};
  }
  template <class... X>
  auto backward_input(const X&... x) const {
    constexpr bool has = requires(const Layer& l, const call& b) { l.backward_input(b, x...); };
    static_assert(detail::layer_has<has, Layer>::value,
                  "heddle: a layer needs a verb backward_input(b, x, dy, dx, add)");
    if constexpr (has)
      return result_of([&] { return at_->layer.backward_input(*this, x...); });
    else
      return detail::missing_verb{};
  }
  template <class... X>
  void backward_weight(const X&... x) const {
    constexpr bool has = requires(const Layer& l, const call& b) { l.backward_weight(b, x...); };
    static_assert(detail::layer_has<has, Layer>::value, "heddle: a layer needs a verb backward_weight(b, x, dy)");
    if constexpr (has) at_->layer.backward_weight(*this, x...);
  }

 private:
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
  template <std::size_t A>
  view place_of_activation() const {
    using described = type_of<A>;
    const auto& at = at_->activations[A];
    if constexpr (described::lives == life::constant) {
      return view(run_->constants + at.shared, dynamic_shape<2>(at.rows, at.columns));
    } else {
      const auto shape = dynamic_shape<2>(rows(), at.columns);
      if constexpr (described::lives == life::deferred) {
        return view(run_->deferred + at.shared, shape);
      } else if constexpr (described::lives == life::scratch) {
        return view(run_->scratch + at.shared, shape);
      } else {
        if (dropped<A>()) {
          if (described::lives == life::until_weight && run_->waits)
            return view(run_->waiting + at.waiting[static_cast<std::size_t>(run_->drops)], shape);
          return view(run_->shared + at.shared, shape);
        }
        return view(run_->saved + at.saved[static_cast<std::size_t>(run_->drops)], shape);
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
};
}  // namespace detail

/// Whether the layer, or one of its children, reads the positions of tokens and the slices of sequences. A layer that does
/// says so: `static constexpr bool reads_sequences = true`.
template <class Layer>
inline constexpr bool uses_sequences = detail::asks_of_stage<Layer>::sequences;
/// Whether the layer, or one of its children, lists constants, which it fills in its `prepare(b)`.
template <class Layer>
inline constexpr bool uses_constants = detail::asks_of_stage<Layer>::constants;

/// Lets every layer fill its constants.
template <class Layer, class Run>
void prepare_all(const call<Layer, Run>& b) {
  if constexpr (uses_constants<Layer>) {
    if constexpr (detail::lists_constants(std::type_identity<activations_of<Layer>>{})) {
      static_assert(detail::layer_has<requires { b.layer().prepare(b); }, Layer>::value,
                    "heddle: a layer that lists a constant needs prepare(b), which fills it");
      if constexpr (requires { b.layer().prepare(b); }) b.layer().prepare(b);
    }
    b.children().each([](auto, const auto& child) { prepare_all(child); });
  }
}

/// Copies what was dropped, and lies in the shared memory, to where backward_weight finds it.
template <class Layer, class Run>
void move_to_waiting(const placed<Layer>& at, Run& run) {
  const std::int64_t rows = run.extent.rows();
  const auto v = static_cast<std::size_t>(run.drops);
  at.layer.activations().each([&](auto index, const auto& described) {
    const detail::activation_place& place = at.activations[index];
    if (std::remove_cvref_t<decltype(described)>::lives != life::until_weight || !place.dropped[v]) return;
    const auto n = static_cast<std::size_t>(rows * place.columns);
    using T = typename Run::scalar;
    if (n > 0)
      run.compute.copy(std::span<const T>(run.shared + place.shared, n),
                       std::span<T>(run.waiting + place.waiting[v], n));
  });
  at.children.each([&](auto, const auto& child) { move_to_waiting(child, run); });
}

}  // namespace heddle::inline v0::model::layers
