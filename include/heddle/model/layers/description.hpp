// heddle/model/layers/description.hpp: lists of parameters, activations and children.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/core/type_name.hpp>
#include <heddle/model/recompute_plan.hpp>
#include <heddle/model/sharding.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model::layers {

/// From when until when a tensor of a layer is needed. `until_input`: made by forward, used by backward_input;
/// `until_weight`: made by forward, used by backward_weight; `deferred`: made by backward_input, used by backward_weight;
/// `scratch`: inside one verb; `constant`: made once, used by every verb.
enum class life : unsigned char { until_input, until_weight, deferred, scratch, constant };

namespace detail {
template <class A, class B>
struct dims_joined;
template <class... A, class... B>
struct dims_joined<dims<A...>, dims<B...>> {
  using type = dims<A..., B...>;
};
}  // namespace detail

/// A parameter of a layer: a matrix whose rows are the dimensions `Rows` and whose columns are `Columns`, or a vector
/// [Rows...]. `Meets`: dimensions that it is used together with without having them, such as the heads of a norm that all
/// heads share. It begins as N(mean, deviation). A `*` in its name stands for the index in its first dimension: files have a
/// tensor for each, as for each expert.
template <class Tag, class Rows, class Columns = dims<>, class Meets = dims<>>
struct parameter {
  using tag = Tag;
  using rows = Rows;
  using columns = Columns;
  using own = typename detail::dims_joined<Rows, Columns>::type;
  using meets = Meets;
  static constexpr bool is_vector = Columns::count == 0;
  const char* name;  ///< behind the layer's own
  std::array<std::int64_t, own::count> extents;
  double deviation = 0;
  double mean = 0;
};

/// A tensor [rows, Dims...] that a layer keeps, or a constant [Dims...]. `name` is what recomputation calls it; one that has
/// none is never computed again. `Beside`: its rows are those of a tensor that carries these dimensions too, such as the
/// vocabulary of the logits whose greatest it has.
template <class Tag, life Life, class Dims = dims<>, class Beside = dims<>>
struct activation {
  using tag = Tag;
  using own = Dims;
  using beside = Beside;
  static constexpr life lives = Life;
  std::array<std::int64_t, Dims::count> extents{};
  activation_set role{};
};

/// The base of tags of tensors that are sums, statistics or tables of angles: their elements are of `sum_of_type` of the model's, float where those have 16 bits.
struct statistic {};
/// The base of tags that name an activation of a layer of one's own: recomputation calls it by the tag, that of
/// `struct squares : by_tag {};` "squares". It needs no role.
struct by_tag {};
/// The elements that a tensor with this tag has in a model of elements T.
template <class Tag, class T>
using element_of_tag = std::conditional_t<std::is_base_of_v<statistic, Tag>, sum_of_type<T>, T>;

/// What a layer leaves in a cache for each token, [tokens, Dims...], for the tokens behind it: keys and values.
template <class Tag, class Dims>
struct cached {
  using tag = Tag;
  using own = Dims;
  std::array<std::int64_t, Dims::count> extents{};
};

/// What a layer keeps of a sequence whatever its length, [Dims...], for the tokens behind it: a state. Its elements are of `sum_of_type` of the model's.
template <class Tag, class Dims>
struct kept_state {
  using tag = Tag;
  using own = Dims;
  std::array<std::int64_t, Dims::count> extents{};
};

/// How many rows a tensor of routed rows has for each row of the largest microbatch: `alone` where rows stay on their rank, and
/// where they travel between ranks `sent`, for each rank that holds a part of the same expert, and `received`, for each rank.
struct routed_rows {
  std::int64_t alone = 0, sent = 0, received = 0;
};

/// How many routed rows a part of a dimension, such as an expert, takes of one rank's rows. `factor` 0: as many as there are.
struct routed_limit {
  std::int64_t parts = 0;   ///< of the dimension, on all ranks
  std::int64_t chosen = 0;  ///< that each row chooses
  double factor = 0;        ///< 1: just as many as if rows chose all parts alike
  /// Of `rows` rows: factor * (rows * chosen / parts), rounded up.
  constexpr std::int64_t of(std::int64_t rows) const noexcept {
    const double each = static_cast<double>(rows * chosen) / static_cast<double>(parts) * factor;
    const auto whole = static_cast<std::int64_t>(each);
    return static_cast<double>(whole) < each ? whole + 1 : whole;
  }
};

