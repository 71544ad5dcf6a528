// heddle/compute/host/attention.hpp: attention over slices on the host, forward and backward.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/host/cross_entropy.hpp>
#include <heddle/compute/host/gemm.hpp>
#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/host/products.hpp>
#include <heddle/compute/ops/attention.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::compute::detail {

/// Query rows handled together: their scores against all keys stay in the second-level cache.
inline std::int64_t query_block(std::int64_t keys) {
  return (std::max)(std::int64_t{8}, (std::min)(std::int64_t{64}, 65536 / (std::max)(keys, std::int64_t{1}) / 8 * 8));
}

/// Query rows [begin, end) and the slices that have some of them: work that shares no query row, and for the backward
/// pass no key row, with that of other groups.
struct attention_group {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<attention_slice> slices;
  std::int64_t rows = 0;  // query rows handled together
  std::int64_t keys = 0;  // that so many rows see, at most
};

/// By first query; one order for any list, so that results do not depend on the order in which slices are given.
HEDDLE_INLINE bool query_order(const attention_slice& a, const attention_slice& b) noexcept;

/// The slices in groups that can be computed at the same time, each in the order of its query rows.
HEDDLE_INLINE std::vector<attention_group> attention_groups(std::span<const attention_slice> slices, bool share_keys);

/// What a block of query rows sees: the slices cut to its rows, and where each one's keys begin among the block's scores.
class attention_block {
 public:
  void reset(const attention_group& group, std::int64_t begin, std::int64_t end) {
    parts_.clear();
    keys_ = 0;
    for (const attention_slice& s : group.slices) {
      const attention_slice cut = s.of_queries(begin, end);
      if (cut.queries() <= 0) continue;
      parts_.push_back({cut, keys_});
      keys_ += cut.keys();
    }
  }
  struct part {
    attention_slice slice;
    std::int64_t column;  // of the slice's first key among the block's scores
  };
  const std::vector<part>& parts() const noexcept { return parts_; }
  std::int64_t keys() const noexcept { return keys_; }

 private:
  std::vector<part> parts_;
  std::int64_t keys_ = 0;
};

/// Calls `body(row, key, count)` for the pieces of the keys [begin, end) whose rows lie one behind the other.
template <class Body>
void each_key_run(const key_pages& pages, std::int64_t begin, std::int64_t end, Body body) {
  if (pages.page_rows == 0) return body(begin, begin, end - begin);
  for (std::int64_t key = begin; key < end;) {
    const std::int64_t page = key / pages.page_rows, inside = key % pages.page_rows;
    const std::int64_t count = (std::min)(pages.page_rows - inside, end - key);
    body(pages.pages[static_cast<std::size_t>(page)] * pages.page_rows + inside, key, count);
    key += count;
  }
}

/// The keys and values of one key-value head that a group of queries sees, one behind the other: where pages scatter them they are
/// copied, once for all query heads that share them. Sums over keys then are the same bits whatever the pages.
template <class T>
class gathered_keys {
 public:
  void prepare(const attention_group& group, const head_rows<const T>& k, const head_rows<const T>& v,
               std::int64_t head, const key_pages& pages) {
    if (group_ == &group && head_ == head) return;
    group_ = &group;
    head_ = head;
    begin_ = 0;
    std::int64_t end = 0, runs = 0;
    for (const attention_slice& s : group.slices) {
      begin_ = end == 0 ? s.k_begin : (std::min)(begin_, s.k_begin);
      end = (std::max)(end, s.k_end);
    }
    std::int64_t first = 0, next = -1;
    const auto lies = [&k](std::int64_t row) { return k.lies_by_head() ? k.row_in_blocks(row) : row; };
    each_key_run(pages, begin_, end, [&](std::int64_t place, std::int64_t, std::int64_t count) {
      const std::int64_t row = lies(place);
      if (runs == 0) first = row;
      runs += row != next;
      next = row + count;
    });
    if (runs <= 1) {  // as they lie
      keys_ = {k.row(first, head), end - begin_, 1, k.head_dim, k.stride};
      values_ = {v.row(first, head), end - begin_, 1, v.head_dim, v.stride};
      return;
    }
    const std::int64_t needed = (end - begin_) * (k.head_dim + v.head_dim);
    if (needed > room_) {
      room_ = needed;
      memory_ = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(room_));
    }
    T* const keys = memory_.get();
    T* const values = keys + (end - begin_) * k.head_dim;
    const auto copy = [&](const head_rows<const T>& from, std::int64_t row, std::int64_t count, T* to) {
      if (from.stride == from.head_dim) return void(std::copy_n(from.row(row, head), count * from.head_dim, to));
      for (std::int64_t i = 0; i < count; ++i)
        std::copy_n(from.row(row + i, head), from.head_dim, to + i * from.head_dim);
    };
    each_key_run(pages, begin_, end, [&](std::int64_t place, std::int64_t key, std::int64_t count) {
      const std::int64_t row = lies(place);
      copy(k, row, count, keys + (key - begin_) * k.head_dim);
      copy(v, row, count, values + (key - begin_) * v.head_dim);
    });
    keys_ = {keys, end - begin_, 1, k.head_dim, k.head_dim};
    values_ = {values, end - begin_, 1, v.head_dim, v.head_dim};
  }
  /// Row 0 is the key that `first` says.
  const head_rows<const T>& keys() const noexcept { return keys_; }
  const head_rows<const T>& values() const noexcept { return values_; }
  std::int64_t first() const noexcept { return begin_; }

 private:
  const attention_group* group_ = nullptr;
  std::int64_t head_ = 0, begin_ = 0, room_ = 0;
  head_rows<const T> keys_{}, values_{};
  std::unique_ptr<T[]> memory_;
};

