// heddle/compute/group/split_matrix_attention.hpp: split-KV attention of 16 bits, by warps.
#pragma once

#include <heddle/compute/group/attention_rows.hpp>
#include <heddle/compute/group/half_attention.hpp>
#include <heddle/compute/group/matrix_attention.hpp>
#include <heddle/compute/group/split_attention.hpp>
#include <heddle/compute/group/warps.hpp>
#include <heddle/core/half_precision.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail::in_groups {

/// Keys of a part of a query that sees so many: few parts of long contexts, so that little is written between the kernels; many of short ones, so that few sequences fill the
/// device. Depends on the query's own keys alone.
struct keys_of_parts {
  static constexpr std::int64_t least = 64, few = 512, many = 4096;

  HEDDLE_HD static std::int64_t of(std::int64_t keys) {
    return keys <= few ? least : keys <= many ? 2 * least : 4 * least;
  }
  /// The most parts of a query that sees up to so many keys.
  static std::int64_t most_parts(std::int64_t keys) {
    std::int64_t most = tiles_of(keys, of(keys));
    for (const std::int64_t before : {few, many})
      if (keys > before && tiles_of(before, of(before)) > most) most = tiles_of(before, of(before));
    return most;
  }
};

/// Keys that a query sees from number `skip` on, `left` of them, in tiles of up to `Size` that lie in one slice. `from` and `last`: the first and last slice that has the query.
template <int Size>
struct walk_of_part {
  const attention_slice* all;
  std::int64_t query;
  int index, last;
  std::int64_t skip, left;
  int at = 0, to = 0;

  HEDDLE_HD int count() const { return to - at < Size ? to - at : Size; }
  /// Whether there is one more; it then is the one that `at` and `count()` say.
  HEDDLE_HD bool next() {
    at += Size;
    while (at >= to) {
      if (left <= 0 || index > last) return false;
      std::int64_t begin = 0, end = 0;
      const bool sees = listed_slices::keys_of(all[index++], query, begin, end);
      if (!sees || end <= begin) continue;
      const std::int64_t out = skip < end - begin ? skip : end - begin;
      skip -= out;
      begin += out;
      if (end - begin > left) end = begin + left;
      left -= end - begin;
      at = static_cast<int>(begin);
      to = static_cast<int>(end);
    }
    return true;
  }
};

/// A block has one part of the keys of a query, for up to 16 query heads of one key-value head, which are the rows of its products: keys are read once for all of them.
/// Each warp has 16 keys of a tile, with sums and statistics of its own; the next tile is copied meanwhile. What the warps have found is
/// combined in float. Which keys a part and a warp have depends on the query's own keys alone.
/// Source: Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference".
template <class T, int Width>
struct matrix_attention_part {
  using tile = swizzled_tile<T, Width>;
  static constexpr int warps = Width <= 128 ? 4 : 2, blocks = 3, size = 16, keys = 16 * warps;
  static constexpr int copied = tile::together == 8 ? size : 2 * size;  // rows that all lanes copy together
  static constexpr std::int64_t elements = (copied + 4 * keys) * Width;
  static constexpr int stride = Width + 8;  // of sums in memory, so that rows are in different banks
  static_assert(warps * size * (stride + 2) * 2 <= 4 * keys * Width, "heddle: sums have the place of keys");
  matrix_attention_inputs<T> in;
  split_results<float> found;

  std::int64_t kv_heads() const { return in.heads / in.shared; }
  std::int64_t items() const { return found.queries * kv_heads() * tiles_of(in.shared, size) * found.parts; }

