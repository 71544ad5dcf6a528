// heddle/compute/host/portable.hpp: matrix products without any library: packed, blocked, in vector registers.
#pragma once

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

#if defined(__AVX512F__)
inline constexpr int gemm_vector_bytes = 64;
typedef float gemm_float_vector __attribute__((vector_size(64)));
typedef double gemm_double_vector __attribute__((vector_size(64)));
#elif defined(__AVX__)
inline constexpr int gemm_vector_bytes = 32;
typedef float gemm_float_vector __attribute__((vector_size(32)));
typedef double gemm_double_vector __attribute__((vector_size(32)));
#else
inline constexpr int gemm_vector_bytes = 16;
typedef float gemm_float_vector __attribute__((vector_size(16)));
typedef double gemm_double_vector __attribute__((vector_size(16)));
#endif

/// The block of c that the inner kernel keeps in registers, and the panels it is fed from. `VectorBytes` is part of the
/// type so that code compiled for different vector widths has different names.
template <class T, int VectorBytes = gemm_vector_bytes>
struct gemm_tile {
  using vector = std::conditional_t<std::is_same_v<T, float>, gemm_float_vector, gemm_double_vector>;
  static constexpr int lanes = VectorBytes / static_cast<int>(sizeof(T));
  static constexpr int rows = VectorBytes == 64 ? 12 : 6;     // 24 of 32, or 12 of 16 registers
  static constexpr int vectors = 2;
  static constexpr int columns = vectors * lanes;
  static constexpr std::int64_t depth = 256;                  // of a and b per pass
  static constexpr std::int64_t row_block = rows * 16;        // of a, packed, in the second-level cache
  static constexpr std::int64_t column_block = 1024;          // of b, packed
};

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
/// every level of optimisation. Writes the tile to `tile`, rows of `Tile::columns`.
template <class Tile, class T, int... R>
void multiply_tile(std::int64_t depth, const T* a, const T* b, T* tile, std::integer_sequence<int, R...>) {
  using vector = typename Tile::vector;
  vector left[] = {((void)R, vector{})...};
  vector right[] = {((void)R, vector{})...};
  for (std::int64_t p = 0; p < depth; ++p, a += Tile::rows, b += Tile::columns) {
    vector b0, b1;
    std::memcpy(&b0, b, sizeof(vector));
    std::memcpy(&b1, b + Tile::lanes, sizeof(vector));
    ((left[R] += a[R] * b0, right[R] += a[R] * b1), ...);
  }
  ((std::memcpy(tile + R * Tile::columns, &left[R], sizeof(vector)),
    std::memcpy(tile + R * Tile::columns + Tile::lanes, &right[R], sizeof(vector))),
   ...);
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

}  // namespace detail

/// heddle's own product: no dependency, the machine's vectors as far as the compiler was told of them (-march), the
/// order of additions fixed, so that results depend neither on the number of threads nor on how they cut the matrix.
/// Source: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", TOMS 34(3), 2008.
struct portable {
  static const char* name() noexcept { return "portable"; }

  template <transpose TA, transpose TB, class T>
  static void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
                       std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                  "heddle: compute::portable multiplies float and double");
    using tile = detail::gemm_tile<T>;
    const auto rounded = [](std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; };
    const std::int64_t depth_block = (std::min)(k, tile::depth);
    const std::int64_t row_block = (std::min)(rounded(m, tile::rows), tile::row_block);
    const std::int64_t column_block = (std::min)(rounded(n, tile::columns), tile::column_block);
    const detail::gemm_panel<T> packed_a(depth_block * row_block);
    const detail::gemm_panel<T> packed_b(depth_block * column_block);
    // op(a)(i, p) = a[i*a_row + p*a_depth], op(b)(p, j) = b[p*b_depth + j*b_column]
    const std::int64_t a_row = TA == transpose::no ? lda : 1, a_depth = TA == transpose::no ? 1 : lda;
    const std::int64_t b_column = TB == transpose::no ? 1 : ldb, b_depth = TB == transpose::no ? ldb : 1;
    alignas(64) T block[tile::rows * tile::columns];
    for (std::int64_t j0 = 0; j0 < n; j0 += column_block) {
      const std::int64_t columns = (std::min)(column_block, n - j0);
      for (std::int64_t p0 = 0; p0 < k; p0 += depth_block) {
        const std::int64_t depth = (std::min)(depth_block, k - p0);
        const T factor = p0 == 0 ? beta : T(1);
        detail::pack_panel<tile::columns>(columns, depth, b + p0 * b_depth + j0 * b_column, b_column, b_depth,
                                          packed_b.data);
        for (std::int64_t i0 = 0; i0 < m; i0 += row_block) {
          const std::int64_t rows = (std::min)(row_block, m - i0);
          detail::pack_panel<tile::rows>(rows, depth, a + i0 * a_row + p0 * a_depth, a_row, a_depth, packed_a.data);
          for (std::int64_t j = 0; j < columns; j += tile::columns)
            for (std::int64_t i = 0; i < rows; i += tile::rows) {
              detail::multiply_tile<tile>(depth, packed_a.data + i * depth, packed_b.data + j * depth, block,
                                          std::make_integer_sequence<int, tile::rows>{});
              detail::store_tile<tile::columns>((std::min)(std::int64_t{tile::rows}, rows - i),
                                                (std::min)(std::int64_t{tile::columns}, columns - j), block, factor,
                                                c + (i0 + i) * ldc + j0 + j, ldc);
            }
        }
      }
    }
  }
};

}  // namespace heddle::inline v0::compute
