// heddle/model/layers/low_rank.hpp: a product through a normed latent vector.
#pragma once

#include <heddle/model/layers/lora.hpp>
#include <heddle/model/layers/norms.hpp>

#include <cstdint>

namespace heddle::inline v0 {
namespace dim {
struct query_latent {};  ///< elements of the latent vector that queries are made of
}  // namespace dim

namespace model::layers {

struct latent {};        ///< activation: a latent vector, normed
struct raw_latent {};    ///< activation: the same before its norm
struct d_latent {};      ///< gradient of `latent`
struct d_raw_latent {};  ///< gradient of `raw_latent`

/// y = norm(x A) B, with the latent x A whole on every rank, so that A and the norm have the same gradient on all ranks that split y: the
/// gradient of the latent is a sum over these, settled once. `role`: what recomputation calls latent and norm.
/// `Adapter` may put an adapter around both products.
/// Shapes: x [rows, width], latent [rows, query_latent], y [rows, Out...].
/// Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.2.
template <class Out, class Adapter = no_adapter>
struct low_rank {
  using in_dims = dims<dim::width>;
  using out_dims = Out;
  using latent_dims = dims<dim::query_latent>;
  using down_base = linear<in_dims, latent_dims, false, storage::out_in>;
  using up_base = linear<latent_dims, Out, false, storage::out_in>;
  using down_layer = typename Adapter::template layer<down_base>;
  using up_layer = typename Adapter::template layer<up_base>;
  using norm_layer = rms_norm<dim::query_latent>;

  const char* name = "";
  down_layer down;
  norm_layer norm;
  up_layer up;
  activation_set role{};

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(down, norm, up); }
  constexpr auto activations() const {
    return list(activation<raw_latent, life::until_weight, latent_dims>{down.out, role},
                activation<latent, life::until_weight, latent_dims>{down.out, role},
                activation<d_latent, life::deferred, latent_dims>{down.out},
                activation<d_raw_latent, life::deferred, latent_dims>{down.out});
  }
  template <class Layouts>
  using laid = typename down_layer::template laid<Layouts>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    auto [first, n, second] = b.children();
    first.forward(x, b.edge(raw_latent{}));
    n.forward(b[raw_latent{}], b.edge(latent{}));
    return second.forward(b[latent{}], y);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    auto [first, n, second] = b.children();
    second.backward_input(b[latent{}], dy, b[d_latent{}]);
    using l = typename up_layer::template laid<typename B::layouts>;
    b.template redistribute_in_place<typename l::dx_made, dual<typename l::x_edge>>(b[d_latent{}]);
    n.backward_input(b[raw_latent{}], b[d_latent{}], b[d_raw_latent{}], false);
    return first.backward_input(x, b[d_raw_latent{}], dx);
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [first, n, second] = b.children();
    second.backward_weight(b[latent{}], dy);
    n.backward_weight(b[raw_latent{}], b[d_latent{}]);
    first.backward_weight(x, b[d_raw_latent{}]);
  }
};

}  // namespace model::layers
}  // namespace heddle::inline v0
