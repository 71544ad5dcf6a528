// heddle/compute/host/packed_kernel.hpp: products with weights packed in strips.
#pragma once

#include <heddle/compute/host/gemm.hpp>
#include <heddle/compute/host/native_vector.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/split.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::compute::detail {

static_assert(std::endian::native == std::endian::little, "heddle: packed weights are for little-endian processors");

/// Rows of a packed matrix whose codes share a 32-bit word.
template <class Code>
inline constexpr std::int64_t codes_per_word = 4 / static_cast<std::int64_t>(sizeof(Code));

/// Codes of a matrix [depth, columns] in strips of two vectors of columns, `codes_per_word` rows together:
/// codes[strip][row / together][column][row % together], and where there are scales scales[strip][row / block][column].
template <class Code>
struct packed_operand {
  const Code* codes = nullptr;
  const float* scales = nullptr;
  std::int64_t depth = 0;
  std::int64_t columns = 0;
  std::int64_t block = 0;
};

/// What a code's `widen` gives for 1. Bytes are left in the top of their words, which saves a shift for each, and rows of x are multiplied by
/// 2^-24 instead: a power of two changes no bits of sums, but of terms below 2^-102.
template <class Code>
inline constexpr float code_unit = std::is_same_v<Code, std::int8_t> ? 0x1p24f : 1.0f;

/// A vector of words of codes, and its code `At` of each word as float, times `code_unit`.
template <int Lanes>
struct code_words;
#define HEDDLE_CODE_WORDS(Lanes)                                                                        \
  template <>                                                                                           \
  struct code_words<Lanes> {                                                                            \
    typedef std::uint32_t words __attribute__((vector_size(Lanes * 4)));                                \
    typedef std::int32_t whole __attribute__((vector_size(Lanes * 4)));                                 \
    typedef float number __attribute__((vector_size(Lanes * 4)));                                       \
    template <class Code, int At>                                                                       \
    [[gnu::always_inline]] static void widen(const words& x, number& y) {                               \
      if constexpr (std::is_same_v<Code, float>)                                                        \
        y = reinterpret_cast<number>(x);                                                                \
      else if constexpr (std::is_same_v<Code, bf16>)                                                    \
        y = reinterpret_cast<number>(At == 0 ? x << 16 : x & 0xffff0000u);                              \
      else                                                                                              \
        y = __builtin_convertvector(reinterpret_cast<whole>(x << (24 - 8 * At) & 0xff000000u), number); \
    }                                                                                                   \
  }
HEDDLE_CODE_WORDS(4);
HEDDLE_CODE_WORDS(8);
HEDDLE_CODE_WORDS(16);
#undef HEDDLE_CODE_WORDS

#define HEDDLE_PACKED_ROW(At)                                                     \
  {                                                                               \
    vector b0, b1;                                                                \
    words::template widen<Code, At>(w0, b0);                                      \
    words::template widen<Code, At>(w1, b1);                                      \
    ((left[R] += a[At * rows + R] * b0, right[R] += a[At * rows + R] * b1), ...); \
  }
