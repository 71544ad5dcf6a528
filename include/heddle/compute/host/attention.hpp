// heddle/compute/host/attention.hpp: causal self-attention, forward and backward, by blocks of query rows.
#pragma once

#include <heddle/compute/host/cross_entropy.hpp>
#include <heddle/compute/host/gemm.hpp>
#include <heddle/compute/host/layer_norm.hpp>

#include <cmath>
#include <memory>

namespace heddle::inline v0::compute::detail {

/// Query rows handled together: their scores against all keys stay in the second-level cache.
inline std::int64_t query_block(std::int64_t sequence) {
  return (std::min)(
      sequence,
      (std::max)(std::int64_t{8}, (std::min)(std::int64_t{64}, 65536 / (std::max)(sequence, std::int64_t{1}) / 8 * 8)));
}

/// Source: Dao et al., arXiv:2205.14135, for what is kept (the log-sum-exp) and what is computed again (P).
template <class G, class T>
void attention(team& workers, const attention_shape& s, const T* qkv, T* out, T* lse) {
  const std::int64_t width = s.width(), stride = 3 * width, d = s.head_dim, n = s.sequence;
  if (n == 0 || d == 0) return;
  const T scale = T(1) / std::sqrt(static_cast<T>(d));
  const std::int64_t rows = query_block(n);
  const auto grain = (std::max)(std::int64_t{1}, 8 * elementwise_grain / (n * n * d + 1));
  workers.split(s.batch * s.heads, grain, 1, [&](std::int64_t begin, std::int64_t end) {
    const auto scores = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(rows * n));
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t batch = task / s.heads, head = task % s.heads;
      const T* q = qkv + batch * n * stride + head * d;
      const T *k = q + width, *v = k + width;
      T* o = out + batch * n * width + head * d;
      for (std::int64_t first = 0; first < n; first += rows) {
        const std::int64_t count = (std::min)(rows, n - first), keys = first + count;
        T* p = scores.get();
        G::template multiply<transpose::no, transpose::yes>(count, keys, d, q + first * stride, stride, k, stride, T(0),
                                                            p, keys);
        for (std::int64_t i = 0; i < count; ++i) {
          T* row = p + i * keys;
          const std::int64_t seen = first + i + 1;
          const T top = largest(seen, row) * scale;
          map_lanes(seen, row, [=](T x) { return exp_lane(x * scale - top); }, static_cast<const T*>(row));
          const T sum = sum_lanes<T>(seen, [](T x) { return x; }, static_cast<const T*>(row));
          const T inverse = T(1) / sum;
          map_lanes(seen, row, [=](T x) { return x * inverse; }, static_cast<const T*>(row));
          std::fill(row + seen, row + keys, T(0));
          lse[task * n + first + i] = top + std::log(sum);
        }
        G::template multiply<transpose::no, transpose::no>(count, d, keys, p, keys, v, stride, T(0), o + first * width,
                                                           width);
      }
    }
  });
}

/// dV = P^T dO; dP = dO V^T; dS = P (dP - rowsum(dO O)); dQ = dS K / sqrt(d); dK = dS^T Q / sqrt(d).
/// Blocks of queries from the last, which sees all keys and so sets dK and dV, to the first; the others add.
template <class G, class T>
void attention_backward(team& workers, const attention_shape& s, const T* dout, const T* qkv, const T* out,
                        const T* lse, T* dqkv) {
  const std::int64_t width = s.width(), stride = 3 * width, d = s.head_dim, n = s.sequence;
  if (n == 0 || d == 0) return;
  const T scale = T(1) / std::sqrt(static_cast<T>(d));
  const std::int64_t rows = query_block(n);
  const auto grain = (std::max)(std::int64_t{1}, 4 * elementwise_grain / (n * n * d + 1));
  workers.split(s.batch * s.heads, grain, 1, [&](std::int64_t begin, std::int64_t end) {
    const auto p_block = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(rows * n));
    const auto ds_block = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(rows * n));
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t batch = task / s.heads, head = task % s.heads;
      const std::int64_t at = batch * n * stride + head * d, at_out = batch * n * width + head * d;
      const T *q = qkv + at, *k = q + width, *v = k + width, *o = out + at_out, *grad = dout + at_out;
      T *dq = dqkv + at, *dk = dq + width, *dv = dk + width;
      T *p = p_block.get(), *ds = ds_block.get();
      bool set = true;
      for (std::int64_t first = (n - 1) / rows * rows; first >= 0; first -= rows) {
        const std::int64_t count = (std::min)(rows, n - first), keys = first + count;
        G::template multiply<transpose::no, transpose::yes>(count, keys, d, q + first * stride, stride, k, stride, T(0),
                                                            p, keys);
        G::template multiply<transpose::no, transpose::yes>(count, keys, d, grad + first * width, width, v, stride,
                                                            T(0), ds, keys);
        for (std::int64_t i = 0; i < count; ++i) {
          T *p_row = p + i * keys, *ds_row = ds + i * keys;
          const std::int64_t row = first + i, seen = row + 1;
          const T total = lse[task * n + row];
          const T delta = sum_lanes<T>(d, [](T x, T y) { return x * y; }, grad + row * width, o + row * width);
          map_lanes(seen, p_row, [=](T x) { return exp_lane(x * scale - total); }, static_cast<const T*>(p_row));
          map_lanes(
              seen, ds_row, [=](T x, T dx) { return x * (dx - delta) * scale; }, static_cast<const T*>(p_row),
              static_cast<const T*>(ds_row));
          std::fill(p_row + seen, p_row + keys, T(0));
          std::fill(ds_row + seen, ds_row + keys, T(0));
        }
        const T keep = set ? T(0) : T(1);
        set = false;
        G::template multiply<transpose::yes, transpose::no>(keys, d, count, p, keys, grad + first * width, width, keep,
                                                            dv, stride);
        G::template multiply<transpose::yes, transpose::no>(keys, d, count, ds, keys, q + first * stride, stride, keep,
                                                            dk, stride);
        G::template multiply<transpose::no, transpose::no>(count, d, keys, ds, keys, k, stride, T(0),
                                                           dq + first * stride, stride);
      }
    }
  });
}

}  // namespace heddle::inline v0::compute::detail
