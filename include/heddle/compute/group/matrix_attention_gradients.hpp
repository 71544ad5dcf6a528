// heddle/compute/group/matrix_attention_gradients.hpp: gradients of 16-bit attention, by warps.
#pragma once

#include <heddle/compute/group/vectors.hpp>
#include <heddle/compute/group/matrix_attention.hpp>
#include <heddle/compute/group/warps.hpp>

#include <cmath>
#include <cstdint>

namespace heddle::inline v0::compute::detail::in_groups {

/// A log-sum-exp in units of powers of two, of a query without keys so that no key has a share in it.
HEDDLE_HD inline float level_of(float lse) {
  return lse == -HUGE_VALF ? HUGE_VALF : lse * 1.44269504088896340736f;
}

/// Statistics of each query and head, [heads, queries] each: `levels`, and dout out, the part of a score's gradient that all keys share. Item i is head
/// i % heads of a query, for one thread, so that neighbours read neighbouring heads.
template <class T>
struct statistics_body {
  heads_at<const T> dout, out;
  std::int64_t queries, heads;
  const float* lse;
  float *levels, *of_outs;
  HEDDLE_HD void operator()(std::int64_t item) const {
    const std::int64_t r = item / heads, h = item % heads;
    const T *const d = dout(r, h), *const y = out(r, h);
    float all = 0;
    for (std::int64_t j = 0; j < out.head_dim; j += 8) {
      pack<T, 8> of_d, of_y;
      of_d.load(d + j);
      of_y.load(y + j);
      for (int e = 0; e < 8; ++e) all += static_cast<float>(of_d.values[e]) * static_cast<float>(of_y.values[e]);
    }
    of_outs[h * queries + r] = all;
    levels[h * queries + r] = level_of(lse[h * queries + r]);
  }
};

/// Gradients of 16 `Down` queries of one head for each warp of a block, key tile by key tile: p = e^(s - lse), ds = p (dout v' - dout out), dq = scale ds k.
/// Source: Dao 2023, arXiv:2307.08691, algorithm 2; by queries, so that no two blocks add to one number.
template <class T, int Width, int Down, int Keys>
struct matrix_attention_query_gradients {
  static constexpr int warps = 4, blocks = 2, size = 16 * Down * warps;
  static constexpr std::int64_t elements = (2 * size + 4 * Keys) * Width;
  matrix_attention_inputs<T> in;
  small_heads<const T> dout;
  const float *levels, *of_outs;
  small_heads<T> dq;

  std::int64_t items() const { return tiles_of(in.rows, size) * in.heads * in.sequences; }

