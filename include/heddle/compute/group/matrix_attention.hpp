// heddle/compute/group/matrix_attention.hpp: 16-bit attention by matrix instructions of warps.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/group/attention_tiles.hpp>
#include <heddle/compute/group/warps.hpp>
#include <heddle/core/half_precision.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail::in_groups {

/// A range of numbers, empty where `end` is not above `begin`.
struct small_range {
  int begin = 0, end = 0;
};
/// A slice of a mask in 32 bits, which suffice (see `counts_in_32_bits`) and take half the instructions.
struct small_slice {
  small_range queries, keys;
  bool ends_early, begins_late;

  /// Keys that queries [begin, end) see, from the first to the last, or queries that see these keys. Both bounds rise with the row.
  template <bool OfQueries>
  HEDDLE_HD small_range seen_by(int begin, int end) const {
    const small_range& rows = OfQueries ? queries : keys;
    const int first = begin > rows.begin ? begin : rows.begin, last = (end < rows.end ? end : rows.end) - 1;
    if (first > last) return {};
    if constexpr (OfQueries) {
      return {keys.begin + (begins_late ? first - queries.begin : 0),
              keys.end - (ends_early ? queries.end - 1 - last : 0)};
    } else {
      const int from = queries.end - (keys.end - first), to = queries.begin + (last - keys.begin) + 1;
      return {ends_early && from > queries.begin ? from : queries.begin,
              begins_late && to < queries.end ? to : queries.end};
    }
  }
};

/// A mask of one of two kinds: the slices of a list, or sequences of `sequence` rows, each causal.
struct either_mask {
  const attention_slice* all;
  std::int64_t count, sequence;

  HEDDLE_HD std::int64_t slices() const { return sequence == 0 ? count : 1; }
  /// Slice i, or the slice of the sequence that begins in row `first`.
  HEDDLE_HD small_slice slice(int i, int first) const {
    if (sequence != 0) {
      const small_range rows{first, first + static_cast<int>(sequence)};
      return {rows, rows, true, false};
    }
    const attention_slice& s = all[i];
    const auto in_32_bits = [](std::int64_t begin, std::int64_t end) {
      return small_range{static_cast<int>(begin), static_cast<int>(end)};
    };
    return {in_32_bits(s.q_begin, s.q_end), in_32_bits(s.k_begin, s.k_end), listed_slices::ends_early(s),
            listed_slices::begins_late(s)};
  }
};
inline either_mask either(const listed_slices& mask) {
  return {mask.all, mask.count, 0};
}
inline either_mask either(const causal_batch& mask) {
  return {nullptr, 1, mask.sequence};
}

/// Rows of a sequence, or of all, in blocks of so many: which of them an item has. Of every `together` heads of all sequences the blocks that see most come first, for a
/// causal mask: those that a device computes last then are short, and as many heads have their keys in its cache.
struct rows_of_item {
  static constexpr unsigned together = 32;
  int begin, end, first, head;  // `first`: row of the sequence

  HEDDLE_HD rows_of_item(std::int64_t item, std::int64_t sequence, std::int64_t sequences, std::int64_t heads,
                         unsigned size, bool from_last) {
    // 32 bits suffice (see `counts_in_32_bits`), and take no call.
    const auto rows = static_cast<unsigned>(sequence), tiles = (rows + size - 1) / size;
    const unsigned all = static_cast<unsigned>(sequences) * static_cast<unsigned>(heads);
    const unsigned before = static_cast<unsigned>(item) / (tiles * together) * together;  // heads
    const unsigned here = all - before < together ? all - before : together;
    const unsigned rest = static_cast<unsigned>(item) - before * tiles, at = rest / here, which = before + rest % here;
    head = static_cast<int>(which % static_cast<unsigned>(heads));
    first = static_cast<int>(which / static_cast<unsigned>(heads) * rows);
    begin = first + static_cast<int>(from_last ? tiles - 1 - at : at) * static_cast<int>(size);
    end = begin + static_cast<int>(size) < first + static_cast<int>(rows) ? begin + static_cast<int>(size)
                                                                          : first + static_cast<int>(rows);
  }
};

/// The tiles of up to `Size` keys that queries [begin, end) see, or of queries that see these keys: slice by slice, for each of `heads` heads. What the rows
/// of a warp see is found once for each slice.
template <bool OfQueries, int Size>
struct tile_walk {
  either_mask mask;
  int begin, end, first;
  int row;  // the first row of the warp, which has `rows`
  int rows;
  int heads = 1;
  int head = 0, index = -1, at = 0, to = 0;
  small_range some{}, all{};  // what any of the warp's rows sees, and what all of them see

