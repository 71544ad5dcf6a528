// heddle/compute/group/split_attention.hpp: split-KV attention by groups of threads.
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

/// The queries that are computed in parts of their keys: those of a list, or all.
struct split_queries {
  const std::int32_t* rows = nullptr;  // null: all
  std::int64_t count = 0;
  HEDDLE_HD std::int64_t row(std::int64_t i) const { return rows == nullptr ? i : rows[i]; }
};
/// What the parts of each query and head leave for the combination: the largest score, the sum of exponentials, the sum of values. Parts without a key have a sum of 0.
template <class S>
struct split_results {
  S *top, *total, *out;  // [queries, heads, parts]; out has rows of `width` elements
  std::int64_t parts, width;
  std::int64_t first, queries;  // of `of`
  split_queries of;
};
/// Which part of the keys of which query an item is, for which heads of one key-value head.
struct split_item {
  std::int64_t part, kv, query, row, head;  // `query`: counted from the first of these results; `row`: of q
  int heads;

  /// For groups of up to `most` heads.
  template <class S>
  HEDDLE_HD split_item(std::int64_t item, const split_results<S>& found, std::int64_t kv_heads, std::int64_t shared,
                       std::int64_t most) {
    const std::int64_t groups = tiles_of(shared, most);
    part = item % found.parts;
    item /= found.parts;
    const std::int64_t group = item % groups;
    item /= groups;
    kv = item % kv_heads;
    query = item / kv_heads;
    row = found.of.row(found.first + query);
    head = kv * shared + group * most;
    const std::int64_t rest = shared - group * most;
    heads = static_cast<int>(rest < most ? rest : most);
  }
  /// Of its first head in the results; that of the next is `parts` behind.
  template <class S>
  HEDDLE_HD std::int64_t place(const split_results<S>& found, std::int64_t all_heads) const {
    return (query * all_heads + head) * found.parts + part;
  }
};

/// A group has one part of the keys of a query, for up to `split_heads` of its heads. Part p has keys [p * split_keys, (p + 1) * split_keys) of those that the query sees, in their order, the last
/// part all that follow: what is added up, and in which order, depends on no other query.
/// Source: Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference"; Milakov and Gimelshein 2018, arXiv:1805.02867.
template <class T, class Mask>
struct attention_part {
  using S = sum_of_type<T>;
  attention_inputs<T, Mask> in;
  split_results<S> found;
  std::int64_t kv_heads;

  // Threads that share a key, or an element of the output: each has a share of what is added up.
  static constexpr std::int64_t most_shares = 4;
  static constexpr std::int64_t places_of_keys = (split_keys * sizeof(std::int32_t) + sizeof(S) - 1) / sizeof(S);

  static std::int64_t elements(std::int64_t width, std::int64_t out_width) {
    return split_heads * tile_stride(width) + split_keys * tile_stride(width) +
           (1 + most_shares) * split_heads * tile_stride(split_keys) +
           (1 + most_shares) * split_heads * tile_stride(out_width) + split_heads + places_of_keys;
  }
  std::int64_t groups_of_heads() const { return tiles_of(in.shared, split_heads); }
  std::int64_t items() const { return found.queries * kv_heads * groups_of_heads() * found.parts; }