/// One strip: tile[r][j] = sum over blocks of scale[block][j] * (sum over the block's p of a[p][r] * code[p][j]). The inner sum is in
/// registers, and with few rows the outer one, too. It asks memory for what it uses 4 KiB later, since processors do not look beyond a page;
/// with few rows, which wait for memory most of the time, for the second-level cache, which was measured to be faster.
#define HEDDLE_PACKED_TILE_BODY                                                                                     \
  using words = code_words<Tile::lanes>;                                                                            \
  using vector = typename words::number;                                                                            \
  constexpr int columns = Tile::columns, lanes = Tile::lanes, rows = sizeof...(R);                                  \
  constexpr std::int64_t together = codes_per_word<Code>;                                                           \
  vector sum_left[] = {((void)R, vector{})...};                                                                     \
  vector sum_right[] = {((void)R, vector{})...};                                                                    \
  for (std::int64_t p0 = 0; p0 < depth; p0 += block) {                                                              \
    const std::int64_t count = (std::min)(block, depth - p0);                                                       \
    vector left[] = {((void)R, vector{})...};                                                                       \
    vector right[] = {((void)R, vector{})...};                                                                      \
    typename words::words w0, w1;                                                                                   \
    for (std::int64_t p = together; p <= count; p += together) {                                                    \
      __builtin_prefetch(reinterpret_cast<const char*>(b) + 4096, 0, rows <= 4 ? 2 : 3);                            \
      __builtin_prefetch(reinterpret_cast<const char*>(b) + 4160, 0, rows <= 4 ? 2 : 3);                            \
      __builtin_memcpy(&w0, b, sizeof(w0));                                                                         \
      __builtin_memcpy(&w1, b + lanes * together, sizeof(w1));                                                      \
      HEDDLE_PACKED_ROW(0)                                                                                          \
      if constexpr (together > 1) HEDDLE_PACKED_ROW(1)                                                              \
      if constexpr (together > 2) HEDDLE_PACKED_ROW(2)                                                              \
      if constexpr (together > 2) HEDDLE_PACKED_ROW(3)                                                              \
      a += rows * together;                                                                                         \
      b += columns * together;                                                                                      \
    }                                                                                                               \
    if (const std::int64_t rest = count % together; together > 1 && rest > 0) {                                     \
      __builtin_memcpy(&w0, b, sizeof(w0));                                                                         \
      __builtin_memcpy(&w1, b + lanes * together, sizeof(w1));                                                      \
      HEDDLE_PACKED_ROW(0)                                                                                          \
      if constexpr (together > 2) {                                                                                 \
        if (rest > 1) HEDDLE_PACKED_ROW(1)                                                                          \
        if (rest > 2) HEDDLE_PACKED_ROW(2)                                                                          \
      }                                                                                                             \
    }                                                                                                               \
    if constexpr (Scaled) {                                                                                         \
      vector s0, s1;                                                                                                \
      __builtin_memcpy(&s0, scales, sizeof(vector));                                                                \
      __builtin_memcpy(&s1, scales + lanes, sizeof(vector));                                                        \
      scales += columns;                                                                                            \
      ((left[R] *= s0, right[R] *= s1), ...);                                                                       \
    }                                                                                                               \
    if constexpr (rows <= 4) {                                                                                      \
      ((sum_left[R] = p0 == 0 ? left[R] : sum_left[R] + left[R],                                                    \
        sum_right[R] = p0 == 0 ? right[R] : sum_right[R] + right[R]),                                               \
       ...);                                                                                                        \
      if (p0 + block < depth) continue;                                                                             \
      ((left[R] = sum_left[R], right[R] = sum_right[R]), ...);                                                      \
    } else if (p0 != 0) {                                                                                           \
      vector before[2];                                                                                             \
      ((__builtin_memcpy(before, tile + R * columns, sizeof(before)), left[R] += before[0], right[R] += before[1]), \
       ...);                                                                                                        \
    }                                                                                                               \
    ((__builtin_memcpy(tile + R * columns, &left[R], sizeof(vector)),                                               \
      __builtin_memcpy(tile + R * columns + lanes, &right[R], sizeof(vector))),                                     \
     ...);                                                                                                          \
  }

template <class Tile, bool Scaled, class Code, int... R>
void packed_tile_16(std::int64_t depth, std::int64_t block, const float* a, const Code* b, const float* scales,
                    float* tile, std::integer_sequence<int, R...>) {
  HEDDLE_PACKED_TILE_BODY
}
#if defined(__x86_64__)
template <class Tile, bool Scaled, class Code, int... R>
__attribute__((target("avx2,fma"))) void packed_tile_32(std::int64_t depth, std::int64_t block, const float* a,
                                                        const Code* b, const float* scales, float* tile,
                                                        std::integer_sequence<int, R...>) {
  HEDDLE_PACKED_TILE_BODY
}
template <class Tile, bool Scaled, class Code, int... R>
__attribute__((target("avx512f"))) void packed_tile_64(std::int64_t depth, std::int64_t block, const float* a,
                                                       const Code* b, const float* scales, float* tile,
                                                       std::integer_sequence<int, R...>) {
  HEDDLE_PACKED_TILE_BODY
}
#endif
#undef HEDDLE_PACKED_TILE_BODY
#undef HEDDLE_PACKED_ROW

template <class Tile, bool Scaled, int Rows, class Code>
void packed_tile(std::int64_t depth, std::int64_t block, const float* a, const Code* b, const float* scales,
                 float* tile) {
  constexpr auto rows = std::make_integer_sequence<int, Rows>{};
#if defined(__x86_64__)
  if constexpr (Tile::vector_bytes == 64) return packed_tile_64<Tile, Scaled>(depth, block, a, b, scales, tile, rows);
  if constexpr (Tile::vector_bytes == 32) return packed_tile_32<Tile, Scaled>(depth, block, a, b, scales, tile, rows);
#endif
  if constexpr (Tile::vector_bytes == 16) packed_tile_16<Tile, Scaled>(depth, block, a, b, scales, tile, rows);
}

/// Rows of x in a group, most of a kernel. With 16 registers there is no room for words of bytes beside the sums of 6 rows: 4 have the
/// fastest kernel.
template <class Tile, class Code>
inline constexpr int group_rows = std::is_same_v<Code, std::int8_t> && Tile::vector_bytes < 64 ? 4 : Tile::rows;

