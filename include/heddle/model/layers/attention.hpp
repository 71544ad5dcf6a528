// heddle/model/layers/attention.hpp: causal self-attention: with one product for queries, keys and values, or with grouped
// queries and rotary positions.
#pragma once

#include <heddle/compute/rotary_table.hpp>
#include <heddle/model/layers/linear.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::model::layers {

struct qkv {};          ///< activation: query, key and value as one product gives them
struct d_qkv {};        ///< gradient of `qkv`
struct heads_out {};    ///< activation: what each head gives, before the product that combines them
struct log_sum_exp {};  ///< activation: the logarithm of the sum of exponentials of each row of scores
struct d_heads_out {};  ///< gradient of `heads_out`
struct query {};        ///< activation: queries, rotated where positions are rotary
struct key {};          ///< activation: keys, rotated where positions are rotary
struct value {};        ///< activation: values
struct d_query {};      ///< gradient of `query`
struct d_key {};        ///< gradient of `key`
struct d_value {};      ///< gradient of `value`
struct cosines {};      ///< constant: cosines of the rotary angles of each position
struct sines {};        ///< constant: sines of the same angles

namespace detail {
// Two products of all query heads over the causal half, forward, and four backward; per token.
constexpr double attention_flops(std::int64_t width, std::int64_t sequence) {
  return 6.0 * static_cast<double>(width) * static_cast<double>(sequence + 1);
}
template <bool Ok, class How>
struct heads_are_whole {
  static constexpr bool value = Ok;
};
// Heads are split between ranks, never inside.
template <class Layouts, class... Dims>
constexpr void require_whole() {
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
        activation<d_heads_out, life::scratch, per_head>{out.in});
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
    auto [project, combine] = b.children();
    project.forward(x, b.edge(qkv{}));
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
    project.backward_input(x, b[d_qkv{}], dx);
    b.template settle<typename l::dx_made, dual<typename l::x_edge>>(dx);
    return made<dual<typename l::x_edge>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [project, combine] = b.children();
    combine.backward_weight(b[heads_out{}], dy);
    project.backward_weight(x, b[d_qkv{}]);
  }
};

/// y = softmax(rotate(q) rotate(k)' / sqrt(head_size), causal) v Wo with q = x Wq, k = x Wk, v = x Wv. `group` query heads
/// share one key-value head; the axis that splits `dim::heads` splits the key-value heads, and the query heads go with theirs.
/// Shapes: x, y [rows, width]; q [rows, heads, group, head_size]; k, v [rows, heads, head_size].
/// Source: Ainslie et al. 2023, arXiv:2305.13245 (grouped queries); Su et al. 2021, arXiv:2104.09864 (rotary positions).
template <bool Bias = false, storage Stored = storage::out_in>
struct grouped_attention {
  using q_dims = dims<dim::heads, dim::group, dim::head_size>;
  using kv_dims = dims<dim::heads, dim::head_size>;
  using q_layer = linear<dims<dim::width>, q_dims, Bias, Stored>;
  using kv_layer = linear<dims<dim::width>, kv_dims, Bias, Stored>;
  using out_layer = linear<q_dims, dims<dim::width>, Bias, Stored>;

  const char* name;
  q_layer q;
  kv_layer k, v;
  out_layer out;
  double theta;
  compute::rotary_scaling scaling;
  std::int64_t context;  ///< positions that the rotary tables have

