// heddle/comm/threads/fold.hpp: folds buffers of several ranks element by element, in order.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/op_traits.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace heddle::inline v0::detail {

// Elements that are folded before the result is written: with the inputs of eight ranks they stay in a first-level
// cache. 2 KiB measured best for 64 MiB on 8 ranks (4 KiB: a fifth slower), 4 KiB for 1 MiB. A constant, so that
// compilers vectorise the loops at -O2 too.
template <class T>
inline constexpr std::int64_t fold_block = sizeof(T) >= 2048 ? 1 : static_cast<std::int64_t>(2048 / sizeof(T));

template <class T>
struct fold_inputs {
  const T* x[4];
};

// acc = x0 op x1 op ... (First), or acc = acc op x0 op x1 ...; Inputs at a time, so that acc stays in registers.
template <int Inputs, bool First, class T, class Op, class Length>
inline void fold_pass(T* __restrict acc, const fold_inputs<T>& in, Length length, const Op& op) {
  const T* const x0 = in.x[0];
  const T* const x1 = Inputs > 1 ? in.x[1] : nullptr;
  const T* const x2 = Inputs > 2 ? in.x[2] : nullptr;
  const T* const x3 = Inputs > 3 ? in.x[3] : nullptr;
  for (std::int64_t j = 0; j < length; ++j) {
    T value = x0[j];
    if constexpr (!First) value = static_cast<T>(op(acc[j], value));
    if constexpr (Inputs > 1) value = static_cast<T>(op(value, x1[j]));
    if constexpr (Inputs > 2) value = static_cast<T>(op(value, x2[j]));
    if constexpr (Inputs > 3) value = static_cast<T>(op(value, x3[j]));
    acc[j] = value;
  }
}

template <class T, class Op, class In, class Length>
inline void fold_block_into(T* acc, int ranks, const In& in, std::int64_t begin, Length length, const Op& op) {
  for (int r = 0; r < ranks; r += 4) {
    const int inputs = (std::min)(4, ranks - r);
    fold_inputs<T> x{};
    for (int i = 0; i < inputs; ++i) x.x[i] = in(r + i) + begin;
    const auto pass = [&]<int Inputs>(std::integral_constant<int, Inputs>) {
      if (r == 0)
        fold_pass<Inputs, true>(acc, x, length, op);
      else
        fold_pass<Inputs, false>(acc, x, length, op);
    };
    switch (inputs) {
      case 1:
        pass(std::integral_constant<int, 1>{});
        break;
      case 2:
        pass(std::integral_constant<int, 2>{});
        break;
      case 3:
        pass(std::integral_constant<int, 3>{});
        break;
      default:
        pass(std::integral_constant<int, 4>{});
        break;
    }
  }
}

// As the aligned binary tree over ranks [first, first + count), which `algo::dyadic` folds, too.
template <class T, class Op, class In, class Length>
void fold_tree_into(T* __restrict acc, int first, int count, const In& in, std::int64_t begin, Length length,
                    const Op& op) {
  const auto pair = [&](T* __restrict to, const T* a, const T* b) {
    for (std::int64_t j = 0; j < length; ++j) to[j] = static_cast<T>(op(a[j], b[j]));
  };
  if (count == 1) {
    std::copy_n(in(first) + begin, static_cast<std::int64_t>(length), acc);
  } else if (count == 2) {
    pair(acc, in(first) + begin, in(first + 1) + begin);
  } else {
    const int half = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
    alignas(64) T right[static_cast<std::size_t>(fold_block<T>)];
    fold_tree_into(acc, first, half, in, begin, length, op);
    fold_tree_into(right, first + half, count - half, in, begin, length, op);
    for (std::int64_t j = 0; j < length; ++j) acc[j] = static_cast<T>(op(acc[j], right[j]));
  }
}
template <class T, class Op, class In>
T fold_tree(int first, int count, const In& in, std::int64_t at, const Op& op) {
  if (count == 1) return in(first)[at];
  const int half = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
  return static_cast<T>(
      op(fold_tree<T>(first, half, in, at, op), fold_tree<T>(first + half, count - half, in, at, op)));
}