/// A tensor [routed rows, Dims...] that a layer keeps, of which a call uses the first rows only. `Over`: the dimension whose parts rows
/// travel to, along the axes that split rows, too. `Within`: a dimension inside such a part; over axes that split it and rows a row
/// travels to every rank. `more`: rows that do not depend on the microbatch, multiplied as `received` is. `Inside`: where it names axes,
/// rows are those that leave for and arrive from ranks along all others, `received` for each of these ranks.
template <class Tag, life Life, class Dims, class Over, class Within, class Inside = type_list<>>
struct routed {
  static constexpr life lives = Life;
  using tag = Tag;
  using own = Dims;
  using over = Over;
  using within = Within;
  using inside = Inside;
  std::array<std::int64_t, Dims::count> extents{};
  routed_rows per_row{};
  activation_set role{};
  std::int64_t more = 0;
  routed_limit limit{};
};

/// Room for a copy of an edge [rows, Dims...] with the rows that one has which carries `Beside` too. It takes no memory where
/// these are the edge's own rows: then a layer works on the edge itself (`call::gathered`, `call::room`).
template <class Tag, life Life, class Dims, class Beside>
struct gathered_rows : activation<Tag, Life, Dims, Beside> {
  static constexpr bool copies = true;
};

namespace detail {
template <class Described>
inline constexpr bool is_routed = requires { typename Described::over; };
// The dimensions that the rows of a described tensor are those of, beside its own.
template <class Described>
using beside_member = typename Described::beside;
template <class Described>
using beside_of = member_or<dims<>, beside_member, Described>;
// How many tensors of its size a described activation has memory for under these layouts: one, none where an edge needs no copy,
// two where sums that arrive beside products have a place behind those that leave (`make_scattered`).
template <class Layouts, class Described>
constexpr int copies_in() {
  using own = typename Described::own;
  if constexpr (requires { Described::copies; }) {
    if (!Layouts::template splits_rows<own> || Layouts::template splits_rows<own, typename Described::beside>) return 0;
    return Layouts::overlapped_pieces > 0 && Described::lives == life::scratch ? 2 : 1;
  } else {
    return 1;
  }
}

template <std::size_t At, class X>
struct list_item {
  X item;
};
template <class Indices, class... X>
struct list_items;
template <std::size_t... Is, class... X>
struct list_items<std::index_sequence<Is...>, X...> : list_item<Is, X>... {};
template <std::size_t At, class X>
constexpr const X& item_of(const list_item<At, X>& one) noexcept {
  return one.item;
}
template <std::size_t At, class X>
constexpr X& item_of(list_item<At, X>& one) noexcept {
  return one.item;
}
}  // namespace detail

/// Descriptions, in order. What a layer's `parameters()`, `activations()` and `children()` return; may be taken apart by a
/// structured binding.
template <class... X>
struct list : detail::list_items<std::index_sequence_for<X...>, X...> {
  static constexpr std::size_t size = sizeof...(X);
  constexpr list() = default;
  constexpr explicit list(X... x)
    requires(sizeof...(X) > 0)
      : detail::list_items<std::index_sequence_for<X...>, X...>{{std::move(x)}...} {}

  template <std::size_t At>
  constexpr const auto& get() const noexcept {
    return detail::item_of<At>(*this);
  }
  template <std::size_t At>
  constexpr auto& get() noexcept {
    return detail::item_of<At>(*this);
  }
  /// Calls `f(index, item)`, the index as an integral constant.
  template <class F>
  constexpr void each(F&& f) const {
    [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      (f(std::integral_constant<std::size_t, Is>{}, get<Is>()), ...);
    }(std::index_sequence_for<X...>{});
  }
};
template <class... X>
list(X...) -> list<X...>;

/// Which item of a list has this tag; the list's size if none has.
template <class Tag, class List>
inline constexpr std::size_t place_of = 0;
template <class Tag, class... X>
inline constexpr std::size_t place_of<Tag, list<X...>> = index_of<Tag, typename X::tag...>;

/// A layer without parameters, activations or children of its own.
struct leaf {
  static constexpr list<> parameters() noexcept { return {}; }
  static constexpr list<> activations() noexcept { return {}; }
  static constexpr list<> children() noexcept { return {}; }
};

