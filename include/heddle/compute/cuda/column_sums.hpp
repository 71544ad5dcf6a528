// heddle/compute/cuda/column_sums.hpp: column sums of matrices on CUDA (not run on a GPU).
#pragma once

#include <heddle/compute/cuda/launcher.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cuda {

/// Columns whose elements neighbouring threads read together.
inline constexpr std::int64_t column_tile = 32;

/// How many parts the rows are added up in, so that a matrix with few columns has work for a whole device: about 2048 groups, none with fewer than 64
/// rows. It depends on the sizes alone, and so does the order of the sums.
constexpr std::int64_t parts_of_columns(std::int64_t rows, std::int64_t columns) noexcept {
  constexpr std::int64_t groups = 2048, fewest_rows = 64;
  const std::int64_t tiles = (columns + column_tile - 1) / column_tile;
  return (std::clamp)(groups / (std::max)(tiles, std::int64_t{1}), std::int64_t{1},
                      (std::max)(rows / fewest_rows, std::int64_t{1}));
}

/// Adds up K numbers of each column over the rows of a part; `terms.add(i, j, sums)` adds those of row i, column j. Where there is one part they go to
/// `out`, else to parts[K][parts][columns]. Groups are numbered part by part, with whole tiles of columns.
template <int K, class Sum, class Out, class Terms>
struct sums_of_columns {
  std::int64_t rows, columns, wide, rows_of_part, count;
  Terms terms;
  Sum* parts;
  Out* out[K];

  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t c) const {
    const std::int64_t part = c / wide, j = c - part * wide;
    const std::int64_t begin = part * rows_of_part, rest = rows - begin;
    const std::int64_t end = begin + (rest < rows_of_part ? rest : rows_of_part);
    Sum sums[K] = {};
    if (j < columns)
      for (std::int64_t i = begin + g.rank(); i < end; i += g.size()) terms.add(i, j, sums);
    for (int k = 0; k < K; ++k) sums[k] = g.sum(sums[k]);
    if (!g.leads() || j >= columns) return;
    for (int k = 0; k < K; ++k)
      if (count == 1)
        out[k][j] = static_cast<Out>(static_cast<Sum>(out[k][j]) + sums[k]);
      else
        parts[(k * count + part) * columns + j] = sums[k];
  }
};
template <int K, class Sum, class Out>
struct sums_of_column_parts {
  std::int64_t columns, count;
  const Sum* parts;
  Out* out[K];
  HEDDLE_HD void operator()(std::int64_t j) const {
    for (int k = 0; k < K; ++k) {
      Sum sum = 0;
      for (std::int64_t part = 0; part < count; ++part) sum += parts[(k * count + part) * columns + j];
      out[k][j] = static_cast<Out>(static_cast<Sum>(out[k][j]) + sum);
    }
  }
};

/// out[k][j] += the k-th sum over the rows of column j, added up in `Sum`.
template <class Sum, launcher L, class Terms, class Out, std::size_t K>
void add_column_sums(const L& on, std::int64_t rows, std::int64_t columns, const Terms& terms, Out* const (&out)[K]) {
  if (rows == 0 || columns == 0) return;
  constexpr int n = static_cast<int>(K);
  const std::int64_t count = parts_of_columns(rows, columns),
                     wide = (columns + column_tile - 1) / column_tile * column_tile;
  sums_of_columns<n, Sum, Out, Terms> sums{rows, columns, wide, (rows + count - 1) / count, count, terms, nullptr, {}};
  std::copy(out, out + K, sums.out);
  if (count == 1) return on.each_column(wide, sums);
  auto parts = on.template room<Sum>(n * count * columns);
  sums.parts = parts.address();
  on.each_column(count * wide, sums);
  sums_of_column_parts<n, Sum, Out> of_parts{columns, count, parts.address(), {}};
  std::copy(out, out + K, of_parts.out);
  on.each(columns, of_parts);
}

}  // namespace heddle::inline v0::compute::detail::on_cuda
