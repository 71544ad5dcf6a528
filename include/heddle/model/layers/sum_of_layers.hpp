// heddle/model/layers/sum_of_layers.hpp: two layers side by side, whose results add up.
#pragma once

#include <heddle/model/layers/combinators.hpp>

#include <cstdint>

namespace heddle::inline v0::model::layers {

struct of_second {};  ///< scratch: what the second layer gives, or its gradient of x

/// y = first(x) + second(x), as routed experts and the shared ones beside them.
/// Shapes: x, y [rows, width].
template <class First, class Second>
struct sum_of_layers {
  const char* name;
  First first;
  Second second;
  std::int64_t width;

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(first, second); }
  constexpr auto activations() const { return list(activation<of_second, life::scratch, dims<dim::width>>{{width}}); }
  using needs = compute::facet_list<compute::elementwise_facet>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [f, g] = b.children();
    detail::require_settled<First, stream>(f.forward(x, y));
    detail::require_settled<Second, stream>(g.forward(x, B::is_wanted(y) ? b[of_second{}] : typename B::view{}));
    b.give(y, [&](auto v) {
      compute::run<compute::ops::add>(b.compute(), b.vector(of_second{}), elements_of(v), elements_of(v));
    });
    return made<stream>{};
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [f, g] = b.children();
    detail::require_settled<First, dual<stream>>(f.backward_input(x, dy, dx));
    detail::require_settled<Second, dual<stream>>(g.backward_input(x, dy, b[of_second{}]));
    compute::run<compute::ops::add>(b.compute(), b.vector(of_second{}), elements_of(dx), elements_of(dx));
    return made<dual<stream>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [f, g] = b.children();
    f.backward_weight(x, dy);
    g.backward_weight(x, dy);
  }
};

}  // namespace heddle::inline v0::model::layers
