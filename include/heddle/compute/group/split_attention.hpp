// heddle/compute/group/split_attention.hpp: attention of few queries over many keys by groups of threads: each has some keys of a query, then what they found is combined.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/group/attention_rows.hpp>
#include <heddle/compute/group/threads.hpp>
#include <heddle/compute/group/tiles.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

namespace heddle::inline v0::compute::detail::in_groups {

/// Keys of a part, and query heads that a group has at once: those of one key-value head, which it reads once for them.
inline constexpr std::int64_t split_keys = 64, split_heads = 4;

/// Bytes that the parts of all queries may have between their two kernels; one query has as many as it needs.
inline constexpr std::int64_t split_room = std::int64_t{32} << 20;

/// What the parts of each query and head leave for the combination: the largest score, the sum of exponentials, the sum of values. Parts without a key have a sum of 0.
template <class T>
struct split_results {
  T *top, *total, *out;  // [queries, heads, parts]; out has rows of `width` elements
  std::int64_t parts, width;
  std::int64_t first, queries;  // of which queries
};

/// A group has one part of the keys of a query, for up to `split_heads` of its heads. Part p has keys [p * split_keys, (p + 1) * split_keys) of those that the query sees, in their order, the last
/// part all that follow: what is added up, and in which order, depends on no other query.
/// Source: Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference"; Milakov and Gimelshein 2018, arXiv:1805.02867.
template <class T, class Mask>
struct attention_part {
  attention_inputs<T, Mask> in;
  split_results<T> found;
  std::int64_t kv_heads;

  // Threads that share a key, or an element of the output: each has a share of what is added up.
  static constexpr std::int64_t most_shares = 4;
  static constexpr std::int64_t places_of_keys = (split_keys * sizeof(std::int32_t) + sizeof(T) - 1) / sizeof(T);

  static std::int64_t elements(std::int64_t width, std::int64_t out_width) {
    return split_heads * tile_stride(width) + split_keys * tile_stride(width) +
           (1 + most_shares) * split_heads * tile_stride(split_keys) +
           (1 + most_shares) * split_heads * tile_stride(out_width) + split_heads + places_of_keys;
  }
  std::int64_t groups_of_heads() const { return tiles_of(in.shared, split_heads); }
  std::int64_t items() const { return found.queries * kv_heads * groups_of_heads() * found.parts; }

  struct tiles {
    tile<T> q, k, score, share_of_score, sum, share_of_sum;
    T* shrink;
    std::int32_t* rows;  // of the keys, in the cache
  };

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item, T* memory) const {
    const std::int64_t groups = tiles_of(in.shared, split_heads), part = item % found.parts;
    const std::int64_t group = item / found.parts % groups, kv = item / found.parts / groups % kv_heads;
    const std::int64_t query = item / found.parts / groups / kv_heads, r = found.first + query;
    const std::int64_t h = kv * in.shared + group * split_heads;
    const std::int64_t rest = in.shared - group * split_heads;
    const int heads = static_cast<int>(rest < split_heads ? rest : split_heads);
    const std::int64_t width = in.q.head_dim;
    tile_room<T> room{memory};
    tiles t{};
    t.q = room.rows(split_heads, width);
    t.k = room.rows(split_keys, width);
    t.score = room.rows(split_heads, split_keys);
    t.share_of_score = room.rows(most_shares * split_heads, split_keys);
    t.sum = room.rows(split_heads, found.width);
    t.share_of_sum = room.rows(most_shares * split_heads, found.width);
    t.shrink = room.at;
    t.rows = reinterpret_cast<std::int32_t*>(room.at + split_heads);
    T top[split_heads], total[split_heads];
    for (int i = 0; i < split_heads; ++i) {
      top[i] = in.lowest;
      total[i] = T(0);
    }
    g.sync();  // the last item is done with the memory
    load_tile(g, t.q, split_heads, heads, width, [&](std::int64_t i) { return in.q(r, h + i); });
    fill_tile(g, t.sum, split_heads, T(0));
    const std::int64_t first = part * split_keys;
    const bool is_last = part + 1 == found.parts;
    std::int64_t seen = 0;
    bool any = false;
    in.mask.keys_of(r, [&](std::int64_t from, std::int64_t to) {
      if (to <= from) return;
      const std::int64_t begin = from + (first > seen ? first - seen : 0), left = first + split_keys - seen;
      const std::int64_t end = is_last || left > to - from ? to : from + left;
      any = any || begin < end;
      for (std::int64_t key = begin; key < end; key += split_keys)
        add_keys(g, t, key, static_cast<int>(end - key < split_keys ? end - key : split_keys), kv, top, total);
      seen += to - from;
    });
    g.sync();
    const std::int64_t place = (query * in.heads + h) * found.parts + part;
    for (int i = 0; i < split_heads; ++i)
      if (i < heads && g.leads()) {
        found.top[place + i * found.parts] = top[i];
        found.total[place + i * found.parts] = total[i];
      }
    for (int i = 0; any && i < heads; ++i) {
      T* const out = found.out + (place + i * found.parts) * found.width;
      for_each_of(g, found.width, [&](std::int64_t d) { out[d] = t.sum(i, d); });
    }
  }

