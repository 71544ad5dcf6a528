// heddle/model/layers/multiplied.hpp: a layer, or a norm, times a number.
#pragma once

#include <heddle/model/layers/combinators.hpp>

#include <cstdint>

namespace heddle::inline v0::model::layers {

struct d_multiplied {};  ///< gradient of what a layer gives before it is multiplied

/// y = multiplier f(x), for a layer f of the residual stream, or for a norm. The gradient of f's output is kept for f's backward_weight.
/// Shapes: x, y [rows, width].
template <class F>
struct multiplied {
  const char* name = "";
  F f;
  double multiplier;
  std::int64_t width;
  activation_set role{};  ///< what recomputation calls the output, where f is a norm

  constexpr multiplied(F layer, double by, std::int64_t elements, activation_set kept_as = {})
      : f(layer), multiplier(by), width(elements), role(kept_as) {}

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(f); }
  constexpr auto activations() const {
    return list(activation<d_multiplied, life::deferred, dims<dim::width>>{{width}});
  }
  using needs = compute::facet_list<compute::elementwise_facet>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    auto [inner] = b.children();
    const auto left = inner.forward(x, y);
    b.give(y, [&](auto v) {
      compute::run<compute::ops::scale>(b.compute(), elements_of(v), static_cast<typename B::sum>(multiplier));
    });
    return left;
  }
  template <class B, class... Add>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx,
                      Add... add) const {
    auto [inner] = b.children();
    compute::run<compute::ops::copy>(b.compute(), elements_of(dy), elements_of(b[d_multiplied{}]));
    compute::run<compute::ops::scale>(b.compute(), elements_of(b[d_multiplied{}]),
                                      static_cast<typename B::sum>(multiplier));
    return inner.backward_input(x, b[d_multiplied{}], dx, add...);
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view /*dy*/) const {
    auto [inner] = b.children();
    inner.backward_weight(x, b[d_multiplied{}]);
  }
};

}  // namespace heddle::inline v0::model::layers
