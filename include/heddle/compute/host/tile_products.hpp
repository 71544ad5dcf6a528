// heddle/compute/host/tile_products.hpp: bf16 products in tile registers (AMX).
#pragma once

#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace heddle::inline v0::compute::detail {

/// What `multiply_in_tiles` packs at a time: 1024 rows of op(a) and 256 columns of op(b), 512 deep. 1 MiB and 256 KiB.
inline constexpr std::int64_t tile_rows = 1024, tile_columns = 256, tile_depth = 512;

// As in round_bf16.hpp, nvcc reads neither the vectors nor the instructions, which are in assembly because intrinsics are in a header that
// takes long to compile. A program that runs on other processors, too, is compiled with them.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__CUDACC__)
#define HEDDLE_TILES __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")))

/// Whether the processor has tile registers and the products that bit `products` of its feature word says, and the system lets this process
/// use them.
inline bool may_use_tiles(int products) noexcept {
  std::uint32_t a = 7, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  if ((d >> products & 1) == 0 || (d >> 24 & 1) == 0) return false;  // AMX-TILE
  constexpr long request = 0x1023, tile_data = 18;                   // ARCH_REQ_XCOMP_PERM
  return ::syscall(SYS_arch_prctl, request, tile_data) == 0;
}
/// Whether products of bf16 may be in tiles.
inline bool has_tiles() noexcept {
  static const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          may_use_tiles(22);  // AMX-BF16
  return has;
}
/// Whether products of 8-bit integers may be in tiles.
inline bool has_integer_tiles() noexcept {
  static const bool has = may_use_tiles(25);  // AMX-INT8
  return has;
}

// A tile holds 16 rows of 16 double words, each two bf16 that follow one another along what is summed up.
using tile_words = std::uint32_t __attribute__((vector_size(64)));
using tile_halves = std::uint16_t __attribute__((vector_size(64)));
inline constexpr std::int64_t tile_size = 512, tile_pairs = 16, tile_extent = 16;

/// The halves of a register: 16 elements of x and 16 of y.
HEDDLE_TILES __attribute__((always_inline)) inline void load_halves(const float* x, const float* y,
                                                                    tile_halves& to) noexcept {
  float __attribute__((vector_size(64))) low, high;
  __builtin_memcpy(&low, x, sizeof low);
  __builtin_memcpy(&high, y, sizeof high);
  __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(to) : "v"(low), "v"(high));
}
HEDDLE_TILES __attribute__((always_inline)) inline void load_halves(const bf16* x, const bf16* y,
                                                                    tile_halves& to) noexcept {
  std::uint64_t __attribute__((vector_size(32))) low, high;
  __builtin_memcpy(&low, x, sizeof low);
  __builtin_memcpy(&high, y, sizeof high);
  to = reinterpret_cast<tile_halves>(__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7));
}

