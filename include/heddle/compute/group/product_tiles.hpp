// heddle/compute/group/product_tiles.hpp: matrix products by groups of threads, in tiles.
#pragma once

#include <heddle/compute/group/grouped_operands.hpp>
#include <heddle/compute/group/threads.hpp>
#include <heddle/compute/group/tiles.hpp>

#include <cstdint>
#include <initializer_list>

namespace heddle::inline v0::compute::detail::in_groups {

/// What a group has memory for: tiles of both operands and of the sums.
constexpr std::int64_t elements_of_products(std::int64_t edge) {
  return 3 * edge * tile_stride(edge);
}

/// c = op(a) op(b) + beta c of row-major matrices without gaps: c is m x n, the contraction has length k. Sums are of type Sum, and are
/// rounded once; with beta 0, c is not read.
template <bool TA, bool TB, class In, class Out, class Sum>
struct product_of_matrices {
  std::int64_t m, n, k;
  const In *a, *b;
  Out* c;
  Sum beta;

  /// The elements of c from (row, column) on, up to `edge` in each direction. The terms are added in their order.
  template <class G>
  HEDDLE_HD void block(G& g, std::int64_t row, std::int64_t column, std::int64_t edge, Sum* memory) const {
    const std::int64_t rows = m - row < edge ? m - row : edge, columns = n - column < edge ? n - column : edge;
    const std::int64_t lda = TA ? m : k, ldb = TB ? k : n;
    tile_room<Sum> room{memory};
    const tile<Sum> x = room.rows(edge, edge), y = room.rows(edge, edge), sum = room.rows(edge, edge);
    g.sync();  // the last item is done with the memory
    fill_tile(g, sum, edge, Sum(0));
    for (std::int64_t p = 0; p < k; p += edge) {
      const std::int64_t terms = k - p < edge ? k - p : edge;
      const In *const from_a = TA ? a + p * lda + row : a + row * lda + p, *const from_b = TB ? b + column * ldb + p
                                                                                              : b + p * ldb + column;
      load_rows(g, x, TA ? terms : rows, TA ? rows : terms, from_a, lda);
      load_rows(g, y, TB ? columns : terms, TB ? terms : columns, from_b, ldb);
      g.sync();
      tile_product(g, rows, columns, terms, x.data, TA ? 1 : x.stride, TA ? x.stride : 1, y.data, TB ? 1 : y.stride,
                   TB ? y.stride : 1, [&](std::int64_t i, std::int64_t j, Sum s) { sum(i, j) += s; });
      g.sync();
    }
    g.sync();
    for (std::int64_t e = g.rank(); e < rows * columns; e += g.size()) {
      const std::int64_t i = e / columns, j = e % columns;
      Out* const to = c + (row + i) * n + column + j;
      *to = static_cast<Out>(beta == Sum(0) ? sum(i, j) : sum(i, j) + beta * static_cast<Sum>(*to));
    }
  }

 private:
  template <class G>
  HEDDLE_HD static void load_rows(G& g, const tile<Sum>& to, std::int64_t rows, std::int64_t columns, const In* from,
                                  std::int64_t stride) {
    for (std::int64_t e = g.rank(); e < rows * columns; e += g.size())
      to(e / columns, e % columns) = static_cast<Sum>(from[e / columns * stride + e % columns]);
  }
};

/// A group has up to edge x edge elements of c.
template <bool TA, bool TB, class In, class Out, class Sum>
struct product_tile {
  product_of_matrices<TA, TB, In, Out, Sum> product;
  std::int64_t edge;

  std::int64_t items() const { return tiles_of(product.m, edge) * tiles_of(product.n, edge); }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item, Sum* memory) const {
    const std::int64_t across = tiles_of(product.n, edge);
    product.block(g, item / across * edge, item % across * edge, edge, memory);
  }
};

/// A group has up to edge x edge elements of y.
template <bool TB, class In, class Out, class Sum>
struct grouped_product_tile {
  grouped_product_operands<In, Out, Sum> operands;
  std::int64_t edge;

  std::int64_t items() const { return operands.items(edge, edge); }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item, Sum* memory) const {
    using product = product_of_matrices<false, TB, In, Out, Sum>;
    operands.template with_tile<product>(item, edge, edge,
                                         [&](const product& of_rows, std::int64_t row, std::int64_t column) {
                                           of_rows.block(g, row, column, edge, memory);
                                         });
  }
};
/// A group has up to edge x edge elements of a dw[e].
template <class In, class Out, class Sum>
struct grouped_weight_tile {
  grouped_weight_operands<In, Out, Sum> operands;
  std::int64_t edge;

  std::int64_t items() const { return operands.items(edge, edge); }
  template <class G>
  HEDDLE_HD void operator()(G& g, std::int64_t item, Sum* memory) const {
    using product = product_of_matrices<true, false, In, Out, Sum>;
    operands.template with_tile<product>(item, edge, edge,
                                         [&](const product& of_rows, std::int64_t row, std::int64_t column) {
                                           of_rows.block(g, row, column, edge, memory);
                                         });
  }
};

/// The largest edge whose three tiles of sums of type Sum fit into so many bytes; 8 if none does.
template <class Sum>
constexpr std::int64_t edge_of_products(std::int64_t bytes) {
  for (const std::int64_t edge : {64, 32, 16})
    if (elements_of_products(edge) * static_cast<std::int64_t>(sizeof(Sum)) <= bytes) return edge;
  return 8;
}

}  // namespace heddle::inline v0::compute::detail::in_groups