/// The list of a layer's parameters, as a type.
template <class L>
using parameters_of = std::remove_cvref_t<decltype(std::declval<const L&>().parameters())>;
/// The list of a layer's activations, as a type.
template <class L>
using activations_of = std::remove_cvref_t<decltype(std::declval<const L&>().activations())>;
/// The list of the layers inside a layer, as a type.
template <class L>
using children_of = std::remove_cvref_t<decltype(std::declval<const L&>().children())>;

namespace detail {
// Whether a head makes the logits of some words at a time.
template <class Head>
inline constexpr bool makes_logits_in_chunks = requires { Head::words_at_a_time; };
template <class L>
constexpr auto cached_list(const L& layer) {
  if constexpr (requires { layer.cached_tensors(); })
    return layer.cached_tensors();
  else
    return list<>{};
}
template <class L>
constexpr auto state_list(const L& layer) {
  if constexpr (requires { layer.state_tensors(); })
    return layer.state_tensors();
  else
    return list<>{};
}
}  // namespace detail

/// The list of the states that a layer itself keeps, as a type; empty for one that has no `state_tensors()`.
template <class L>
using states_of = std::remove_cvref_t<decltype(detail::state_list(std::declval<const L&>()))>;
/// The list of what a layer itself leaves in a cache, as a type; empty for one that has no `cached_tensors()`.
template <class L>
using cached_of = std::remove_cvref_t<decltype(detail::cached_list(std::declval<const L&>()))>;

namespace detail {
template <class L>
constexpr std::int64_t parameter_count(const L& layer);
template <class... C>
constexpr std::int64_t parameter_count_of(const list<C...>& children) {
  std::int64_t n = 0;
  children.each([&](auto, const auto& child) { n += parameter_count(child); });
  return n;
}
template <class L>
constexpr std::int64_t parameter_count(const L& layer) {
  std::int64_t n = 0;
  layer.parameters().each([&](auto, const auto& p) {
    std::int64_t elements = 1;
    for (const std::int64_t e : p.extents) elements *= e;
    n += elements;
  });
  return n + parameter_count_of(layer.children());
}
template <class L>
struct tensors_in;
template <class List>
struct tensors_in_all;
template <class... C>
struct tensors_in_all<list<C...>> {
  static constexpr int value = (0 + ... + tensors_in<C>::value);
};
template <class L>
struct tensors_in {
  static constexpr int value = static_cast<int>(parameters_of<L>::size) + tensors_in_all<children_of<L>>::value;
};
}  // namespace detail

/// Elements of all parameters of a layer and its children.
template <class L>
constexpr std::int64_t count_parameters(const L& layer) {
  return detail::parameter_count(layer);
}
/// How many tensors these are.
template <class L>
inline constexpr int parameter_tensors = detail::tensors_in<L>::value;

namespace detail {
// What recomputation calls an activation; `own` has the names of those that are called by their tags.
template <class Described>
constexpr activation_set role_of(const Described& described, own_activations& own) {
  if constexpr (std::is_base_of_v<by_tag, typename Described::tag>)
    return own.named(short_type_name<typename Described::tag>());
  else
    return described.role;
}
// Those of a layer and its children.
template <class L>
constexpr void add_own_activations(const L& layer, own_activations& own) {
  layer.activations().each([&](auto, const auto& described) {
    if constexpr (std::is_base_of_v<by_tag, typename std::remove_cvref_t<decltype(described)>::tag>)
      static_cast<void>(role_of(described, own));
  });
  layer.children().each([&](auto, const auto& child) { add_own_activations(child, own); });
}
template <class L>
constexpr double training_flops_of(const L& layer, std::int64_t sequence) {
  double n = 0;
  if constexpr (requires { layer.training_flops(sequence); }) n += layer.training_flops(sequence);
  layer.children().each([&](auto, const auto& child) { n += training_flops_of(child, sequence); });
  return n;
}
}  // namespace detail

/// Floating-point operations per token of forward and backward of a layer and its children, in sequences of `sequence`
/// tokens: matrix products and attention over unmasked pairs. A layer that has some says so: `training_flops(sequence)`.
template <class L>
constexpr double training_flops(const L& layer, std::int64_t sequence) {
  return detail::training_flops_of(layer, sequence);
}

}  // namespace heddle::inline v0::model::layers

namespace std {
template <class... X>
struct tuple_size<heddle::model::layers::list<X...>> : integral_constant<size_t, sizeof...(X)> {};
template <size_t At, class... X>
struct tuple_element<At, heddle::model::layers::list<X...>> {
  using type = heddle::type_at<At, X...>;
};
}  // namespace std
