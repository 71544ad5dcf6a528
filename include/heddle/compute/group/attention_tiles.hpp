// heddle/compute/group/attention_tiles.hpp: attention by groups of threads, in tiles.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/group/attention_rows.hpp>
#include <heddle/compute/group/threads.hpp>
#include <heddle/compute/group/tiles.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0::compute::detail::in_groups {

/// A slice of a mask with what tiles ask of it. All bounds rise with the query, or with the key.
struct slice_of_tiles {
  attention_slice s;

  HEDDLE_HD std::int64_t first_key(std::int64_t q) const {
    return s.k_begin + (listed_slices::begins_late(s) ? q - s.q_begin : 0);
  }
  HEDDLE_HD std::int64_t end_of_keys(std::int64_t q) const {
    return s.k_end - (listed_slices::ends_early(s) ? s.q_end - 1 - q : 0);
  }
  HEDDLE_HD bool shows(std::int64_t q, std::int64_t key) const {
    return q >= s.q_begin && q < s.q_end && key >= first_key(q) && key < end_of_keys(q);
  }
  /// The keys that queries of [begin, end) see, from the first to the last; `to` is not above `from` if there are none.
  HEDDLE_HD void keys_of(std::int64_t begin, std::int64_t end, std::int64_t& from, std::int64_t& to) const {
    const std::int64_t first = begin > s.q_begin ? begin : s.q_begin, last = (end < s.q_end ? end : s.q_end) - 1;
    from = to = 0;
    if (first > last) return;
    from = first_key(first) > s.k_begin ? first_key(first) : s.k_begin;
    to = end_of_keys(last) < s.k_end ? end_of_keys(last) : s.k_end;
  }
  /// The queries that see keys of [begin, end), likewise.
  HEDDLE_HD void queries_of(std::int64_t begin, std::int64_t end, std::int64_t& from, std::int64_t& to) const {
    const std::int64_t first = begin > s.k_begin ? begin : s.k_begin, last = (end < s.k_end ? end : s.k_end) - 1;
    from = to = 0;
    if (first > last) return;
    from = s.q_begin;
    to = s.q_end;
    if (listed_slices::ends_early(s) && s.q_end - (s.k_end - first) > from) from = s.q_end - (s.k_end - first);
    if (listed_slices::begins_late(s) && s.q_begin + (last - s.k_begin) + 1 < to)
      to = s.q_begin + (last - s.k_begin) + 1;
  }
};
/// f(slice) for all slices that queries, or keys, of [begin, end) may be in.
template <class F>
HEDDLE_HD void slices_of(const listed_slices& mask, std::int64_t, std::int64_t, const F& f) {
  // Counted: with a pointer to the end beside it ptxas spills registers of the gradient's tiles in double.
  for (std::int64_t i = 0; i < mask.count; ++i) f(slice_of_tiles{mask.all[i]});
}
template <class F>
HEDDLE_HD void slices_of(const causal_batch& mask, std::int64_t begin, std::int64_t end, const F& f) {
  for (std::int64_t from = begin / mask.sequence * mask.sequence; from < end; from += mask.sequence) {
    const std::int64_t to = from + mask.sequence;
    f(slice_of_tiles{attention_slice{from, to, from, to, slice_mask::causal}});
  }
}

/// f(slice, key, keys) for tiles of up to `size` keys from `key` on that queries [begin, begin + rows) see, with keys and values of head
/// `kv` in tiles k and v. f ends with `sync()`.
template <class G, class T, class Mask, class F>
HEDDLE_HD void each_tile_of_keys(G& g, const attention_inputs<T, Mask>& in, std::int64_t begin, std::int64_t rows,
                                 std::int64_t kv, const tile<T>& k, const tile<T>& v, std::int64_t size,
                                 std::int64_t out_width, const F& f) {
  slices_of(in.mask, begin, begin + rows, [&](const slice_of_tiles& slice) {
    std::int64_t from = 0, to = 0;
    slice.keys_of(begin, begin + rows, from, to);
    for (std::int64_t key = from; key < to; key += size) {
      const std::int64_t keys = to - key < size ? to - key : size;
      load_tile(g, k, size, keys, in.q.head_dim, [&](std::int64_t j) { return in.k(in.pages.row(key + j), kv); });
      load_tile(g, v, size, keys, out_width, [&](std::int64_t j) { return in.v(in.pages.row(key + j), kv); });
      g.sync();
      f(slice, key, keys);
    }
  });
}

/// A group has `edge` queries of one head, and goes over the keys by as many. The output is scaled again where a tile has a larger
/// score than those before.
/// Source: Dao 2023, arXiv:2307.08691, algorithm 1; Milakov and Gimelshein 2018, arXiv:1805.02867.
template <class T, class Mask>
struct attention_tile {
  attention_inputs<T, Mask> in;
  heads_at<T> out;
  T* lse;
  std::int64_t edge;

