// heddle/model/layers/grouped_attention.hpp: grouped-query attention with positions.
#pragma once

#include <heddle/compute/long_rotary.hpp>
#include <heddle/compute/rotary_table.hpp>
#include <heddle/compute/yarn_scaling.hpp>
#include <heddle/model/layers/attention.hpp>
#include <heddle/model/layers/head_norm.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::model::layers {

struct query {};                ///< activation: queries as scores take them: normed where heads are, and rotated
struct key {};                  ///< activation: keys as scores take them
struct value {};                ///< activation: values
struct d_query {};              ///< gradient of `query`, and of what the rotation turned
struct d_key {};                ///< gradient of `key`, and of what the rotation turned
struct d_value {};              ///< gradient of `value`
struct raw_query {};            ///< activation: queries before the norm of each head
struct raw_key {};              ///< activation: keys before the norm of each head
struct d_raw_query {};          ///< gradient of `raw_query`
struct d_raw_key {};            ///< gradient of `raw_key`
struct cosines : statistic {};  ///< constant: cosines of the rotary angles of each position
struct sines : statistic {};    ///< constant: sines of the same angles

/// y = softmax(rotate(q) rotate(k)' / sqrt(head_size), causal) v Wo with q = x Wq, k = x Wk, v = x Wv. `group` query heads
/// share one key-value head; the axis that splits `dim::heads` splits the key-value heads, and the query heads go with theirs.
/// `QkvBias`: the three products have a bias (Qwen-2), `OutBias`: the last one has. `HeadNorms`: the elements of each query and key head
/// are normed by their root mean square before they are rotated (Qwen-3), by `HeadNorm`: each for itself, all together (`joined_head_norm`: OLMo-2), or times 1 + w (`shifted_head_norm`: Gemma). `Adapter` may put an adapter around the four products. `OutStored`: how the last weight lies. `Windowed`: rows see the last
/// `window` tokens up to their own and no others (Mistral). Values say whether heads rotate (`rotates`: not in some layers of SmolLM3), how many elements of a head do (`rotating`: Phi-4-mini), and by what scores are
/// multiplied (`score_scale`: Granite). `Capped`: scores s are `score_cap` tanh(s / `score_cap`) (Gemma-2). `Sinks`: the soft-max of each head counts one
/// score more, a parameter, which has no value (GPT-OSS).
/// Shapes: x, y [rows, width]; q [rows, heads, group, head_size]; k, v [rows, heads, head_size].
/// Source: Ainslie et al. 2023, arXiv:2305.13245 (grouped queries); Su et al. 2021, arXiv:2104.09864 (rotary positions);
/// Yang et al. 2024, arXiv:2407.10671 (biases); Yang et al. 2025, arXiv:2505.09388 (norms of heads); Jiang et al. 2023, arXiv:2310.06825 (windows).
template <bool QkvBias = false, bool OutBias = false, bool HeadNorms = false, storage Stored = storage::out_in,
          class Adapter = no_adapter, bool Windowed = false, template <class...> class HeadNorm = head_norm,
          storage OutStored = Stored, bool Capped = false, bool Sinks = false>
struct grouped_attention {
  using q_dims = dims<dim::heads, dim::group, dim::head_size>;
  using kv_dims = dims<dim::heads, dim::head_size>;
  using q_base = linear<dims<dim::width>, q_dims, QkvBias, Stored>;
  using kv_base = linear<dims<dim::width>, kv_dims, QkvBias, Stored>;
  using out_base = linear<q_dims, dims<dim::width>, OutBias, OutStored>;
  using q_layer = typename Adapter::template layer<q_base>;
  using kv_layer = typename Adapter::template layer<kv_base>;
  using out_layer = typename Adapter::template layer<out_base>;
  template <class Other>
  using with =
      grouped_attention<QkvBias, OutBias, HeadNorms, Stored, Other, Windowed, HeadNorm, OutStored, Capped, Sinks>;
  template <class... Heads>
  using norm_layer = std::conditional_t<HeadNorms, HeadNorm<Heads...>, leaf>;
  using q_norm_layer = norm_layer<dim::heads, dim::group>;
  using k_norm_layer = norm_layer<dim::heads>;

  const char* name;
  q_layer q;
  kv_layer k, v;
  out_layer out;
  double theta;
  compute::rotary_scaling scaling;
  std::int64_t context;  ///< positions that the rotary tables have
  q_norm_layer q_norm{};
  k_norm_layer k_norm{};
  std::int64_t window = 0;                  ///< `Windowed`: tokens that a row sees, itself among them
  bool rotates = true;                      ///< false: queries and keys are taken as they are
  double score_scale = 0;                   ///< of scores; 0: 1 / sqrt(head_size)
  double score_cap = 0;                     ///< `Capped`: of scores
  std::int64_t rotating = 0;                ///< the first elements of a head, which alone rotate; 0: all do
  compute::yarn_scaling yarn{};             ///< frequencies instead of `scaling`, where its factor is not 1
  compute::long_rotary_scaling longrope{};  ///< the same, where it has factors
  double sink_deviation = 0;                ///< `Sinks`: they begin as N(0, sink_deviation)

