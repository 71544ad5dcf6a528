// heddle/train/precision.hpp: element types of weights, gradients, masters and moments.
#pragma once

#include <heddle/core/float8.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/type_list.hpp>

#include <cstddef>
#include <limits>
#include <type_traits>

namespace heddle::inline v0 {

/// The kind of policies that name element types of weights, gradients, masters and moments.
struct precision_kind {};

/// How a number becomes a bf16: to the nearest, ties to even; or up or down with the probability that makes the mean exact, by
/// random bits that are a function of (seed, step, parameter, index in the whole parameter), so that every mesh rounds alike.
namespace rounding {
struct nearest {};     ///< to the nearest bf16, ties to even
struct stochastic {};  ///< up or down at random, so that the mean is exact
}  // namespace rounding

namespace detail {
struct weights_part {};
struct gradients_part {};
struct masters_part {};
struct moments_part {};
struct products_part {};

template <class T>
inline constexpr bool is_state_element =
    std::is_same_v<T, bf16> || std::is_same_v<T, float> || std::is_same_v<T, double>;
template <class T>
inline constexpr bool element_of_precision = is_state_element<T>;
template <class T, class Rounding>
inline constexpr bool rounds_stochastically_to =
    !std::is_same_v<Rounding, rounding::stochastic> || std::is_same_v<T, bf16>;
template <class T, class Rounding = rounding::nearest>
constexpr bool element_checked() {
  static_assert(
      element_of_precision<T>,
      "heddle: a precision<...> takes the element types bf16, float and double; f16 would need loss scaling, which "
      "heddle does not have, and integers do not round: take bf16");
  if constexpr (element_of_precision<T>)
    static_assert(rounds_stochastically_to<T, Rounding>,
                  "heddle: stochastic rounding is to bf16; float and double are rounded to the nearest");
  return true;
}
/// Whether every number of type `Narrow` is one of type `Wide`, too.
template <class Narrow, class Wide>
inline constexpr bool holds_exactly = std::numeric_limits<Narrow>::digits <= std::numeric_limits<Wide>::digits;
template <class A, class B>
using wider_of = std::conditional_t<holds_exactly<A, B>, B, A>;
template <class Part, class Element, class Rounding = rounding::nearest>
struct precision_part {
  using part = Part;
  using element = Element;
  using round = Rounding;
};
template <class Part, class Element, class Rounding = rounding::nearest>
struct element_part : precision_part<Part, Element, Rounding> {
  static_assert(element_checked<Element, Rounding>());
};
}  // namespace detail

/// A part of `precision`: the type of the weights that the model computes with and that are sent and saved.
template <class W, class Rounding = rounding::nearest>
struct weights_in : detail::element_part<detail::weights_part, W, Rounding> {};
/// The type in which gradients are sent where they are added up over ranks that share weights.
template <class G>
struct gradients_in : detail::element_part<detail::gradients_part, G> {};
/// The type of the weights that the optimizer steps; weights are rounded from them.
template <class M>
struct masters_in : detail::element_part<detail::masters_part, M> {};
/// The type of both moments of AdamW.
template <class V, class Rounding = rounding::nearest>
struct moments_in : detail::element_part<detail::moments_part, V, Rounding> {};

template <class P>
struct products_in;  // of train/products.hpp

namespace detail {
template <class P>
inline constexpr bool is_part_of_precision = requires {
  typename P::part;
  typename P::element;
  typename P::round;
};
// The types below carry what the compiler prints next to the advice.
template <class P>
inline constexpr bool precision_takes = is_part_of_precision<P>;
template <class P, class... All>
inline constexpr bool only_part_of_its_kind = v0::count_of<typename P::part, typename All::part...> == 1;
template <class Master, class Weight>
inline constexpr bool master_holds_weight = holds_exactly<Weight, Master>;

struct no_part : precision_part<no_part, void> {};
template <class Part, class... Ps>
struct precision_part_of {
  using type = no_part;
};
template <class Part, class P, class... Ps>
struct precision_part_of<Part, P, Ps...> : std::conditional_t<std::is_same_v<typename P::part, Part>,
                                                              std::type_identity<P>, precision_part_of<Part, Ps...>> {};

template <class... Ps>
struct selected_parts {
  using weights = typename precision_part_of<weights_part, Ps...>::type;
  using gradients = typename precision_part_of<gradients_part, Ps...>::type;
  using masters = typename precision_part_of<masters_part, Ps...>::type;
  using moments = typename precision_part_of<moments_part, Ps...>::type;
  using products = typename precision_part_of<products_part, Ps...>::type;
};
template <class P>
inline constexpr bool precision_has_header = true;
template <class P>
inline constexpr bool precision_has_header<products_in<P>> = is_part_of_precision<products_in<P>>;
// Checks one after the other and stops at the first mistake, so that one mistake gives one error.
template <class... Ps>
constexpr auto select_parts() {
  if constexpr (!(precision_has_header<Ps> && ...)) {
    static_assert((precision_has_header<Ps> && ...),
                  "heddle: precision<products_in<P>> needs #include <heddle/train/products.hpp>");
    return selected_parts<>{};
  } else if constexpr (!(is_part_of_precision<Ps> && ...)) {
    static_assert((precision_takes<Ps> && ...),
                  "heddle: precision<...> takes weights_in<W>, gradients_in<G>, masters_in<M>, moments_in<V> and "
                  "products_in<P>");
    return selected_parts<>{};
  } else if constexpr (!((v0::count_of<typename Ps::part, typename Ps::part...> == 1) && ...)) {
    static_assert((only_part_of_its_kind<Ps, Ps...> && ...),
                  "heddle: precision<...> got two element types for one thing; keep one of them");
    return selected_parts<>{};
  } else {
    using all = selected_parts<Ps...>;
    using master = typename all::masters::element;
    using weight = typename all::weights::element;
    if constexpr (!std::is_void_v<master> && !std::is_void_v<weight>)
      static_assert(master_holds_weight<master, weight>,
                    "heddle: masters_in<M> is narrower than weights_in<W>: master weights are what weights are rounded "
                    "from; give them at least as many bits");
    return all{};
  }
}
template <class T, class Default>
using or_default = std::conditional_t<std::is_void_v<T>, Default, T>;
}  // namespace detail

/// The element types of what training holds and sends, apart from the type it computes with, which is the model's `scalar` T
/// (`gpt2<float>`). What is left out is of type T; a `precision` of T alone changes nothing, not one instruction. Of a model of bf16
/// (`gpt2<bf16>`) what is left out is float, all but the weights: gradients, masters and moments (`sum_of_type<T>`).
///
/// - `weights_in<W>`: after each step the weights are numbers of type W. Each rank keeps them in a working copy of type T,
///   exactly the same numbers, as W must be no wider than T: so the model computes what weights of type W with sums,
///   activations and gradients of type T compute. `zero<1>` gathers them in W, saves have them in W. W = bf16 halves both.
/// - `gradients_in<G>`: where gradients are added up over ranks that share weights (dp), each rank's are rounded to G, sent,
///   and added up in T in the order of the ranks; with `zero<0>` the sum is rounded to G once more, as it is sent, too. One
///   rank rounds nothing. Sums over microbatches and along the pipeline (tied embeddings, replicas) are of type T.
/// - `masters_in<M>`: the weights that AdamW steps; those of type W are rounded from them. At least as wide as W. M = W needs no
///   memory: weights are their own masters then, for which bf16 should be rounded stochastically, as steps of less than
///   half a last place would be lost.
/// - `moments_in<V>`: of both moments. AdamW computes in the widest of float, M and V.
/// - `products_in<bf16>`: the operands of the layers' matrix products are rounded to bf16, products are added up in float
///   (`compute::bf16_products`); T is float, and the backend has kernels for it (`compute::half_product_facet`). Everything else, attention among it, is computed in T.
/// - `products_in<float8>`: the products of linear layers are of operands in 8 bits, weights and activations of `float8_e4m3` and gradients of
///   `float8_e5m2`, each scaled by the greatest magnitude of its whole tensor at that moment (`compute::float8_products`), and added up in
///   float. Products of the head, of routers and of experts, and attention, are those of T, which is float. On the host: the numbers, not the speed.
/// - `products_in<float8_rows>`: the same where each row and each column that a product multiplies has a scale of its own, a power of two, and all
///   are of `float8_e4m3`.
///
/// `weights_in<bf16, rounding::stochastic>` and `moments_in<bf16, rounding::stochastic>` round stochastically.
/// No loss is scaled: bf16 has the exponents of float, so that what float does not lose, bf16 does not lose to underflow.
/// `post_validation` takes steps back by formulas and is refused; `post_validation_with_copy` copies, in the same types.
/// Source: Micikevicius et al. 2018, arXiv:1710.03740 (master weights); Kalamkar et al. 2019, arXiv:1905.12322 (bf16); Gupta et
/// al. 2015, arXiv:1502.02551 (stochastic rounding); Micikevicius et al. 2022, arXiv:2209.05433 (8 bits).
template <class... Parts>
struct precision {
  using kind = precision_kind;
  using parts = decltype(detail::select_parts<Parts...>());
  /// For a model with elements T.
  template <class T>
  using weight = detail::or_default<typename parts::weights::element, T>;
  template <class T>
  using gradient = detail::or_default<typename parts::gradients::element, sum_of_type<T>>;
  template <class T>
  using master = detail::or_default<typename parts::masters::element, sum_of_type<T>>;
  template <class T>
  using moment = detail::or_default<typename parts::moments::element, sum_of_type<T>>;
  /// Of the operands of products: bf16, `float8`, `float8_rows`, or void. Whether they are rounded to bf16, and those of linear layers to 8 bits.
  using product = typename parts::products::element;
  static constexpr bool rounds_products = std::is_same_v<product, bf16>;
  static constexpr bool scales_products = std::is_same_v<product, float8> || std::is_same_v<product, float8_rows>;
  /// Whether it says anything about what is kept from step to step, or sent.
  static constexpr bool is_of_state =
      !(std::is_void_v<typename parts::weights::element> && std::is_void_v<typename parts::gradients::element> &&
        std::is_void_v<typename parts::masters::element> && std::is_void_v<typename parts::moments::element>);
  using weight_rounding = typename parts::weights::round;
  using moment_rounding = typename parts::moments::round;
  /// Whether all are of type T.
  template <class T>
  static constexpr bool is_plain =
      !is_half_precision<T> && std::is_same_v<weight<T>, T> && std::is_same_v<gradient<T>, T> &&
      std::is_same_v<master<T>, T> && std::is_same_v<moment<T>, T>;
  /// Whether the optimizer keeps master weights beside a model's weights of type T: not where they are the same numbers.
  template <class T>
  static constexpr bool keeps_masters = !std::is_same_v<master<T>, weight<T>>;
};

}  // namespace heddle::inline v0
