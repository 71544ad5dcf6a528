// heddle/compute/host/integer_products.hpp: products of 8-bit rows and 8-bit weights.
#pragma once

#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/host/rounded_rows.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/host/tile_products.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

namespace heddle::inline v0::compute::detail {

/// Instructions that multiply. All give the same bits: sums within a block are exact, and blocks are added up in order, each element by one
/// fused multiplication and addition.
enum class integer_kernel : unsigned char {
  portable,  ///< what the compiler makes of loops
  avx2,      ///< products of pairs in 16 bits
  vnni,      ///< AVX-512: sums of four products
  tiles,     ///< AMX for more than 8 rows, AVX-512 for fewer
};

/// Columns of a strip of weights: codes[strip][row / 4][column][row % 4], scales[strip][block][column].
inline constexpr int integer_columns = 16;

struct integer_operand {
  const std::int8_t* codes = nullptr;  ///< of whole blocks, zeros beyond the depth
  const bf16* scales = nullptr;
  std::int64_t depth = 0;
  std::int64_t columns = 0;
};

/// One strip for a few rows of a group: tile[r][j] = sum over blocks of (sum of products of codes * scale of the weights) * scale of the row.
struct integer_step {
  std::int64_t blocks = 0;
  std::int64_t high = 0;  ///< rows from one block of x to the next
  const std::int8_t* x = nullptr;
  const float* x_scales = nullptr;
  const std::int32_t* x_sums = nullptr;
  const std::int8_t* w = nullptr;
  const bf16* w_scales = nullptr;
  float* tile = nullptr;
};

template <std::int64_t Block, int Rows>
void integer_tile_portable(const integer_step& s) {
  float sums[Rows][integer_columns] = {};
  const std::int8_t* w = s.w;
  for (std::int64_t b = 0; b < s.blocks; ++b, w += Block * integer_columns)
    for (int r = 0; r < Rows; ++r) {
      std::int32_t part[integer_columns] = {};
      const std::int8_t* const x = s.x + (b * s.high + r) * Block;
      for (std::int64_t p = 0; p < Block; p += 4)
        for (int j = 0; j < integer_columns; ++j)
          for (int i = 0; i < 4; ++i) part[j] += x[p + i] * w[p * integer_columns + 4 * j + i];
      for (int j = 0; j < integer_columns; ++j) {
        const float scaled = static_cast<float>(part[j]) * static_cast<float>(s.w_scales[b * integer_columns + j]);
        sums[r][j] = std::fma(scaled, s.x_scales[b * s.high + r], sums[r][j]);
      }
    }
  for (int r = 0; r < Rows; ++r) std::copy_n(sums[r], integer_columns, s.tile + r * integer_columns);
}

// As in tile_products.hpp, nvcc does not read the instructions, and a program that runs on other processors, too, is compiled with them.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDACC__)
inline integer_kernel fastest_integer_kernel() noexcept {
  static const integer_kernel fastest = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni"))
      return has_integer_tiles() ? integer_kernel::tiles : integer_kernel::vnni;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return integer_kernel::avx2;
    return integer_kernel::portable;
  }();
  return fastest;
}

/// Asks memory for what lies 8 KiB behind `w`, for the second-level cache. One row is read faster so than from nearer and for the first-level
/// cache; with tiles it is the other way round.
__attribute__((always_inline)) inline void ask_ahead(const std::int8_t* w) noexcept {
  __builtin_prefetch(w + 8192, 0, 2);
}

typedef std::int32_t four_codes __attribute__((may_alias));

#define HEDDLE_AVX2 __attribute__((target("avx2,fma")))
struct avx2_lanes {
  typedef float number __attribute__((vector_size(32)));
  typedef std::int32_t whole __attribute__((vector_size(32)));
  typedef std::uint16_t halves __attribute__((vector_size(16)));

