// heddle/compute/host/portable.hpp: matrix products without any library, in blocks.
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
      if (width < Width) std::fill_n(to, Width * depth, T(0));
      // A few columns at a time: reads run along memory, writes stay in one or two lines.
      for (std::int64_t p0 = 0; p0 < depth; p0 += 16) {
        const std::int64_t p1 = (std::min)(depth, p0 + 16);
        for (std::int64_t i = 0; i < width; ++i)
          for (std::int64_t p = p0; p < p1; ++p) to[p * Width + i] = strip[i * along + p * across];
      }
    }
  }
}

/// The elements of x and of y in turn: of their first halves, and of their second ones. (nvcc takes no packs in the shuffle.)
template <int Lanes>
struct interleaved {
  template <class V>
  [[gnu::always_inline]] static void halves(const V& x, const V& y, V& first, V& second) {
    if constexpr (Lanes == 2) {
      first = __builtin_shufflevector(x, y, 0, 2);
      second = __builtin_shufflevector(x, y, 1, 3);
    } else if constexpr (Lanes == 4) {
      first = __builtin_shufflevector(x, y, 0, 4, 1, 5);
      second = __builtin_shufflevector(x, y, 2, 6, 3, 7);
    } else if constexpr (Lanes == 8) {
      first = __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
      second = __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
    } else if constexpr (Lanes == 16) {
      first = __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      second = __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
  }
};

/// Transposes square blocks of rows that lie `along` elements apart into a strip: to[p][i] = from[i*along + p] for p below `depth`,
/// a multiple of the lanes, and i below the lanes; rows of the strip lie `Width` apart. After as many rounds of interleaving the two
/// halves of the rows as a row index has bits, row and column are exchanged.
#define HEDDLE_TRANSPOSE_BODY                                                                           \
  using vector = typename Tile::vector;                                                                 \
  using zip = interleaved<Tile::lanes>;                                                                 \
  constexpr int half = Tile::lanes / 2;                                                                 \
  for (std::int64_t p = 0; p < depth; p += Tile::lanes, to += Tile::lanes * Tile::columns) {            \
    vector x[Tile::lanes], y[Tile::lanes];                                                              \
    (__builtin_memcpy(&x[At], from + At * along + p, sizeof(vector)), ...);                             \
    (__builtin_memcpy(&x[half + At], from + (half + At) * along + p, sizeof(vector)), ...);             \
    (zip::halves(x[At], x[half + At], y[2 * At], y[2 * At + 1]), ...);                                  \
    if constexpr (Tile::lanes >= 4) (zip::halves(y[At], y[half + At], x[2 * At], x[2 * At + 1]), ...);  \
    if constexpr (Tile::lanes >= 8) (zip::halves(x[At], x[half + At], y[2 * At], y[2 * At + 1]), ...);  \
    if constexpr (Tile::lanes >= 16) (zip::halves(y[At], y[half + At], x[2 * At], x[2 * At + 1]), ...); \
    const vector* const made = Tile::lanes == 4 || Tile::lanes == 16 ? x : y;                           \
    (__builtin_memcpy(to + At * Tile::columns, &made[At], sizeof(vector)), ...);                        \
    (__builtin_memcpy(to + (half + At) * Tile::columns, &made[half + At], sizeof(vector)), ...);        \
  }

template <class Tile, class T, int... At>
void transpose_strip_16(std::int64_t depth, const T* from, std::int64_t along, T* to,
                        std::integer_sequence<int, At...>) {
  HEDDLE_TRANSPOSE_BODY
}
#if defined(__x86_64__)
template <class Tile, class T, int... At>
__attribute__((target("avx2,fma"))) void transpose_strip_32(std::int64_t depth, const T* from, std::int64_t along,
                                                            T* to, std::integer_sequence<int, At...>) {
  HEDDLE_TRANSPOSE_BODY
}
template <class Tile, class T, int... At>
__attribute__((target("avx512f"))) void transpose_strip_64(std::int64_t depth, const T* from, std::int64_t along, T* to,
                                                           std::integer_sequence<int, At...>) {
  HEDDLE_TRANSPOSE_BODY
}
#endif
#undef HEDDLE_TRANSPOSE_BODY

/// `pack_panel` for columns of b: where a column's elements lie one behind the other, whole blocks go through registers.
template <class Tile, class T>
void pack_columns(std::int64_t columns, std::int64_t depth, const T* from, std::int64_t along, std::int64_t across,
                  T* to) {
  const std::int64_t square = across == 1 && along != 1 ? depth / Tile::lanes * Tile::lanes : 0;
  for (std::int64_t s = 0; s < columns; s += Tile::columns, to += Tile::columns * depth) {
    const std::int64_t width = (std::min)(std::int64_t{Tile::columns}, columns - s);
    const T* const strip = from + s * along;
    if (width < Tile::columns || square == 0) {
      pack_panel<Tile::columns>(width, depth, strip, along, across, to);
      continue;
    }
    constexpr auto halves = std::make_integer_sequence<int, Tile::lanes / 2>{};
    for (int side = 0; side < 2; ++side) {
      const T* const rows = strip + side * Tile::lanes * along;
      T* const left = to + side * Tile::lanes;
#if defined(__x86_64__)
      if constexpr (Tile::vector_bytes == 64) transpose_strip_64<Tile>(square, rows, along, left, halves);
      if constexpr (Tile::vector_bytes == 32) transpose_strip_32<Tile>(square, rows, along, left, halves);
#endif
      if constexpr (Tile::vector_bytes == 16) transpose_strip_16<Tile>(square, rows, along, left, halves);
    }
    for (std::int64_t p = square; p < depth; ++p)
      for (std::int64_t i = 0; i < Tile::columns; ++i) to[p * Tile::columns + i] = strip[i * along + p];
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

/// The first `Rows` rows of a tile; each has the same bits whatever their number.
template <class Tile, int Rows, class T>
void multiply_tile(std::int64_t depth, const T* a, const T* b, T* tile) {
  constexpr auto rows = std::make_integer_sequence<int, Rows>{};
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

/// c = a b + beta c for at most `Tile::rows` rows, as when a model decodes: each strip of b is used as soon as it is packed, so that b
/// goes through the first-level cache once and nothing is written to memory. The same bits as `multiply_blocked`.
template <class Tile, int Rows, class T = typename Tile::value>
void multiply_few_rows(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_row,
                       std::int64_t a_depth, const T* b, std::int64_t b_depth, std::int64_t b_column, T beta, T* c,
                       std::int64_t ldc) {
  const std::int64_t most = (std::min)(k, Tile::depth);
  const gemm_panel<T> packed_a(k * Tile::rows), packed_b(most * Tile::columns);
  alignas(64) T tile[Tile::rows * Tile::columns];
  pack_panel<Tile::rows>(m, k, a, a_row, a_depth, packed_a.data);
  for (std::int64_t j = 0; j < n; j += Tile::columns) {
    const std::int64_t columns = (std::min)(std::int64_t{Tile::columns}, n - j);
    for (std::int64_t p0 = 0; p0 < k; p0 += most) {
      const std::int64_t depth = (std::min)(most, k - p0);
      pack_columns<Tile>(columns, depth, b + p0 * b_depth + j * b_column, b_column, b_depth, packed_b.data);
      multiply_tile<Tile, Rows>(depth, packed_a.data + p0 * Tile::rows, packed_b.data, tile);
      store_tile<Tile::columns>(m, columns, tile, p0 == 0 ? beta : T(1), c + j, ldc);
    }
  }
}

/// c = a b + beta c with a(i, p) = a[i*a_row + p*a_depth] and b(p, j) = b[p*b_depth + j*b_column].
template <class Tile, class T = typename Tile::value>
void multiply_blocked(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_row,
                      std::int64_t a_depth, const T* b, std::int64_t b_depth, std::int64_t b_column, T beta, T* c,
                      std::int64_t ldc) {
  const auto few = [&]<int Rows>(std::integral_constant<int, Rows>) {
    multiply_few_rows<Tile, Rows>(m, n, k, a, a_row, a_depth, b, b_depth, b_column, beta, c, ldc);
  };
  if (m == 1) return few(std::integral_constant<int, 1>{});
  if (m <= 4) return few(std::integral_constant<int, 4>{});
  if (m <= Tile::rows) return few(std::integral_constant<int, Tile::rows>{});
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
      pack_columns<Tile>(columns, depth, b + p0 * b_depth + j0 * b_column, b_column, b_depth, packed_b.data);
      for (std::int64_t i0 = 0; i0 < m; i0 += row_block) {
        const std::int64_t rows = (std::min)(row_block, m - i0);
        pack_panel<Tile::rows>(rows, depth, a + i0 * a_row + p0 * a_depth, a_row, a_depth, packed_a.data);
        for (std::int64_t j = 0; j < columns; j += Tile::columns)
          for (std::int64_t i = 0; i < rows; i += Tile::rows) {
            multiply_tile<Tile, Tile::rows>(depth, packed_a.data + i * depth, packed_b.data + j * depth, tile);
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