  template <class W>
  HEDDLE_HD void operator()(W& w, std::int64_t item, T* memory) const {
    const split_item own(item, found, in.heads / in.shared, in.shared, size);
    const int kv = static_cast<int>(own.kv), row = 16 * w.index();
    const tile q{memory};
    const auto k = [memory](int stage) { return tile{memory + (copied + 2 * stage * keys) * Width}; };
    const auto v = [memory](int stage) { return tile{memory + (copied + (2 * stage + 1) * keys) * Width}; };
    walk_of_part<keys> walk = part_of(w, own);
    w.sync();  // the last item is done with the memory
    bool more = walk.next();
    if (more) {
      const T* const of_row = in.q(static_cast<int>(own.row), static_cast<int>(own.head));
      copy_rows<warps, copied>(w, q, own.heads, in.width(), strided_rows<T, int>{of_row, in.q.head_dim});
      copy_keys<warps, keys>(w, in, kv, walk.at, walk.count(), k(0), v(0));
    }
    w.commit();
    warp_sums<W, 1, Width / 8> sum;
    sum.clear(w);
    registers_of<W, float, 2> top[1], total[1];
    w.each_lane([&](int l) {
      for (int i = 0; i < 2; ++i) {
        top[0](l, i) = -HUGE_VALF;
        total[0](l, i) = 0.0f;
      }
    });
    for (int stage = 0; more; stage = 1 - stage) {
      w.template wait<0>();
      w.sync();  // all copies of this tile are there, and all warps are done with the tile before
      const int count = walk.count() - row;  // of this warp
      more = walk.next();
      if (more) copy_keys<warps, keys>(w, in, kv, walk.at, walk.count(), k(1 - stage), v(1 - stage));
      w.commit();
      if (count <= 0) continue;
      warp_sums<W, 1, 2> s;
      s.clear(w);
      add_product_of_rows(w, s, q, 0, tile{k(stage).data + row * Width});
      if (count < 16) hide_from(w, s, count);
      weigh_scores(w, in.factor(), s, sum, top, total);
      add_product(w, sum, s, tile{v(stage).data + row * Width});
    }
    w.template wait<0>();
    w.sync();  // all warps are done with the keys, whose place sums have now
    w.over_quads(total[0], [](float a, float b) { return a + b; });
    store(w, own, sum, top[0], total[0], reinterpret_cast<float*>(memory + copied * Width));
  }

 private:
  /// The keys of this part, found by all lanes together: slices may be many.
  template <class W>
  HEDDLE_HD walk_of_part<keys> part_of(W& w, const split_item& own) const {
    const int count = static_cast<int>(in.mask.count);
    registers_of<W, int, 2>
        ends;  // the first slice with the query, and -1 minus the last: the least of all lanes is wanted of both
    w.each_lane([&](int l) {
      ends(l, 0) = count;
      ends(l, 1) = 0;
      for (int i = l; i < count; i += warp_lanes) {
        if (own.row < in.mask.all[i].q_begin || own.row >= in.mask.all[i].q_end) continue;
        if (i < ends(l, 0)) ends(l, 0) = i;
        ends(l, 1) = -1 - i;
      }
    });
    w.over_lanes(ends, [](int a, int b) { return a < b ? a : b; });
    int first = 0, last = 0;
    w.each_lane([&](int l) {
      first = ends(l, 0);
      last = -1 - ends(l, 1);
    });
    std::int64_t seen = 0;
    for (int i = first; i <= last; ++i) {
      std::int64_t from = 0, to = 0;
      if (listed_slices::keys_of(in.mask.all[i], own.row, from, to) && to > from) seen += to - from;
    }
    const std::int64_t each = keys_of_parts::of(seen), begin = own.part * each;
    const std::int64_t left = own.part + 1 == found.parts || seen - begin < each ? seen - begin : each;
    return {in.mask.all, own.row, first, last, begin, left};
  }
  /// Scores of columns from `count` on become -inf.
  template <class W>
  HEDDLE_HD static void hide_from(W& w, warp_sums<W, 1, 2>& s, int count) {
    each_constant<2>([&](auto n) {
      w.each_lane([&](int l) {
        for (int i = 0; i < 4; ++i)
          if (8 * n + 2 * (l % 4) + i % 2 >= count) s.x[0][n](l, i) = -HUGE_VALF;
      });
    });
  }
  /// Combines what the warps have found, through memory: sums [warps, 16, stride], the largest scores and the sums of shares [warps, 16] each.
  template <class W>
  HEDDLE_HD void store(W& w, const split_item& own, const warp_sums<W, 1, Width / 8>& sum,
                       const registers_of<W, float, 2>& top, const registers_of<W, float, 2>& total,
                       float* sums) const {
    float* const tops = sums + warps * size * stride;
    float* const totals = tops + warps * size;
    const int mine = size * w.index();
    w.each_lane([&](int l) {
      for (int i = 0; i < 2; ++i) {
        const int r = mine + l / 4 + 8 * i;
        if (l % 4 != 0) continue;
        tops[r] = top(l, i);
        totals[r] = total(l, i);
      }
      each_constant<Width / 8>([&](auto n) {
        for (int i = 0; i < 4; ++i)
          sums[(mine + l / 4 + i / 2 * 8) * stride + 8 * n + 2 * (l % 4) + i % 2] = sum.x[0][n](l, i);
      });
    });
    w.sync();
    const std::int64_t place = own.place(found, in.heads);
    const int width = in.value_width(), thread = warp_lanes * w.index();
    w.each_lane([&](int l) {
      const float factor = in.factor();
      for (int e = thread + l; e < own.heads * Width; e += warps * warp_lanes) {
        const int r = e / Width, d = e % Width;
        float best = -HUGE_VALF;
        for (int i = 0; i < warps; ++i) best = std::fmax(best, tops[i * size + r]);
        float all = 0, x = 0;
        for (int i = 0; i < warps; ++i) {
          const int of = i * size + r;
          const float weight = totals[of] == 0.0f ? 0.0f : w.power_of_two((tops[of] - best) * factor);
          all += weight * totals[of];
          if (d < width) x += weight * sums[of * stride + d];
        }
        const std::int64_t to = place + r * found.parts;
        if (d < width && all != 0.0f) found.out[to * found.width + d] = x;
        if (d != 0) continue;
        found.top[to] = best * in.scale;
        found.total[to] = all;
      }
    });
  }
};