  static constexpr bool reads_sequences = true, caches_split_rows = true, norms_heads = HeadNorms,
                        has_window = Windowed, caps_scores = Capped, has_sinks = Sinks;
  using attention_facet = std::conditional_t<Capped, compute::capped_attention_facet, compute::sliced_attention_facet>;
  template <class... More>
  using facets = std::conditional_t<Sinks,
                                    compute::facet_list<attention_facet, compute::rotary_facet, More...,
                                                        compute::attention_sinks_facet, compute::elementwise_facet>,
                                    compute::facet_list<attention_facet, compute::rotary_facet, More...>>;
  using needs = facets<>;
  using needs_cached = facets<compute::cache_facet>;

  constexpr auto parameters() const {
    if constexpr (Sinks)
      return list(parameter<sinks, dims<dim::heads, dim::group>>{"sinks", {q.out[0], q.out[1]}, sink_deviation});
    else
      return list<>{};
  }
  constexpr auto children() const {
    if constexpr (HeadNorms)
      return list(q, k, v, out, q_norm, k_norm);
    else
      return list(q, k, v, out);
  }
  constexpr auto activations() const {
    const std::int64_t half = turned() / 2;
    const auto all = [&](const auto&... more) {
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
                  activation<sines, life::constant, dims<dim::positions, dim::head_size>>{{context, half}},
                  gathered_rows<whole_in, life::scratch, dims<dim::width>, q_dims>{{q.in}}, more...);
    };
    const auto with = [&](const auto&... more) {
      if constexpr (Sinks)
        return all(more..., activation<d_sinks, life::deferred, dims<dim::heads, dim::group>>{{q.out[0], q.out[1]}});
      else
        return all(more...);
    };
    if constexpr (HeadNorms)
      return with(activation<raw_query, life::until_weight, q_dims>{q.out, detail::kept_qkv},
                  activation<raw_key, life::until_weight, kv_dims>{k.out, detail::kept_qkv},
                  activation<d_raw_query, life::deferred, q_dims>{q.out},
                  activation<d_raw_key, life::deferred, kv_dims>{k.out});
    else
      return with();
  }
  constexpr auto cached_tensors() const {
    return list(cached<key_cache, kv_dims>{k.out}, cached<value_cache, kv_dims>{k.out});
  }
  constexpr double training_flops(std::int64_t sequence) const {
    return detail::attention_flops(q.out[0] * q.out[1] * q.out[2], sequence, Windowed ? window : 0);
  }
  /// Fills the rotary tables.
  template <class B>
  void prepare(const B& b) const {
    using T = typename B::sum;
    auto frequencies = longrope.count > 0 ? compute::rotary_frequencies(turned(), theta, longrope, context)
                       : yarn.factor != 1 ? compute::rotary_frequencies(turned(), theta, yarn)
                                          : compute::rotary_frequencies(turned(), theta, scaling);
    if (!rotates) std::fill(frequencies.begin(), frequencies.end(), 0.0);  // cosines 1 and sines 0: not a bit changes
    const double size = longrope.count > 0 ? longrope.table_factor : yarn.table_factor();
    const compute::rotary_table<T> table(context, frequencies, rotates ? size : 1);
    b.copy_from_host(cosines{}, table.cosines().elements());
    b.copy_from_host(sines{}, table.sines().elements());
  }
  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    make_heads(b, x);
    b.make(heads_out{}, [&](auto v) {
      detail::attend(b, heads_in(b[query{}], query_heads(b)), heads_in(b[key{}], key_heads(b)),
                     heads_in(b[value{}], key_heads(b)), scale<typename B::sum>(), heads_in(v, query_heads(b)));
    });
    return b.children().template get<3>().forward(b[heads_out{}], y);
  }
  /// The same for rows that continue sequences: keys and values of earlier tokens come from the cache.
  template <class B>
  auto forward_cached(const B& b, typename B::const_view x, typename B::view y) const {
    make_heads(b, x);
    const std::int64_t hq = query_heads(b), hk = key_heads(b);
    detail::attend_cached(b, heads_in(b[query{}], hq), heads_in(b[key{}], hk), heads_in(b[value{}], hk),
                          scale<typename B::sum>(), heads_in(b[heads_out{}], hq));
    return b.children().template get<3>().forward(b[heads_out{}], y);
  }
  /// Bytes that `forward_cached` takes of the backend for a moment besides the layer's tensors, for up to `rows` rows that see up to `keys` keys.
  template <class B>
  std::int64_t cached_bytes(const B& b, std::int64_t rows, std::int64_t keys) const {
    return detail::bytes_of_cached_attention(b, rows, keys, query_heads(b), k.out[1], k.out[1]);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using l = typename q_layer::template laid<typename B::layouts>;
    using of_keys = typename kv_layer::template laid<typename B::layouts>;
    static_assert(std::is_same_v<typename l::dx_made, typename of_keys::dx_made>,
                  "heddle: attention: queries, keys and values must leave the same sum in the gradient of their input");
    const auto part = b.children();
    const std::int64_t hq = query_heads(b), hk = key_heads(b);
    part.template get<3>().backward_input(b[heads_out{}], dy, b[d_heads_out{}]);
    detail::attend_backward(b, heads_in(b[d_heads_out{}], hq), heads_in(b[query{}], hq), heads_in(b[key{}], hk),
                            heads_in(b[value{}], hk), heads_in(b[heads_out{}], hq), scale<typename B::sum>(),
                            heads_in(b[d_query{}], hq), heads_in(b[d_key{}], hk), heads_in(b[d_value{}], hk));
    const auto turn_back = [&](auto gradient) {
      compute::run<compute::ops::rotary_backward<compute::rotary_pairs::halves>>(
          b.compute(), gradient, b.run().positions, b[cosines{}], b[sines{}], gradient);
    };
    turn_back(heads_in(b[d_query{}], hq));
    turn_back(heads_in(b[d_key{}], hk));
    if constexpr (HeadNorms) {
      part.template get<4>().backward_input(b[raw_query{}], b[d_query{}], b[d_raw_query{}], false);
      part.template get<5>().backward_input(b[raw_key{}], b[d_key{}], b[d_raw_key{}], false);
    }
    make_scattered<typename l::dx_made, dual<typename l::x_edge>, q_layer, kv_layer>(
        b, whole_in{}, dx, [&](auto sum, row_range at) {  // one sum for the three
          part.template get<0>().backward_input(x, rows_of(b[d_product_of_queries{}], at), sum);
          part.template get<1>().backward_input(x, rows_of(b[d_product_of_keys{}], at), sum, true);
          part.template get<2>().backward_input(x, rows_of(b[d_value{}], at), sum, true);
        });
    return made<dual<typename l::x_edge>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    using l = typename q_layer::template laid<typename B::layouts>;
    const auto part = b.children();
    part.template get<3>().backward_weight(b[heads_out{}], dy);
    if constexpr (detail::trains_sinks<B>)
      compute::run<compute::ops::add_bias_backward>(b.compute(), b[d_sinks{}], b.gradient_vector(sinks{}));
    if constexpr (HeadNorms) {
      part.template get<4>().backward_weight(b[raw_query{}], b[d_query{}]);
      part.template get<5>().backward_weight(b[raw_key{}], b[d_key{}]);
    }
    use_gathered<typename l::x_edge, typename l::x_taken, q_layer, kv_layer>(
        b, whole_in{}, x, true, [&](auto rows, row_range at) {
          part.template get<0>().backward_weight(rows, rows_of(b[d_product_of_queries{}], at));
          part.template get<1>().backward_weight(rows, rows_of(b[d_product_of_keys{}], at));
          part.template get<2>().backward_weight(rows, rows_of(b[d_value{}], at));
        });
  }

 private:
  // Queries, keys and values as scores take them.
  template <class B>
  void make_heads(const B& b, typename B::const_view x) const {
    detail::require_whole<typename B::layouts, dim::head_size, dim::group, dim::positions>();
    using l = typename q_layer::template laid<typename B::layouts>;
    const bool projects = b.makes(product_of_queries{}) || b.makes(product_of_keys{}) || b.makes(value{});
    const auto part = b.children();
    use_gathered<typename l::x_edge, typename l::x_taken, q_layer, kv_layer>(
        b, whole_in{}, x, projects, [&](auto rows, row_range at) {
          part.template get<0>().forward(rows, rows_of(b.edge(product_of_queries{}), at));
          part.template get<1>().forward(rows, rows_of(b.edge(product_of_keys{}), at));
          part.template get<2>().forward(rows, rows_of(b.edge(value{}), at));
        });
    if constexpr (HeadNorms) {
      part.template get<4>().forward(b[raw_query{}], b.edge(query{}));
      part.template get<5>().forward(b[raw_key{}], b.edge(key{}));
    }
    const auto turn = [&](auto made, std::int64_t heads) {
      b.give(made, [&](auto v) {
        const auto at = heads_in(v, heads);
        compute::run<compute::ops::rotary<compute::rotary_pairs::halves>>(b.compute(), at, b.run().positions,
                                                                          b[cosines{}], b[sines{}], at);
      });
    };
    turn(b.edge(query{}), query_heads(b));
    turn(b.edge(key{}), key_heads(b));
  }
  // What the products of queries and keys make: before the norms, where there are some.
  using product_of_queries = std::conditional_t<HeadNorms, raw_query, query>;
  using product_of_keys = std::conditional_t<HeadNorms, raw_key, key>;
  using d_product_of_queries = std::conditional_t<HeadNorms, d_raw_query, d_query>;
  using d_product_of_keys = std::conditional_t<HeadNorms, d_raw_key, d_key>;
  constexpr std::int64_t turned() const { return rotating > 0 ? rotating : k.out[1]; }
  template <class T>
  T scale() const {
    return static_cast<T>(score_scale > 0 ? score_scale : 1.0 / std::sqrt(static_cast<double>(k.out[1])));
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