  template <class W>
  HEDDLE_HD void operator()(W& w, std::int64_t item, T* memory) const {
    using tile = swizzled_tile<T, Width>;
    const rows_of_item own(item, in.rows, in.sequences, in.heads, size, true);
    const int kv = own.head / static_cast<int>(in.shared), begin = own.begin, rows = own.end - begin;
    const int row = 16 * Down * w.index();
    const tile q{memory}, d{memory + size * Width};
    const auto k = [memory](int stage) { return tile{memory + (2 * size + 2 * stage * Keys) * Width}; };
    const auto v = [memory](int stage) { return tile{memory + (2 * size + (2 * stage + 1) * Keys) * Width}; };
    tile_walk<true, Keys> walk{in.mask, begin, own.end, own.first, begin + row, 16 * Down};
    w.sync();  // the last item is done with the memory
    copy_rows<warps, size>(w, q, rows, in.width(), in.q.rows(begin, own.head));
    copy_rows<warps, size>(w, d, rows, in.width(), dout.rows(begin, own.head));
    bool more = walk.next();
    if (more) copy_keys<warps, Keys>(w, in, kv, walk.at, walk.count(), k(0), v(0));
    w.commit();
    warp_sums<W, Down, Width / 8> sum;
    sum.clear(w);
    registers_of<W, float, 2> level[Down], of_out[Down];
    each_constant<Down>([&](auto m) {
      w.each_lane([&](int l) {
        for (int i = 0; i < 2; ++i) {
          const int r = row + 16 * m + l / 4 + 8 * i;
          const std::int64_t at = own.head * in.queries + begin + r;
          level[m](l, i) = r < rows ? levels[at] : HUGE_VALF;
          of_out[m](l, i) = r < rows ? of_outs[at] : 0.0f;
        }
      });
    });
    for (int stage = 0; more; stage = 1 - stage) {
      w.template wait<0>();
      w.sync();
      const seen_tile<true, Keys> seen(walk);
      more = walk.next();
      if (more) copy_keys<warps, Keys>(w, in, kv, walk.at, walk.count(), k(1 - stage), v(1 - stage));
      w.commit();
      if (!seen.any) continue;
      warp_sums<W, Down, Keys / 8> s, of_share;
      s.clear(w);
      add_product_of_rows(w, s, q, row, k(stage));
      hide_unseen(w, s, walk, seen);
      of_share.clear(w);
      add_product_of_rows(w, of_share, d, row, v(stage));
      const float factor = in.factor();
      each_constant<Down>([&](auto m) {
        each_constant<Keys / 8>([&](auto n) {
          w.each_lane([&](int l) {
            for (int i = 0; i < 4; ++i)
              s.x[m][n](l, i) = w.power_of_two(s.x[m][n](l, i) * factor - level[m](l, i / 2)) *
                                (of_share.x[m][n](l, i) - of_out[m](l, i / 2));
          });
        });
      });
      add_product(w, sum, s, k(stage));
    }
    w.template wait<0>();
    w.sync();
    store_sums(
        w, sum, q, row, rows, in.width(), [&](int, int, int) { return in.scale; },
        [&](int r) { return dq(begin + r, own.head); });
  }
};

/// Gradients of 16 `Down` keys of one key-value head, and of their values, for each warp of a block, from tiles of the queries that see them:
/// dv = p' dout, dk = scale ds' q. Rows are keys here, so that p and ds lie in registers as operands of both products.
template <class T, int Width, int Down, int Queries>
struct matrix_attention_key_gradients {
  static constexpr int warps = 4, blocks = 2, size = 16 * Down * warps;
  static constexpr int statistics = 4 * Queries;  // two floats of each query, in elements of T
  static constexpr std::int64_t elements = (2 * size + 4 * Queries) * Width + 2 * statistics;
  matrix_attention_inputs<T> in;
  small_heads<const T> dout;
  const float *levels, *of_outs;
  small_heads<T> dk, dv;
  std::int64_t key_rows, kv_heads;  // `key_rows`: of a sequence, or all

  std::int64_t items() const { return tiles_of(key_rows, size) * kv_heads * in.sequences; }

  template <class W>
  HEDDLE_HD void operator()(W& w, std::int64_t item, T* memory) const {
    using tile = swizzled_tile<T, Width>;
    const rows_of_item own(item, key_rows, in.sequences, kv_heads, size, false);
    const int begin = own.begin, rows = own.end - begin, row = 16 * Down * w.index(),
              shared = static_cast<int>(in.shared);
    const tile k{memory}, v{memory + size * Width};
    const auto q = [memory](int stage) { return tile{memory + (2 * size + 2 * stage * Queries) * Width}; };
    const auto d = [memory](int stage) { return tile{memory + (2 * size + (2 * stage + 1) * Queries) * Width}; };
    const auto statistics_of = [memory](int stage) {
      return reinterpret_cast<float*>(memory + (2 * size + 4 * Queries) * Width + stage * statistics);
    };
    tile_walk<false, Queries> walk{in.mask, begin, own.end, own.first, begin + row, 16 * Down, shared};
    w.sync();  // the last item is done with the memory
    copy_rows<warps, size>(w, k, rows, in.width(), in.k.rows(begin, own.head));
    copy_rows<warps, size>(w, v, rows, in.width(), in.v.rows(begin, own.head));
    bool more = walk.next();
    if (more) copy_queries(w, own.head * shared + walk.head, walk.at, walk.count(), q(0), d(0), statistics_of(0));
    w.commit();
    warp_sums<W, Down, Width / 8> of_k, of_v;
    of_k.clear(w);
    of_v.clear(w);
    for (int stage = 0; more; stage = 1 - stage) {
      w.template wait<0>();
      w.sync();
      const seen_tile<false, Queries> seen(walk);
      more = walk.next();
      if (more)
        copy_queries(w, own.head * shared + walk.head, walk.at, walk.count(), q(1 - stage), d(1 - stage),
                     statistics_of(1 - stage));
      w.commit();
      if (!seen.any) continue;
      const float *const level = statistics_of(stage), *const of_out = level + Queries, factor = in.factor();
      warp_sums<W, Down, Queries / 8> p, of_share;
      p.clear(w);
      add_product_of_rows(w, p, k, row, q(stage));
      hide_unseen(w, p, walk, seen);
      each_constant<Queries / 8>([&](auto n) {
        w.each_lane([&](int l) {
          const float of_two[2]{level[8 * n + 2 * (l % 4)], level[8 * n + 2 * (l % 4) + 1]};
          each_constant<Down>([&](auto m) {
            for (int i = 0; i < 4; ++i) p.x[m][n](l, i) = w.power_of_two(p.x[m][n](l, i) * factor - of_two[i % 2]);
          });
        });
      });
      of_share.clear(w);
      add_product_of_rows(w, of_share, v, row, d(stage));
      add_product(w, of_v, p, d(stage));
      each_constant<Queries / 8>([&](auto n) {
        w.each_lane([&](int l) {
          const float of_two[2]{of_out[8 * n + 2 * (l % 4)], of_out[8 * n + 2 * (l % 4) + 1]};
          each_constant<Down>([&](auto m) {
            for (int i = 0; i < 4; ++i) p.x[m][n](l, i) *= of_share.x[m][n](l, i) - of_two[i % 2];
          });
        });
      });
      add_product(w, of_k, p, q(stage));
    }
    w.template wait<0>();
    w.sync();
    store_sums(
        w, of_k, k, row, rows, in.width(), [&](int, int, int) { return in.scale; },
        [&](int r) { return dk(begin + r, own.head); });
    store_sums(
        w, of_v, v, row, rows, in.width(), [](int, int, int) { return 1.0f; },
        [&](int r) { return dv(begin + r, own.head); });
  }