  /// sum += products of x, four codes for all columns, and w, whose magnitudes are `size`. Pairs of products are below 2^15.
  HEDDLE_AVX2 __attribute__((always_inline)) static void add(const whole& x, const whole& w, const whole& size,
                                                             whole& sum) {
    whole t;
    const whole ones = whole{} + 0x00010001;
    __asm__("vpsignb %2, %1, %0" : "=x"(t) : "x"(x), "x"(w));
    __asm__("vpmaddubsw %2, %1, %0" : "=x"(t) : "x"(size), "x"(t));
    __asm__("vpmaddwd %2, %1, %0" : "=x"(t) : "x"(t), "x"(ones));
    sum += t;
  }
  HEDDLE_AVX2 __attribute__((always_inline)) static void fold(const whole& part, const number& w, const float& x,
                                                              number& sum) {
    const number scaled = __builtin_convertvector(part, number) * w, times = number{} + x;
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(scaled), "x"(times));
  }
  HEDDLE_AVX2 __attribute__((always_inline)) static void widen(const bf16* from, number& to) {
    halves h;
    __builtin_memcpy(&h, from, sizeof h);
    to = reinterpret_cast<number>(__builtin_convertvector(h, whole) << 16);
  }
};
template <std::int64_t Block, int... R>
HEDDLE_AVX2 void integer_tile_avx2(const integer_step& s, std::integer_sequence<int, R...>) {
  using lanes = avx2_lanes;
  lanes::number left[] = {((void)R, lanes::number{})...}, right[] = {((void)R, lanes::number{})...};
  const std::int8_t *x = s.x, *w = s.w;
  const float* x_scales = s.x_scales;
  for (std::int64_t b = 0; b < s.blocks; ++b, x += s.high * Block, x_scales += s.high) {
    __builtin_prefetch(s.w_scales + b * integer_columns + 512, 0, 2);
    lanes::whole a[] = {((void)R, lanes::whole{})...}, c[] = {((void)R, lanes::whole{})...};
    for (std::int64_t p = 0; p < Block; p += 4, w += 64) {
      ask_ahead(w);
      lanes::whole w0, w1, size0, size1;
      __builtin_memcpy(&w0, w, sizeof w0);
      __builtin_memcpy(&w1, w + 32, sizeof w1);
      __asm__("vpabsb %1, %0" : "=x"(size0) : "x"(w0));
      __asm__("vpabsb %1, %0" : "=x"(size1) : "x"(w1));
      const auto row = [&](const std::int8_t* from, lanes::whole& p0, lanes::whole& p1) HEDDLE_AVX2 {
        lanes::whole v;
        __asm__("vpbroadcastd %1, %0" : "=x"(v) : "m"(*reinterpret_cast<const four_codes*>(from)));
        lanes::add(v, w0, size0, p0);
        lanes::add(v, w1, size1, p1);
      };
      (row(x + R * Block + p, a[R], c[R]), ...);
    }
    lanes::number s0, s1;
    lanes::widen(s.w_scales + b * integer_columns, s0);
    lanes::widen(s.w_scales + b * integer_columns + 8, s1);
    ((lanes::fold(a[R], s0, x_scales[R], left[R]), lanes::fold(c[R], s1, x_scales[R], right[R])), ...);
  }
  ((__builtin_memcpy(s.tile + R * integer_columns, &left[R], sizeof left[R]),
    __builtin_memcpy(s.tile + R * integer_columns + 8, &right[R], sizeof right[R])),
   ...);
}
#undef HEDDLE_AVX2

#define HEDDLE_VNNI __attribute__((target("avx512f,avx512bw,avx512vnni")))
struct vnni_lanes {
  typedef float number __attribute__((vector_size(64)));
  typedef std::int32_t whole __attribute__((vector_size(64)));
  typedef std::uint16_t halves __attribute__((vector_size(32)));

  /// sum += products of codes `w` + 128, which are not negative, and four codes of x for all columns.
  HEDDLE_VNNI __attribute__((always_inline)) static void add(const whole& w, const std::int8_t* x, whole& sum) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const four_codes*>(x)));
  }
  HEDDLE_VNNI __attribute__((always_inline)) static void fold(const whole& part, const number& w, const float& x,
                                                              number& sum) {
    const number scaled = __builtin_convertvector(part, number) * w;
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(scaled), "m"(x));
  }
  HEDDLE_VNNI __attribute__((always_inline)) static void widen(const bf16* from, number& to) {
    halves h;
    __builtin_memcpy(&h, from, sizeof h);
    to = reinterpret_cast<number>(__builtin_convertvector(h, whole) << 16);
  }
};
template <std::int64_t Block, int... R>
HEDDLE_VNNI void integer_tile_vnni(const integer_step& s, std::integer_sequence<int, R...>) {
  using lanes = vnni_lanes;
  lanes::number sum[] = {((void)R, lanes::number{})...};
  const std::int8_t *x = s.x, *w = s.w;
  const float* x_scales = s.x_scales;
  const std::int32_t* x_sums = s.x_sums;
  for (std::int64_t b = 0; b < s.blocks; ++b, x += s.high * Block, x_scales += s.high, x_sums += s.high) {
    lanes::whole part[] = {lanes::whole{} - 128 * x_sums[R]...};
    __builtin_prefetch(s.w_scales + b * integer_columns + 512, 0, 2);
    for (std::int64_t p = 0; p < Block; p += 4, w += 64) {
      ask_ahead(w);
      lanes::whole v;
      __builtin_memcpy(&v, w, sizeof v);
      v ^= static_cast<std::int32_t>(0x80808080);
      (lanes::add(v, x + R * Block + p, part[R]), ...);
    }
    lanes::number scale;
    lanes::widen(s.w_scales + b * integer_columns, scale);
    (lanes::fold(part[R], scale, x_scales[R], sum[R]), ...);
  }
  (__builtin_memcpy(s.tile + R * integer_columns, &sum[R], sizeof sum[R]), ...);
}