 private:
  // Of n threads that work on `elements` each, so many share one.
  template <class G>
  HEDDLE_HD static int shares_of(G& g, int elements) {
    const int shares = elements > 0 ? g.size() / elements : 1;
    return shares < 1 ? 1 : shares > most_shares ? static_cast<int>(most_shares) : shares;
  }
  /// Keys [key, key + n) for all heads of the group.
  template <class G>
  HEDDLE_HD void add_keys(G& g, const tiles& t, std::int64_t key, int n, std::int64_t kv, T (&top)[split_heads],
                          T (&total)[split_heads]) const {
    constexpr int at_once = static_cast<int>(split_heads);
    const int width = static_cast<int>(in.q.head_dim), out_width = static_cast<int>(found.width);
    g.sync();
    for (int j = g.rank(); j < n; j += g.size()) t.rows[j] = static_cast<std::int32_t>(in.pages.row(key + j));
    g.sync();
    {  // without a division for each element
      const int down = width > 0 ? g.size() / width : 0, across = width > 0 ? g.size() % width : 0;
      int j = width > 0 ? g.rank() / width : n, d = width > 0 ? g.rank() % width : 0;
      while (j < n) {
        t.k(j, d) = in.k(t.rows[j], kv)[d];
        j += down, d += across;
        if (d >= width) d -= width, ++j;
      }
    }
    g.sync();
    const int shares = shares_of(g, n);
    for (int e = g.rank(); e < n * shares; e += g.size()) {
      const int j = e % n, share = e / n;
      T sum[at_once] = {};
      for (int d = share * width / shares; d < (share + 1) * width / shares; ++d) {
        const T x = t.k(j, d);
        for (int i = 0; i < at_once; ++i) sum[i] += t.q(i, d) * x;
      }
      for (int i = 0; i < at_once; ++i) t.share_of_score(share * at_once + i, j) = sum[i];
    }
    g.sync();
    for (int e = g.rank(); e < at_once * n; e += g.size()) {
      const int i = e / n, j = e % n;
      T sum = T(0);
      for (int share = 0; share < shares; ++share) sum += t.share_of_score(share * at_once + i, j);
      t.score(i, j) = in.scale * sum;
    }
    g.sync();
    for (int i = 0; i < at_once; ++i) {
      T best = in.lowest, mine = T(0);
      for (int j = g.rank(); j < n; j += g.size()) best = larger(best, t.score(i, j));
      best = larger(top[i], g.largest(best));
      for (int j = g.rank(); j < n; j += g.size()) {
        const T p = in.share(t.score(i, j), best);
        t.score(i, j) = p;
        mine += p;
      }
      const T shrink = best == in.lowest ? T(1) : math::exponential(top[i] - best);  // 0 at first: top is -inf
      total[i] = total[i] * shrink + g.sum(mine);
      top[i] = best;
      if (g.leads()) t.shrink[i] = shrink;
    }
    g.sync();
    const int parts = shares_of(g, out_width);
    for (int e = g.rank(); e < out_width * parts; e += g.size()) {
      const int d = e % out_width, share = e / out_width;
      T sum[at_once] = {};
      for (int j = share * n / parts; j < (share + 1) * n / parts; ++j) {
        const T x = in.v(t.rows[j], kv)[d];
        for (int i = 0; i < at_once; ++i) sum[i] += t.score(i, j) * x;
      }
      for (int i = 0; i < at_once; ++i) t.share_of_sum(share * at_once + i, d) = sum[i];
    }
    g.sync();
    for (int e = g.rank(); e < at_once * out_width; e += g.size()) {
      const int i = e / out_width, d = e % out_width;
      T sum = t.sum(i, d) * t.shrink[i];
      for (int share = 0; share < parts; ++share) sum += t.share_of_sum(share * at_once + i, d);
      t.sum(i, d) = sum;
    }
  }
};

