// heddle/compute/host/half_products.hpp: matrix products of bf16 and f16 operands, summed in float.
#pragma once

#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/host/gemm.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/host/tile_products.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>

namespace heddle::inline v0::compute {

/// A library that also multiplies bf16 operands into float, where `has_bf16_products()` says so of this processor.
/// `multiply_bf16` is called as `multiply` of `gemm_library`.
template <class G>
concept bf16_gemm_library = requires(std::int64_t size, const bf16* in, float beta, float* out) {
  { G::has_bf16_products() } -> std::same_as<bool>;
  G::template multiply_bf16<transpose::no, transpose::no>(size, size, size, in, size, in, size, beta, out, size);
  G::template multiply_bf16<transpose::no, transpose::yes>(size, size, size, in, size, in, size, beta, out, size);
  G::template multiply_bf16<transpose::yes, transpose::no>(size, size, size, in, size, in, size, beta, out, size);
};

namespace detail {

template <class G>
bool has_bf16_products() {
  if constexpr (bf16_gemm_library<G>)
    return G::has_bf16_products();
  else
    return false;
}

/// Whether products of floats that are rounded to bf16 are heddle's own, in tile registers: where the library says that they may be.
template <class G>
bool multiplies_in_tiles() {
  if constexpr (requires { G::has_tile_products(); })
    return G::has_tile_products();
  else
    return false;
}

/// Whether the library says that its products of bf16 with so many rows in all are slower than those of float with the conversion.
template <class G>
bool converts_bf16_products(std::int64_t rows) {
  if constexpr (requires { G::converts_bf16_products(rows); })
    return G::converts_bf16_products(rows);
  else
    return false;
}

/// What `multiply_shared` takes for a library where `multiplies_in_tiles()`: operands of float or bf16, rounded as they are packed.
struct tile_products {
  template <transpose TA, transpose TB, class A, class B>
  static void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, std::int64_t lda, const B* b,
                       std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
    multiply_in_tiles<TA, TB>(m, n, k, a, lda, b, ldb, beta, c, ldc);
  }
};

/// Blocks of operands that are converted to float at a time: 1 MiB and 2 MiB, for a product of 512 x 512 x 1024.
inline constexpr std::int64_t half_rows = 512, half_depth = 512, half_columns = 1024;

/// to[r][c] = from[r][c] in float, with rows of `to` one behind the other.
template <class H>
void convert_panel(std::int64_t rows, std::int64_t columns, const H* from, std::int64_t ld, float* to) {
  for (std::int64_t r = 0; r < rows; ++r) cast_lanes(columns, from + r * ld, to + r * columns);
}

/// c = op(a) op(b) + beta c, block by block through the library's float product.
template <class G, transpose TA, transpose TB, class H>
void multiply_converted(std::int64_t m, std::int64_t n, std::int64_t k, const H* a, std::int64_t lda, const H* b,
                        std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
  const gemm_panel<float> left((std::min)(m, half_rows) * (std::min)(k, half_depth));
  const gemm_panel<float> right((std::min)(n, half_columns) * (std::min)(k, half_depth));
  for (std::int64_t j = 0; j < n; j += half_columns) {
    const std::int64_t columns = (std::min)(half_columns, n - j);
    for (std::int64_t p = 0; p < k; p += half_depth) {
      const std::int64_t depth = (std::min)(half_depth, k - p);
      if constexpr (tb)
        convert_panel(columns, depth, b + j * ldb + p, ldb, right.data);
      else
        convert_panel(depth, columns, b + p * ldb + j, ldb, right.data);
      for (std::int64_t i = 0; i < m; i += half_rows) {
        const std::int64_t rows = (std::min)(half_rows, m - i);
        if constexpr (ta)
          convert_panel(depth, rows, a + p * lda + i, lda, left.data);
        else
          convert_panel(rows, depth, a + i * lda + p, lda, left.data);
        G::template multiply<TA, TB>(rows, columns, depth, static_cast<const float*>(left.data), ta ? rows : depth,
                                     static_cast<const float*>(right.data), tb ? depth : columns, p == 0 ? beta : 1.0f,
                                     c + i * ldc + j, ldc);
      }
    }
  }
}

/// What `multiply_shared` takes for a library: operands of type A, c in float or of type A, which is rounded once.
/// `Native`: bf16 operands go to the library as they are. Who calls says so for the whole product: a thread's part has fewer rows.
template <class G, bool Native>
struct half_products {
  template <transpose TA, transpose TB, class A>
  static void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, std::int64_t lda, const A* b,
                       std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
    if constexpr (Native && std::is_same_v<A, bf16>)
      G::template multiply_bf16<TA, TB>(m, n, k, a, lda, b, ldb, beta, c, ldc);
    else
      multiply_converted<G, TA, TB>(m, n, k, a, lda, b, ldb, beta, c, ldc);
  }
  template <transpose TA, transpose TB, class A>
  static void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, std::int64_t lda, const A* b,
                       std::int64_t ldb, float beta, A* c, std::int64_t ldc) {
    const gemm_panel<float> sums((std::min)(m, half_rows) * n);
    for (std::int64_t i = 0; i < m; i += half_rows) {
      const std::int64_t rows = (std::min)(half_rows, m - i);
      multiply<TA, TB>(rows, n, k, TA == transpose::no ? a + i * lda : a + i, lda, b, ldb, 0.0f, sums.data, n);
      for (std::int64_t r = 0; r < rows; ++r) {
        float* sum = sums.data + r * n;
        A* out = c + (i + r) * ldc;
        if (beta != 0.0f)
          for (std::int64_t j = 0; j < n; ++j) sum[j] += beta * static_cast<float>(out[j]);
        cast_lanes(n, static_cast<const float*>(sum), out);
      }
    }
  }
};

}  // namespace detail
}  // namespace heddle::inline v0::compute
