// heddle/model/layers/latent_attention.hpp: attention with latent keys and values.
#pragma once

#include <heddle/compute/ops/head_parts.hpp>
#include <heddle/compute/rotary_table.hpp>
#include <heddle/compute/yarn_scaling.hpp>
#include <heddle/model/layers/grouped_attention.hpp>
#include <heddle/model/layers/low_rank.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0 {
namespace dim {
struct key_latent {};  ///< elements of the latent vector that keys and values are made of
struct compressed {};  ///< the same, and behind them the rotary elements that all keys share
struct key_value {};   ///< of a head: the elements of its key that do not rotate, and behind them its value
}  // namespace dim

namespace model::layers {

struct latent_cache {
};  ///< in a cache: the normed latent vector of keys and values, and behind it the rotated elements of keys
struct compressed {
};  ///< scratch: the latent vector of keys and values before its norm, and the rotary elements of keys
struct d_compressed {};  ///< gradient of `compressed`
struct expanded {};      ///< scratch: of each head, key without rotary elements and value
struct d_expanded {};    ///< gradient of `expanded`

namespace detail {
template <bool Ok, class How>
inline constexpr bool latents_are_whole = Ok;
}  // namespace detail

/// The sizes of a head. Units: elements.
struct latent_head {
  std::int64_t still = 128;    ///< of queries and keys that do not rotate: the first ones
  std::int64_t rotating = 64;  ///< of queries and keys that do; all keys share them
  std::int64_t value = 128;    ///< of values
  constexpr std::int64_t query() const noexcept { return still + rotating; }
  friend constexpr bool operator==(const latent_head&, const latent_head&) = default;
};

/// y = softmax(q k' / sqrt(query elements of a head), causal) v Wo: multi-head latent attention; with `yarn` times its `score_factor`. c|r = x Wkva; [k_still|v] of each head =
/// norm(c) Wkvb; k = [k_still|rotate(r)], with one r for all heads; q = norm(x Wqa) Wqb (`Query` a `low_rank`) or x Wq (a `linear`), its
/// last elements rotated. `neighbours`: pairs of elements that rotate together are (2i, 2i + 1), not (i, i + half).
///
/// An axis that splits `dim::heads` splits Wqb, Wkvb and Wo; latent vectors are whole on its ranks, and their gradients are sums over it,
/// one all_reduce for that of queries and one for c|r. `Adapter` may put an adapter around each product.
///
/// A cache holds norm(c)|rotate(r) of a token, whole on every rank: `caches_latent`. Scores then are products of a head's query with Wkvb's
/// rows of its key, and of that with the cache; values come by Wkvb's rows of its value from the weighted sum of what is cached. With an
/// adapter around Wkvb a cache holds the keys and values of each head.
/// Shapes: x, y [rows, width]; q, k [rows, heads, query elements]; v [rows, heads, value elements]; c|r [rows, compressed].
/// Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1; Hugging Face `DeepseekV3Attention`.
template <class Adapter = no_adapter, class Query = low_rank<dims<dim::heads, dim::head_size>, Adapter>>
struct latent_attention {
  using per_head = dims<dim::heads, dim::head_size>;
  using expanded_dims = dims<dim::heads, dim::key_value>;
  using latent_dims = dims<dim::key_latent>;
  using query_layer = Query;
  using down_base = linear<dims<dim::width>, dims<dim::compressed>, false, storage::out_in>;
  using norm_layer = rms_norm<dim::key_latent>;
  using up_base = linear<latent_dims, expanded_dims, false, storage::out_in>;
  using out_base = linear<per_head, dims<dim::width>, false, storage::out_in>;
  using down_layer = typename Adapter::template layer<down_base>;
  using up_layer = typename Adapter::template layer<up_base>;
  using out_layer = typename Adapter::template layer<out_base>;