// For every j in [begin, end): value = in(0)[j] op in(1)[j] op ... in(ranks-1)[j], then write(j, values, how many).
// The inputs of a block have been read before its outputs are written, so they may be the same memory. Operators that say that they are not
// associative are grouped as the aligned tree.
template <class T, class Op, class In, class Write>
void fold(int ranks, const In& in, std::int64_t begin, std::int64_t end, const Op& op, const Write& write) {
  if constexpr (std::is_arithmetic_v<T>) {
    alignas(64) T acc[static_cast<std::size_t>(fold_block<T>)];
    using whole = std::integral_constant<std::int64_t, fold_block<T>>;
    const auto block = [&](auto length) {
      if constexpr (op_traits<Op>::associative)
        fold_block_into(acc, ranks, in, begin, length, op);
      else
        fold_tree_into(static_cast<T*>(acc), 0, ranks, in, begin, length, op);
    };
    for (; end - begin >= fold_block<T>; begin += fold_block<T>) {
      block(whole{});
      write(begin, static_cast<const T*>(acc), fold_block<T>);
    }
    if (begin < end) {
      block(end - begin);
      write(begin, static_cast<const T*>(acc), end - begin);
    }
  } else {
    for (; begin < end; ++begin) {
      T value = in(0)[begin];
      if constexpr (op_traits<Op>::associative)
        for (int r = 1; r < ranks; ++r) value = static_cast<T>(op(value, in(r)[begin]));
      else
        value = fold_tree<T>(0, ranks, in, begin, op);
      write(begin, static_cast<const T*>(&value), std::int64_t{1});
    }
  }
}

#if defined(__GNUC__) && !defined(__CUDACC__)
template <class T>
struct sixteen_bytes {
  typedef T type __attribute__((vector_size(16), aligned(alignof(T)), may_alias));
};
#endif

// Two ranks, whose outputs may be their inputs: by way of registers straight to both, which spares what a block in between
// costs. Returns the bytes written.
template <class T, class Op>
std::int64_t fold_pair(const T* x0, const T* x1, T* y0, T* y1, std::int64_t count, const Op& op) {
  std::int64_t at = 0;
#if defined(__GNUC__) && !defined(__CUDACC__)
  // Sums by vectors spelled out: g++ -O3 makes of the loop below shuffles that take three times as long.
  if constexpr (std::is_same_v<Op, plus> && !std::is_same_v<T, bool> && sizeof(T) <= 8) {
    using vector = typename sixteen_bytes<T>::type;
    constexpr std::int64_t wide = 16 / static_cast<std::int64_t>(sizeof(T));
    for (; at + 4 * wide <= count; at += 4 * wide) {
      const auto sum = [&](int k) {
        return *reinterpret_cast<const vector*>(x0 + at + k * wide) +
               *reinterpret_cast<const vector*>(x1 + at + k * wide);
      };
      const vector s0 = sum(0), s1 = sum(1), s2 = sum(2), s3 = sum(3);
      for (T* const y : {y0 + at, y1 + at}) {
        *reinterpret_cast<vector*>(y) = s0;
        *reinterpret_cast<vector*>(y + wide) = s1;
        *reinterpret_cast<vector*>(y + 2 * wide) = s2;
        *reinterpret_cast<vector*>(y + 3 * wide) = s3;
      }
    }
  }
#endif
  constexpr std::int64_t step = sizeof(T) >= 64 ? 1 : static_cast<std::int64_t>(64 / sizeof(T));
  for (; at + step <= count; at += step) {
    T value[static_cast<std::size_t>(step)];
    for (std::int64_t j = 0; j < step; ++j) value[j] = static_cast<T>(op(x0[at + j], x1[at + j]));
    std::memcpy(y0 + at, value, sizeof(value));
    std::memcpy(y1 + at, value, sizeof(value));
  }
  for (; at < count; ++at) y0[at] = y1[at] = static_cast<T>(op(x0[at], x1[at]));
  return 2 * count * static_cast<std::int64_t>(sizeof(T));
}

// memcpy that allows nothing to copy and a copy onto itself. Returns the bytes written.
template <class T>
std::int64_t copy_elements(T* to, const T* from, std::int64_t count) {
  if (count <= 0 || to == from) return 0;
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  std::memcpy(static_cast<void*>(to), static_cast<const void*>(from), bytes);
  return static_cast<std::int64_t>(bytes);
}

}  // namespace heddle::inline v0::detail
