// heddle/model/layers/feed_forward.hpp: the MLPs of transformer blocks, plain and gated.
#pragma once

#include <heddle/model/layers/linear.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::model::layers {

struct hidden {};       ///< activation: hidden units before the nonlinear function
struct activated {};    ///< activation: hidden units behind it
struct d_hidden {};     ///< gradient of `hidden`
struct d_activated {};  ///< gradient of `activated`
struct gate {};         ///< activation: what goes into the nonlinear function of a gated unit
struct up {};           ///< activation: what its result is multiplied with
struct d_gate {};       ///< gradient of `gate`
struct d_up {};         ///< gradient of `up`

namespace detail {
inline constexpr activation_set kept_hidden = activation_named("mlp.hidden");
inline constexpr activation_set kept_activated = activation_named("mlp.activated");
// All products that read one tensor leave the same layout in its gradient.
template <class First, class... More>
inline constexpr bool all_same = (std::is_same_v<First, More> && ...);
// Whether a linear layer makes gelu(y) with y, and the gradient of z where its x is gelu(z), in such a call; an adapter does not.
template <class Layer, class B>
inline constexpr bool gelu_goes_with = requires { requires Layer::template adds_bias_at_once<B>; };
template <class Layer, class B>
inline constexpr bool gelu_goes_back_with = fuses_products<B> && requires { Layer::template adds_bias_at_once<B>; };
}  // namespace detail

/// y = gelu(x W1 + b1) W2 + b2, tanh form. Hidden units may be split: the second product then is a sum.
/// Shapes: x, y [rows, width]; hidden [rows, ffn].
template <class Up, class Down>
struct gelu_mlp {
  const char* name;
  Up up;
  Down down;

  constexpr gelu_mlp(const char* called, Up first, Down second) : name(called), up(first), down(second) {}

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(up, down); }
  constexpr auto activations() const {
    return list(activation<hidden, life::until_input, typename Up::out_dims>{up.out, detail::kept_hidden},
                activation<activated, life::until_weight, typename Up::out_dims>{up.out, detail::kept_activated},
                activation<d_hidden, life::deferred, typename Up::out_dims>{up.out},
                gathered_rows<whole_in, life::scratch, typename Up::in_dims, typename Up::out_dims>{up.in});
  }
  using needs = compute::facet_list<compute::elementwise_facet>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    using l = typename Up::template laid<typename B::layouts>;
    auto [first, second] = b.children();
    if constexpr (detail::gelu_goes_with<Up, B>) {
      if (b.makes(hidden{}) && b.makes(activated{})) {
        use_gathered<typename l::x_edge, typename l::x_taken, Up>(b, whole_in{}, x, true, [&](auto rows, row_range at) {
          first.layer().forward_gelu(first, rows, rows_of(b[hidden{}], at), rows_of(b[activated{}], at));
        });
        return second.forward(b[activated{}], y);
      }
    }
    use_gathered<typename l::x_edge, typename l::x_taken, Up>(
        b, whole_in{}, x, b.makes(hidden{}),
        [&](auto rows, row_range at) { first.forward(rows, rows_of(b.edge(hidden{}), at)); });
    b.make(activated{},
           [&](auto v) { compute::run<compute::ops::gelu>(b.compute(), b.vector(hidden{}), elements_of(v)); });
    return second.forward(b[activated{}], y);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using l = typename Up::template laid<typename B::layouts>;
    auto [first, second] = b.children();
    if constexpr (detail::gelu_goes_back_with<Down, B>) {
      second.layer().backward_gelu(second, dy, b[hidden{}], b[d_hidden{}]);
    } else {
      second.backward_input(b[activated{}], dy, b[d_hidden{}]);
      const auto d = b.vector(d_hidden{});
      compute::run<compute::ops::gelu_backward>(b.compute(), b.vector(hidden{}), d, d);
    }
    make_scattered<typename l::dx_made, dual<typename l::x_edge>, Up>(
        b, whole_in{}, dx, [&](auto sum, row_range at) { first.backward_input(x, rows_of(b[d_hidden{}], at), sum); });
    return made<dual<typename l::x_edge>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    using l = typename Up::template laid<typename B::layouts>;
    auto [first, second] = b.children();
    second.backward_weight(b[activated{}], dy);
    use_gathered<typename l::x_edge, typename l::x_taken, Up>(b, whole_in{}, x, true, [&](auto rows, row_range at) {
      first.backward_weight(rows, rows_of(b[d_hidden{}], at));
    });
  }
};

