// heddle/compute/ops/scaled_products.hpp: products scaled to 8 bits as operations.
#pragma once

#include <heddle/compute/op.hpp>
#include <heddle/compute/ops/products.hpp>
#include <heddle/core/float8.hpp>

#include <cstdint>

namespace heddle::inline v0::compute {
namespace ops {
struct scales {};        ///< a dimension: greatest magnitudes of a tensor, which is one
struct other_scales {};  ///< those of another tensor

/// most[0] = the greatest magnitude of x, 0 for none; NaN are passed over.
struct find_greatest : operation {
  static constexpr const char* name = "find_greatest";
  static constexpr const char* arguments[] = {"x", "most"};
  using dims = sizes<rows, columns, scales>;
  using takes = signature<in<rows, columns>, out<scales>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
  static void check(const dims& n, const void*, const void*) {
    detail::expect(name, "elements of most", 1, n[scales{}]);
  }
};
/// most[i] = the greatest magnitude of row i of op(x).
template <transpose TX>
struct find_greatest_of_rows : row_operation {
  static constexpr const char* name = "find_greatest_of_rows";
  static constexpr const char* arguments[] = {"x", "most"};
  using takes = signature<detail::operand<TX, rows, columns>, out<rows>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
};
/// c = beta c + op(a) op(b) for c of float or bf16 (`Out`), whose operands are rounded to the formats `A` and `B` at the scales of
/// tensors with these greatest magnitudes (`float8_scale`); the product of what was rounded is added up in float and divided by both scales.
template <transpose TA, transpose TB, class A, class B, class Out>
struct scaled_product : product_operation {
  static constexpr const char* name = "scaled_product";
  static constexpr const char* arguments[] = {"a", "b", "c", "greatest_a", "greatest_b", "beta"};
  static constexpr unsigned turned = detail::turned_operands(TA, TB);
  using dims = sizes<rows, columns, depth, scales, other_scales>;
  using takes = signature<detail::operand<TA, rows, depth>, detail::operand<TB, depth, columns>,
                          inout_of<Out, rows, columns>, in<scales>, in<other_scales>, number>;
  static constexpr std::int64_t flops(const dims& n) { return 2 * n[rows{}] * n[columns{}] * n[depth{}]; }
  static void expect_sizes(const char* of, unsigned t, const detail::argument_extents* got) {
    product_operation::expect_sizes(of, t, got);
    detail::expect(of, "elements of greatest_a", 1, got[3].n[0]);
    detail::expect(of, "elements of greatest_b", 1, got[4].n[0]);
  }
};
/// The same with a scale for each row of op(a) and each column of op(b), a power of two (`float8_power_of_two`).
template <transpose TA, transpose TB, class A, class B, class Out>
struct row_scaled_product : product_operation {
  static constexpr const char* name = "row_scaled_product";
  static constexpr const char* arguments[] = {"a", "b", "c", "greatest_a", "greatest_b", "beta"};
  static constexpr unsigned turned = detail::turned_operands(TA, TB);
  using takes = signature<detail::operand<TA, rows, depth>, detail::operand<TB, depth, columns>,
                          inout_of<Out, rows, columns>, in<rows>, in<columns>, number>;
  static void expect_sizes(const char* of, unsigned t, const detail::argument_extents* got) {
    product_operation::expect_sizes(of, t, got);
    detail::expect(of, "elements of greatest_a", got[2].n[0], got[3].n[0]);
    detail::expect(of, "elements of greatest_b", got[2].n[1], got[4].n[0]);
  }
};
}  // namespace ops

/// Products of floats whose operands are rounded to 8 bits where the backend's memory is, at scales that are there: all in the order of
/// its queue, the host reads nothing.
struct scaled_product_facet {
  template <class B, class>
  static constexpr bool offered =
      operations<ops::find_greatest, ops::scaled_product<transpose::no, transpose::no, float8_e4m3, float8_e5m2,
                                                         float>>::template offered<B, float>;
};
/// The same with a scale for each row of op(a) and each column of op(b).
struct row_scaled_product_facet {
  template <class B, class>
  static constexpr bool offered = operations<ops::find_greatest_of_rows<transpose::yes>,
                                             ops::row_scaled_product<transpose::no, transpose::no, float8_e4m3,
                                                                     float8_e4m3, float>>::template offered<B, float>;
};

}  // namespace heddle::inline v0::compute