/// scores[row][column] = op(row of a) . (key rows of b) for all keys of the block; `columns` scores lie in a row. Row 0
/// of b is key `first_key`. With `together` > 1 the block has one query, and the rows are that many of its heads.
template <class G, class T>
void block_scores(const attention_block& block, std::int64_t first, std::int64_t rows, const head_rows<const T>& a,
                  std::int64_t a_head, const head_rows<const T>& b, std::int64_t b_head, const key_pages& pages,
                  T* scores, std::int64_t first_key = 0, std::int64_t together = 1) {
  if (b.head_dim == 0) return void(std::fill_n(scores, rows * block.keys(), T(0)));
  for (const attention_block::part& p : block.parts())
    each_key_run(pages, p.slice.k_begin, p.slice.k_end, [&](std::int64_t row, std::int64_t key, std::int64_t count) {
      G::template multiply<transpose::no, transpose::yes>(
          p.slice.queries() * together, count, b.head_dim, a.row(p.slice.q_begin, a_head),
          together > 1 ? a.head_dim : a.stride, b.row(row - first_key, b_head), b.stride, T(0),
          scores + (p.slice.q_begin - first) * block.keys() + p.column + (key - p.slice.k_begin), block.keys());
    });
}

/// Calls `body(scores, count)` for the stretches of query q's row of scores that count, and with `Clear` sets the rest
/// to 0.
template <bool Clear = false, class T, class Body>
void each_stretch(const attention_block& block, std::int64_t q, T* row, Body body) {
  for (const attention_block::part& p : block.parts()) {
    T* const from = row + p.column;
    std::int64_t begin = 0, end = 0;
    if (q >= p.slice.q_begin && q < p.slice.q_end) {
      begin = p.slice.first_key(q) - p.slice.k_begin;
      end = (std::max)(begin, p.slice.last_key(q) - p.slice.k_begin);
    }
    if constexpr (Clear) {
      std::fill(from, from + begin, T(0));
      std::fill(from + end, from + p.slice.keys(), T(0));
    }
    if (begin < end) body(from + begin, end - begin);
  }
}

/// What becomes of the product s of a query and a key: its score, and its share in a row whose scores add up to e^top. `slope`: of the
/// gradient with respect to s, besides the scale.
template <class T>
struct scaled_scores {
  T scale;
  T score(T s) const { return s * scale; }
  T share(T s, T top) const { return exp_lane(s * scale - top); }
};
/// The same of scores below a cap.
template <class T>
struct capped_scores {
  T scale, cap;
  T score(T s) const { return cap * tanh_lane(s * scale / cap); }
  T share(T s, T top) const { return exp_lane(score(s) - top); }
  T slope(T s) const {
    const T t = tanh_lane(s * scale / cap);
    return (T(1) - t * t) * scale;
  }
};