/// Calls `f` with the rows, as a constant, of the kernel that takes a group of so many.
template <class Tile, class F>
void with_kernel_rows(std::int64_t rows, const F& f) {
  if (rows == 1)
    f(std::integral_constant<int, 1>{});
  else if (rows == 2)
    f(std::integral_constant<int, 2>{});
  else if (rows <= 4)
    f(std::integral_constant<int, 4>{});
  else if (Tile::rows > 8 && rows <= 8)
    f(std::integral_constant<int, (std::min)(8, Tile::rows)>{});
  else
    f(std::integral_constant<int, Tile::rows>{});
}
/// Elements of `pack_rows`.
template <class Tile>
constexpr std::int64_t packed_rows_size(std::int64_t m, std::int64_t depth) noexcept {
  return (m + Tile::rows) * depth;
}
/// Rows [begin, m) of x in groups of `group_rows`, the last of what is left, as the kernels take them, over `code_unit`.
template <class Tile, class Code>
void pack_rows(std::int64_t begin, std::int64_t m, std::int64_t depth, const float* x, float* to) {
  constexpr std::int64_t most = group_rows<Tile, Code>;
  for (std::int64_t r = begin; r < m; r += most) {
    const std::int64_t rows = (std::min)(most, m - r);
    float* const group = to + r * depth;
    with_kernel_rows<Tile>(rows, [&]<int Rows>(std::integral_constant<int, Rows>) {
      if constexpr (Rows == 1)
        std::copy_n(x + r * depth, depth, group);
      else
        pack_panel<Rows>(rows, depth, x + r * depth, depth, 1, group);
      if constexpr (code_unit<Code> != 1.0f)
        for (std::int64_t i = 0; i < Rows * depth; ++i) group[i] *= 1.0f / code_unit<Code>;
    });
  }
}

/// Strips [first, end) of the result, for all rows. `a`: the rows as `pack_rows` gives them.
template <class Tile, bool Scaled, class Code>
void multiply_strips(std::int64_t m, const float* a, const packed_operand<Code>& w, std::int64_t first,
                     std::int64_t end, float beta, float* c) {
  constexpr std::int64_t columns = Tile::columns;
  alignas(64) float tile[Tile::rows * Tile::columns] = {};  // the product of no depth
  const std::int64_t blocks = (w.depth + w.block - 1) / w.block;
  constexpr std::int64_t most = group_rows<Tile, Code>;
  constexpr std::int64_t together = codes_per_word<Code>;
  const std::int64_t words = (w.depth + together - 1) / together;
  // What is in c is added to the first block, as `portable` does.
  const std::int64_t part = Scaled || beta == 0 ? w.depth : w.block;
  for (std::int64_t s = first; s < end; ++s) {
    const Code* const codes = w.codes + s * words * together * columns;
    const float* const scales = Scaled ? w.scales + s * blocks * columns : nullptr;
    const std::int64_t width = (std::min)(columns, w.columns - s * columns);
    for (std::int64_t r = 0; r < m; r += most) {
      const std::int64_t rows = (std::min)(most, m - r);
      const float* const group = a + r * w.depth;
      with_kernel_rows<Tile>(rows, [&]<int Rows>(std::integral_constant<int, Rows>) {
        std::int64_t p = 0;
        do {
          const std::int64_t depth = (std::min)(part, w.depth - p);
          packed_tile<Tile, Scaled, Rows>(depth, w.block, group + p * Rows, codes + p * columns, scales, tile);
          store_tile<Tile::columns>(rows, width, tile, p == 0 ? beta : 1.0f, c + r * w.columns + s * columns,
                                    w.columns);
          p += depth;
        } while (p < w.depth);
      });
    }
  }
}

/// c = x w + beta c for row-major x [m, depth] and c [m, columns]; strips are shared among the threads.
template <bool Scaled, class Code>
void multiply_packed(team& workers, std::int64_t m, const float* x, const packed_operand<Code>& w, float beta,
                     float* c) {
  const auto with = [&]<class Tile>(Tile) {
    const bool as_it_is = m == 1 && code_unit<Code> == 1.0f;
    const gemm_panel<float> a(as_it_is ? 1 : packed_rows_size<Tile>(m, w.depth));
    if (!as_it_is)
      workers.split(
          m, (std::int64_t{1} << 16) / (w.depth + 1) + 1, group_rows<Tile, Code>,
          [&](std::int64_t first, std::int64_t end) { pack_rows<Tile, Code>(first, end, w.depth, x, a.data); });
    const float* const packed = as_it_is ? x : a.data;
    const std::int64_t strips = (w.columns + Tile::columns - 1) / Tile::columns;
    // About 8 microseconds of work for each thread, by arithmetic or by reading.
    const std::int64_t grain = 300000 / (w.depth * (m + 3) * Tile::columns / 4 + 1) + 1;
    workers.split(
        strips, grain, 1,
        [&](std::int64_t first, std::int64_t end) { multiply_strips<Tile, Scaled>(m, packed, w, first, end, beta, c); },
        4);  // for threads that others hold up
  };
#if defined(__x86_64__)
  if (gemm_vector_bytes() == 64) return with(gemm_tile<float, 64>{});
  if (gemm_vector_bytes() == 32) return with(gemm_tile<float, 32>{});
#endif
  with(gemm_tile<float, 16>{});
}

}  // namespace heddle::inline v0::compute::detail