  HEDDLE_HD int count() const { return to - at < Size ? to - at : Size; }
  /// Whether there is one more; it then is the one that `at` and `count()` say.
  HEDDLE_HD bool next() {
    for (at += Size; at >= to;) {
      if (++index >= mask.slices()) {
        if (++head >= heads) return false;
        index = -1;
        continue;
      }
      enter(mask.slice(index, first));
    }
    return true;
  }

 private:
  HEDDLE_HD void enter(const small_slice& slice) {
    const small_range tiles = slice.template seen_by<OfQueries>(begin, end);
    at = tiles.begin;
    to = tiles.end;
    some = all = {};
    const int last = row + rows < end ? row + rows : end;
    if (row >= last) return;
    some = slice.template seen_by<OfQueries>(row, last);
    const int inside = OfQueries ? slice.queries.end : slice.keys.end;
    all.begin = slice.template seen_by<OfQueries>((last < inside ? last : inside) - 1, last).begin;
    const int ends[2]{slice.template seen_by<OfQueries>(row, row + 1).end,
                      slice.template seen_by<OfQueries>(last - 1, last).end};
    all.end = ends[0] < ends[1] ? ends[0] : ends[1];  // 0 of a row that is not in the slice
  }
};
/// A tile that a walk has come to, and how the mask cuts through what the rows of a warp have of it.
template <bool OfQueries, int Size>
struct seen_tile {
  int index, at;
  bool any, begins_inside, ends_inside;

  HEDDLE_HD explicit seen_tile(const tile_walk<OfQueries, Size>& walk)
      : index(walk.index),
        at(walk.at),
        any(walk.some.begin < walk.some.end && walk.some.begin < walk.at + Size && walk.some.end > walk.at),
        begins_inside(walk.all.begin > walk.at),
        ends_inside(walk.all.end < walk.at + Size) {}
};

/// Heads in rows that are `stride` elements apart, with sizes of 32 bits: an address takes one multiplication.
template <class T>
struct small_heads {
  T* data;
  int stride, head_dim;

  small_heads(const heads_at<T>& x)
      : data(x.data), stride(static_cast<int>(x.stride)), head_dim(static_cast<int>(x.head_dim)) {}
  /// The elements of a row that are this head.
  HEDDLE_HD T* operator()(int row, int head) const {
    return data + static_cast<std::int64_t>(row) * stride + static_cast<std::int64_t>(head) * head_dim;
  }
  /// The rows of a head from `row` on.
  HEDDLE_HD auto rows(int row, int head) const {
    return strided_rows<std::remove_const_t<T>, int>{data + static_cast<std::int64_t>(head) * head_dim, stride, row};
  }
};

/// Sizes and inputs of the kernels below. `width`: elements of a head of queries and keys, `value_width`: of values, both up to the `Width` of the tiles, which have zeros behind them.
template <class T>
struct matrix_attention_inputs {
  small_heads<const T> q, k, v;
  std::int64_t queries, heads, shared;
  std::int64_t rows, sequences;  // rows of a sequence, or all queries as one
  either_mask mask;
  page_table pages;
  float scale;

  HEDDLE_HD int width() const { return q.head_dim; }
  HEDDLE_HD int value_width() const { return v.head_dim; }
  /// 2^(factor x) = e^(scale x).
  HEDDLE_HD float factor() const { return scale * 1.44269504088896340736f; }
};

