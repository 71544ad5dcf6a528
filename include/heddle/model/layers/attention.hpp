// heddle/model/layers/attention.hpp: causal self-attention with one product for q, k, v.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/model/layers/lora.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model::layers {

struct qkv {};                      ///< activation: query, key and value as one product gives them
struct d_qkv {};                    ///< gradient of `qkv`
struct heads_out {};                ///< activation: what each head gives, before the product that combines them
struct log_sum_exp : statistic {};  ///< activation: the logarithm of the sum of exponentials of each row of scores
struct d_heads_out {};              ///< gradient of `heads_out`
struct sinks {};                    ///< parameter: a score of each head that the soft-max counts and that has no value
struct d_sinks {};                  ///< gradient of `sinks`, of each row
struct key_cache {};                ///< cached: keys as scores take them
struct value_cache {};              ///< cached: values

namespace detail {
// Two products of all query heads over the causal half, forward, and four backward; per token. `window`: tokens that a row sees; 0: all.
constexpr double attention_flops(std::int64_t width, std::int64_t sequence, std::int64_t window = 0) {
  const double all = 6.0 * static_cast<double>(width) * static_cast<double>(sequence + 1);
  if (window <= 0 || window >= sequence) return all;
  const auto n = static_cast<double>(sequence), w = static_cast<double>(window);
  return 12.0 * static_cast<double>(width) * w * (2 * n - w + 1) / (2 * n);
}
template <bool Ok, class How>
inline constexpr bool heads_are_whole = Ok;
// Heads are split between ranks, never inside, and a rank has all rows of its heads.
template <class Layouts, class... Dims>
constexpr void require_whole() {
  static_assert(
      heads_are_whole<!Layouts::template splits_rows<dims<dim::heads>>, typename Layouts::how>,
      "heddle: attention computes whole heads over whole sequences: the axis that splits dim::sequence must split "
      "dim::heads, too");
  using rules = model::detail::sharding_rules<typename Layouts::how>;
  using mesh_type = typename Layouts::mesh_type;
  static_assert(
      heads_are_whole<((rules::template axes_of<mesh_type, Dims>::size == 0) && ...), typename Layouts::how>,
      "heddle: attention computes whole heads over whole sequences: a sharding may split dim::heads and dim::samples, "
      "not "
      "dim::head_size, dim::group, dim::kinds or dim::positions");
}
// Whether rows of the layer see the last tokens only.
template <class B>
inline constexpr bool sees_window =
    requires { requires std::remove_cvref_t<decltype(std::declval<const B&>().layer())>::has_window; };
template <class B>
constexpr const auto& slices_of(const B& b) {
  if constexpr (sees_window<B>)
    return b.run().windowed;
  else
    return b.run().sequences;
}
// Whether scores of the layer are kept below a cap, `score_cap`.
template <class B>
inline constexpr bool caps_scores =
    requires { requires std::remove_cvref_t<decltype(std::declval<const B&>().layer())>::caps_scores; };
// Whether heads of the layer have sinks.
template <class B>
inline constexpr bool has_sinks =
    requires { requires std::remove_cvref_t<decltype(std::declval<const B&>().layer())>::has_sinks; };
// Whether these have gradients: not where adapters alone are trained.
template <class B>
constexpr bool finds_sinks() {
  if constexpr (has_sinks<B>)
    return B::template trains<sinks>;
  else
    return false;
}
template <class B>
inline constexpr bool trains_sinks = finds_sinks<B>();
// Runs attention of the layer's scores.
template <class B, class Q, class K, class Slices, class Scale, class Out, class Pages>
void run_attention(const B& b, const Q& q, const K& k, const K& v, const Slices& slices, Scale scale, const Out& out,
                   const Pages& pages) {
  if constexpr (caps_scores<B>)
    compute::run<compute::ops::capped_attention>(b.compute(), q, k, v, slices, scale,
                                                 static_cast<Scale>(b.layer().score_cap), out, b.vector(log_sum_exp{}),
                                                 pages);
  else
    compute::run<compute::ops::attention>(b.compute(), q, k, v, slices, scale, out, b.vector(log_sum_exp{}), pages);
  if constexpr (has_sinks<B>)
    compute::run<compute::ops::attention_sinks>(b.compute(), out, b.vector(sinks{}), b.vector(log_sum_exp{}), out);
}
// Puts keys and values of the rows into the cache, and lets the queries see those of their sequences.
template <class B, class T = typename B::scalar, class Space = typename B::space>
void attend_cached(const B& b, const compute::head_rows<T, Space>& q, const compute::head_rows<T, Space>& k,
                   const compute::head_rows<T, Space>& v, sum_of_type<T> scale,
                   const compute::head_rows<T, Space>& out) {
  const auto& cache = b.run().cache;
  auto keys = compute::heads_of(b.cached(key_cache{}), k.heads, k.head_dim);
  auto values = compute::heads_of(b.cached(value_cache{}), v.heads, v.head_dim);
  if constexpr (requires { requires std::remove_cvref_t<decltype(b.compute())>::takes_blocks_by_head; })
    for (auto* const x : {&keys, &values})
      if (cache.by_head > 1) {
        x->stride = x->head_dim;
        x->head_step = cache.by_head * x->head_dim;
      }
  compute::run<compute::ops::store_rows>(b.compute(), k, cache.places, keys);
  compute::run<compute::ops::store_rows>(b.compute(), v, cache.places, values);
  if constexpr (sees_window<B>)
    run_attention(b, q, keys, values, b.run().windowed, scale, out, cache.windowed);
  else
    run_attention(b, q, keys, values, b.run().sequences, scale, out, cache.pages);
}
template <bool Ok, class Layer>
inline constexpr bool sees_whole_documents = Ok;
template <class B>
constexpr void require_no_window() {
  static_assert(sees_whole_documents<!sees_window<B>, std::remove_cvref_t<decltype(std::declval<const B&>().layer())>>,
                "heddle: under a context split the mask is the context's: give it context<masks::window<...>> and the "
                "model attention without a window");
  static_assert(sees_whole_documents<!caps_scores<B>, std::remove_cvref_t<decltype(std::declval<const B&>().layer())>>,
                "heddle: under a context split scores have no cap (Gemma-2): leave the context split out of the "
                "sharding");
  static_assert(sees_whole_documents<!has_sinks<B>, std::remove_cvref_t<decltype(std::declval<const B&>().layer())>>,
                "heddle: under a context split heads have no sinks (GPT-OSS): leave the context split out of the "
                "sharding");
}
template <class B>
using heads_of_call = compute::head_rows<typename B::scalar, typename B::space>;
template <class B>
using const_heads_of_call = compute::head_rows<const typename B::scalar, typename B::space>;
// Causal attention of the call's rows inside their sequences.
template <class B>
void attend(const B& b, const const_heads_of_call<B>& q, const const_heads_of_call<B>& k,
            const const_heads_of_call<B>& v, typename B::sum scale, const heads_of_call<B>& out) {
  if constexpr (B::has_context) require_no_window<B>();
  if constexpr (B::has_context)
    b.run().cache.attend(b.run().replays, q, k, v, scale, out, b.vector(log_sum_exp{}));
  else
    run_attention(b, q, k, v, slices_of(b), scale, out, compute::key_pages_in<typename B::space>{});
}
// Its gradients, from those of `out`.
template <class B>
void attend_backward(const B& b, const const_heads_of_call<B>& dout, const const_heads_of_call<B>& q,
                     const const_heads_of_call<B>& k, const const_heads_of_call<B>& v,
                     const const_heads_of_call<B>& out, typename B::sum scale, const heads_of_call<B>& dq,
                     const heads_of_call<B>& dk, const heads_of_call<B>& dv) {
  if constexpr (trains_sinks<B>)
    compute::run<compute::ops::attention_sinks_backward>(b.compute(), dout, out, b.vector(sinks{}),
                                                         b.vector(log_sum_exp{}), b[d_sinks{}]);
  if constexpr (B::has_context)
    b.run().cache.attend_backward(dout, q, k, v, out, b.vector(log_sum_exp{}), scale, dq, dk, dv);
  else if constexpr (caps_scores<B>)
    compute::run<compute::ops::capped_attention_backward>(
        b.compute(), dout, q, k, v, out, b.vector(log_sum_exp{}), slices_of(b), scale,
        static_cast<typename B::sum>(b.layer().score_cap), dq, dk, dv, compute::key_pages_in<typename B::space>{});
  else
    compute::run<compute::ops::attention_backward>(b.compute(), dout, q, k, v, out, b.vector(log_sum_exp{}),
                                                   slices_of(b), scale, dq, dk, dv,
                                                   compute::key_pages_in<typename B::space>{});
}
// Bytes that a backend's attention takes for a moment with a cache, up to `rows` rows that see up to `keys` keys.
template <class B>
std::int64_t bytes_of_cached_attention(const B& b, std::int64_t rows, std::int64_t keys, std::int64_t heads,
                                       std::int64_t head_dim, std::int64_t value_dim) {
  using T = typename B::scalar;
  if constexpr (requires { b.compute().template few_query_bytes<T>(rows, heads, head_dim, value_dim, keys); })
    return b.compute().template few_query_bytes<T>(rows, heads, head_dim, value_dim, keys);
  else
    return 0;
}
inline constexpr activation_set kept_qkv = activation_named("attn.qkv");
inline constexpr activation_set kept_heads = activation_named("attn.out");
}  // namespace detail