/// r[i][j] and r[j][i] change places.
HEDDLE_TILES __attribute__((always_inline)) inline void transpose_words(tile_words (&r)[16]) noexcept {
  tile_words t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  for (int i = 0; i < 16; i += 4)
    for (int h = 0; h < 2; ++h) {
      const tile_words x = t[i + h], y = t[i + 2 + h];
      r[i + 2 * h] = __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      r[i + 2 * h + 1] = __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 4; ++j) {
      const tile_words x = r[i + j], y = r[i + 4 + j];
      t[i + j] = __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      t[i + 4 + j] = __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
  for (int j = 0; j < 8; ++j) {
    r[j] = __builtin_shufflevector(t[j], t[8 + j], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    r[8 + j] = __builtin_shufflevector(t[j], t[8 + j], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
}

/// One tile of 16 rows or columns, 32 deep. `Along`: x has 16 rows of 32, along the depth; else 32 rows of 16. `Turned`: the word of pair p
/// and row or column i is to[p][i], as the right operand has it, when `Along`, and to[i][p] otherwise; not turned, the other way round.
template <bool Along, bool Turned, class T>
HEDDLE_TILES inline void pack_tile(const T* x, std::int64_t ld, bf16* to) noexcept {
  tile_words r[16];
  for (int i = 0; i < 16; ++i) {
    tile_halves both;
    if constexpr (Along) {
      load_halves(x + i * ld, x + i * ld + 16, both);
    } else {
      load_halves(x + 2 * i * ld, x + (2 * i + 1) * ld, both);
      both = __builtin_shufflevector(both, both, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25,
                                     10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    r[i] = reinterpret_cast<tile_words>(both);
  }
  if constexpr (Turned) transpose_words(r);
  __builtin_memcpy(to, r, sizeof r);
}

/// An operand of `extent` rows or columns, `depth` deep, in tiles to[extent / 16][depth / 32], with zeros where the last ones stick out.
template <bool Along, bool Turned, class T>
HEDDLE_TILES void pack_tiles(std::int64_t extent, std::int64_t depth, const T* x, std::int64_t ld, bf16* to) noexcept {
  const std::int64_t steps = (depth + 31) / 32, strips = (extent + tile_extent - 1) / tile_extent;
  // Along rows of x, so that a page of memory is left but once.
  const std::int64_t inner = Along ? steps : strips;
  for (std::int64_t t = 0; t < steps * strips; ++t) {
    const std::int64_t i = Along ? t / inner : t % inner, p = Along ? t % inner : t / inner;
    const std::int64_t wide = (std::min)(tile_extent, extent - i * tile_extent);
    const std::int64_t deep = (std::min)(std::int64_t{32}, depth - 32 * p);
    bf16* const tile = to + (i * steps + p) * tile_size;
    const T* const from = Along ? x + i * tile_extent * ld + 32 * p : x + 32 * p * ld + i * tile_extent;
    if (wide == tile_extent && deep == 32) {
      constexpr std::int64_t ahead = Along ? 64 : 32;  // what is packed soon
      for (int r = 0; r < (Along ? 16 : 32); ++r) __builtin_prefetch(from + r * ld + ahead);
      pack_tile<Along, Turned>(from, ld, tile);
      continue;
    }
    T edge[tile_size] = {};
    constexpr std::int64_t columns = Along ? 32 : 16;
    const std::int64_t rows = Along ? wide : deep, count = Along ? deep : wide;
    for (std::int64_t r = 0; r < rows; ++r) std::copy_n(from + r * ld, count, edge + r * columns);
    pack_tile<Along, Turned>(static_cast<const T*>(edge), columns, tile);
  }
}

/// While it lives, this thread's tile registers have 16 rows of 64 bytes each, but for depths below 64 bytes: then 2 and 3, left operands,
/// have rows of so many, and 4 and 5, right ones, a row for four of them. What shape they had before is put back.
class open_tiles {
 public:
  HEDDLE_TILES explicit open_tiles(int depth = 64) noexcept {
    shape ours{};
    ours.palette = 1;
    for (int t = 0; t < 8; ++t) ours.row_bytes[t] = 64, ours.rows[t] = 16;
    for (int t = 2; t < 4; ++t) ours.row_bytes[t] = static_cast<std::uint16_t>(depth);
    for (int t = 4; t < 6; ++t) ours.rows[t] = static_cast<std::uint8_t>(depth / 4);
    __asm__ volatile("sttilecfg %0" : "=m"(before_));
    __asm__ volatile("ldtilecfg %0" : : "m"(ours));
  }
  HEDDLE_TILES ~open_tiles() { __asm__ volatile("ldtilecfg %0" : : "m"(before_)); }
  open_tiles(const open_tiles&) = delete;
  open_tiles& operator=(const open_tiles&) = delete;

 private:
  struct alignas(64) shape {
    std::uint8_t palette, start, none[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
  };
  static_assert(sizeof(shape) == 64);
  shape before_;
};

/// c[i] = sum over `steps` tiles of a[i] and b, for one or two tiles of rows, `ld` bytes between rows of c. Four registers, because a hardware
/// thread whose sibling multiplies in tiles, too, has few to rename: blocks of two by two tiles, which hold all eight, are slower there, and
/// as fast on a core of their own (docs/benchmarks/bf16_training.md).
template <int Rows>
HEDDLE_TILES inline void multiply_tiles(std::int64_t steps, const bf16* a, const bf16* b, float* c,
                                        std::int64_t ld) noexcept {
  const std::int64_t next = steps * tile_size, line = 64;
  __asm__ volatile("tilezero %tmm0");
  if constexpr (Rows == 2) __asm__ volatile("tilezero %tmm1");
  for (std::int64_t p = 0; p < steps; ++p, a += tile_size, b += tile_size) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm4" : : "r"(b), "r"(line) : "memory");
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm2" : : "r"(a), "r"(line) : "memory");
    __asm__ volatile("tdpbf16ps %tmm4, %tmm2, %tmm0");
    if constexpr (Rows == 2) {
      __asm__ volatile("tileloadd (%0,%1,1), %%tmm2" : : "r"(a + next), "r"(line) : "memory");
      __asm__ volatile("tdpbf16ps %tmm4, %tmm2, %tmm1");
    }
  }
  __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" : : "r"(c), "r"(ld) : "memory");
  if constexpr (Rows == 2)
    __asm__ volatile("tilestored %%tmm1, (%0,%1,1)" : : "r"(reinterpret_cast<char*>(c) + 16 * ld), "r"(ld) : "memory");
}

/// c = sums + beta c, for sums of rows of 16.
HEDDLE_TILES inline void add_tiles(std::int64_t rows, std::int64_t columns, const float* sums, float beta, float* c,
                                   std::int64_t ldc) noexcept {
  for (std::int64_t r = 0; r < rows; ++r, sums += tile_extent, c += ldc) {
    if (beta == 0.0f) {
      std::memcpy(c, sums, static_cast<std::size_t>(columns) * sizeof(float));
    } else if (columns == tile_extent) {
      float __attribute__((vector_size(64))) sum, before;
      __builtin_memcpy(&sum, sums, sizeof sum);
      __builtin_memcpy(&before, c, sizeof before);
      sum += beta * before;
      __builtin_memcpy(c, &sum, sizeof sum);
    } else {
      for (std::int64_t j = 0; j < columns; ++j) c[j] = sums[j] + beta * c[j];
    }
  }
}

/// Memory for `size` elements of packed operands, aligned to 64 bytes, which the calling thread keeps for its next product: at most 1.25 MiB.
/// Kept, because the C library returns pieces of that size to the system, which then faults in every page of the next one.
inline bf16* packed_operands(std::int64_t size) {
  struct kept_room {
    std::optional<gemm_panel<bf16>> panel;
    std::int64_t size = 0;
  };
  static thread_local kept_room mine;
  if (mine.size < size) {
    mine.size = 0;
    mine.panel.reset();
    mine.panel.emplace(size);
    mine.size = size;
  }
  return mine.panel->data;
}

/// c = op(a) op(b) + beta c for operands of float or bf16, the first rounded to the nearest bf16 as they are packed; m x n, k deep. Each
/// element is added up in an order that depends on k alone. Numbers below the least normal one, operands or results, count as zero.
/// Requires `has_tiles()`.
template <transpose TA, transpose TB, class A, class B>
HEDDLE_TILES void multiply_in_tiles(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, std::int64_t lda,
                                    const B* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
  const auto whole = [](std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; };
  const std::int64_t most_deep = whole((std::min)(k, tile_depth), 32);
  const std::int64_t left_size = whole((std::min)(m, tile_rows), 16) * most_deep;
  bf16* const left = packed_operands(left_size + whole((std::min)(n, tile_columns), 16) * most_deep);
  bf16* const right = left + left_size;
  alignas(64) float sums[32 * tile_extent];
  const open_tiles opened;
  for (std::int64_t i0 = 0; i0 < m; i0 += tile_rows)
    for (std::int64_t p = 0; p < k; p += tile_depth) {
      const std::int64_t rows = (std::min)(tile_rows, m - i0), depth = (std::min)(tile_depth, k - p);
      const std::int64_t steps = (depth + 31) / 32;
      const float keep = p == 0 ? beta : 1.0f;
      pack_tiles<!ta, ta>(rows, depth, ta ? a + p * lda + i0 : a + i0 * lda + p, lda, left);
      for (std::int64_t j0 = 0; j0 < n; j0 += tile_columns) {
        const std::int64_t columns = (std::min)(tile_columns, n - j0);
        pack_tiles<tb, tb>(columns, depth, tb ? b + j0 * ldb + p : b + p * ldb + j0, ldb, right);
        for (std::int64_t i = 0; i < rows; i += 32)
          for (std::int64_t j = 0; j < columns; j += tile_extent) {  // along rows of c, as above
            const std::int64_t high = (std::min)(std::int64_t{32}, rows - i);
            const std::int64_t wide = (std::min)(tile_extent, columns - j);
            const bf16 *x = left + i * steps * 32, *y = right + j * steps * 32;
            float* const to = c + (i0 + i) * ldc + j0 + j;
            for (std::int64_t r = 0; r < high; ++r) {  // is on its way while tiles are multiplied
              __builtin_prefetch(to + r * ldc, 1);
              __builtin_prefetch(to + r * ldc + wide - 1, 1);
            }
            const bool direct = keep == 0.0f && wide == tile_extent && high % tile_extent == 0;
            float* const sum = direct ? to : sums;
            const std::int64_t between = direct ? 4 * ldc : 64;
            if (high > tile_extent)
              multiply_tiles<2>(steps, x, y, sum, between);
            else
              multiply_tiles<1>(steps, x, y, sum, between);
            if (!direct) add_tiles(high, wide, sums, keep, to, ldc);
          }
      }
    }
}
#undef HEDDLE_TILES

#else

inline bool has_tiles() noexcept {
  return false;
}
template <transpose TA, transpose TB, class A, class B>
void multiply_in_tiles(std::int64_t, std::int64_t, std::int64_t, const A*, std::int64_t, const B*, std::int64_t, float,
                       float*, std::int64_t) {}

#endif

}  // namespace heddle::inline v0::compute::detail
