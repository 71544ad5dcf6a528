// heddle/compute/host/portable.hpp: matrix products without any library: packed, blocked, in vector registers.
#pragma once

#include <heddle/compute/host/native_vector.hpp>
#include <heddle/compute/kernels.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::compute {

namespace detail {

/// The block of c that the inner kernel keeps in registers, and the panels it is fed from.
template <class T, int VectorBytes>
struct gemm_tile {
  using value = T;
  using vector = typename native_vector<T, VectorBytes>::type;
  static constexpr int vector_bytes = VectorBytes;
  static constexpr int lanes = VectorBytes / static_cast<int>(sizeof(T));
  static constexpr int rows = VectorBytes == 64 ? 12 : 6;  // 24 of 32, or 12 of 16 registers
  static constexpr int columns = 2 * lanes;
  static constexpr std::int64_t depth = 256;                                       // of a and b per pass
  static constexpr std::int64_t row_block = rows * (VectorBytes == 64 ? 16 : 32);  // of a, in the second-level cache
  static constexpr std::int64_t column_block = 1024;                               // of b
};

/// The widest vectors, in bytes, that this processor has and the inner kernel is written for.
inline int gemm_vector_bytes() {
#if defined(__x86_64__)
  static const int widest = __builtin_cpu_supports("avx512f")                                 ? 64
                            : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 32
                                                                                              : 16;
  return widest;
#else
  return 16;
#endif
}

template <class T>
struct gemm_panel {
  explicit gemm_panel(std::int64_t size)
      : data(static_cast<T*>(::operator new(static_cast<std::size_t>(size) * sizeof(T), std::align_val_t{64}))) {}
  ~gemm_panel() { ::operator delete(data, std::align_val_t{64}); }
  gemm_panel(const gemm_panel&) = delete;
  gemm_panel& operator=(const gemm_panel&) = delete;
  T* data;
};

/// Copies `extent` rows or columns of an operand into strips of `Width` that the inner kernel reads in order:
/// to[strip][p][i] = from[(strip*Width + i)*along + p*across], with zeros where the last strip sticks out.
template <int Width, class T>
void pack_panel(std::int64_t extent, std::int64_t depth, const T* from, std::int64_t along, std::int64_t across,
                T* to) {
  for (std::int64_t s = 0; s < extent; s += Width, to += Width * depth) {
    const std::int64_t width = (std::min)(std::int64_t{Width}, extent - s);
    const T* strip = from + s * along;
    if (along == 1) {
      if (width == Width)
        for (std::int64_t p = 0; p < depth; ++p) std::memcpy(to + p * Width, strip + p * across, Width * sizeof(T));
      else
        for (std::int64_t p = 0; p < depth; ++p)
          for (std::int64_t i = 0; i < Width; ++i) to[p * Width + i] = i < width ? strip[p * across + i] : T(0);
    } else {
      // A few columns at a time: reads run along memory, writes stay in one or two lines.
      for (std::int64_t p0 = 0; p0 < depth; p0 += 16) {
        const std::int64_t p1 = (std::min)(depth, p0 + 16);
        for (std::int64_t i = 0; i < width; ++i)
          for (std::int64_t p = p0; p < p1; ++p) to[p * Width + i] = strip[i * along + p * across];
        for (std::int64_t i = width; i < Width; ++i)
          for (std::int64_t p = p0; p < p1; ++p) to[p * Width + i] = T(0);
      }
    }
  }
}

/// One tile: sum over p of a[p][i] * b[p][j], kept in registers. Unrolled by index packs, which every compiler does at
/// every level of optimisation. Writes rows of `Tile::columns`. Compiled once per width of vectors, whatever the
/// program's -march: the processor at hand decides which one runs.
#define HEDDLE_GEMM_TILE_BODY                                                             \
  using vector = typename Tile::vector;                                                   \
  vector left[] = {((void)R, vector{})...};                                               \
  vector right[] = {((void)R, vector{})...};                                              \
  for (std::int64_t p = 0; p < depth; ++p, a += Tile::rows, b += Tile::columns) {         \
    vector b0, b1;                                                                        \
    __builtin_memcpy(&b0, b, sizeof(vector));                                             \
    __builtin_memcpy(&b1, b + Tile::lanes, sizeof(vector));                               \
    ((left[R] += a[R] * b0, right[R] += a[R] * b1), ...);                                 \
  }                                                                                       \
  ((__builtin_memcpy(tile + R * Tile::columns, &left[R], sizeof(vector)),                 \
    __builtin_memcpy(tile + R * Tile::columns + Tile::lanes, &right[R], sizeof(vector))), \
   ...)

template <class Tile, class T, int... R>
void multiply_tile_16(std::int64_t depth, const T* a, const T* b, T* tile, std::integer_sequence<int, R...>) {
  HEDDLE_GEMM_TILE_BODY;
}
#if defined(__x86_64__)
template <class Tile, class T, int... R>
__attribute__((target("avx2,fma"))) void multiply_tile_32(std::int64_t depth, const T* a, const T* b, T* tile,
                                                          std::integer_sequence<int, R...>) {
  HEDDLE_GEMM_TILE_BODY;
}
template <class Tile, class T, int... R>
__attribute__((target("avx512f"))) void multiply_tile_64(std::int64_t depth, const T* a, const T* b, T* tile,
                                                         std::integer_sequence<int, R...>) {
  HEDDLE_GEMM_TILE_BODY;
}
#endif
#undef HEDDLE_GEMM_TILE_BODY

template <class Tile, class T>
void multiply_tile(std::int64_t depth, const T* a, const T* b, T* tile) {
  constexpr auto rows = std::make_integer_sequence<int, Tile::rows>{};
#if defined(__x86_64__)
  if constexpr (Tile::vector_bytes == 64) return multiply_tile_64<Tile>(depth, a, b, tile, rows);
  if constexpr (Tile::vector_bytes == 32) return multiply_tile_32<Tile>(depth, a, b, tile, rows);
#endif
  if constexpr (Tile::vector_bytes == 16) multiply_tile_16<Tile>(depth, a, b, tile, rows);
}

template <int Columns, class T>
void store_tile(std::int64_t rows, std::int64_t columns, const T* tile, T beta, T* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < rows; ++i, tile += Columns, c += ldc) {
    if (columns == Columns && beta == T(0))
      for (int j = 0; j < Columns; ++j) c[j] = tile[j];
    else if (columns == Columns && beta == T(1))
      for (int j = 0; j < Columns; ++j) c[j] += tile[j];
    else
      for (std::int64_t j = 0; j < columns; ++j) c[j] = beta == T(0) ? tile[j] : tile[j] + beta * c[j];
  }
}