/// y = softmax(q k' / sqrt(head_size), causal) v Wo + bo with q|k|v = x Wqkv + bqkv, as GPT-2 has it. Heads may be split over
/// an axis; a rank may have none. `Adapter` may put an adapter around both products.
/// Shapes: x, y [rows, width]; q|k|v [rows, 3, heads, head_size].
/// Source: Vaswani et al. 2017, arXiv:1706.03762; split heads: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
template <bool Bias = true, storage Stored = storage::in_out, class Adapter = no_adapter>
struct fused_attention {
  using per_head = dims<dim::heads, dim::head_size>;
  using in_base = linear<dims<dim::width>, dims<dim::kinds, dim::heads, dim::head_size>, Bias, Stored>;
  using out_base = linear<per_head, dims<dim::width>, Bias, Stored>;
  using in_layer = typename Adapter::template layer<in_base>;
  using out_layer = typename Adapter::template layer<out_base>;

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
  constexpr auto cached_tensors() const {
    return list(cached<key_cache, per_head>{out.in}, cached<value_cache, per_head>{out.in});
  }
  constexpr double training_flops(std::int64_t sequence) const {
    return detail::attention_flops(out.in[0] * out.in[1], sequence);
  }
  using needs = compute::facet_list<compute::attention_facet>;
  using needs_cached = compute::facet_list<compute::sliced_attention_facet, compute::cache_facet>;

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
    use_gathered<typename l::x_edge, typename l::x_taken, in_layer>(
        b, whole_in{}, x, b.makes(qkv{}),
        [&](auto rows, row_range at) { project.forward(rows, rows_of(b.edge(qkv{}), at)); });
    b.make(heads_out{}, [&](auto v) {
      if constexpr (B::has_context)
        detail::attend(b, third(b, b[qkv{}], 0), third(b, b[qkv{}], 1), third(b, b[qkv{}], 2), scale<B>(),
                       compute::heads_of(v, b[log_sum_exp{}].extent(1), out.in[1]));
      else
        compute::run<compute::ops::causal_attention>(b.compute(), b[qkv{}], shape(b), v, b.vector(log_sum_exp{}));
    });
    return combine.forward(b[heads_out{}], y);
  }
  /// The same for rows that continue sequences: keys and values of earlier tokens come from the cache.
  template <class B>
  auto forward_cached(const B& b, typename B::const_view x, typename B::view y) const {
    detail::require_whole<typename B::layouts, dim::head_size, dim::kinds, dim::positions>();
    auto [project, combine] = b.children();
    project.forward(x, b[qkv{}]);
    const auto in_thirds = b[qkv{}];
    detail::attend_cached(b, third(b, in_thirds, 0), third(b, in_thirds, 1), third(b, in_thirds, 2), scale<B>(),
                          compute::heads_of(b[heads_out{}], b[log_sum_exp{}].extent(1), out.in[1]));
    return combine.forward(b[heads_out{}], y);
  }
  /// Bytes that `forward_cached` takes of the backend for a moment besides the layer's tensors, for up to `rows` rows that see up to `keys` keys.
  template <class B>
  std::int64_t cached_bytes(const B& b, std::int64_t rows, std::int64_t keys) const {
    return detail::bytes_of_cached_attention(b, rows, keys, b[log_sum_exp{}].extent(1), out.in[1], out.in[1]);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using l = typename in_layer::template laid<typename B::layouts>;
    auto [project, combine] = b.children();
    combine.backward_input(b[heads_out{}], dy, b[d_heads_out{}]);
    if constexpr (B::has_context) {
      const auto heads = [&](auto m) { return compute::heads_of(m, b[log_sum_exp{}].extent(1), out.in[1]); };
      detail::attend_backward(b, heads(b[d_heads_out{}]), third(b, b[qkv{}], 0), third(b, b[qkv{}], 1),
                              third(b, b[qkv{}], 2), heads(b[heads_out{}]), scale<B>(), third(b, b[d_qkv{}], 0),
                              third(b, b[d_qkv{}], 1), third(b, b[d_qkv{}], 2));
    } else {
      compute::run<compute::ops::causal_attention_backward>(b.compute(), b[d_heads_out{}], b[qkv{}], b[heads_out{}],
                                                            b.vector(log_sum_exp{}), shape(b), b[d_qkv{}]);
    }
    make_scattered<typename l::dx_made, dual<typename l::x_edge>, in_layer>(
        b, whole_in{}, dx, [&](auto sum, row_range at) { project.backward_input(x, rows_of(b[d_qkv{}], at), sum); });
    return made<dual<typename l::x_edge>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [project, combine] = b.children();
    using l = typename in_layer::template laid<typename B::layouts>;
    combine.backward_weight(b[heads_out{}], dy);
    use_gathered<typename l::x_edge, typename l::x_taken, in_layer>(
        b, whole_in{}, x, true,
        [&](auto rows, row_range at) { project.backward_weight(rows, rows_of(b[d_qkv{}], at)); });
  }

 private:
  // Queries, keys or values in a row of all three.
  template <class B, class View>
  auto third(const B& b, View all, std::int64_t i) const {
    const std::int64_t heads = b[log_sum_exp{}].extent(1), size = out.in[1];
    return compute::heads_of(all, heads, size, i * heads * size);
  }
  template <class B, class T = typename B::sum>
  T scale() const {
    return T(1) / std::sqrt(static_cast<T>(out.in[1]));
  }
};

}  // namespace heddle::inline v0::model::layers