/// Makes query r's row of scores its weights, all 0 where it sees no key, and gives the log-sum-exp of what it sees.
template <class T, class Scores>
T weigh(const attention_block& block, std::int64_t r, const Scores& scores, T* row) {
  T top = -(std::numeric_limits<T>::infinity)(), sum = 0;
  each_stretch(block, r, row, [&](const T* x, std::int64_t n) {
    const T most = scores.score(largest(n, x));
    if (!(most <= top) && top == top) top = most;  // a NaN is taken, and kept
  });
  if (top == -(std::numeric_limits<T>::infinity)()) {
    std::fill_n(row, block.keys(), T(0));
    return top;
  }
  each_stretch(block, r, row, [&](T* x, std::int64_t n) {
    map_lanes(n, x, [=](T s) { return scores.share(s, top); }, static_cast<const T*>(x));
    sum += sum_lanes<T>(n, [](T s) { return s; }, static_cast<const T*>(x));
  });
  const T inverse = T(1) / sum;
  each_stretch<true>(block, r, row, [&](T* x, std::int64_t n) {
    map_lanes(n, x, [=](T s) { return s * inverse; }, static_cast<const T*>(x));
  });
  return top + std::log(sum);
}

/// Heads of a query that is alone, as when a model decodes, are rows of one product where they share keys and values, which then are packed once.
/// Source: Dao et al., arXiv:2205.14135, for what is kept (the log-sum-exp) and what is computed again (P).
template <class G, class T, class Scores>
void attend_slices(product_team<G>& on, const head_rows<const T>& q, const head_rows<const T>& k,
                   const head_rows<const T>& v, std::span<const attention_slice> slices, const Scores& of_products,
                   const head_rows<T>& out, std::span<T> lses, const key_pages& pages) {
  T* const lse = lses.data();
  const std::int64_t heads = q.heads, shared = k.heads == 0 ? 1 : heads / k.heads;
  const auto groups = attention_groups(slices, true);
  std::int64_t covered = 0, area = 0;
  for (const attention_group& g : groups) {
    covered += g.end - g.begin;
    for (const attention_slice& s : g.slices) area += s.queries() * s.keys();
  }
  if (covered < q.rows)  // rows that no slice names
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t r = 0; r < q.rows; ++r) {
        std::fill_n(out.row(r, h), out.head_dim, T(0));
        lse[h * q.rows + r] = -(std::numeric_limits<T>::infinity)();
      }
  const auto tasks = static_cast<std::int64_t>(groups.size()) * heads;
  const std::int64_t work = tasks == 0 ? 0 : area * heads / tasks * (q.head_dim + v.head_dim) / 2;
  const auto grain = (std::max)(std::int64_t{1}, 8 * elementwise_grain / (work + 1));
  on.split(tasks, grain, 1, [&](std::int64_t task_begin, std::int64_t task_end) {
    std::unique_ptr<T[]> scores;
    gathered_keys<T> seen;
    std::int64_t room = 0;
    attention_block block;
    for (std::int64_t task = task_begin; task < task_end; ++task) {
      const attention_group& group = groups[static_cast<std::size_t>(task / heads)];
      const std::int64_t head = task % heads, kv = head * k.heads / heads;
      const bool alone = group.end - group.begin == 1;
      if (alone && head % shared != 0) continue;
      const std::int64_t together = alone ? shared : 1;
      seen.prepare(group, k, v, kv, pages);
      if (group.rows * group.keys * together > room) {
        room = group.rows * group.keys * together;
        scores = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(room));
      }
      for (std::int64_t first = group.begin; first < group.end; first += group.rows) {
        const std::int64_t end = (std::min)(first + group.rows, group.end);
        block.reset(group, first, end);
        T* p = scores.get();
        block_scores<G>(block, first, end - first, q, head, seen.keys(), 0, key_pages{}, p, seen.first(), together);
        for (std::int64_t r = first; r < end; ++r)
          for (std::int64_t h = 0; h < together; ++h)
            lse[(head + h) * q.rows + r] = weigh(block, r, of_products, p + (r - first + h) * block.keys());
        // out = P V. The first product of a row overwrites what is there.
        std::int64_t written = first;
        for (const attention_block::part& part : block.parts()) {
          const attention_slice& s = part.slice;
          const std::int64_t fresh = (std::max)(written, s.q_begin);
          const T* weights = p + part.column;
          const auto product = [&](std::int64_t from, std::int64_t to, T beta) {
            if (from < to && v.head_dim > 0)
              G::template multiply<transpose::no, transpose::no>(
                  (to - from) * together, v.head_dim, s.keys(), weights + (from - first) * block.keys(), block.keys(),
                  seen.values().row(s.k_begin - seen.first(), 0), seen.values().stride, beta, out.row(from, head),
                  together > 1 ? out.head_dim : out.stride);
          };
          product(s.q_begin, (std::min)(fresh, s.q_end), T(1));
          product(fresh, s.q_end, T(0));
          written = (std::max)(written, s.q_end);
        }
        // Behind the products, in which 0 times an infinite v is no number.
        for (std::int64_t r = first; r < end; ++r)
          for (std::int64_t h = head; h < head + together; ++h)
            if (lse[h * q.rows + r] == -(std::numeric_limits<T>::infinity)())
              std::fill_n(out.row(r, h), out.head_dim, T(0));
      }
    }
  });
}

