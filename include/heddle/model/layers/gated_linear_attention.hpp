// heddle/model/layers/gated_linear_attention.hpp: linear attention with learned gates.
#pragma once

#include <heddle/compute/decay_attention.hpp>
#include <heddle/model/layers/attention.hpp>
#include <heddle/model/layers/grouped_attention.hpp>
#include <heddle/model/layers/head_norm.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0 {
namespace dim {
struct gate_rank {};   ///< elements of the vector that gates are made of
struct value_size {};  ///< elements of a head's value, as columns of its state
}  // namespace dim

namespace model::layers {

struct gate_latent {};         ///< activation: what gates are made of
struct d_gate_latent {};       ///< gradient of `gate_latent`
struct decay_gate {};          ///< activation: gates before the logarithm of their sigmoid
struct d_decay_gate {};        ///< gradient of `decay_gate`
struct decays : statistic {};  ///< activation: what is left of each row of a state, of each key element
struct raw_heads_out {};       ///< activation: what each head gives, before its norm
struct d_raw_heads_out {};     ///< gradient of `raw_heads_out`
struct decay_state {};         ///< state: sums of keys times values that decay

/// y = norm(o) Wo, head by head o[t] = S[t]' relu(q[t]) / sqrt(head_size) with S[t] = diag(exp(g[t])) S[t - 1] + relu(k[t]) v[t]', q = x Wq, k = x Wk, v = x Wv with biases, and gates
/// g = log(sigmoid((x Wa) Wb + c)) / normalizer, a number for each key element. `group` query heads share key, value, gates and state of one head. No positions.
///
/// A cache holds the state of a sequence, however long it is, and nothing of its tokens. The axis that splits `dim::heads` splits Wq, Wk, Wv, Wb and Wo; x Wa is whole on its ranks, and its
/// gradient is a sum over them.
/// Shapes: x, y [rows, width]; q, o [rows, heads, group, head_size]; k, v, g [rows, heads, head_size]; S [heads, head_size, head_size].
/// Source: Yang et al. 2024, arXiv:2312.06635; as SpikingBrain-7B has it, arXiv:2509.05276, section 3.
struct gated_linear_attention {
  using q_dims = dims<dim::heads, dim::group, dim::head_size>;
  using kv_dims = dims<dim::heads, dim::head_size>;
  using latent_dims = dims<dim::gate_rank>;
  using q_layer = linear<dims<dim::width>, q_dims, true, storage::out_in>;
  using kv_layer = linear<dims<dim::width>, kv_dims, true, storage::out_in>;
  using down_layer = linear<dims<dim::width>, latent_dims, false, storage::out_in>;
  using up_layer = linear<latent_dims, kv_dims, true, storage::out_in>;
  using norm_layer = head_norm<dim::heads, dim::group>;
  using out_layer = linear<q_dims, dims<dim::width>, false, storage::out_in>;

  const char* name;
  q_layer q;
  kv_layer k, v;
  down_layer down;
  up_layer up;
  norm_layer norm;
  out_layer out;
  double normalizer = 16;