  struct tiles {
    tile<S> q, k, score, share_of_score, sum, share_of_sum;
    S* shrink;
    std::int32_t* rows;  // of the keys, in the cache
  };

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item, S* memory) const {
    const split_item own(item, found, kv_heads, in.shared, split_heads);
    const int heads = own.heads;
    const std::int64_t width = in.q.head_dim;
    tile_room<S> room{memory};
    tiles t{};
    t.q = room.rows(split_heads, width);
    t.k = room.rows(split_keys, width);
    t.score = room.rows(split_heads, split_keys);
    t.share_of_score = room.rows(most_shares * split_heads, split_keys);
    t.sum = room.rows(split_heads, found.width);
    t.share_of_sum = room.rows(most_shares * split_heads, found.width);
    t.shrink = room.at;
    t.rows = reinterpret_cast<std::int32_t*>(room.at + split_heads);
    S top[split_heads], total[split_heads];
    for (int i = 0; i < split_heads; ++i) {
      top[i] = in.lowest;
      total[i] = S(0);
    }
    g.sync();  // the last item is done with the memory
    load_tile(g, t.q, split_heads, heads, width, [&](std::int64_t i) { return in.q(own.row, own.head + i); });
    fill_tile(g, t.sum, split_heads, S(0));
    const std::int64_t first = own.part * split_keys;
    const bool is_last = own.part + 1 == found.parts;
    std::int64_t seen = 0;
    bool any = false;
    in.mask.keys_of(own.row, [&](std::int64_t from, std::int64_t to) {
      if (to <= from) return;
      const std::int64_t begin = from + (first > seen ? first - seen : 0), left = first + split_keys - seen;
      const std::int64_t end = is_last || left > to - from ? to : from + left;
      any = any || begin < end;
      for (std::int64_t key = begin; key < end; key += split_keys)
        add_keys(g, t, key, static_cast<int>(end - key < split_keys ? end - key : split_keys), own.kv, top, total);
      seen += to - from;
    });
    g.sync();
    const std::int64_t place = own.place(found, in.heads);
    for (int i = 0; i < split_heads; ++i)
      if (i < heads && g.leads()) {
        found.top[place + i * found.parts] = top[i];
        found.total[place + i * found.parts] = total[i];
      }
    for (int i = 0; any && i < heads; ++i) {
      S* const out = found.out + (place + i * found.parts) * found.width;
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
  HEDDLE_HD void add_keys(G& g, const tiles& t, std::int64_t key, int n, std::int64_t kv, S (&top)[split_heads],
                          S (&total)[split_heads]) const {
    constexpr int at_once = static_cast<int>(split_heads);
    const int width = static_cast<int>(in.q.head_dim), out_width = static_cast<int>(found.width);
    g.sync();
    for (int j = g.rank(); j < n; j += g.size()) t.rows[j] = static_cast<std::int32_t>(in.pages.row(key + j));
    g.sync();
    {  // without a division for each element
      const int down = width > 0 ? g.size() / width : 0, across = width > 0 ? g.size() % width : 0;
      int j = width > 0 ? g.rank() / width : n, d = width > 0 ? g.rank() % width : 0;
      while (j < n) {
        t.k(j, d) = S(in.k(t.rows[j], kv)[d]);
        j += down, d += across;
        if (d >= width) d -= width, ++j;
      }
    }
    g.sync();
    const int shares = shares_of(g, n);
    for (int e = g.rank(); e < n * shares; e += g.size()) {
      const int j = e % n, share = e / n;
      S sum[at_once] = {};
      for (int d = share * width / shares; d < (share + 1) * width / shares; ++d) {
        const S x = t.k(j, d);
        for (int i = 0; i < at_once; ++i) sum[i] += t.q(i, d) * x;
      }
      for (int i = 0; i < at_once; ++i) t.share_of_score(share * at_once + i, j) = sum[i];
    }
    g.sync();
    for (int e = g.rank(); e < at_once * n; e += g.size()) {
      const int i = e / n, j = e % n;
      S sum = S(0);
      for (int share = 0; share < shares; ++share) sum += t.share_of_score(share * at_once + i, j);
      t.score(i, j) = in.scale * sum;
    }
    g.sync();
    for (int i = 0; i < at_once; ++i) {
      S best = in.lowest, mine = S(0);
      for (int j = g.rank(); j < n; j += g.size()) best = larger(best, t.score(i, j));
      best = larger(top[i], g.largest(best));
      for (int j = g.rank(); j < n; j += g.size()) {
        const S p = in.share(t.score(i, j), best);
        t.score(i, j) = p;
        mine += p;
      }
      const S shrink = best == in.lowest ? S(1) : math::exponential(top[i] - best);  // 0 at first: top is -inf
      total[i] = total[i] * shrink + g.sum(mine);
      top[i] = best;
      if (g.leads()) t.shrink[i] = shrink;
    }
    g.sync();
    const int parts = shares_of(g, out_width);
    for (int e = g.rank(); e < out_width * parts; e += g.size()) {
      const int d = e % out_width, share = e / out_width;
      S sum[at_once] = {};
      for (int j = share * n / parts; j < (share + 1) * n / parts; ++j) {
        const S x(in.v(t.rows[j], kv)[d]);
        for (int i = 0; i < at_once; ++i) sum[i] += t.score(i, j) * x;
      }
      for (int i = 0; i < at_once; ++i) t.share_of_sum(share * at_once + i, d) = sum[i];
    }
    g.sync();
    for (int e = g.rank(); e < at_once * out_width; e += g.size()) {
      const int i = e / out_width, d = e % out_width;
      S sum = t.sum(i, d) * t.shrink[i];
      for (int share = 0; share < parts; ++share) sum += t.share_of_sum(share * at_once + i, d);
      t.sum(i, d) = sum;
    }
  }
};

/// A group has one query of one head: it combines what its parts found.
template <class S, class T>
struct combine_parts_row {
  split_results<S> found;
  std::int64_t queries, heads;
  S lowest;
  heads_at<T> out;
  S* lse;

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item) const {
    const std::int64_t r = found.of.row(found.first + item / heads), h = item % heads, place = item * found.parts;
    S top = lowest;
    for_each_of(g, found.parts, [&](std::int64_t p) {
      if (found.total[place + p] != S(0)) top = larger(top, found.top[place + p]);
    });
    top = g.largest(top);
    const S total =
        sum_over(g, found.parts, [&](std::int64_t p) { return weight(place + p, top) * found.total[place + p]; });
    T* const to = out(r, h);
    for_each_of(g, found.width, [&](std::int64_t d) {
      S sum = S(0);
      for (std::int64_t p = 0; p < found.parts; ++p)
        if (found.total[place + p] != S(0)) sum += weight(place + p, top) * found.out[(place + p) * found.width + d];
      to[d] = T(total != S(0) ? sum / total : S(0));  // no key: zeros
    });
    if (g.leads()) lse[h * queries + r] = total != S(0) ? top + std::log(total) : lowest;
  }

 private:
  HEDDLE_HD S weight(std::int64_t at, S top) const {
    return found.total[at] != S(0) ? math::exponential(found.top[at] - top) : S(0);
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
/// Queries whose parts fit into `room` bytes, at least one, and what they take. `S`: of sums.
template <class S>
struct split_turn {
  std::int64_t queries, bytes;
  split_turn(std::int64_t all, std::int64_t heads, std::int64_t parts, std::int64_t width, std::int64_t room) {
    const std::int64_t of_query = heads * parts * (2 + width) * static_cast<std::int64_t>(sizeof(S));
    const std::int64_t fit = of_query == 0 ? all : room / of_query;
    queries = fit >= all ? all : fit < 1 ? 1 : fit;
    bytes = queries * of_query;
  }
};
/// launch(found) for the queries of `of`, some after the others where the parts of all would be more than `split_room`, each followed by the combination.
template <class L, class T, class Mask, class F>
void in_turns(const L& on, const attention_inputs<T, Mask>& in, const split_queries& of, std::int64_t parts,
              heads_at<T> out, sum_of_type<T>* lse, const F& launch) {
  using S = sum_of_type<T>;
  if (of.count * in.heads == 0) return;
  const split_turn<S> turn(of.count, in.heads, parts, out.head_dim, room_of_parts<L>());
  auto numbers = on.template room<S>(turn.bytes / static_cast<std::int64_t>(sizeof(S)));
  S* const top = numbers.address();
  for (std::int64_t first = 0; first < of.count; first += turn.queries) {
    const std::int64_t queries = turn.queries < of.count - first ? turn.queries : of.count - first;
    const std::int64_t rows = queries * in.heads;
    const split_results<S> found{top, top + rows * parts, top + 2 * rows * parts, parts, out.head_dim, first, queries,
                                 of};
    launch(found);
    constexpr std::int64_t most_width = 256;  // whose groups are no larger than a warp; parts may be many
    on.each_row(rows, out.head_dim > most_width ? out.head_dim : most_width + 1,
                combine_parts_row<S, T>{found, in.queries, in.heads, in.lowest, out, lse});
  }
}
/// Whether the memory of a group has room for a part of these heads.
template <class L, class T, class Mask>
bool fits_parts(const L& on, const attention_inputs<T, Mask>& in, const heads_at<T>& out) {
  return attention_part<T, Mask>::elements(in.q.head_dim, out.head_dim) *
             static_cast<std::int64_t>(sizeof(sum_of_type<T>)) <=
         on.tile_bytes();
}
/// Attention of these queries in parts of the keys. `most_keys`: of one of them; where one sees more, its last part is longer. Requires `fits_parts`.
template <class L, class T, class Mask>
void attend_in_parts(const L& on, const attention_inputs<T, Mask>& in, const split_queries& of, std::int64_t most_keys,
                     heads_at<T> out, sum_of_type<T>* lse) {
  using body = attention_part<T, Mask>;
  in_turns(on, in, of, tiles_of(most_keys, split_keys), out, lse, [&](const auto& found) {
    const body each{in, found, in.heads / in.shared};
    on.template each_tile<sum_of_type<T>>(each.items(), split_keys, body::elements(in.q.head_dim, out.head_dim), each);
  });
}

}  // namespace heddle::inline v0::compute::detail::in_groups
