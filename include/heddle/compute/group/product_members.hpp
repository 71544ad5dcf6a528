// heddle/compute/group/product_members.hpp: products of rows grouped by expert, of backends that launch groups of threads: arguments are checked, then tiles are launched.
#pragma once

#include <heddle/compute/group/grouped_operands.hpp>
#include <heddle/compute/group/matrix_products.hpp>
#include <heddle/compute/group/product_tiles.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail::in_groups {

/// Launches `body`, whose sums are of type Sum, with the largest tiles that a group has memory for.
template <class Sum, class Launcher, class Body>
void launch_product_tiles(const Launcher& on, Body body) {
  body.edge = edge_of_products<Sum>(on.tile_bytes());
  on.template each_tile<Sum>(body.items(), body.edge, elements_of_products(body.edge), body);
}

/// The kernels of `grouped_product_kernels` as members of `Backend`, whose tensors lie in `Space`. `Backend::group_launcher(name)` launches kernels of
/// that name, as compute/cuda/launcher.hpp describes it. Offsets are read by the groups, so the host need not know them; they are not looked at. Elements of 16 bits are added
/// up in float and rounded once, by matrix instructions where the device has them and widths are multiples of 8 (matrix_products.hpp).
/// Errors: `layout_error` if sizes do not fit together.
template <class Backend, class Space>
class grouped_product_members {
  template <class T>
  using stack = view<T, dynamic_shape<3>, Space>;
  template <class T>
  using matrix = matrix_view<T, Space>;
  template <class T>
  using element = std::remove_const_t<T>;
  using offsets_row = row_view<const std::int64_t, Space>;

 public:
  template <transpose TB = transpose::no, class X, class W, class Y>
    requires std::is_same_v<element<X>, element<W>>
  void grouped_matmul(matrix<X> x, offsets_row offsets, stack<W> w, matrix<Y> y,
                      std::type_identity_t<sum_of_type<Y>> beta = 0) {
    constexpr bool tb = TB == transpose::yes;
    expect("grouped_matmul", "offsets of groups", w.extent(0) + 1, offsets.size());
    expect("grouped_matmul", "rows of y", x.extent(0), y.extent(0));
    expect("grouped_matmul", "rows of op(w)", x.extent(1), w.extent(tb ? 2 : 1));
    expect("grouped_matmul", "columns of op(w)", y.extent(1), w.extent(tb ? 1 : 2));
    const grouped_product_operands<element<X>, Y, sum_of_type<Y>> operands{x.extent(0),       w.extent(0), x.extent(1),
                                                                           y.extent(1),       x.address(), w.address(),
                                                                           offsets.address(), y.address(), beta};
    if constexpr (is_half_precision<element<X>> && std::is_same_v<sum_of_type<Y>, float>) {
      const warp_grouped_product<tb, element<X>, Y> body{operands};
      if (multiply_by_matrices<element<X>>(
              self().group_launcher("heddle::grouped_matmul"), body,
              fits_matrix_products(x.extent(1), y.extent(1), operands.x, operands.w, operands.y)))
        return;
    }
    launch_product_tiles<sum_of_type<Y>>(self().group_launcher("heddle::grouped_matmul"),
                                         grouped_product_tile<tb, element<X>, Y, sum_of_type<Y>>{operands, 0});
  }
  template <class X, class D, class W>
    requires std::is_same_v<element<X>, element<D>>
  void grouped_matmul_backward_weight(matrix<X> x, matrix<D> dy, offsets_row offsets, stack<W> dw,
                                      std::type_identity_t<sum_of_type<W>> beta = 0) {
    constexpr const char *kernel = "grouped_matmul_backward_weight",
                         *kernel_name = "heddle::grouped_matmul_backward_weight";
    expect(kernel, "offsets of groups", dw.extent(0) + 1, offsets.size());
    expect(kernel, "rows of dy", x.extent(0), dy.extent(0));
    expect(kernel, "rows of dw", x.extent(1), dw.extent(1));
    expect(kernel, "columns of dw", dy.extent(1), dw.extent(2));
    const grouped_weight_operands<element<X>, W, sum_of_type<W>> operands{
        dw.extent(0), x.extent(1), dy.extent(1), x.address(), dy.address(), offsets.address(), dw.address(), beta};
    if constexpr (is_half_precision<element<X>> && std::is_same_v<sum_of_type<W>, float>) {
      const warp_grouped_weight<element<X>, W> body{operands};
      if (multiply_by_matrices<element<X>>(
              self().group_launcher(kernel_name), body,
              fits_matrix_products(x.extent(1), dy.extent(1), operands.x, operands.dy, operands.dw)))
        return;
    }
    launch_product_tiles<sum_of_type<W>>(self().group_launcher(kernel_name),
                                         grouped_weight_tile<element<X>, W, sum_of_type<W>>{operands, 0});
  }

 private:
  Backend& self() noexcept { return static_cast<Backend&>(*this); }
};

}  // namespace heddle::inline v0::compute::detail::in_groups
