// heddle/compute/group/grouped_operands.hpp: operands and tiles of grouped products.
#pragma once

#include <heddle/compute/group/tiles.hpp>
#include <heddle/core/config.hpp>

#include <cstdint>

namespace heddle::inline v0::compute::detail::in_groups {

/// y = x op(w[e]) + beta y in the rows [offsets[e], offsets[e + 1]) of each group e of rows. Offsets may lie on a device: the items are those
/// of as many tiles as there can be, and those beyond the last have nothing to do.
template <class In, class Out, class Sum>
struct grouped_product_operands {
  std::int64_t rows, experts, from_width, to_width;  // of x and y
  const In *x, *w;
  const std::int64_t* offsets;
  Out* y;
  Sum beta;

  /// Items of a launch whose tiles of y have `height` rows and `width` columns.
  std::int64_t items(std::int64_t height, std::int64_t width) const {
    return (tiles_of(rows, height) + experts) * tiles_of(to_width, width);
  }
  /// f(product of a group, row, column): the tile of an item begins at (row, column) of the product's result.
  template <class Product, class F>
  HEDDLE_HD void with_tile(std::int64_t item, std::int64_t height, std::int64_t width, const F& f) const {
    const std::int64_t across = tiles_of(to_width, width);
    std::int64_t tile = item / across;
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t begin = offsets[e], count = offsets[e + 1] - begin, tiles = tiles_of(count, height);
      if (tile < tiles)
        return f(Product{count, to_width, from_width, x + begin * from_width, w + e * from_width * to_width,
                         y + begin * to_width, beta},
                 tile * height, item % across * width);
      tile -= tiles;
    }
  }
};

/// dw[e] = x^T dy over the rows of group e, + beta dw[e].
template <class In, class Out, class Sum>
struct grouped_weight_operands {
  std::int64_t experts, from_width, to_width;
  const In *x, *dy;
  const std::int64_t* offsets;
  Out* dw;
  Sum beta;

  /// Items of a launch whose tiles of a dw[e] have `height` rows and `width` columns.
  std::int64_t items(std::int64_t height, std::int64_t width) const {
    return experts * tiles_of(from_width, height) * tiles_of(to_width, width);
  }
  /// f(product of a group, row, column): the tile of an item begins at (row, column) of the product's result.
  template <class Product, class F>
  HEDDLE_HD void with_tile(std::int64_t item, std::int64_t height, std::int64_t width, const F& f) const {
    const std::int64_t across = tiles_of(to_width, width), down = tiles_of(from_width, height);
    const std::int64_t e = item / across / down, begin = offsets[e];
    f(Product{from_width, to_width, offsets[e + 1] - begin, x + begin * from_width, dy + begin * to_width,
              dw + e * from_width * to_width, beta},
      item / across % down * height, item % across * width);
  }
};

}  // namespace heddle::inline v0::compute::detail::in_groups