#if defined(__linux__)
#define HEDDLE_INTEGER_TILES
/// Codes of a row that a tile holds.
template <std::int64_t Block>
inline constexpr int tile_step = Block % 64 == 0 ? 64 : 32;

#define HEDDLE_TILES __attribute__((target("avx512f,avx512bw,avx512vnni,amx-tile,amx-int8")))
/// The sums of a block of 16 rows in a tile of their own, by the tile registers of `Which`.
template <std::int64_t Block, int Which>
HEDDLE_TILES __attribute__((always_inline)) inline void multiply_integer_block(const std::int8_t* x,
                                                                               const std::int8_t* w, std::int32_t* to) {
  constexpr std::int64_t deep = tile_step<Block>, along = Block, line = 64;
  if constexpr (Which == 0)
    __asm__ volatile("tilezero %tmm0");
  else
    __asm__ volatile("tilezero %tmm1");
  for (std::int64_t p = 0; p < Block; p += deep, x += deep, w += deep * integer_columns) {
    if constexpr (Which == 0) {
      __asm__ volatile("tileloadd (%0,%1,1), %%tmm2" : : "r"(x), "r"(along) : "memory");
      __asm__ volatile("tileloadd (%0,%1,1), %%tmm4" : : "r"(w), "r"(line) : "memory");
      __asm__ volatile("tdpbssd %tmm4, %tmm2, %tmm0");
    } else {
      __asm__ volatile("tileloadd (%0,%1,1), %%tmm3" : : "r"(x), "r"(along) : "memory");
      __asm__ volatile("tileloadd (%0,%1,1), %%tmm5" : : "r"(w), "r"(line) : "memory");
      __asm__ volatile("tdpbssd %tmm5, %tmm3, %tmm1");
    }
  }
  if constexpr (Which == 0)
    __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" : : "r"(to), "r"(line) : "memory");
  else
    __asm__ volatile("tilestored %%tmm1, (%0,%1,1)" : : "r"(to), "r"(line) : "memory");
}
/// 16 rows, in tiles as `open_tiles(tile_step<Block>)` shapes them. While a block is folded, the next one is multiplied.
template <std::int64_t Block, int... R>
HEDDLE_TILES void integer_tile_tiles(const integer_step& s, std::integer_sequence<int, R...>) {
  using lanes = vnni_lanes;
  static_assert(sizeof...(R) == 16);
  lanes::number sum[] = {((void)R, lanes::number{})...};
  alignas(64) std::int32_t parts[2][16 * 16];
  const auto multiply = [&](std::int64_t b) HEDDLE_TILES {
    const std::int8_t *const x = s.x + b * 16 * Block, *const w = s.w + b * integer_columns * Block;
    for (std::int64_t i = 0; i < Block * integer_columns; i += 64) __builtin_prefetch(w + 4096 + i);
    if (b % 2 == 0)
      multiply_integer_block<Block, 0>(x, w, parts[0]);
    else
      multiply_integer_block<Block, 1>(x, w, parts[1]);
  };
  if (s.blocks > 0) multiply(0);
  for (std::int64_t b = 0; b < s.blocks; ++b) {
    if (b + 1 < s.blocks) multiply(b + 1);
    __builtin_prefetch(s.w_scales + b * integer_columns + 256);
    lanes::number scale;
    lanes::whole part[16];
    const std::int32_t* const from = parts[b % 2];
    const float* const x_scales = s.x_scales + b * 16;
    lanes::widen(s.w_scales + b * integer_columns, scale);
    ((__builtin_memcpy(&part[R], from + R * 16, 64), lanes::fold(part[R], scale, x_scales[R], sum[R])), ...);
  }
  (__builtin_memcpy(s.tile + R * integer_columns, &sum[R], sizeof sum[R]), ...);
}
#undef HEDDLE_TILES
#endif
#undef HEDDLE_VNNI

