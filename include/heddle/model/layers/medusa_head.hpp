// heddle/model/layers/medusa_head.hpp: the residual block of a Medusa head.
#pragma once

#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/ends.hpp>
#include <heddle/model/layers/feed_forward.hpp>
#include <heddle/model/layers/linear.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::model::layers {

struct inner_normed {};    ///< activation: what the norm of a Medusa head gives
struct d_inner_normed {};  ///< gradient of `inner_normed`
struct ones {};            ///< memory for ones, which open the gate of a gated unit

/// y = n + silu(n W'), n = norm(x). It takes the place of the norm in a `language_head`, which then is a head of Medusa. W begins as zero: the head then is that of the
/// weight V alone. Every rank that has the row computes the same; nothing is sent.
/// Shapes: x, y [rows, width]; W [width, width].
/// Source: Cai et al. 2024, arXiv:2401.10774, section 2.1.1.
template <class Norm>
struct medusa_block {
  using square_layer = linear<dims<dim::width>, dims<dim::width>, false, storage::out_in>;

  const char* name = "";
  Norm norm;
  square_layer square;
  std::int64_t width;
  activation_set role{};  ///< what recomputation calls its output

  constexpr explicit medusa_block(Norm final_norm, const char* square_name = "medusa_head.0.linear")
      : norm(final_norm), square(square_name, {norm.width}, {norm.width}), width(norm.width), role(norm.role) {}

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(norm, square); }
  constexpr auto activations() const {
    using stream = dims<dim::width>;
    return list(activation<inner_normed, life::until_weight, stream>{{width}, norm.role},
                activation<gate, life::until_input, stream>{{width}}, activation<ones, life::scratch, stream>{{width}},
                activation<d_up, life::scratch, stream>{{width}}, activation<d_gate, life::deferred, stream>{{width}},
                activation<d_inner_normed, life::deferred, stream>{{width}});
  }
  using needs = compute::facet_list<compute::elementwise_facet, compute::gated_facet<compute::silu>>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [n, inner] = b.children();
    detail::require_settled<Norm, stream>(n.forward(x, b.edge(inner_normed{})));
    detail::require_settled<square_layer, stream>(inner.forward(b[inner_normed{}], b.edge(gate{})));
    b.give(y, [&](auto v) {
      compute::run<compute::ops::fill>(b.compute(), b.vector(ones{}), typename B::scalar(1));
      compute::run<compute::ops::gated<compute::silu>>(b.compute(), b.vector(gate{}), b.vector(ones{}), elements_of(v));
      compute::run<compute::ops::add>(b.compute(), b.vector(inner_normed{}), elements_of(v), elements_of(v));
    });
    return made<stream>{};
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx,
                      bool add) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [n, inner] = b.children();
    compute::run<compute::ops::fill>(b.compute(), b.vector(ones{}), typename B::scalar(1));
    compute::run<compute::ops::gated_backward<compute::silu>>(b.compute(), b.vector(gate{}), b.vector(ones{}),
                                                              elements_of(dy), b.vector(d_gate{}), b.vector(d_up{}));
    compute::run<compute::ops::copy>(b.compute(), elements_of(dy), b.vector(d_inner_normed{}));
    detail::require_settled<square_layer, dual<stream>>(
        inner.backward_input(b[inner_normed{}], b[d_gate{}], b[d_inner_normed{}], true));
    detail::require_settled<Norm, dual<stream>>(n.backward_input(x, b[d_inner_normed{}], dx, add));
    return made<dual<stream>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view /*dy*/) const {
    auto [n, inner] = b.children();
    inner.backward_weight(b[inner_normed{}], b[d_gate{}]);
    n.backward_weight(x, b[d_inner_normed{}]);
  }
};

/// The parameters of a Medusa head: `train_only<medusa_parameters>(...)` freezes the model below it.
struct medusa_parameters {
  template <class Parameter>
  static constexpr bool trains = std::is_same_v<Parameter, parameter<weight, dims<dim::width>, dims<dim::width>>> ||
                                 std::is_same_v<Parameter, parameter<weight, dims<dim::vocabulary>, dims<dim::width>>>;
};

}  // namespace heddle::inline v0::model::layers
