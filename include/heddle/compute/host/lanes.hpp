// heddle/compute/host/lanes.hpp: loops over long vectors in blocks that compilers vectorise.
#pragma once

#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace heddle::inline v0::compute::detail {

/// Elements per block: 256 bytes, four of the widest vector registers.
template <class T>
inline constexpr int block_size = 256 / static_cast<int>(sizeof(T));

/// `count` elements, and ones behind them.
template <class T, int Width>
struct padded_lanes {
  padded_lanes(const T* from, int count) {
    for (int l = 0; l < Width; ++l) data[l] = T(1);
    std::memcpy(data, from, static_cast<std::size_t>(count) * sizeof(T));
  }
  T data[Width];
};

/// out[i] = op(in[i]...). Results go through a local block, so that compilers vectorise without asking whether `out`
/// overlaps an input (it may be the same memory). The rest goes through the same code, padded, so that an element's
/// value does not depend on where in the vector it stands. Results of 16 bits are rounded here, once.
template <class T, class Op, class... In>
inline void map_lanes(std::int64_t n, T* out, Op op, const In*... in) {
  constexpr int width = block_size<T>;
  std::int64_t i = 0;
  for (; i + width <= n; i += width) {
    T block[width];
    for (int l = 0; l < width; ++l)
      if constexpr (is_half_precision<T>)
        block[l] = T(op(in[i + l]...));
      else
        block[l] = op(in[i + l]...);
    for (int l = 0; l < width; ++l) out[i + l] = block[l];
  }
  if (i == n) return;
  const int rest = static_cast<int>(n - i);
  const auto padded = [&](auto... copies) {
    T block[width];
    for (int l = 0; l < width; ++l)
      if constexpr (is_half_precision<T>)
        block[l] = T(op(copies.data[l]...));
      else
        block[l] = op(copies.data[l]...);
    std::memcpy(out + i, block, static_cast<std::size_t>(rest) * sizeof(T));
  };
  padded(padded_lanes<In, width>(in + i, rest)...);
}

/// Sum over i of op(in[i]...), accumulated as `Sum`, in an order that depends on n alone.
template <class Sum, class T, class Op, class... In>
inline Sum sum_lanes(std::int64_t n, Op op, const T* first, const In*... in) {
  constexpr int width = block_size<Sum>;
  Sum block[width] = {};
  std::int64_t i = 0;
  for (; i + width <= n; i += width)
    for (int l = 0; l < width; ++l) block[l] += op(first[i + l], in[i + l]...);
  for (int l = 0; i + l < n; ++l) block[l] += op(first[i + l], in[i + l]...);
  for (int half = width / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) block[l] += block[l + half];
  return block[0];
}

}  // namespace heddle::inline v0::compute::detail