  static constexpr bool reads_sequences = true;
  using needs = compute::facet_list<compute::decay_attention_facet>;
  using needs_cached = needs;

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(q, k, v, down, up, norm, out); }
  constexpr auto activations() const {
    constexpr auto kept = detail::kept_qkv;
    return list(activation<query, life::until_input, q_dims>{q.out, kept},
                activation<key, life::until_input, kv_dims>{k.out, kept},
                activation<value, life::until_input, kv_dims>{k.out, kept},
                activation<gate_latent, life::until_weight, latent_dims>{down.out, kept},
                activation<decay_gate, life::until_input, kv_dims>{k.out, kept},
                activation<decays, life::until_input, kv_dims>{k.out, kept},
                activation<raw_heads_out, life::until_weight, q_dims>{q.out, detail::kept_heads},
                activation<heads_out, life::until_weight, q_dims>{q.out, detail::kept_heads},
                activation<d_query, life::deferred, q_dims>{q.out}, activation<d_key, life::deferred, kv_dims>{k.out},
                activation<d_value, life::deferred, kv_dims>{k.out},
                activation<d_decay_gate, life::deferred, kv_dims>{k.out},
                activation<d_gate_latent, life::deferred, latent_dims>{down.out},
                activation<d_heads_out, life::deferred, q_dims>{q.out},
                activation<d_raw_heads_out, life::scratch, q_dims>{q.out});
  }
  constexpr auto state_tensors() const {
    return list(
        kept_state<decay_state, dims<dim::heads, dim::head_size, dim::value_size>>{{k.out[0], k.out[1], k.out[1]}});
  }
  /// Of a state that takes a key and a value in and is asked by each query of its group, six times each.
  constexpr double training_flops(std::int64_t /*sequence*/) const {
    const auto d = static_cast<double>(k.out[1]);
    return 6 * static_cast<double>(k.out[0]) * d * d * (1.5 + static_cast<double>(q.out[1]));
  }

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    detail::require_whole_samples<gated_linear_attention, B>();
    make_heads(b, x);
    b.make(raw_heads_out{}, [&](auto to) {
      compute::decay_attention(b.compute(), heads_of(b), whole_samples(b), const_of(b[query{}]), const_of(b[key{}]),
                               const_of(b[value{}]), const_of(b[decays{}]),
                               row_view<typename B::sum, typename B::space>{}, to);
    });
    return combine(b, y);
  }
  /// The same for rows that continue sequences from their states.
  template <class B>
  auto forward_cached(const B& b, typename B::const_view x, typename B::view y) const {
    make_heads(b, x);
    compute::state_sequences<typename B::space> rows;
    rows.listed = b.run().cache.state_rows;
    compute::decay_attention(b.compute(), heads_of(b), rows, const_of(b[query{}]), const_of(b[key{}]),
                             const_of(b[value{}]), const_of(b[decays{}]), b.states(decay_state{}), b[raw_heads_out{}]);
    return combine(b, y);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using stream = typename down_layer::template laid<typename B::layouts>;
    using of_query = typename q_layer::template laid<typename B::layouts>;
    using of_keys = typename kv_layer::template laid<typename B::layouts>;
    using of_gates = typename up_layer::template laid<typename B::layouts>;
    static_assert(std::is_same_v<typename of_query::dx_made, typename of_keys::dx_made>,
                  "heddle: attention: queries, keys and values must leave the same sum in the gradient of their input");
    auto [to_q, to_k, to_v, to_latent, to_gates, n, combined] = b.children();
    combined.backward_input(b[heads_out{}], dy, b[d_heads_out{}]);
    n.backward_input(b[raw_heads_out{}], b[d_heads_out{}], b[d_raw_heads_out{}], false);
    using sums = row_view<typename B::sum, typename B::space>;
    compute::decay_attention_backward(b.compute(), heads_of(b), whole_samples(b), const_of(b[d_raw_heads_out{}]),
                                      const_of(b[query{}]), const_of(b[key{}]), const_of(b[value{}]),
                                      const_of(b[decays{}]), row_view<const typename B::sum, typename B::space>{},
                                      sums{}, b[d_query{}], b[d_key{}], b[d_value{}], b[d_decay_gate{}]);
    compute::gate_decays_backward(b.compute(), const_of(b[decay_gate{}]), normalizer, b[d_decay_gate{}]);
    to_gates.backward_input(b[gate_latent{}], b[d_decay_gate{}], b[d_gate_latent{}]);
    b.template redistribute_in_place<typename of_gates::dx_made, dual<typename of_gates::x_edge>>(b[d_gate_latent{}]);
    to_q.backward_input(x, b[d_query{}], dx);
    to_k.backward_input(x, b[d_key{}], dx, true);
    to_v.backward_input(x, b[d_value{}], dx, true);
    b.template redistribute_in_place<typename of_query::dx_made, dual<typename stream::x_edge>>(dx);
    static_assert(std::is_same_v<typename stream::dx_made, dual<typename stream::x_edge>>,
                  "heddle: gated linear attention: what gates are made of is whole on every rank");
    to_latent.backward_input(x, b[d_gate_latent{}], dx, true);
    return made<dual<typename stream::x_edge>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [to_q, to_k, to_v, to_latent, to_gates, n, combined] = b.children();
    combined.backward_weight(b[heads_out{}], dy);
    n.backward_weight(b[raw_heads_out{}], b[d_heads_out{}]);
    to_q.backward_weight(x, b[d_query{}]);
    to_k.backward_weight(x, b[d_key{}]);
    to_v.backward_weight(x, b[d_value{}]);
    to_gates.backward_weight(b[gate_latent{}], b[d_decay_gate{}]);
    to_latent.backward_weight(x, b[d_gate_latent{}]);
  }

 private:
  template <class B>
  void make_heads(const B& b, typename B::const_view x) const {
    using layouts = typename B::layouts;
    detail::require_whole<layouts, dim::head_size, dim::group>();
    static_assert(detail::heads_are_whole<!layouts::template splits_rows<dims<dim::width>>, typename layouts::how>,
                  "heddle: gated linear attention takes all rows of its rank's samples: leave out split<dim::sequence, "
                  "...>");
    auto [to_q, to_k, to_v, to_latent, to_gates, n, combined] = b.children();
    to_q.forward(x, b.edge(query{}));
    to_k.forward(x, b.edge(key{}));
    to_v.forward(x, b.edge(value{}));
    to_latent.forward(x, b.edge(gate_latent{}));
    to_gates.forward(b[gate_latent{}], b.edge(decay_gate{}));
    b.make(decays{}, [&](auto to) { compute::gate_decays(b.compute(), const_of(b[decay_gate{}]), normalizer, to); });
  }
  template <class B>
  auto combine(const B& b, typename B::view y) const {
    auto [to_q, to_k, to_v, to_latent, to_gates, n, combined] = b.children();
    n.forward(b[raw_heads_out{}], b.edge(heads_out{}));
    return combined.forward(b[heads_out{}], y);
  }
  template <class B>
  compute::decay_heads heads_of(const B& b) const {
    return {b[key{}].extent(1) / k.out[1], q.out[1], k.out[1], 1 / std::sqrt(static_cast<double>(k.out[1]))};
  }
  template <class B>
  static compute::state_sequences<typename B::space> whole_samples(const B& b) {
    compute::state_sequences<typename B::space> all;
    all.count = b.run().extent.samples;
    all.rows = b.run().extent.sequence;
    return all;
  }
  template <class T, class Space>
  static matrix_view<const T, Space> const_of(matrix_view<T, Space> m) {
    return m;
  }
};

}  // namespace model::layers
}  // namespace heddle::inline v0