  static std::int64_t elements(std::int64_t edge, std::int64_t width, std::int64_t out_width) {
    return 2 * edge * (tile_stride(width) + tile_stride(out_width)) + edge * tile_stride(edge) + 3 * edge;
  }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item, T* memory) const {
    const std::int64_t h = item % in.heads, begin = item / in.heads * edge, kv = h / in.shared;
    const std::int64_t rows = in.queries - begin < edge ? in.queries - begin : edge;
    const std::int64_t width = in.q.head_dim, out_width = out.head_dim, size = edge;
    tile_room<T> room{memory};
    const tile<T> q = room.rows(size, width), k = room.rows(size, width), v = room.rows(size, out_width),
                  sum = room.rows(size, out_width), s = room.rows(size, size);
    T *const top = room.at, *const total = top + size, *const shrink = total + size;
    g.sync();  // the last item is done with the memory
    load_tile(g, q, size, rows, width, [&](std::int64_t i) { return in.q(begin + i, h); });
    fill_tile(g, sum, size, T(0));
    for_each_of(g, size, [&](std::int64_t i) {
      top[i] = in.lowest;
      total[i] = T(0);
    });
    each_tile_of_keys(
        g, in, begin, rows, kv, k, v, size, out_width,
        [&](const slice_of_tiles& slice, std::int64_t key, std::int64_t keys) {
          tile_product(g, size, size, width, q.data, q.stride, 1, k.data, 1, k.stride,
                       [&](std::int64_t i, std::int64_t j, T x) { s(i, j) = in.score(x); });
          g.sync();
          for_each_of(g, size, [&](std::int64_t i) {
            T best = top[i], share_of_tile = T(0);
            for (std::int64_t j = 0; j < keys; ++j)
              if (i < rows && slice.shows(begin + i, key + j)) best = larger(best, s(i, j));
            for (std::int64_t j = 0; j < keys; ++j) {
              const T p = i < rows && slice.shows(begin + i, key + j) ? in.share(s(i, j), best) : T(0);
              s(i, j) = p;
              share_of_tile += p;
            }
            shrink[i] = best == in.lowest ? T(1) : math::exponential(top[i] - best);  // 0 at first: top is -inf
            total[i] = total[i] * shrink[i] + share_of_tile;
            top[i] = best;
          });
          g.sync();
          tile_product(g, size, out_width, keys, s.data, s.stride, 1, v.data, v.stride, 1,
                       [&](std::int64_t i, std::int64_t j, T x) { sum(i, j) = sum(i, j) * shrink[i] + x; });
          g.sync();
        });
    g.sync();
    for (std::int64_t e = g.rank(); e < rows * out_width; e += g.size()) {
      const std::int64_t i = e / out_width, j = e % out_width;
      out(begin + i, h)[j] = total[i] != T(0) ? sum(i, j) / total[i] : T(0);  // no key: zeros
    }
    for_each_of(g, rows, [&](std::int64_t i) {
      lse[h * in.queries + begin + i] = total[i] != T(0) ? top[i] + std::log(total[i]) : in.lowest;
    });
  }
};

/// Gradients of `edge` queries of one head, and dout out of each of them for the keys' kernel.
template <class T, class Mask>
struct attention_backward_query_tile {
  attention_inputs<T, Mask> in;
  heads_at<const T> dout, out;
  const T* lse;
  T* of_outs;
  heads_at<T> dq;
  std::int64_t edge;