template <class G, class T>
  requires(!is_half_precision<T>)
void body(ops::attention, product_team<G>& on, head_rows<const T> q, head_rows<const T> k, head_rows<const T> v,
          std::span<const attention_slice> slices, T scale, head_rows<T> out, std::span<T> lse, key_pages pages) {
  attend_slices(on, q, k, v, slices, scaled_scores<T>{scale}, out, lse, pages);
}
template <class G, class T>
  requires(!is_half_precision<T>)
void body(ops::capped_attention, product_team<G>& on, head_rows<const T> q, head_rows<const T> k, head_rows<const T> v,
          std::span<const attention_slice> slices, T scale, T cap, head_rows<T> out, std::span<T> lse,
          key_pages pages) {
  attend_slices(on, q, k, v, slices, capped_scores<T>{scale, cap}, out, lse, pages);
}

/// Whether the first product of each head sets every row of dQ, dK and dV: one slice to a group, whose last query sees
/// all its keys and whose other queries see one at least, and no row outside.
inline bool one_write_reaches_all(const std::vector<attention_group>& groups, std::int64_t queries, std::int64_t keys) {
  for (const attention_group& g : groups) {
    const attention_slice& s = g.slices.front();
    if (g.slices.size() != 1 || s.begins_late() || (s.ends_early() && s.keys() < s.queries())) return false;
    queries -= s.queries();
    keys -= s.keys();
  }
  return queries == 0 && keys == 0;
}

