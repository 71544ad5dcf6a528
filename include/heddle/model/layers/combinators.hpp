// heddle/model/layers/combinators.hpp: residual connections and sequences of layers.
#pragma once

#include <heddle/model/layers/linear.hpp>

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::model::layers {

struct normed {};     ///< activation: norm(x), the input of what stands behind the norm
struct d_normed {};   ///< gradient of `normed`
struct between {};    ///< activation: what the first of two layers gives the second
struct d_between {};  ///< gradient of `between`

namespace detail {
template <bool Ok, class Layer, class Left, class Needed>
inline constexpr bool leaves_what_is_needed = Ok;
template <class Layer, class Needed, class Made>
constexpr void require_settled(made<Made>) {
  constexpr bool says = !std::is_void_v<Made>;
  static_assert(
      leaves_what_is_needed<says, Layer, Made, Needed>,
      "heddle: a verb inside a combinator says in which layout it leaves what it fills: return made<layout>{}");
  if constexpr (says)
    static_assert(
        leaves_what_is_needed<std::is_same_v<Made, Needed>, Layer, Made, Needed>,
        "heddle: a layer leaves a tensor in another layout than its neighbour takes: a settlement is missing, or one "
        "too many; redistribute_in_place<made, needed>(y) after the verb that made it");
}
template <class Layer, class Needed>
constexpr void require_settled(layers::detail::missing_verb) {}

struct no_norm_given {};
template <class Given>
struct not_a_norm {};
template <class Norm>
concept norm_of_residual = requires(const Norm& n) {
  { n.width } -> std::convertible_to<std::int64_t>;
  { n.role } -> std::convertible_to<activation_set>;
};
// These carry the layers into the compiler's message.
template <bool Ok, class... Layers>
inline constexpr bool residual_of = Ok;
template <bool Ok, class... Layers>
inline constexpr bool sequence_of = Ok;
template <class F>
constexpr bool refuse_residual() {
  static_assert(residual_of<false, F>,
                "heddle: residual(norm, layer) is x + layer(norm(x)): give it the norm first, such as "
                "layer_norm<>(\"ln\", width, 1e-5)");
  return true;
}
template <class Norm, class F>
constexpr bool refuse_norm() {
  static_assert(residual_of<norm_of_residual<Norm>, Norm, F>,
                "heddle: residual(norm, layer): the first is a norm, which has `std::int64_t width` and "
                "`activation_set role`, as layer_norm and rms_norm have them; the second is the layer");
  return true;
}
}  // namespace detail

/// y = x + f(norm(x)). The norm's output is kept here, once for all that f computes from it.
/// Shapes: x, y [rows, width].
template <class Norm, class F>
struct residual {
  const char* name = "";
  Norm norm;
  F f;

  constexpr residual(Norm n, F layer) : norm(n), f(layer) {}

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(norm, f); }
  constexpr auto activations() const {
    return list(activation<normed, life::until_weight, dims<dim::width>>{{norm.width}, norm.role},
                activation<d_normed, life::deferred, dims<dim::width>>{{norm.width}});
  }
  using needs = compute::facet_list<compute::elementwise_facet>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [n, inner] = b.children();
    detail::require_settled<Norm, stream>(n.forward(x, b.edge(normed{})));
    detail::require_settled<F, stream>(inner.forward(b[normed{}], y));
    b.give(y, [&](auto v) {
      compute::run<compute::ops::add>(b.compute(), elements_of(x), elements_of(v), elements_of(v));
    });
    return made<stream>{};
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [n, inner] = b.children();
    detail::require_settled<F, dual<stream>>(inner.backward_input(b[normed{}], dy, b[d_normed{}]));
    using of_norm = std::remove_cvref_t<decltype(n)>;
    using const_view = typename B::const_view;
    if constexpr (detail::runs_backward_input<Norm, of_norm, const_view, const_view, typename B::view, const_view>) {
      detail::require_settled<Norm, dual<stream>>(n.backward_input(x, b[d_normed{}], dx, dy));
    } else {
      compute::run<compute::ops::copy>(b.compute(), elements_of(dy), elements_of(dx));
      detail::require_settled<Norm, dual<stream>>(n.backward_input(x, b[d_normed{}], dx, true));
    }
    return made<dual<stream>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [n, inner] = b.children();
    inner.backward_weight(b[normed{}], dy);
    n.backward_weight(x, b[d_normed{}]);
  }
};

namespace detail {
// After an error: a layer that does nothing.
struct layer_of_nothing : leaf {
  const char* name = "";
  template <class... A>
  missing_verb forward(const A&...) const {
    return {};
  }
  template <class... A>
  missing_verb backward_input(const A&...) const {
    return {};
  }
  template <class... A>
  void backward_weight(const A&...) const {}
};
}  // namespace detail
template <class F>
struct residual<detail::no_norm_given, F> : detail::layer_of_nothing {
  static_assert(detail::refuse_residual<F>());
  constexpr explicit residual(F) {}
};
template <class Norm, class F>
struct residual<detail::not_a_norm<Norm>, F> : detail::layer_of_nothing {
  static_assert(detail::refuse_norm<Norm, F>());
  constexpr residual(Norm, F) {}
};
template <class F>
residual(F) -> residual<detail::no_norm_given, F>;
template <class Norm, class F>
  requires(!detail::norm_of_residual<Norm>)
residual(Norm, F) -> residual<detail::not_a_norm<Norm>, F>;

/// y = second(first(x)). Longer sequences nest: `sequence(a, b, c)`.
template <class First, class Second>
struct pair_of_layers {
  const char* name = "";
  First first;
  Second second;
  std::int64_t width;

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(first, second); }
  constexpr auto activations() const {
    return list(activation<between, life::until_weight, dims<dim::width>>{{width}, activation_named("mid")},
                activation<d_between, life::deferred, dims<dim::width>>{{width}});
  }
  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [p, q] = b.children();
    detail::require_settled<First, stream>(p.forward(x, b.edge(between{})));
    return q.forward(b[between{}], y);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [p, q] = b.children();
    detail::require_settled<Second, dual<stream>>(q.backward_input(b[between{}], dy, b[d_between{}]));
    return p.backward_input(x, b[d_between{}], dx);
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [p, q] = b.children();
    q.backward_weight(b[between{}], dy);
    p.backward_weight(x, b[d_between{}]);
  }
};

template <class First, class Second, class... More>
  requires(!std::is_convertible_v<First, std::int64_t> || sizeof...(More) == 0)
constexpr detail::layer_of_nothing sequence(First, Second, More...) {
  static_assert(detail::sequence_of<false, First, Second, More...>,
                "heddle: sequence(width, first, second, ...): give the width of the residual stream first, then two or "
                "more layers");
  return {};
}
/// Layers of the residual stream, one behind the other.
template <class First, class Second, class... More>
constexpr auto sequence(std::int64_t width, First first, Second second, More... more) {
  if constexpr (sizeof...(More) == 0) {
    return pair_of_layers<First, Second>{"", first, second, width};
  } else {
    const auto rest = sequence(width, second, more...);
    return pair_of_layers<First, std::remove_const_t<decltype(rest)>>{"", first, rest, width};
  }
}

}  // namespace heddle::inline v0::model::layers