/// Rows of keys, or values, by a table of pages, from a key on.
template <class T>
struct paged_rows {
  const T* first;  // of row 0
  std::int64_t stride;
  page_table pages;
  int key;
  struct each {
    const paged_rows& of;
    int key, step;
    HEDDLE_HD const T* next() {
      const int rows = static_cast<int>(of.pages.page_rows), end = static_cast<int>(of.pages.count) * rows;
      const int k = key < end ? key : of.key;  // behind the last page nothing is read
      key += step;
      return of.first + (static_cast<std::int64_t>(of.pages.pages[k / rows]) * rows + k % rows) * of.stride;
    }
  };
  HEDDLE_HD each begin(int row, int step) const { return {*this, key + row, step}; }
};
/// Starts to copy the keys [key, key + keys) of one head, and their values, into two tiles.
template <int Warps, int Size, class W, class T, int Width>
HEDDLE_HD void copy_keys(W& w, const matrix_attention_inputs<T>& in, int kv, int key, int keys,
                         const swizzled_tile<T, Width>& k, const swizzled_tile<T, Width>& v) {
  w.forget(kv);
  if (in.pages.page_rows == 0) {
    copy_rows<Warps, Size>(w, k, keys, in.width(), in.k.rows(key, kv));
    copy_rows<Warps, Size>(w, v, keys, in.value_width(), in.v.rows(key, kv));
  } else {
    copy_rows<Warps, Size>(w, k, keys, in.width(), paged_rows<T>{in.k(0, kv), in.k.stride, in.pages, key});
    copy_rows<Warps, Size>(w, v, keys, in.value_width(), paged_rows<T>{in.v(0, kv), in.v.stride, in.pages, key});
  }
}

/// Scores of pairs that the mask does not show become -inf, in a tile and rows from `row` on.
template <bool OfQueries, int Size, class W, int Down>
HEDDLE_HD void hide_unseen(W& w, warp_sums<W, Down, Size / 8>& s, const tile_walk<OfQueries, Size>& walk,
                           const seen_tile<OfQueries, Size>& seen) {
  if (!seen.begins_inside && !seen.ends_inside) return;
  const small_slice slice = walk.mask.slice(seen.index, walk.first);
  each_constant<Down>([&](auto m) {
    w.each_lane([&](int l) {
      int begin[2], end[2];
      for (int i = 0; i < 2; ++i) {
        const int r = walk.row + 16 * m + l / 4 + 8 * i, first = seen.at + 2 * (l % 4);
        const small_range of_row = slice.template seen_by<OfQueries>(r, r + 1);
        begin[i] = of_row.begin - first;
        end[i] = of_row.end - first;
      }
      if (seen.begins_inside)
        each_constant<Size / 8>([&](auto n) {
          for (int i = 0; i < 4; ++i)
            if (8 * n + i % 2 < begin[i / 2]) s.x[m][n](l, i) = -HUGE_VALF;
        });
      if (seen.ends_inside)
        each_constant<Size / 8>([&](auto n) {
          for (int i = 0; i < 4; ++i)
            if (8 * n + i % 2 >= end[i / 2]) s.x[m][n](l, i) = -HUGE_VALF;
        });
    });
  });
}

/// Shares of keys are in units of e^top, where `top` is the largest score or up to so many powers of two below it: what was summed before is scaled again where a
/// row's largest score has risen by more. The result is the same but for rounding, and what else is in a warp does not change it.
/// Source: Zadouri et al. 2026, "FlashAttention-4", section on softmax rescaling.
inline constexpr float most_above_top = 8.0f;

/// Scores of keys become shares. `factor` is that of `matrix_attention_inputs`.
template <class W, int Down, int Keys, int Columns>
HEDDLE_HD void weigh_scores(W& w, float factor, warp_sums<W, Down, Keys>& s, warp_sums<W, Down, Columns>& sum,
                            registers_of<W, float, 2> (&top)[Down], registers_of<W, float, 2> (&total)[Down]) {
  registers_of<W, float, 2> best[Down];
  registers_of<W, int, 2 * Down> rises;
  each_constant<Down>([&](auto m) {
    best[m] = top[m];
    w.each_lane([&](int l) {
      each_constant<Keys>([&](auto n) {
        for (int i = 0; i < 4; ++i) best[m](l, i / 2) = std::fmax(best[m](l, i / 2), s.x[m][n](l, i));
      });
    });
    w.over_quads(best[m], [](float a, float b) { return std::fmax(a, b); });
    w.each_lane([&](int l) {
      // From -inf, too: an infinity less an infinity is not below anything.
      for (int i = 0; i < 2; ++i)
        rises(l, 2 * m + i) = !(best[m](l, i) * factor - most_above_top <= top[m](l, i) * factor);
    });
  });
  if (w.any(rises)) {
    each_constant<Down>([&](auto m) {
      w.each_lane([&](int l) {
        float shrink[2];
        for (int i = 0; i < 2; ++i) {
          const float level = best[m](l, i) * factor;
          shrink[i] = rises(l, 2 * m + i) ? w.power_of_two(top[m](l, i) * factor - level) : 1.0f;
          if (rises(l, 2 * m + i)) top[m](l, i) = best[m](l, i);
          total[m](l, i) *= shrink[i];
        }
        each_constant<Columns>([&](auto n) {
          for (int i = 0; i < 4; ++i) sum.x[m][n](l, i) *= shrink[i / 2];
        });
      });
    });
  }
  each_constant<Down>([&](auto m) {
    w.each_lane([&](int l) {
      float level[2];
      for (int i = 0; i < 2; ++i)  // no key yet: no infinity less an infinity
        level[i] = top[m](l, i) == -HUGE_VALF ? 0.0f : top[m](l, i) * factor;
      each_constant<Keys>([&](auto n) {
        for (int i = 0; i < 4; ++i) {
          const float share = w.power_of_two(s.x[m][n](l, i) * factor - level[i / 2]);
          s.x[m][n](l, i) = share;
          total[m](l, i / 2) += share;
        }
      });
    });
  });
}