/// c = a b + beta c with a(i, p) = a[i*a_row + p*a_depth] and b(p, j) = b[p*b_depth + j*b_column].
template <class Tile, class T = typename Tile::value>
void multiply_blocked(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_row,
                      std::int64_t a_depth, const T* b, std::int64_t b_depth, std::int64_t b_column, T beta, T* c,
                      std::int64_t ldc) {
  const auto rounded = [](std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; };
  const std::int64_t depth_block = (std::min)(k, Tile::depth);
  const std::int64_t row_block = (std::min)(rounded(m, Tile::rows), Tile::row_block);
  const std::int64_t column_block = (std::min)(rounded(n, Tile::columns), Tile::column_block);
  const gemm_panel<T> packed_a(depth_block * row_block), packed_b(depth_block * column_block);
  alignas(64) T tile[Tile::rows * Tile::columns];
  for (std::int64_t j0 = 0; j0 < n; j0 += column_block) {
    const std::int64_t columns = (std::min)(column_block, n - j0);
    for (std::int64_t p0 = 0; p0 < k; p0 += depth_block) {
      const std::int64_t depth = (std::min)(depth_block, k - p0);
      const T factor = p0 == 0 ? beta : T(1);
      pack_panel<Tile::columns>(columns, depth, b + p0 * b_depth + j0 * b_column, b_column, b_depth, packed_b.data);
      for (std::int64_t i0 = 0; i0 < m; i0 += row_block) {
        const std::int64_t rows = (std::min)(row_block, m - i0);
        pack_panel<Tile::rows>(rows, depth, a + i0 * a_row + p0 * a_depth, a_row, a_depth, packed_a.data);
        for (std::int64_t j = 0; j < columns; j += Tile::columns)
          for (std::int64_t i = 0; i < rows; i += Tile::rows) {
            multiply_tile<Tile>(depth, packed_a.data + i * depth, packed_b.data + j * depth, tile);
            store_tile<Tile::columns>((std::min)(std::int64_t{Tile::rows}, rows - i),
                                      (std::min)(std::int64_t{Tile::columns}, columns - j), tile, factor,
                                      c + (i0 + i) * ldc + j0 + j, ldc);
          }
      }
    }
  }
}

}  // namespace detail

/// heddle's own product: no dependency, the widest vectors of the processor it runs on, whatever the program was
/// compiled for. The order of additions is fixed, so that results depend neither on the number of threads nor on how
/// they cut the matrix; processors with other vectors may round differently.
/// Source: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", TOMS 34(3), 2008.
struct portable {
  static const char* name() noexcept { return "portable"; }

  template <transpose TA, transpose TB, class T>
  static void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
                       std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                  "heddle: compute::portable multiplies float and double");
    constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
    const std::int64_t a_row = ta ? 1 : lda, a_depth = ta ? lda : 1, b_depth = tb ? 1 : ldb, b_column = tb ? ldb : 1;
    const auto with = [&]<class Tile>(Tile) {
      detail::multiply_blocked<Tile>(m, n, k, a, a_row, a_depth, b, b_depth, b_column, beta, c, ldc);
    };
#if defined(__x86_64__)
    if (detail::gemm_vector_bytes() == 64) return with(detail::gemm_tile<T, 64>{});
    if (detail::gemm_vector_bytes() == 32) return with(detail::gemm_tile<T, 32>{});
#endif
    with(detail::gemm_tile<T, 16>{});
  }
};

}  // namespace heddle::inline v0::compute
