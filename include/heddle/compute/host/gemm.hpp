// heddle/compute/host/gemm.hpp: the concept of a library of matrix products; shared products.
#pragma once

#include <heddle/compute/host/team.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/split.hpp>

#include <concepts>
#include <cstdint>

namespace heddle::inline v0::compute {

/// A library of matrix products: c = op(a) op(b) + beta c for row-major matrices whose rows lie `lda`, `ldb`, `ldc`
/// elements apart, computed on the calling thread alone, which may be any of several at once. c is m x n, the
/// contraction has length k; m, n and k are positive; with beta 0, c is not read.
template <class G, class T>
concept gemm_library = requires(std::int64_t size, const T* in, T* out, T beta) {
  { G::name() } -> std::convertible_to<const char*>;
  G::template multiply<transpose::no, transpose::no>(size, size, size, in, size, in, size, beta, out, size);
  G::template multiply<transpose::no, transpose::yes>(size, size, size, in, size, in, size, beta, out, size);
  G::template multiply<transpose::yes, transpose::no>(size, size, size, in, size, in, size, beta, out, size);
  G::template multiply<transpose::yes, transpose::yes>(size, size, size, in, size, in, size, beta, out, size);
};

namespace detail {

/// How c is cut among threads: `rows` times `columns` blocks.
struct gemm_grid {
  int rows = 1;
  int columns = 1;
};

/// The grid with the least operand traffic: every block reads its rows of a and its columns of b once.
inline gemm_grid choose_gemm_grid(int threads, std::int64_t m, std::int64_t n, std::int64_t k) {
  // Below about a million multiplications per thread (8 microseconds), waking the others costs more than they help.
  const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  int parts = threads;
  if (work < 1e6 * static_cast<double>(threads)) parts = static_cast<int>(work / 1e6);
  gemm_grid best;
  for (; parts > 1; --parts) {
    double least = -1;
    for (int rows = 1; rows <= parts; ++rows) {
      const int columns = parts / rows;
      if (rows * columns != parts || rows > m || columns > n) continue;
      const double traffic = static_cast<double>(m) / rows + static_cast<double>(n) / columns;
      if (least < 0 || traffic < least) {
        least = traffic;
        best = {rows, columns};
      }
    }
    if (least >= 0) return best;
  }
  return best;
}

template <class G, transpose TA, transpose TB, class A, class Beta, class C, class B = A>
void multiply_shared(team& workers, std::int64_t m, std::int64_t n, std::int64_t k, const A* a, std::int64_t lda,
                     const B* b, std::int64_t ldb, Beta beta, C* c, std::int64_t ldc) {
  const gemm_grid grid = choose_gemm_grid(workers.size(), m, n, k);
  // Borders at multiples of a cache line of columns, and of a few rows, keep the libraries' inner kernels whole.
  constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(C));
  constexpr std::int64_t strip = 8;
  const balanced_split row_cut{(m + strip - 1) / strip, grid.rows};
  const balanced_split column_cut{(n + line - 1) / line, grid.columns};
  workers.run(grid.rows * grid.columns, [&](int w) {
    const std::int64_t r0 = row_cut.offset(w / grid.columns) * strip;
    const std::int64_t r1 = (std::min)(m, r0 + row_cut.size(w / grid.columns) * strip);
    const std::int64_t c0 = column_cut.offset(w % grid.columns) * line;
    const std::int64_t c1 = (std::min)(n, c0 + column_cut.size(w % grid.columns) * line);
    if (r0 >= r1 || c0 >= c1) return;
    const A* rows = TA == transpose::no ? a + r0 * lda : a + r0;
    const B* columns = TB == transpose::no ? b + c0 : b + c0 * ldb;
    G::template multiply<TA, TB>(r1 - r0, c1 - c0, k, rows, lda, columns, ldb, beta, c + r0 * ldc + c0, ldc);
  });
}

}  // namespace detail
}  // namespace heddle::inline v0::compute