/// y = (A(x Wg) * (x Wu)) Wd, with A silu (SwiGLU), `compute::gelu_tanh` or `compute::relu`.
/// Source: Shazeer 2020, arXiv:2002.05202.
template <class Activation, class In, class Down>
struct gated_mlp {
  const char* name;
  In gate_layer, up_layer;
  Down down;

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(gate_layer, up_layer, down); }
  constexpr auto activations() const {
    using units = typename In::out_dims;
    return list(activation<gate, life::until_input, units>{up_layer.out, detail::kept_hidden},
                activation<up, life::until_input, units>{up_layer.out, detail::kept_hidden},
                activation<activated, life::until_weight, units>{up_layer.out, detail::kept_activated},
                activation<d_gate, life::deferred, units>{up_layer.out},
                activation<d_up, life::deferred, units>{up_layer.out},
                activation<d_activated, life::scratch, units>{up_layer.out},
                gathered_rows<whole_in, life::scratch, typename In::in_dims, units>{up_layer.in});
  }
  using needs = compute::facet_list<compute::gated_facet<Activation>>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    using l = typename In::template laid<typename B::layouts>;
    auto [g, u, d] = b.children();
    use_gathered<typename l::x_edge, typename l::x_taken, In>(b, whole_in{}, x, b.makes(gate{}) || b.makes(up{}),
                                                              [&](auto rows, row_range at) {
                                                                g.forward(rows, rows_of(b.edge(gate{}), at));
                                                                u.forward(rows, rows_of(b.edge(up{}), at));
                                                              });
    b.make(activated{}, [&](auto v) {
      compute::run<compute::ops::gated<Activation>>(b.compute(), b.vector(gate{}), b.vector(up{}), elements_of(v));
    });
    return d.forward(b[activated{}], y);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using l = typename In::template laid<typename B::layouts>;
    auto [g, u, d] = b.children();
    d.backward_input(b[activated{}], dy, b[d_activated{}]);
    compute::run<compute::ops::gated_backward<Activation>>(
        b.compute(), b.vector(gate{}), b.vector(up{}), b.vector(d_activated{}), b.vector(d_gate{}), b.vector(d_up{}));
    make_scattered<typename l::dx_made, dual<typename l::x_edge>, In>(
        b, whole_in{}, dx, [&](auto sum, row_range at) {  // one sum for both
          g.backward_input(x, rows_of(b[d_gate{}], at), sum);
          u.backward_input(x, rows_of(b[d_up{}], at), sum, true);
        });
    return made<dual<typename l::x_edge>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    using l = typename In::template laid<typename B::layouts>;
    auto [g, u, d] = b.children();
    d.backward_weight(b[activated{}], dy);
    use_gathered<typename l::x_edge, typename l::x_taken, In>(b, whole_in{}, x, true, [&](auto rows, row_range at) {
      g.backward_weight(rows, rows_of(b[d_gate{}], at));
      u.backward_weight(rows, rows_of(b[d_up{}], at));
    });
  }
};
/// `gated<compute::silu>("mlp", {...}, {...}, {...})`.
template <class Activation, class In, class Down>
constexpr auto gated(const char* name, In gate_layer, In up_layer, Down down) {
  return gated_mlp<Activation, In, Down>{name, gate_layer, up_layer, down};
}

}  // namespace heddle::inline v0::model::layers