#else
inline integer_kernel fastest_integer_kernel() noexcept {
  return integer_kernel::portable;
}
#endif

/// Strips [first, end) of c = x w + beta c, for all rows of x.
template <std::int64_t Block>
void multiply_integer_strips(integer_kernel kernel, std::int64_t m, const rounded_rows<Block>& x,
                             const integer_operand& w, std::int64_t first, std::int64_t end, float beta, float* c) {
  alignas(64) float tile[16 * integer_columns];
  const std::int64_t blocks = x.blocks(), high = x.high();
  const auto by = [&]<int Rows>(const integer_step& s, std::integral_constant<int, Rows>) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDACC__)
    constexpr auto rows = std::make_integer_sequence<int, Rows>{};
    if (kernel >= integer_kernel::vnni) return integer_tile_vnni<Block>(s, rows);
    if constexpr (Rows <= 4)
      if (kernel == integer_kernel::avx2) return integer_tile_avx2<Block>(s, rows);
#endif
    if constexpr (Rows <= 4) integer_tile_portable<Block, Rows>(s);
  };
#if defined(HEDDLE_INTEGER_TILES)
  const bool in_tiles = kernel == integer_kernel::tiles && Block % 32 == 0 && high == 16;
  std::optional<open_tiles> opened;
  if (in_tiles) opened.emplace(tile_step<Block>);
#endif
  for (std::int64_t s = first; s < end; ++s) {
    const std::int64_t width = (std::min)(std::int64_t{integer_columns}, w.columns - s * integer_columns);
    for (std::int64_t r = 0, rows; r < m; r += rows) {
      const std::int64_t left = (std::min)(m - r, high - r % high);
      integer_step step{blocks,
                        high,
                        x.codes(r),
                        x.scales(r),
                        x.sums(r),
                        w.codes + s * blocks * Block * integer_columns,
                        w.scales + s * blocks * integer_columns,
                        tile};
      rows = (std::min)(left, std::int64_t{16});
#if defined(HEDDLE_INTEGER_TILES)
      if constexpr (Block % 32 == 0)
        if (in_tiles && left > 8) {
          integer_tile_tiles<Block>(step, std::make_integer_sequence<int, 16>{});
          store_tile<integer_columns>(rows, width, tile, beta, c + r * w.columns + s * integer_columns, w.columns);
          continue;
        }
#endif
      rows = (std::min)(left, std::int64_t{kernel >= integer_kernel::vnni ? 8 : 4});
      if (rows > 4)
        by(step, std::integral_constant<int, 8>{});
      else if (rows > 2)
        by(step, std::integral_constant<int, 4>{});
      else if (rows == 2)
        by(step, std::integral_constant<int, 2>{});
      else
        by(step, std::integral_constant<int, 1>{});
      store_tile<integer_columns>(rows, width, tile, beta, c + r * w.columns + s * integer_columns, w.columns);
    }
  }
}

/// c = x w + beta c for m > 0 rows of x [m, depth] and row-major c [m, columns]; strips are shared among the threads.
template <std::int64_t Block>
void multiply_integers(team& workers, std::int64_t m, const rounded_rows<Block>& x, const integer_operand& w,
                       float beta, float* c, integer_kernel kernel = fastest_integer_kernel()) {
  const std::int64_t strips = (w.columns + integer_columns - 1) / integer_columns;
  // About 8 microseconds of work for each thread, by arithmetic or by reading.
  const std::int64_t grain = 600000 / (w.depth * (m + 7) * integer_columns / 4 + 1) + 1;
  workers.split(
      strips, grain, 1,
      [&](std::int64_t first, std::int64_t end) {
        multiply_integer_strips<Block>(kernel, m, x, w, first, end, beta, c);
      },
      4);  // for threads that others hold up
}
/// The same for row-major x in float.
template <std::int64_t Block>
void multiply_integers(team& workers, std::int64_t m, const float* x, const integer_operand& w, float beta, float* c,
                       integer_kernel kernel = fastest_integer_kernel()) {
  multiply_integers<Block>(workers, m, rounded_rows<Block>(workers, m, w.depth, x), w, beta, c, kernel);
}
#undef HEDDLE_INTEGER_TILES

}  // namespace heddle::inline v0::compute::detail
