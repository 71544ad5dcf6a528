// heddle/compute/group/tiles.hpp: tiles of matrices in a group's shared memory.
#pragma once

#include <heddle/core/config.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::in_groups {

/// Rows of `stride` elements, which is odd, so that the threads of a warp find a column in different banks of shared memory.
template <class T>
struct tile {
  T* data;
  std::int64_t stride;
  HEDDLE_HD T& operator()(std::int64_t i, std::int64_t j) const { return data[i * stride + j]; }
};
HEDDLE_HD constexpr std::int64_t tile_stride(std::int64_t columns) noexcept {
  return columns | 1;
}
HEDDLE_HD constexpr std::int64_t tiles_of(std::int64_t n, std::int64_t edge) noexcept {
  return (n + edge - 1) / edge;
}
/// Parts of the memory of a group, one behind the other.
template <class T>
struct tile_room {
  T* at;
  HEDDLE_HD tile<T> rows(std::int64_t count, std::int64_t columns) {
    T* const begin = at;
    at += count * tile_stride(columns);
    return {begin, tile_stride(columns)};
  }
};

/// store(i, j, sum over k of a[i * ai + k * ak] * b[k * bk + j * bj]) for i < m and j < n, by all threads of the group, each with the
/// sums of 4 x 4 elements in registers. The same thread has the same elements of products of equal m and n.
template <class G, class T, class F>
HEDDLE_HD void tile_product(G& g, std::int64_t rows, std::int64_t columns, std::int64_t terms, const T* a,
                            std::int64_t ai, std::int64_t ak, const T* b, std::int64_t bk, std::int64_t bj,
                            const F& store) {
  // 32 bits suffice in the memory of a group, and leave registers for the sums.
  const int m = static_cast<int>(rows), n = static_cast<int>(columns), k = static_cast<int>(terms);
  const int step_a = static_cast<int>(ak), step_b = static_cast<int>(bk);
  const int down = (m + 3) / 4, across = (n + 3) / 4;
  for (int t = g.rank(); t < down * across; t += g.size()) {
    const int i = t / across, j = t % across;
    int at_a[4], at_b[4];
    for (int c = 0; c < 4; ++c) {  // what is beyond the end is read from the last, and not stored
      const int row = i + c * down, column = j + c * across;
      at_a[c] = (row < m ? row : m - 1) * static_cast<int>(ai);
      at_b[c] = (column < n ? column : n - 1) * static_cast<int>(bj);
    }
    T sum[4][4] = {};
#if defined(__CUDA_ARCH__)
#pragma unroll 2
#endif
    for (int p = 0; p < k; ++p) {
      T x[4], y[4];
      for (int c = 0; c < 4; ++c) {
        x[c] = a[at_a[c] + p * step_a];
        y[c] = b[at_b[c] + p * step_b];
      }
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 4; ++c) sum[r][c] += x[r] * y[c];
    }
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c)
        if (i + r * down < m && j + c * across < n) store(i + r * down, j + c * across, sum[r][c]);
  }
}
/// Rows [0, rows) from where row_at(i) points to, zeros from there to `count`.
template <class G, class T, class F>
HEDDLE_HD void load_tile(G& g, const tile<T>& to, std::int64_t count, std::int64_t rows, std::int64_t columns,
                         const F& row_at) {
  for (std::int64_t k = g.rank(); k < count * columns; k += g.size()) {
    const std::int64_t i = k / columns, j = k % columns;
    to(i, j) = i < rows ? T(row_at(i)[j]) : T(0);
  }
}
template <class G, class T>
HEDDLE_HD void fill_tile(G& g, const tile<T>& x, std::int64_t count, T value) {
  for (std::int64_t k = g.rank(); k < count * x.stride; k += g.size()) x.data[k] = value;
}

}  // namespace heddle::inline v0::compute::detail::in_groups
