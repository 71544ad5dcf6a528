// heddle/model/layers/attention.hpp: causal self-attention with one product for queries, keys and values.
#pragma once

#include <heddle/model/layers/linear.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::model::layers {

struct qkv {};          ///< activation: query, key and value as one product gives them
struct d_qkv {};        ///< gradient of `qkv`
struct heads_out {};    ///< activation: what each head gives, before the product that combines them
struct log_sum_exp {};  ///< activation: the logarithm of the sum of exponentials of each row of scores
struct d_heads_out {};  ///< gradient of `heads_out`

namespace detail {
// Two products of all query heads over the causal half, forward, and four backward; per token.
constexpr double attention_flops(std::int64_t width, std::int64_t sequence) {
  return 6.0 * static_cast<double>(width) * static_cast<double>(sequence + 1);
}
template <bool Ok, class How>
struct heads_are_whole {
  static constexpr bool value = Ok;
};
// Heads are split between ranks, never inside, and a rank has all rows of its heads.
template <class Layouts, class... Dims>
constexpr void require_whole() {
  static_assert(
      heads_are_whole<!Layouts::template splits_rows<dims<dim::heads>>, typename Layouts::how>::value,
      "heddle: attention computes whole heads over whole sequences: the axis that splits dim::sequence must split "
      "dim::heads, too");
  using rules = model::detail::sharding_rules<typename Layouts::how>;
  using mesh_type = typename Layouts::mesh_type;
  static_assert(
      heads_are_whole<((rules::template axes_of<mesh_type, Dims>::size == 0) && ...), typename Layouts::how>::value,
      "heddle: attention computes whole heads over whole sequences: a sharding may split dim::heads and dim::samples, "
      "not "
      "dim::head_size, dim::group, dim::kinds or dim::positions");
}
inline constexpr activation_set kept_qkv = activation_named("attn.qkv");
inline constexpr activation_set kept_heads = activation_named("attn.out");
}  // namespace detail

/// y = softmax(q k' / sqrt(head_size), causal) v Wo + bo with q|k|v = x Wqkv + bqkv, as GPT-2 has it. Heads may be split over
/// an axis; a rank may have none.
/// Shapes: x, y [rows, width]; q|k|v [rows, 3, heads, head_size].
/// Source: Vaswani et al. 2017, arXiv:1706.03762; split heads: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
template <bool Bias = true, storage Stored = storage::in_out>
struct fused_attention {
  using per_head = dims<dim::heads, dim::head_size>;
  using in_layer = linear<dims<dim::width>, dims<dim::kinds, dim::heads, dim::head_size>, Bias, Stored>;
  using out_layer = linear<per_head, dims<dim::width>, Bias, Stored>;

  const char* name;
  in_layer in;
  out_layer out;

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(in, out); }
  constexpr auto activations() const {
    return list(
        activation<qkv, life::until_input, dims<dim::kinds, dim::heads, dim::head_size>>{in.out, detail::kept_qkv},
        activation<heads_out, life::until_weight, per_head>{out.in, detail::kept_heads},
        activation<log_sum_exp, life::until_input, dims<dim::heads>>{{out.in[0]}, detail::kept_heads},
        activation<d_qkv, life::deferred, dims<dim::kinds, dim::heads, dim::head_size>>{in.out},
        activation<d_heads_out, life::scratch, per_head>{out.in},
        gathered_rows<whole_in, life::scratch, dims<dim::width>, typename in_layer::out_dims>{{in.in}});
  }
  constexpr double training_flops(std::int64_t sequence) const {
    return detail::attention_flops(out.in[0] * out.in[1], sequence);
  }
  using needs = compute::facet_list<compute::attention_facet>;

  template <class B>
  compute::attention_shape shape(const B& b) const {
    const auto& e = b.run().extent;
    return {e.samples, e.sequence, b[log_sum_exp{}].extent(1), out.in[1]};
  }
  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    detail::require_whole<typename B::layouts, dim::head_size, dim::kinds, dim::positions>();
    using l = typename in_layer::template laid<typename B::layouts>;
    auto [project, combine] = b.children();
    project.forward(b.template gathered<typename l::x_edge, typename l::x_taken>(whole_in{}, x, b.makes(qkv{})),
                    b.edge(qkv{}));
    b.make(heads_out{}, [&](auto v) { b.compute().attention(b[qkv{}], shape(b), v, b.vector(log_sum_exp{})); });
    return combine.forward(b[heads_out{}], y);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using l = typename in_layer::template laid<typename B::layouts>;
    auto [project, combine] = b.children();
    combine.backward_input(b[heads_out{}], dy, b[d_heads_out{}]);
    b.compute().attention_backward(b[d_heads_out{}], b[qkv{}], b[heads_out{}], b.vector(log_sum_exp{}), shape(b),
                                   b[d_qkv{}]);
    const auto sum = b.template room<typename l::dx_made, dual<typename l::x_edge>>(whole_in{}, dx);
    project.backward_input(x, b[d_qkv{}], sum);
    b.template settle<typename l::dx_made, dual<typename l::x_edge>>(sum, dx);
    return made<dual<typename l::x_edge>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [project, combine] = b.children();
    using l = typename in_layer::template laid<typename B::layouts>;
    combine.backward_weight(b[heads_out{}], dy);
    project.backward_weight(b.template gathered<typename l::x_edge, typename l::x_taken>(whole_in{}, x), b[d_qkv{}]);
  }
};

}  // namespace heddle::inline v0::model::layers