/// A block has 16 `Down` queries of one head for each of its warps, and goes over the keys by `Keys`, whose next tile is copied while it computes. Scores
/// and their statistics stay in registers, where the shares of keys already lie as operands of the second product. Tiles that
/// no query sees are left out, for a block and for each warp; masks are looked at where they cut through a warp's part of a tile.
/// Source: Dao 2023, arXiv:2307.08691, algorithm 1 and section 3.3 (warps split the queries).
template <class T, int Width, int Down, int Keys>
struct matrix_attention_tile {
  static constexpr int warps = 4, blocks = 2, size = 16 * Down * warps;
  static constexpr std::int64_t elements = (size + 4 * Keys) * Width;
  matrix_attention_inputs<T> in;
  small_heads<T> out;
  float* lse;

  std::int64_t items() const { return tiles_of(in.rows, size) * in.heads * in.sequences; }

  template <class W>
  HEDDLE_HD void operator()(W& w, std::int64_t item, T* memory) const {
    using tile = swizzled_tile<T, Width>;
    const rows_of_item own(item, in.rows, in.sequences, in.heads, size, true);
    const int kv = own.head / static_cast<int>(in.shared), begin = own.begin, rows = own.end - begin;
    const int row = 16 * Down * w.index();
    const tile q{memory};
    const auto k = [memory](int stage) { return tile{memory + (size + 2 * stage * Keys) * Width}; };
    const auto v = [memory](int stage) { return tile{memory + (size + (2 * stage + 1) * Keys) * Width}; };
    tile_walk<true, Keys> walk{in.mask, begin, own.end, own.first, begin + row, 16 * Down};
    w.sync();  // the last item is done with the memory
    copy_rows<warps, size>(w, q, rows, in.width(), in.q.rows(begin, own.head));
    bool more = walk.next();
    if (more) copy_keys<warps, Keys>(w, in, kv, walk.at, walk.count(), k(0), v(0));
    w.commit();
    warp_sums<W, Down, Width / 8> sum;
    sum.clear(w);
    registers_of<W, float, 2> top[Down], total[Down];
    each_constant<Down>([&](auto m) {
      w.each_lane([&](int l) {
        for (int i = 0; i < 2; ++i) {
          top[m](l, i) = -HUGE_VALF;
          total[m](l, i) = 0.0f;
        }
      });
    });
    for (int stage = 0; more; stage = 1 - stage) {
      w.template wait<0>();
      w.sync();  // all copies of this tile are there, and all warps are done with the tile before
      const seen_tile<true, Keys> seen(walk);
      more = walk.next();
      if (more) copy_keys<warps, Keys>(w, in, kv, walk.at, walk.count(), k(1 - stage), v(1 - stage));
      w.commit();
      if (!seen.any) continue;
      warp_sums<W, Down, Keys / 8> s;
      s.clear(w);
      add_product_of_rows(w, s, q, row, k(stage));
      hide_unseen(w, s, walk, seen);
      weigh_scores(w, in.factor(), s, sum, top, total);
      add_product(w, sum, s, v(stage));
    }
    w.template wait<0>();
    w.sync();  // queries without keys were still on their way
    each_constant<Down>([&](auto m) {
      w.over_quads(total[m], [](float a, float b) { return a + b; });
      w.each_lane([&](int l) {
        for (int i = 0; i < 2; ++i) {
          const int r = row + 16 * m + l / 4 + 8 * i;
          if (l % 4 != 0 || r >= rows) continue;
          const float all = total[m](l, i);
          lse[own.head * in.queries + begin + r] = all == 0.0f ? -HUGE_VALF : top[m](l, i) * in.scale + std::log(all);
        }
        for (int i = 0; i < 2; ++i) total[m](l, i) = total[m](l, i) == 0.0f ? 0.0f : w.reciprocal(total[m](l, i));
      });
    });
    store_sums(
        w, sum, q, row, rows, in.value_width(), [&](int m, int l, int i) { return total[m](l, i); },
        [&](int r) { return out(begin + r, own.head); });
  }
};