 private:
  template <class W, class Tile>
  HEDDLE_HD void copy_queries(W& w, int head, int query, int queries, const Tile& q, const Tile& d, float* to) const {
    w.forget(head);
    copy_rows<warps, Queries>(w, q, queries, in.width(), in.q.rows(query, head));
    copy_rows<warps, Queries>(w, d, queries, in.width(), dout.rows(query, head));
    static_assert(2 * Queries <= warps * warp_lanes);
    w.each_lane([&](int l) {
      const int thread = w.index() * warp_lanes + l, i = thread % Queries;
      const std::int64_t at = head * in.queries + query + i;
      if (thread < 2 * Queries) w.copy_number(to + thread, (thread < Queries ? levels : of_outs) + at, i < queries);
    });
  }
};

// With 32 rows in the registers of a warp what it loads from the block's memory serves two products. Gradients of keys and values of wider heads leave no room for that;
// with more queries in a tile a warp loads its own rows less often.
template <class T, int Width>
using matrix_query_gradients_of = matrix_attention_query_gradients<T, Width, 2, Width == 64 ? 64 : 32>;
template <class T, int Width>
using matrix_key_gradients_of = matrix_attention_key_gradients<T, Width, Width == 64 ? 2 : 1, Width == 64 ? 32 : 64>;

/// Gradients by matrix instructions, if the device has them and they take these heads, and there are no pages, which may list rows more than once; else
/// nothing is done, and false returned.
template <class L, class T, class Mask>
bool attend_backward_by_matrices(const L& on, const attention_inputs<T, Mask>& in, std::int64_t kv_heads,
                                 heads_at<const T> dout, heads_at<const T> out, const float* lse, heads_at<T> dq,
                                 heads_at<T> dk, heads_at<T> dv) {
  if constexpr (requires { on.multiplies_matrices(); }) {
    if (in.pages.page_rows != 0 || in.key_rows == 0 || !on.multiplies_matrices() ||
        !fits_matrix_gradients(in, dout, out, dq, dk, dv))
      return false;
    const std::int64_t count = in.heads * in.queries;
    auto statistics = on.template room<float>(2 * count);
    float *const levels = statistics.address(), *const of_outs = levels + count;
    on.each(count, statistics_body<T>{dout, out, in.queries, in.heads, lse, levels, of_outs});
    with_width(in.q.head_dim, [&]<int Width>(constant<Width>) {
      const auto inputs = matrix_inputs(in);
      const matrix_query_gradients_of<T, Width> of_queries{inputs, dout, levels, of_outs, dq};
      on.template each_item_of_warps<T>(of_queries.items(), of_queries);
      const matrix_key_gradients_of<T, Width> of_keys{
          inputs, dout, levels, of_outs, dk, dv, inputs.mask.sequence != 0 ? inputs.rows : in.key_rows, kv_heads};
      on.template each_item_of_warps<T>(of_keys.items(), of_keys);
    });
    return true;
  } else {
    return false;
  }
}

}  // namespace heddle::inline v0::compute::detail::in_groups
