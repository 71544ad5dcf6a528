// heddle/train/products.hpp: the policy that rounds operands of products, and backends.
#pragma once

#include <heddle/compute/bf16_products.hpp>
#include <heddle/compute/facets.hpp>
#include <heddle/compute/float8_products.hpp>
#include <heddle/core/float8.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/strategy.hpp>

#include <type_traits>

namespace heddle::inline v0 {

namespace detail {
template <class P>
inline constexpr bool product_element =
    std::is_same_v<P, bf16> || std::is_same_v<P, float8> || std::is_same_v<P, float8_rows>;
template <class P>
constexpr bool product_checked() {
  static_assert(
      product_element<P>,
      "heddle: products_in<P> takes bf16, float8 and float8_rows; without it products are of the model's scalar");
  return true;
}
}  // namespace detail

/// The type to which the operands of the model's matrix products are rounded.
template <class P>
struct products_in : detail::precision_part<detail::products_part, P> {
  static_assert(detail::product_checked<P>());
};

namespace detail {

// What not every backend offers. The types carry what the compiler prints next to the advice.
template <class Precision, class Backend>
struct multiplies_in_bf16 {
  static constexpr bool value = compute::half_product_facet::offered<Backend, bf16> &&
                                compute::cast_facet<bf16>::template offered<Backend, float>;
};
template <class Precision, class Backend>
struct multiplies_in_float8 {
  static constexpr bool value = std::is_same_v<space_of<Backend>, host_memory> ||
                                (std::is_same_v<typename Precision::product, float8> &&
                                 compute::offered<compute::scaled_product_facet, Backend, float>) ||
                                (std::is_same_v<typename Precision::product, float8_rows> &&
                                 compute::offered<compute::row_scaled_product_facet, Backend, float>);
};

template <class Backend, class Precision>
  requires(Precision::rounds_products)
struct backend_under<Backend, Precision> {
  using type = compute::bf16_products<Backend>;
};
template <class Backend, class Precision>
  requires(Precision::rounds_products)
struct checked_products<Backend, Precision> {
  static constexpr bool value() {
    static_assert(multiplies_in_bf16<Precision, Backend>::value,
                  "heddle: products_in<bf16> needs a backend with products of bf16 and casts from float to it "
                  "(half_product_facet, cast_facet<bf16>); with this one leave it out of precision<...>");
    return multiplies_in_bf16<Precision, Backend>::value;
  }
};
template <class Backend, class Precision>
  requires(Precision::scales_products)
struct backend_under<Backend, Precision> {
  using type = compute::float8_products<Backend, typename Precision::product>;
};
template <class Backend, class Precision>
  requires(Precision::scales_products)
struct checked_products<Backend, Precision> {
  static constexpr bool value() {
    static_assert(multiplies_in_float8<Precision, Backend>::value,
                  "heddle: products_in<float8> needs the host's memory or a backend with products of scaled operands "
                  "(compute::scaled_product_facet), products_in<float8_rows> with a scale for each row "
                  "(compute::row_scaled_product_facet); with this backend leave it out of precision<...>");
    return multiplies_in_float8<Precision, Backend>::value;
  }
};

}  // namespace detail

}  // namespace heddle::inline v0