  static std::int64_t elements(std::int64_t edge, std::int64_t width, std::int64_t out_width) {
    return edge * (3 * tile_stride(width) + 2 * tile_stride(out_width) + tile_stride(edge) + 2);
  }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item, T* memory) const {
    const std::int64_t h = item % in.heads, begin = item / in.heads * edge, kv = h / in.shared;
    const std::int64_t rows = in.queries - begin < edge ? in.queries - begin : edge;
    const std::int64_t width = in.q.head_dim, out_width = out.head_dim, size = edge;
    tile_room<T> room{memory};
    const tile<T> q = room.rows(size, width), k = room.rows(size, width), sum = room.rows(size, width),
                  d = room.rows(size, out_width), v = room.rows(size, out_width), s = room.rows(size, size);
    T *const level = room.at, *const of_out = level + size;
    g.sync();
    load_tile(g, q, size, rows, width, [&](std::int64_t i) { return in.q(begin + i, h); });
    load_tile(g, d, size, rows, out_width, [&](std::int64_t i) { return dout(begin + i, h); });
    fill_tile(g, sum, size, T(0));
    g.sync();
    for_each_of(g, size, [&](std::int64_t i) {
      T product = T(0);
      if (i < rows) {
        const T* const result = out(begin + i, h);
        for (std::int64_t j = 0; j < out_width; ++j) product += d(i, j) * result[j];
        of_outs[h * in.queries + begin + i] = product;
      }
      of_out[i] = product;
      level[i] = i < rows ? lse[h * in.queries + begin + i] : in.lowest;
    });
    each_tile_of_keys(g, in, begin, rows, kv, k, v, size, out_width,
                      [&](const slice_of_tiles& slice, std::int64_t key, std::int64_t keys) {
                        tile_product(g, size, size, width, q.data, q.stride, 1, k.data, 1, k.stride,
                                     [&](std::int64_t i, std::int64_t j, T x) {
                                       const bool seen = i < rows && slice.shows(begin + i, key + j);
                                       s(i, j) = seen ? in.below_cap(in.share(in.score(x), level[i]), x) : T(0);
                                     });
                        tile_product(
                            g, size, size, out_width, d.data, d.stride, 1, v.data, 1, v.stride,
                            [&](std::int64_t i, std::int64_t j, T x) { s(i, j) *= (x - of_out[i]) * in.scale; });
                        g.sync();
                        tile_product(g, size, width, keys, s.data, s.stride, 1, k.data, k.stride, 1,
                                     [&](std::int64_t i, std::int64_t j, T x) { sum(i, j) += x; });
                        g.sync();
                      });
    g.sync();
    for (std::int64_t e = g.rank(); e < rows * width; e += g.size())
      dq(begin + e / width, h)[e % width] = sum(e / width, e % width);
  }
};

/// Gradients of up to `edge` keys of one page (or of all, without pages) and one key-value head, from all queries that see them.
template <class T, class Mask>
struct attention_backward_key_tile {
  attention_inputs<T, Mask> in;
  heads_at<const T> dout;
  const T *lse, *of_outs;
  heads_at<T> dk, dv;
  std::int64_t kv_heads, page_rows, pages, edge;

  static std::int64_t elements(std::int64_t edge, std::int64_t width, std::int64_t out_width) {
    return edge * (3 * tile_stride(width) + 3 * tile_stride(out_width) + 2 * tile_stride(edge) + 2);
  }
  std::int64_t items() const { return pages * ((page_rows + edge - 1) / edge) * kv_heads; }

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item, T* memory) const {
    const std::int64_t tiles = (page_rows + edge - 1) / edge, kv = item % kv_heads, page = item / kv_heads / tiles;
    const std::int64_t inside = item / kv_heads % tiles * edge, size = edge;
    const std::int64_t keys = page_rows - inside < size ? page_rows - inside : size;
    const std::int64_t width = in.q.head_dim, out_width = dout.head_dim;
    for (std::int64_t e = 0; e < page; ++e)  // a page that is listed again belongs to the first
      if (in.pages.pages[e] == in.pages.pages[page]) return;
    tile_room<T> room{memory};
    const tile<T> k = room.rows(size, width), q = room.rows(size, width), sum_k = room.rows(size, width),
                  v = room.rows(size, out_width), d = room.rows(size, out_width), sum_v = room.rows(size, out_width),
                  p = room.rows(size, size), s = room.rows(size, size);
    T *const level = room.at, *const of_out = level + size;
    const std::int64_t row = in.pages.row(page * page_rows + inside);
    g.sync();
    load_tile(g, k, size, keys, width, [&](std::int64_t j) { return in.k(row + j, kv); });
    load_tile(g, v, size, keys, out_width, [&](std::int64_t j) { return in.v(row + j, kv); });
    fill_tile(g, sum_k, size, T(0));
    fill_tile(g, sum_v, size, T(0));
    for (std::int64_t e = page; e < pages; ++e) {
      if (e != page && in.pages.pages[e] != in.pages.pages[page]) continue;
      const std::int64_t key = e * page_rows + inside;
      slices_of(in.mask, key, key + keys, [&](const slice_of_tiles& slice) {
        std::int64_t from = 0, to = 0;
        slice.queries_of(key, key + keys, from, to);
        for (std::int64_t begin = from; begin < to; begin += size)
          for (std::int64_t h = kv * in.shared; h < (kv + 1) * in.shared; ++h) {
            const std::int64_t rows = to - begin < size ? to - begin : size;
            load_tile(g, q, size, rows, width, [&](std::int64_t i) { return in.q(begin + i, h); });
            load_tile(g, d, size, rows, out_width, [&](std::int64_t i) { return dout(begin + i, h); });
            for_each_of(g, size, [&](std::int64_t i) {
              level[i] = i < rows ? lse[h * in.queries + begin + i] : in.lowest;
              of_out[i] = i < rows ? of_outs[h * in.queries + begin + i] : T(0);
            });
            g.sync();
            tile_product(g, size, size, width, q.data, q.stride, 1, k.data, 1, k.stride,
                         [&](std::int64_t i, std::int64_t j, T x) {
                           const bool seen = i < rows && j < keys && slice.shows(begin + i, key + j);
                           p(i, j) = seen ? in.share(in.score(x), level[i]) : T(0);
                           if constexpr (is_capped<Mask>) s(i, j) = seen ? in.below_cap(p(i, j), x) : T(0);
                         });
            tile_product(g, size, size, out_width, d.data, d.stride, 1, v.data, 1, v.stride,
                         [&](std::int64_t i, std::int64_t j, T x) {
                           s(i, j) = (is_capped<Mask> ? s(i, j) : p(i, j)) * (x - of_out[i]) * in.scale;
                         });
            g.sync();
            tile_product(g, size, width, rows, s.data, 1, s.stride, q.data, q.stride, 1,
                         [&](std::int64_t j, std::int64_t c, T x) { sum_k(j, c) += x; });
            tile_product(g, size, out_width, rows, p.data, 1, p.stride, d.data, d.stride, 1,
                         [&](std::int64_t j, std::int64_t c, T x) { sum_v(j, c) += x; });
            g.sync();
          }
      });
    }
    g.sync();
    for (std::int64_t e = g.rank(); e < keys * width; e += g.size())
      dk(row + e / width, kv)[e % width] = sum_k(e / width, e % width);
    for (std::int64_t e = g.rank(); e < keys * out_width; e += g.size())
      dv(row + e / out_width, kv)[e % out_width] = sum_v(e / out_width, e % out_width);
  }
};