/// Whether the kernels take these heads: up to `most` elements, a multiple of 8, at addresses of 16 bytes; 32 bits count the elements between rows.
template <class T>
bool fits_matrix_instructions(const heads_at<T>& x, std::int64_t width, std::int64_t most) {
  return x.head_dim == width && width >= 8 && width <= most && width % 8 == 0 && x.stride % 8 == 0 &&
         x.stride < std::int64_t{1} << 30 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
}
/// Whether 32 bits count rows and items.
template <class T, class Mask>
bool counts_in_32_bits(const attention_inputs<T, Mask>& in) {
  constexpr std::int64_t most = std::int64_t{1} << 30;
  return in.queries > 0 && in.heads > 0 && in.queries * in.heads < most && in.key_rows < most &&
         in.pages.count * in.pages.page_rows < most;
}
/// Of the output alone: up to 256 elements, values of a width of their own.
template <class T, class Mask>
bool fits_matrix_instructions(const attention_inputs<T, Mask>& in, const heads_at<T>& out) {
  constexpr std::int64_t most = 256;
  const std::int64_t width = in.q.head_dim, of_values = in.v.head_dim;
  return fits_matrix_instructions(in.q, width, most) && fits_matrix_instructions(in.k, width, most) &&
         fits_matrix_instructions(in.v, of_values, most) && fits_matrix_instructions(out, of_values, most) &&
         counts_in_32_bits(in);
}
/// Of gradients: up to 128 elements, one width for all.
template <class T, class Mask, class... More>
bool fits_matrix_gradients(const attention_inputs<T, Mask>& in, const More&... more) {
  constexpr std::int64_t most = 128;
  const std::int64_t width = in.q.head_dim;
  return (fits_matrix_instructions(more, width, most) && ...) && fits_matrix_instructions(in.q, width, most) &&
         fits_matrix_instructions(in.k, width, most) && fits_matrix_instructions(in.v, width, most) &&
         counts_in_32_bits(in);
}
template <class T, class Mask>
matrix_attention_inputs<T> matrix_inputs(const attention_inputs<T, Mask>& in) {
  const either_mask mask = either(in.mask);
  const std::int64_t rows = mask.sequence != 0 ? mask.sequence : in.queries;
  return {in.q, in.k, in.v, in.queries, in.heads, in.shared, rows, in.queries / rows, mask, in.pages, in.scale};
}
/// f(Width) with the least width of a kernel that these heads fit.
template <class F>
void with_width(std::int64_t head_dim, const F& f) {
  if (head_dim <= 64) return f(constant<64>{});
  if (head_dim <= 96) return f(constant<96>{});
  f(constant<128>{});
}
/// The same for kernels of the output alone, which take wider heads.
template <class T, class Mask, class F>
void with_width_of(const attention_inputs<T, Mask>& in, const F& f) {
  const std::int64_t width = in.q.head_dim > in.v.head_dim ? in.q.head_dim : in.v.head_dim;
  if (width <= 128) return with_width(width, f);
  if (width <= 192) return f(constant<192>{});
  f(constant<256>{});
}
template <class T, int Width>
using matrix_attention_of = matrix_attention_tile<T, Width, Width <= 128 ? 2 : 1, Width <= 128 ? 64 : 32>;

/// Attention by matrix instructions, if the device has them and they take these heads; else nothing is done, and false returned.
template <class L, class T, class Mask>
bool attend_by_matrices(const L& on, const attention_inputs<T, Mask>& in, heads_at<T> out, float* lse) {
  if constexpr (requires { on.multiplies_matrices(); }) {
    if (!on.multiplies_matrices() || !fits_matrix_instructions(in, out)) return false;
    with_width_of(in, [&]<int Width>(constant<Width>) {
      const matrix_attention_of<T, Width> body{matrix_inputs(in), out, lse};
      on.template each_item_of_warps<T>(body.items(), body);
    });
    return true;
  } else {
    return false;
  }
}

}  // namespace heddle::inline v0::compute::detail::in_groups
