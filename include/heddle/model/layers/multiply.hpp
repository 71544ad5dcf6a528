// heddle/model/layers/multiply.hpp: the products of linear layers, in the element type or in 8 bits with scales of whole tensors.
#pragma once

#include <heddle/compute/float8_products.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/model/layers/call.hpp>

#include <array>
#include <span>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model::layers {

using compute::float8_operand;

namespace detail {
// Whether the products of a linear layer are of scaled operands of 8 bits in such a call.
template <class B>
inline constexpr bool multiplies_in_float8 = std::is_same_v<typename B::scalar, float> && requires {
  typename std::remove_cvref_t<decltype(std::declval<const B&>().compute())>::scales_operands;
};
template <bool Ok, class How>
struct whole_tensors_are_scaled {
  static constexpr bool value = Ok;
};
// The greatest magnitudes of two tensors in these layouts, over the ranks that have parts of one of them: not over those that have
// other samples.
template <class LayoutA, class LayoutB, class B>
void reduce_greatest(const B& b, std::array<float, 2>& greatest) {
  const auto along = [&]<class Tag>(std::type_identity<Tag>) {
    constexpr bool has_parts = LayoutA::template is_sharded_on<Tag> || LayoutB::template is_sharded_on<Tag>;
    if constexpr (has_parts && !model::detail::list_has<typename B::layouts::row_axes, Tag>) {
      auto&& group = b.run().world.template along_if<Tag>();
      if (group.size() > 1) group.all_reduce(std::span<float>(greatest), maximum{});
    }
  };
  [&]<class... Tags>(type_list<Tags...>) {
    (along(std::type_identity<Tags>{}), ...);
  }(typename LayoutA::mesh_type::tags{});
}
}  // namespace detail

/// c = beta c + op(x) op(y) for x and y in these layouts. With a backend that scales operands (`compute::float8_products`) both are
/// rounded to 8 bits, at scales by the greatest magnitude of the whole tensor: over axes that split it, other than samples, that is one
/// all_reduce of two floats for each product.
/// Source: torchao, `float8/float8_utils.py`: dynamic scaling of whole tensors (`tensor_to_scale`).
template <transpose TX, transpose TY, float8_operand X, float8_operand Y, class LayoutX, class LayoutY, class B>
void multiply(const B& b, typename B::const_view x, typename B::const_view y, typename B::view c,
              typename B::scalar beta) {
  if constexpr (detail::multiplies_in_float8<B>) {
    constexpr bool whole = B::layouts::overlapped_pieces == 0;
    static_assert(detail::whole_tensors_are_scaled<whole, typename B::layouts::how>::value,
                  "heddle: products_in<float8> scales whole tensors: a sharding must not say overlapped<Pieces>, with "
                  "which products are of some rows at a time");
    if constexpr (whole) {
      auto& k = b.compute();
      std::array<float, 2> greatest{k.greatest(x), k.greatest(y)};
      detail::reduce_greatest<LayoutX, LayoutY>(b, greatest);
      k.template scaled_matmul<TX, TY, X, Y>(x, y, c, greatest[0], greatest[1], beta);
    }
  } else {
    b.compute().template matmul<TX, TY>(x, y, c, beta);
  }
}

}  // namespace heddle::inline v0::model::layers