/// dV = P^T dO; dP = dO V^T; dS = P (dP - rowsum(dO O)) scale; dQ = dS K; dK = dS^T Q, with P from `lse`.
template <class G, class T, class Scores>
void attend_slices_backward(product_team<G>& on, const head_rows<const T>& dout, const head_rows<const T>& q,
                            const head_rows<const T>& k, const head_rows<const T>& v, const head_rows<const T>& out,
                            std::span<const T> lses, std::span<const attention_slice> slices, const Scores& of_products,
                            const head_rows<T>& dq, const head_rows<T>& dk, const head_rows<T>& dv,
                            const key_pages& pages) {
  const T* const lse = lses.data();
  // Heads that share keys and values, and groups that do, are one task: both add to dK and dV. Pages may share rows.
  const std::int64_t shared = k.heads == 0 ? 0 : q.heads / k.heads;
  const auto groups = attention_groups(slices, pages.page_rows != 0);
  const bool overwrites = pages.page_rows == 0 && one_write_reaches_all(groups, q.rows, k.rows);
  if (!overwrites)
    for (const head_rows<T>& x : {dq, dk, dv})
      on.split(x.rows, row_grain(x.width()), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) std::fill_n(x.row(r, 0), x.width(), T(0));
      });
  const std::int64_t parts = pages.page_rows != 0 ? 1 : static_cast<std::int64_t>(groups.size());
  const std::int64_t tasks = parts * k.heads;
  std::int64_t area = 0;
  for (const attention_group& g : groups)
    for (const attention_slice& s : g.slices) area += s.queries() * s.keys();
  const std::int64_t work = tasks == 0 ? 0 : area * q.heads / tasks * (q.head_dim + v.head_dim);
  const auto grain = (std::max)(std::int64_t{1}, 8 * elementwise_grain / (work + 1));
  on.split(tasks, grain, 1, [&](std::int64_t task_begin, std::int64_t task_end) {
    std::unique_ptr<T[]> p_scores, ds_scores;
    std::int64_t room = 0;
    attention_block block;
    const auto of_group = [&](const attention_group& group, std::int64_t kv, std::int64_t head) {
      const T keep_q = overwrites ? T(0) : T(1);
      T keep = overwrites && head == kv * shared ? T(0) : T(1);
      if (group.rows * group.keys > room) {
        room = group.rows * group.keys;
        p_scores = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(room));
        ds_scores = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(room));
      }
      // From the last block, which sees all keys of a causal slice and so can set dK and dV, to the first.
      for (std::int64_t first = group.begin + (group.end - 1 - group.begin) / group.rows * group.rows;
           first >= group.begin; first -= group.rows) {
        const std::int64_t end = (std::min)(first + group.rows, group.end);
        block.reset(group, first, end);
        if (block.keys() == 0) continue;
        T *p = p_scores.get(), *ds = ds_scores.get();
        block_scores<G>(block, first, end - first, q, head, k, kv, pages, p);
        block_scores<G>(block, first, end - first, dout, head, v, kv, pages, ds);
        for (std::int64_t r = first; r < end; ++r) {
          T *p_row = p + (r - first) * block.keys(), *ds_row = ds + (r - first) * block.keys();
          const T total = lse[head * q.rows + r];
          if (total == -(std::numeric_limits<T>::infinity)()) {  // sees no key
            std::fill_n(p_row, block.keys(), T(0));
            std::fill_n(ds_row, block.keys(), T(0));
            continue;
          }
          const T delta = sum_lanes<T>(v.head_dim, [](T x, T y) { return x * y; }, dout.row(r, head), out.row(r, head));
          if constexpr (requires { of_products.slope(total); })  // reads the products, which become shares then
            each_stretch(block, r, ds_row, [&](T* x, std::int64_t n) {
              map_lanes(
                  n, x, [=](T s, T d) { return (d - delta) * of_products.slope(s); },
                  static_cast<const T*>(p_row + (x - ds_row)), static_cast<const T*>(x));
            });
          each_stretch<true>(block, r, p_row, [&](T* x, std::int64_t n) {
            map_lanes(n, x, [=](T s) { return of_products.share(s, total); }, static_cast<const T*>(x));
          });
          each_stretch<true>(block, r, ds_row, [&](T* x, std::int64_t n) {
            const T* const shares = p_row + (x - ds_row);
            if constexpr (requires { of_products.slope(total); })
              map_lanes(n, x, [](T w, T d) { return w * d; }, shares, static_cast<const T*>(x));
            else
              map_lanes(
                  n, x, [delta, scale = of_products.scale](T w, T d) { return w * (d - delta) * scale; }, shares,
                  static_cast<const T*>(x));
          });
        }
        for (const attention_block::part& part : block.parts()) {
          const attention_slice& s = part.slice;
          const std::int64_t n = s.queries(), ld = block.keys(), at = (s.q_begin - first) * ld + part.column;
          each_key_run(pages, s.k_begin, s.k_end, [&](std::int64_t row, std::int64_t key, std::int64_t count) {
            const std::int64_t from = at + (key - s.k_begin);
            if (v.head_dim > 0)
              G::template multiply<transpose::yes, transpose::no>(count, v.head_dim, n, p + from, ld,
                                                                  dout.row(s.q_begin, head), dout.stride, keep,
                                                                  dv.row(row, kv), dv.stride);
            if (q.head_dim == 0) return;
            G::template multiply<transpose::yes, transpose::no>(count, q.head_dim, n, ds + from, ld,
                                                                q.row(s.q_begin, head), q.stride, keep, dk.row(row, kv),
                                                                dk.stride);
            G::template multiply<transpose::no, transpose::no>(n, q.head_dim, count, ds + from, ld, k.row(row, kv),
                                                               k.stride, keep_q, dq.row(s.q_begin, head), dq.stride);
          });
        }
        keep = T(1);
      }
    };
    for (std::int64_t task = task_begin; task < task_end; ++task) {
      const std::int64_t kv = task % k.heads;
      for (std::int64_t h = kv * shared; h < (kv + 1) * shared; ++h) {
        if (pages.page_rows == 0)
          of_group(groups[static_cast<std::size_t>(task / k.heads)], kv, h);
        else
          for (const attention_group& g : groups) of_group(g, kv, h);
      }
    }
  });
}

