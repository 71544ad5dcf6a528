// heddle/model/layers/normed_after.hpp: a layer, and behind it a norm of what it gives.
#pragma once

#include <heddle/model/layers/combinators.hpp>

#include <type_traits>

namespace heddle::inline v0::model::layers {

struct before_norm {};    ///< activation: what the layer gives the norm
struct d_before_norm {};  ///< gradient of `before_norm`

/// y = norm(f(x)), for a layer f of the residual stream. The norm has no role: its output goes into the stream, which keeps no activation of it.
/// Shapes: x, y [rows, width].
template <class F, class Norm>
struct normed_after {
  const char* name = "";
  F f;
  Norm norm;

  constexpr normed_after(F layer, Norm behind) : f(layer), norm(behind) {}

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(f, norm); }
  constexpr auto activations() const {
    return list(activation<before_norm, life::until_weight, dims<dim::width>>{{norm.width}},
                activation<d_before_norm, life::deferred, dims<dim::width>>{{norm.width}});
  }
  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [inner, n] = b.children();
    detail::require_settled<F, stream>(inner.forward(x, b.edge(before_norm{})));
    return n.forward(b[before_norm{}], y);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [inner, n] = b.children();
    detail::require_settled<Norm, dual<stream>>(n.backward_input(b[before_norm{}], dy, b[d_before_norm{}], false));
    return inner.backward_input(x, b[d_before_norm{}], dx);
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [inner, n] = b.children();
    n.backward_weight(b[before_norm{}], dy);
    inner.backward_weight(x, b[d_before_norm{}]);
  }
};

/// y = x + f(x).
/// Shapes: x, y [rows, width].
template <class F>
struct plain_residual {
  const char* name = "";
  F f;

  constexpr explicit plain_residual(F layer) : f(layer) {}

  static constexpr list<> parameters() { return {}; }
  static constexpr list<> activations() { return {}; }
  constexpr auto children() const { return list(f); }
  using needs = compute::facet_list<compute::elementwise_facet>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [inner] = b.children();
    detail::require_settled<F, stream>(inner.forward(x, y));
    b.give(y, [&](auto v) {
      compute::run<compute::ops::add>(b.compute(), elements_of(x), elements_of(v), elements_of(v));
    });
    return made<stream>{};
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [inner] = b.children();
    detail::require_settled<F, dual<stream>>(inner.backward_input(x, dy, dx));
    compute::run<compute::ops::add>(b.compute(), elements_of(dy), typename B::const_row(elements_of(dx)),
                                    elements_of(dx));
    return made<dual<stream>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [inner] = b.children();
    inner.backward_weight(x, dy);
  }
};

}  // namespace heddle::inline v0::model::layers