/// The largest edge whose tiles fit into the memory of a group, 0 if none does.
template <class Body, class T, class L>
std::int64_t edge_of_tiles(const L& on, std::int64_t width, std::int64_t out_width) {
  const std::int64_t elements = on.tile_bytes() / static_cast<std::int64_t>(sizeof(T));
  for (const std::int64_t edge : {64, 32, 16, 8})
    if (Body::elements(edge, width, out_width) <= elements) return edge;
  return 0;
}
/// By tiles where they fit into the memory of a group, else key by key.
template <class L, class T, class Mask>
void attend(const L& on, const attention_inputs<T, Mask>& in, heads_at<T> out, T* lse) {
  using body = attention_tile<T, Mask>;
  const std::int64_t width = in.q.head_dim, edge = edge_of_tiles<body, T>(on, width, out.head_dim);
  if (edge == 0) return launch_attention(on, in, out, lse);
  if (in.heads > 0)
    on.template each_tile<T>(tiles_of(in.queries, edge) * in.heads, edge, body::elements(edge, width, out.head_dim),
                             body{in, out, lse, edge});
}
/// The same of gradients. `rows` of k and v, with `kv_heads` each; `keys` of them by the table of pages.
template <class L, class T, class Mask>
void attend_backward(const L& on, const attention_inputs<T, Mask>& in, std::int64_t rows, std::int64_t kv_heads,
                     std::int64_t keys, heads_at<const T> dout, heads_at<const T> out, const T* lse, heads_at<T> dq,
                     heads_at<T> dk, heads_at<T> dv) {
  using of_queries = attention_backward_query_tile<T, Mask>;
  using of_keys = attention_backward_key_tile<T, Mask>;
  const std::int64_t width = in.q.head_dim, out_width = out.head_dim;
  const std::int64_t edge = edge_of_tiles<of_queries, T>(on, width, out_width),
                     key_edge = edge_of_tiles<of_keys, T>(on, width, out_width);
  if (edge == 0 || key_edge == 0)
    return launch_attention_backward(on, in, rows, kv_heads, keys, dout, out, lse, dq, dk, dv);
  on.each_row(rows, kv_heads * dk.head_dim, zero_heads_row<T>{dk, kv_heads});  // rows that no page has
  on.each_row(rows, kv_heads * dv.head_dim, zero_heads_row<T>{dv, kv_heads});
  if (in.heads == 0 || in.queries == 0) return;
  auto of_outs = on.template room<T>(in.heads * in.queries);
  on.template each_tile<T>(tiles_of(in.queries, edge) * in.heads, edge, of_queries::elements(edge, width, out_width),
                           of_queries{in, dout, out, lse, of_outs.address(), dq, edge});
  const bool paged = in.pages.page_rows != 0;
  const of_keys body{in,
                     dout,
                     lse,
                     of_outs.address(),
                     dk,
                     dv,
                     kv_heads,
                     paged ? in.pages.page_rows : keys,
                     paged ? in.pages.count : 1,
                     key_edge};
  on.template each_tile<T>(body.items(), key_edge, of_keys::elements(key_edge, width, out_width), body);
}

}  // namespace heddle::inline v0::compute::detail::in_groups