template <class G, class T>
  requires(!is_half_precision<T>)
void body(ops::attention_backward, product_team<G>& on, head_rows<const T> dout, head_rows<const T> q,
          head_rows<const T> k, head_rows<const T> v, head_rows<const T> out, std::span<const T> lse,
          std::span<const attention_slice> slices, T scale, head_rows<T> dq, head_rows<T> dk, head_rows<T> dv,
          key_pages pages) {
  attend_slices_backward(on, dout, q, k, v, out, lse, slices, scaled_scores<T>{scale}, dq, dk, dv, pages);
}
template <class G, class T>
  requires(!is_half_precision<T>)
void body(ops::capped_attention_backward, product_team<G>& on, head_rows<const T> dout, head_rows<const T> q,
          head_rows<const T> k, head_rows<const T> v, head_rows<const T> out, std::span<const T> lse,
          std::span<const attention_slice> slices, T scale, T cap, head_rows<T> dq, head_rows<T> dk, head_rows<T> dv,
          key_pages pages) {
  attend_slices_backward(on, dout, q, k, v, out, lse, slices, capped_scores<T>{scale, cap}, dq, dk, dv, pages);
}

template <class T>
void body(ops::attention_sinks, team& on, head_rows<const T> x, std::span<const T> sinks, std::span<sum_of_type<T>> lse,
          head_rows<T> y) {
  using S = sum_of_type<T>;
  on.split(x.rows, row_grain(x.width()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t h = 0; h < x.heads; ++h) {
        S& own = lse[static_cast<std::size_t>(h * x.rows + r)];
        const S before = own, sink = static_cast<S>(sinks[static_cast<std::size_t>(h)]);
        own = level_with_sink(before, sink);
        const S share = std::exp(before - own);
        const T* const from = x.row(r, h);
        T* const to = y.row(r, h);
        for (std::int64_t d = 0; d < x.head_dim; ++d) to[d] = T(static_cast<S>(from[d]) * share);
      }
  });
}
template <class T>
void body(ops::attention_sinks_backward, team& on, head_rows<const T> dout, head_rows<const T> out,
          std::span<const T> sinks, std::span<const sum_of_type<T>> lse, matrix_view<T> terms) {
  using S = sum_of_type<T>;
  on.split(out.rows, row_grain(out.width()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t h = 0; h < out.heads; ++h) {
        const S level = lse[static_cast<std::size_t>(h * out.rows + r)];
        const S share = std::exp(static_cast<S>(sinks[static_cast<std::size_t>(h)]) - level);
        terms.address()[r * out.heads + h] =
            T(-share * sum_lanes<S>(out.head_dim, [](S d, S o) { return d * o; }, dout.row(r, h), out.row(r, h)));
      }
  });
}

template <class G, class T>
void body(ops::causal_attention, product_team<G>& on, matrix_view<const T> qkv, attention_shape s, matrix_view<T> out,
          std::span<sum_of_type<T>> lse) {
  const auto slices = causal_sequences(s.batch, s.sequence);
  body(ops::attention{}, on, third_of(qkv, s, 0), third_of(qkv, s, 1), third_of(qkv, s, 2),
       std::span<const attention_slice>(slices), score_scale<sum_of_type<T>>(s), heads_of(out, s.heads, s.head_dim),
       lse, key_pages{});
}
template <class G, class T>
void body(ops::causal_attention_backward, product_team<G>& on, matrix_view<const T> dout, matrix_view<const T> qkv,
          matrix_view<const T> out, std::span<const sum_of_type<T>> lse, attention_shape s, matrix_view<T> dqkv) {
  const auto slices = causal_sequences(s.batch, s.sequence);
  body(ops::attention_backward{}, on, heads_of(dout, s.heads, s.head_dim), third_of(qkv, s, 0), third_of(qkv, s, 1),
       third_of(qkv, s, 2), heads_of(out, s.heads, s.head_dim), lse, std::span<const attention_slice>(slices),
       score_scale<sum_of_type<T>>(s), third_of(dqkv, s, 0), third_of(dqkv, s, 1), third_of(dqkv, s, 2), key_pages{});
}

}  // namespace heddle::inline v0::compute::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/compute/impl/host/attention.hpp>
#endif