  static constexpr bool reads_sequences = true;
  using needs = compute::facet_list<compute::sliced_attention_facet, compute::rotary_facet>;

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(q, k, v, out); }
  constexpr auto activations() const {
    const std::int64_t half = k.out[1] / 2;
    return list(activation<query, life::until_input, q_dims>{q.out, detail::kept_qkv},
                activation<key, life::until_input, kv_dims>{k.out, detail::kept_qkv},
                activation<value, life::until_input, kv_dims>{k.out, detail::kept_qkv},
                activation<heads_out, life::until_weight, q_dims>{q.out, detail::kept_heads},
                activation<log_sum_exp, life::until_input, dims<dim::heads, dim::group>>{{q.out[0], q.out[1]},
                                                                                         detail::kept_heads},
                activation<d_query, life::deferred, q_dims>{q.out}, activation<d_key, life::deferred, kv_dims>{k.out},
                activation<d_value, life::deferred, kv_dims>{k.out},
                activation<d_heads_out, life::scratch, q_dims>{q.out},
                activation<cosines, life::constant, dims<dim::positions, dim::head_size>>{{context, half}},
                activation<sines, life::constant, dims<dim::positions, dim::head_size>>{{context, half}});
  }
  constexpr double training_flops(std::int64_t sequence) const {
    return detail::attention_flops(q.out[0] * q.out[1] * q.out[2], sequence);
  }
  /// Fills the rotary tables.
  template <class B>
  void prepare(const B& b) const {
    using T = typename B::scalar;
    const compute::rotary_table<T> table(context, compute::rotary_frequencies(k.out[1], theta, scaling));
    b.copy_from_host(cosines{}, table.cosines().elements());
    b.copy_from_host(sines{}, table.sines().elements());
  }
  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    detail::require_whole<typename B::layouts, dim::head_size, dim::group, dim::positions>();
    auto [to_q, to_k, to_v, combine] = b.children();
    const auto turned = [&](auto product, auto out_view, std::int64_t heads) {
      product.forward(x, out_view);
      b.give(out_view, [&](auto rows) {
        const auto at = heads_in(rows, heads);
        b.compute().template rotary<compute::rotary_pairs::halves>(at, b.run().positions, b[cosines{}], b[sines{}], at);
      });
    };
    turned(to_q, b.edge(query{}), query_heads(b));
    turned(to_k, b.edge(key{}), key_heads(b));
    to_v.forward(x, b.edge(value{}));
    b.make(heads_out{}, [&](auto rows) {
      b.compute().attention(heads_in(b[query{}], query_heads(b)), heads_in(b[key{}], key_heads(b)),
                            heads_in(b[value{}], key_heads(b)), b.run().sequences, scale<typename B::scalar>(),
                            heads_in(rows, query_heads(b)), b.vector(log_sum_exp{}),
                            compute::key_pages_in<typename B::space>{});
    });
    return combine.forward(b[heads_out{}], y);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using l = typename q_layer::template laid<typename B::layouts>;
    using of_keys = typename kv_layer::template laid<typename B::layouts>;
    static_assert(std::is_same_v<typename l::dx_made, typename of_keys::dx_made>,
                  "heddle: attention: queries, keys and values must leave the same sum in the gradient of their input");
    auto [to_q, to_k, to_v, combine] = b.children();
    const std::int64_t hq = query_heads(b), hk = key_heads(b);
    combine.backward_input(b[heads_out{}], dy, b[d_heads_out{}]);
    b.compute().attention_backward(heads_in(b[d_heads_out{}], hq), heads_in(b[query{}], hq), heads_in(b[key{}], hk),
                                   heads_in(b[value{}], hk), heads_in(b[heads_out{}], hq), b.vector(log_sum_exp{}),
                                   b.run().sequences, scale<typename B::scalar>(), heads_in(b[d_query{}], hq),
                                   heads_in(b[d_key{}], hk), heads_in(b[d_value{}], hk),
                                   compute::key_pages_in<typename B::space>{});
    const auto turn_back = [&](auto gradient) {
      b.compute().template rotary_backward<compute::rotary_pairs::halves>(gradient, b.run().positions, b[cosines{}],
                                                                          b[sines{}], gradient);
    };
    turn_back(heads_in(b[d_query{}], hq));
    turn_back(heads_in(b[d_key{}], hk));
    to_q.backward_input(x, b[d_query{}], dx);
    to_k.backward_input(x, b[d_key{}], dx, true);
    to_v.backward_input(x, b[d_value{}], dx, true);
    b.template settle<typename l::dx_made, dual<typename l::x_edge>>(dx);  // one sum for the three
    return made<dual<typename l::x_edge>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [to_q, to_k, to_v, combine] = b.children();
    combine.backward_weight(b[heads_out{}], dy);
    to_q.backward_weight(x, b[d_query{}]);
    to_k.backward_weight(x, b[d_key{}]);
    to_v.backward_weight(x, b[d_value{}]);
  }

 private:
  template <class T>
  T scale() const {
    return static_cast<T>(1.0 / std::sqrt(static_cast<double>(k.out[1])));
  }
  template <class B>
  std::int64_t query_heads(const B& b) const {
    return b[log_sum_exp{}].extent(1);
  }
  template <class B>
  std::int64_t key_heads(const B& b) const {
    return b[key{}].extent(1) / k.out[1];
  }
  template <class T, class Space>
  compute::head_rows<T, Space> heads_in(matrix_view<T, Space> m, std::int64_t heads) const {
    return compute::heads_of(m, heads, k.out[1]);
  }
};

}  // namespace heddle::inline v0::model::layers