/// Attention of these queries in parts of the keys by matrix instructions, if the device has them and they take these heads; else nothing is done, and false returned.
template <class L, class T>
bool attend_in_matrix_parts(const L& on, const attention_inputs<T, listed_slices>& in, const split_queries& of,
                            std::int64_t most_keys, heads_at<T> out, float* lse) {
  if constexpr (requires { on.multiplies_matrices(); }) {
    if (!on.multiplies_matrices() || !fits_matrix_instructions(in, out)) return false;
    with_width_of(in, [&]<int Width>(constant<Width>) {
      in_turns(on, in, of, keys_of_parts::most_parts(most_keys), out, lse, [&](const auto& found) {
        const matrix_attention_part<T, Width> body{matrix_inputs(in), found};
        on.template each_item_of_warps<T>(body.items(), body);
      });
    });
    return true;
  } else {
    return false;
  }
}

/// Bytes that `attend_few` takes for a moment, for `queries` queries of `heads` heads that see up to `most_keys` keys each. `in`, `out`: of the heads. Exact, but where heads would
/// be converted to float for the queries that are not few.
template <class L, class T>
std::int64_t few_query_bytes(const L& on, const attention_inputs<T, listed_slices>& in, std::int64_t queries,
                             std::int64_t most_keys, const heads_at<T>& out) {
  const auto bytes = [&](std::int64_t parts) {
    return split_turn<sum_of_type<T>>(queries, in.heads, parts, out.head_dim, room_of_parts<L>()).bytes;
  };
  if (queries <= 0 || in.heads <= 0 || most_keys <= 0) return 0;
  if constexpr (is_half_precision<T> && requires { on.multiplies_matrices(); })
    if (on.multiplies_matrices() && fits_matrix_instructions(in, out))
      return bytes(keys_of_parts::most_parts(most_keys));
  return fits_parts(on, in, out) ? bytes(tiles_of(most_keys, split_keys)) : 0;
}
/// Attention of these queries in parts of the keys, `most_keys` of which one sees, and of all others by tiles. If `of` is a list, the first `slices` slices are those of its queries, and the
/// rest has no other. False, and nothing is done, where the memory of a group has no room for a part; that depends on the heads and the device alone.
template <class L, class T>
bool attend_few(const L& on, const attention_inputs<T, listed_slices>& in, const split_queries& of, std::int64_t slices,
                std::int64_t most_keys, heads_at<T> out, sum_of_type<T>* lse) {
  bool by_matrices = false;
  if constexpr (is_half_precision<T> && requires { on.multiplies_matrices(); })
    by_matrices = on.multiplies_matrices() && fits_matrix_instructions(in, out);
  if (!by_matrices && !fits_parts(on, in, out)) return false;
  attention_inputs<T, listed_slices> few = in;
  if (of.rows != nullptr) {
    attention_inputs<T, listed_slices> rest = in;
    rest.mask = {in.mask.all + slices, in.mask.count - slices};
    few.mask.count = slices;
    attend(on, rest, out, lse);  // zeros for the queries of the list, which come behind
  }
  if constexpr (is_half_precision<T>)
    if (by_matrices) return attend_in_matrix_parts(on, few, of, most_keys, out, lse);
  attend_in_parts(on, few, of, most_keys, out, lse);
  return true;
}

}  // namespace heddle::inline v0::compute::detail::in_groups