  const char* name;
  query_layer q;
  down_layer down;
  norm_layer norm;
  up_layer up;
  out_layer out;
  std::int64_t heads;
  latent_head size;
  double theta;
  compute::rotary_scaling scaling;
  std::int64_t context;  ///< positions that the rotary tables have
  bool neighbours = true;
  compute::yarn_scaling yarn{};  ///< frequencies instead of `scaling`, where its factor is not 1

  static constexpr bool reads_sequences = true;
  static constexpr bool caches_latent = std::is_same_v<up_layer, up_base>;
  using needs = compute::facet_list<compute::sliced_attention_facet, compute::rotary_facet, compute::head_part_facet>;
  using needs_cached = compute::facet_list<compute::sliced_attention_facet, compute::rotary_facet,
                                           compute::head_part_facet, compute::cache_facet, compute::product_facet>;

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(q, down, norm, up, out); }
  constexpr auto activations() const {
    const std::int64_t half = size.rotating / 2, h = heads;
    constexpr auto kept = detail::kept_qkv;
    return list(activation<query, life::until_input, per_head>{{h, size.query()}, kept},
                activation<key, life::until_input, per_head>{{h, size.query()}, kept},
                activation<value, life::until_input, per_head>{{h, size.value}, kept},
                activation<raw_latent, life::until_weight, latent_dims>{up.in, kept},
                activation<latent, life::until_weight, latent_dims>{up.in, kept},
                activation<heads_out, life::until_weight, per_head>{out.in, detail::kept_heads},
                activation<log_sum_exp, life::until_input, dims<dim::heads>>{{h}, detail::kept_heads},
                activation<d_query, life::deferred, per_head>{{h, size.query()}},
                activation<d_expanded, life::deferred, expanded_dims>{up.out},
                activation<d_latent, life::deferred, latent_dims>{up.in},
                activation<d_compressed, life::deferred, dims<dim::compressed>>{down.out},
                activation<compressed, life::scratch, dims<dim::compressed>>{down.out},
                activation<expanded, life::scratch, expanded_dims>{up.out},
                activation<d_key, life::scratch, per_head>{{h, size.query()}},
                activation<d_value, life::scratch, per_head>{{h, size.value}},
                activation<d_heads_out, life::scratch, per_head>{out.in},
                activation<d_raw_latent, life::scratch, latent_dims>{up.in},
                activation<cosines, life::constant, dims<dim::positions, dim::head_size>>{{context, half}},
                activation<sines, life::constant, dims<dim::positions, dim::head_size>>{{context, half}});
  }
  constexpr auto cached_tensors() const {
    if constexpr (caches_latent)
      return list(cached<latent_cache, dims<dim::compressed>>{down.out});
    else
      return list(cached<key_cache, per_head>{{heads, size.query()}},
                  cached<value_cache, per_head>{{heads, size.value}});
  }
  /// Of the products of queries with keys and of weights with values.
  constexpr double training_flops(std::int64_t sequence) const {
    return detail::attention_flops(heads * (size.query() + size.value), sequence) / 2;
  }
  /// Fills the rotary tables.
  template <class B>
  void prepare(const B& b) const {
    using T = typename B::sum;
    const bool stretched = yarn.factor != 1;
    const compute::rotary_table<T> table(context,
                                         stretched ? compute::rotary_frequencies(size.rotating, theta, yarn)
                                                   : compute::rotary_frequencies(size.rotating, theta, scaling),
                                         yarn.table_factor());
    b.copy_from_host(cosines{}, table.cosines().elements());
    b.copy_from_host(sines{}, table.sines().elements());
  }

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    make_heads(b, x);
    const std::int64_t h = own_heads(b);
    b.make(heads_out{}, [&](auto v) {
      detail::attend(b, compute::heads_of(b[query{}], h, size.query()), compute::heads_of(b[key{}], h, size.query()),
                     compute::heads_of(b[value{}], h, size.value), scale<typename B::sum>(),
                     compute::heads_of(v, h, size.value));
    });
    return b.children().template get<4>().forward(b[heads_out{}], y);
  }
  /// The same for rows that continue sequences: latent vectors, or keys and values, of earlier tokens come from the cache.
  template <class B>
  auto forward_cached(const B& b, typename B::const_view x, typename B::view y) const {
    if constexpr (caches_latent) {
      attend_latent(b, x);
    } else {
      make_heads(b, x);
      const std::int64_t h = own_heads(b);
      detail::attend_cached(b, compute::heads_of(b[query{}], h, size.query()),
                            compute::heads_of(b[key{}], h, size.query()), compute::heads_of(b[value{}], h, size.value),
                            scale<typename B::sum>(), compute::heads_of(b[heads_out{}], h, size.value));
    }
    return b.children().template get<4>().forward(b[heads_out{}], y);
  }
  /// Bytes that `forward_cached` takes of the backend for a moment besides the layer's tensors, for up to `rows` rows that see up to `keys` keys.
  template <class B>
  std::int64_t cached_bytes(const B& b, std::int64_t rows, std::int64_t keys) const {
    if constexpr (caches_latent)  // head by head
      return detail::bytes_of_cached_attention(b, rows, keys, own_heads(b) > 0 ? 1 : 0, down.out[0], up.in[0]);
    else
      return detail::bytes_of_cached_attention(b, rows, keys, own_heads(b), size.query(), size.value);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using stream = typename down_layer::template laid<typename B::layouts>;
    using of_query = typename query_layer::template laid<typename B::layouts>;
    using of_heads = typename up_layer::template laid<typename B::layouts>;
    auto [to_query, to_latent, n, to_heads, combine] = b.children();
    auto& k = b.compute();
    const std::int64_t h = own_heads(b), rank = up.in[0];
    combine.backward_input(b[heads_out{}], dy, b[d_heads_out{}]);
    const auto d_q = compute::heads_of(b[d_query{}], h, size.query()),
               d_k = compute::heads_of(b[d_key{}], h, size.query());
    const auto d_v = compute::heads_of(b[d_value{}], h, size.value);
    detail::attend_backward(b, compute::heads_of(b[d_heads_out{}], h, size.value),
                            compute::heads_of(b[query{}], h, size.query()),
                            compute::heads_of(b[key{}], h, size.query()), compute::heads_of(b[value{}], h, size.value),
                            compute::heads_of(b[heads_out{}], h, size.value), scale<typename B::sum>(), d_q, d_k, d_v);
    compute::run<compute::ops::copy_heads>(k, d_k, size.still, in_heads(b[d_expanded{}], h, 0));
    compute::run<compute::ops::copy_heads>(k, d_v, size.value, in_heads(b[d_expanded{}], h, size.still));
    to_heads.backward_input(b[latent{}], b[d_expanded{}], b[d_latent{}]);
    // One sum over the ranks of the heads for the latent vector and for the rotary elements that heads share.
    compute::run<compute::ops::copy_heads>(k, whole(b[d_latent{}]), rank, whole(b[d_compressed{}]));
    compute::run<compute::ops::sum_heads>(k, compute::part_of_heads(b[d_key{}], h, size.query(), size.still),
                                          size.rotating, shared(b[d_compressed{}]));
    b.template redistribute_in_place<typename of_heads::dx_made, dual<typename of_heads::x_edge>>(b[d_compressed{}]);
    turn<true>(b, compute::part_of_heads(b[d_query{}], h, size.query(), size.still));
    turn<true>(b, shared(b[d_compressed{}]));
    compute::run<compute::ops::copy_heads>(k, whole(b[d_compressed{}]), rank, whole(b[d_latent{}]));
    n.backward_input(b[raw_latent{}], b[d_latent{}], b[d_raw_latent{}], false);
    compute::run<compute::ops::copy_heads>(k, whole(b[d_raw_latent{}]), rank, whole(b[d_compressed{}]));
    to_query.backward_input(x, b[d_query{}], dx);
    b.template redistribute_in_place<typename of_query::dx_made, dual<typename stream::x_edge>>(dx);
    static_assert(std::is_same_v<typename stream::dx_made, dual<typename stream::x_edge>>,
                  "heddle: latent attention: the latent vector of keys and values is whole on every rank");
    to_latent.backward_input(x, b[d_compressed{}], dx, true);
    return made<dual<typename stream::x_edge>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view dy) const {
    auto [to_query, to_latent, n, to_heads, combine] = b.children();
    combine.backward_weight(b[heads_out{}], dy);
    to_query.backward_weight(x, b[d_query{}]);
    to_heads.backward_weight(b[latent{}], b[d_expanded{}]);
    n.backward_weight(b[raw_latent{}], b[d_latent{}]);
    to_latent.backward_weight(x, b[d_compressed{}]);
  }

 private:
  // Queries, keys and values as scores take them.
  template <class B>
  void make_heads(const B& b, typename B::const_view x) const {
    using layouts = typename B::layouts;
    detail::require_whole<layouts, dim::head_size, dim::key_value, dim::positions>();
    static_assert(detail::latents_are_whole<!layouts::template splits_rows<dims<dim::width>>, typename layouts::how>,
                  "heddle: latent attention takes all rows of its rank's samples: leave out split<dim::sequence, ...>");
    auto [to_query, to_latent, n, to_heads, combine] = b.children();
    auto& k = b.compute();
    using view = typename B::view;
    const std::int64_t h = own_heads(b);
    to_query.forward(x, b.edge(query{}));
    b.give(b.edge(query{}), [&](auto v) { turn<false>(b, compute::part_of_heads(v, h, size.query(), size.still)); });
    const bool keys = b.makes(key{}) || b.makes(value{});
    to_latent.forward(x, keys || b.makes(raw_latent{}) ? b[compressed{}] : view{});
    b.make(raw_latent{},
           [&](auto v) { compute::run<compute::ops::copy_heads>(k, whole(b[compressed{}]), up.in[0], whole(v)); });
    n.forward(b[raw_latent{}], b.edge(latent{}));
    to_heads.forward(b[latent{}], keys ? b[expanded{}] : view{});
    b.make(key{}, [&](auto v) {
      turn<false>(b, shared(b[compressed{}]));
      compute::run<compute::ops::copy_heads>(k, in_heads(b[expanded{}], h, 0), size.still,
                                             compute::part_of_heads(v, h, size.query()));
      compute::run<compute::ops::copy_heads>(k, shared(b[compressed{}]), size.rotating,
                                             compute::part_of_heads(v, h, size.query(), size.still));
    });
    b.make(value{}, [&](auto v) {
      compute::run<compute::ops::copy_heads>(k, in_heads(b[expanded{}], h, size.still), size.value,
                                             compute::part_of_heads(v, h, size.value));
    });
  }
  // Head by head, in scratch memory that forward does not use: each a query of the latent vector's size, which sees one key of the cache.
  template <class B>
  void attend_latent(const B& b, typename B::const_view x) const {
    using view = typename B::view;
    using const_view = typename B::const_view;
    using transpose = compute::transpose;
    auto [to_query, to_latent, n, to_heads, combine] = b.children();
    auto& k = b.compute();
    const std::int64_t h = own_heads(b), c = up.in[0], rows = x.extent(0);
    to_query.forward(x, b.edge(query{}));
    b.give(b.edge(query{}), [&](auto v) { turn<false>(b, compute::part_of_heads(v, h, size.query(), size.still)); });
    const view both = b[compressed{}], mixed = b[d_raw_latent{}];
    to_latent.forward(x, both);
    b.make(raw_latent{}, [&](auto v) { compute::run<compute::ops::copy_heads>(k, whole(both), c, whole(v)); });
    n.forward(b[raw_latent{}], b.edge(latent{}));
    turn<false>(b, shared(both));
    compute::run<compute::ops::copy_heads>(k, whole(b[latent{}]), c, whole(both));
    const view kept = b.cached(latent_cache{});
    const auto& cache = b.run().cache;
    compute::run<compute::ops::store_rows>(k, whole(both), cache.places, whole(kept));
    auto values = whole(kept);
    values.head_dim = c;
    const const_view weights = to_heads[weight{}];
    for (std::int64_t i = 0; i < h; ++i) {
      const auto rows_of_weight = [&](std::int64_t first, std::int64_t count) {
        return const_view(weights.address() + (i * (size.still + size.value) + first) * c, dynamic_shape<2>(count, c));
      };
      const auto head = [&](auto heads, std::int64_t of_head) {
        heads.data += i * of_head;
        heads.heads = 1;
        return heads;
      };
      const view still(b[d_key{}].address(), dynamic_shape<2>(rows, size.still));
      const view value_of_head(b[d_value{}].address(), dynamic_shape<2>(rows, size.value));
      compute::run<compute::ops::copy_heads>(k, head(compute::heads_of(b[query{}], h, size.query()), size.query()),
                                             size.still, whole(still));
      compute::matmul<transpose::no, transpose::no>(k, still, rows_of_weight(0, size.still), mixed);
      compute::run<compute::ops::copy_heads>(k, whole(mixed), c, whole(both));
      compute::run<compute::ops::copy_heads>(
          k, head(compute::part_of_heads(b[query{}], h, size.query(), size.still), size.query()), size.rotating,
          shared(both));
      compute::run<compute::ops::attention>(
          k, whole(both), whole(kept), values, b.run().sequences, scale<typename B::sum>(), whole(mixed),
          row_at<typename B::space>(first_element(b.vector(log_sum_exp{})) + i * rows, rows), cache.pages);
      compute::matmul<transpose::no, transpose::yes>(k, mixed, rows_of_weight(size.still, size.value), value_of_head);
      compute::run<compute::ops::copy_heads>(k, whole(value_of_head), size.value,
                                             head(compute::heads_of(b[heads_out{}], h, size.value), size.value));
    }
  }
  // Rotates the first elements of each head, in place; backward by the negative angles.
  template <bool Back, class B, class Heads>
  void turn(const B& b, const Heads& x) const {
    const auto by = [&]<compute::rotary_pairs Pairs>() {
      if constexpr (Back)
        compute::run<compute::ops::rotary_backward<Pairs>>(b.compute(), x, b.run().positions, b[cosines{}], b[sines{}],
                                                           x);
      else
        compute::run<compute::ops::rotary<Pairs>>(b.compute(), x, b.run().positions, b[cosines{}], b[sines{}], x);
    };
    if (neighbours)
      by.template operator()<compute::rotary_pairs::neighbours>();
    else
      by.template operator()<compute::rotary_pairs::halves>();
  }
  template <class T, class Space>
  static compute::head_rows<T, Space> whole(matrix_view<T, Space> m) {
    return compute::part_of_heads(m, 1, m.extent(1));
  }
  // The rotary elements behind a latent vector: one head.
  template <class T, class Space>
  compute::head_rows<T, Space> shared(matrix_view<T, Space> m) const {
    return compute::part_of_heads(m, 1, m.extent(1), up.in[0]);
  }
  template <class T, class Space>
  compute::head_rows<T, Space> in_heads(matrix_view<T, Space> m, std::int64_t own, std::int64_t first) const {
    return compute::part_of_heads(m, own, size.still + size.value, first);
  }
  template <class T>
  T scale() const {
    return static_cast<T>(yarn.score_factor() / std::sqrt(static_cast<double>(size.query())));
  }
  template <class B>
  std::int64_t own_heads(const B& b) const {
    return b[log_sum_exp{}].extent(1);
  }
};

}  // namespace model::layers
}  // namespace heddle::inline v0
