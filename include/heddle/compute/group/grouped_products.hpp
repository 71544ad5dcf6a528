// heddle/compute/group/grouped_products.hpp: launches of products, also grouped ones.
#pragma once

#include <heddle/compute/group/grouped_operands.hpp>
#include <heddle/compute/group/matrix_products.hpp>
#include <heddle/compute/group/product_tiles.hpp>
#include <heddle/core/half_precision.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail::in_groups {

/// Launches `body`, whose sums are of type Sum, with the largest tiles that a group has memory for.
template <class Sum, class Launcher, class Body>
void launch_product_tiles(const Launcher& on, Body body) {
  body.edge = edge_of_products<Sum>(on.tile_bytes());
  on.template each_tile<Sum>(body.items(), body.edge, elements_of_products(body.edge), body);
}

/// Launches `ops::grouped_matmul`. Elements of 16 bits are added up in float and rounded once, by matrix instructions where the device
/// has them and widths are multiples of 8 (matrix_products.hpp).
template <bool TB, class T, class Y, class Sum, class Launcher>
void multiply_groups(const Launcher& on, const grouped_product_operands<T, Y, Sum>& operands) {
  if constexpr (is_half_precision<T>)
    if (multiply_by_matrices<T>(
            on, warp_grouped_product<TB, T, Y>{operands},
            fits_matrix_products(operands.from_width, operands.to_width, operands.x, operands.w, operands.y)))
      return;
  launch_product_tiles<Sum>(on, grouped_product_tile<TB, T, Y, Sum>{operands, 0});
}
/// Launches `ops::grouped_matmul_backward_weight`.
template <class T, class Sum, class Launcher>
void multiply_groups(const Launcher& on, const grouped_weight_operands<T, Sum, Sum>& operands) {
  if constexpr (is_half_precision<T>)
    if (multiply_by_matrices<T>(
            on, warp_grouped_weight<T, Sum>{operands},
            fits_matrix_products(operands.from_width, operands.to_width, operands.x, operands.dy, operands.dw)))
      return;
  launch_product_tiles<Sum>(on, grouped_weight_tile<T, Sum, Sum>{operands, 0});
}

}  // namespace heddle::inline v0::compute::detail::in_groups