/// A group has one query of one head: it combines what its parts found, in their order.
template <class T>
struct combine_parts_row {
  split_results<T> found;
  std::int64_t queries, heads;
  T lowest;
  heads_at<T> out;
  T* lse;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item) const {
    const std::int64_t r = found.first + item / heads, h = item % heads, place = item * found.parts;
    T top = lowest, total = T(0);
    for (std::int64_t p = 0; p < found.parts; ++p)
      if (found.total[place + p] != T(0)) top = larger(top, found.top[place + p]);
    for (std::int64_t p = 0; p < found.parts; ++p) total += weight(place + p, top) * found.total[place + p];
    T* const to = out(r, h);
    for_each_of(g, found.width, [&](std::int64_t d) {
      T sum = T(0);
      for (std::int64_t p = 0; p < found.parts; ++p)
        if (found.total[place + p] != T(0)) sum += weight(place + p, top) * found.out[(place + p) * found.width + d];
      to[d] = total != T(0) ? sum / total : T(0);  // no key: zeros
    });
    if (g.leads()) lse[h * queries + r] = total != T(0) ? top + std::log(total) : lowest;
  }

 private:
  HEDDLE_HD T weight(std::int64_t at, T top) const {
    return found.total[at] != T(0) ? math::exponential(found.top[at] - top) : T(0);
  }
};

/// `split_room`, or what a launcher says instead.
template <class L>
constexpr std::int64_t room_of_parts() noexcept {
  if constexpr (requires { L::split_room; })
    return L::split_room;
  else
    return split_room;
}
/// Whether queries are so few of each slice that tiles of queries would be nearly empty, and `most_keys` says how many keys one sees.
inline bool splits_keys(std::int64_t queries, std::int64_t slices, std::int64_t most_keys) noexcept {
  constexpr std::int64_t most_rows = 8;
  return most_keys > 0 && queries <= most_rows * slices;
}
/// Attention in parts of the keys; false, and nothing is done, where the memory of a group has no room for one. `most_keys`: of a query; where one sees more, its last part is longer.
/// The kernels of some queries follow those of the others where the parts of all would be more than `split_room`.
template <class L, class T, class Mask>
bool attend_in_parts(const L& on, const attention_inputs<T, Mask>& in, std::int64_t most_keys, heads_at<T> out,
                     T* lse) {
  using body = attention_part<T, Mask>;
  const std::int64_t elements = body::elements(in.q.head_dim, out.head_dim);
  if (elements * static_cast<std::int64_t>(sizeof(T)) > on.tile_bytes()) return false;
  if (in.queries * in.heads == 0) return true;
  // As many queries at once as the room for their parts allows: long contexts of many sequences would want gigabytes.
  const std::int64_t parts = tiles_of(most_keys, split_keys), of_query = in.heads * parts * (2 + out.head_dim);
  const std::int64_t fit = room_of_parts<L>() / static_cast<std::int64_t>(sizeof(T)) / of_query;
  const std::int64_t at_once = fit < 1 ? 1 : fit < in.queries ? fit : in.queries;
  auto numbers = on.template room<T>(at_once * of_query);
  T* const top = numbers.address();
  for (std::int64_t first = 0; first < in.queries; first += at_once) {
    const std::int64_t queries = at_once < in.queries - first ? at_once : in.queries - first, rows = queries * in.heads;
    const split_results<T> found{top, top + rows * parts, top + 2 * rows * parts, parts, out.head_dim, first, queries};
    const body each{in, found, in.heads / in.shared};
    on.template each_tile<T>(each.items(), split_keys, elements, each);
    on.each_row(rows, out.head_dim, combine_parts_row<T>{found, in.queries, in.heads, in.lowest, out, lse});
  }
  return true;
}

}  // namespace heddle::inline v0::compute::detail::in_groups
