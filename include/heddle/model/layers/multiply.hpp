// heddle/model/layers/multiply.hpp: products of linear layers, also in 8 bits with scales.
#pragma once

#include <heddle/compute/float8_products.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/model/layers/call.hpp>
#include <heddle/model/layers/settlement.hpp>
#include <heddle/tensor/space_collectives.hpp>

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
inline constexpr bool whole_tensors_are_scaled = Ok;
// The greatest magnitudes of the operands of a product in these layouts, over the ranks that have parts of one of them: not over those that
// have other samples. Of rows and columns: where both operands are split, which is along what the product adds up.
template <class LayoutA, class LayoutB, bool OfRows, class B, class Row>
void reduce_greatest(const B& b, Row greatest) {
  const auto along = [&]<class Tag>(std::type_identity<Tag>) {
    constexpr bool splits_a = LayoutA::template is_sharded_on<Tag>, splits_b = LayoutB::template is_sharded_on<Tag>;
    constexpr bool has_parts = OfRows ? splits_a && splits_b : splits_a || splits_b;
    if constexpr (has_parts && !model::detail::list_has<typename B::layouts::row_axes, Tag>) {
      auto&& group = b.run().world.template along_if<Tag>();
      if (group.size() == 1) return;
      if constexpr (std::is_same_v<Row, std::span<float>>) {
        group.all_reduce(greatest, maximum{});
      } else {
        auto& queue = b.compute().queue();
        heddle::v0::all_reduce(queue, group, greatest, maximum{});
        keep_until_done<decltype(b.run().world.template along_if<Tag>())>(queue);
      }
    }
  };
  [&]<class... Tags>(type_list<Tags...>) {
    (along(std::type_identity<Tags>{}), ...);
  }(typename LayoutA::mesh_type::tags{});
}
}  // namespace detail

/// c = beta c + op(x) op(y) for x and y in these layouts; c may be of `B::sum`, as gradients of weights are. With a backend that scales operands (`compute::float8_products`) both are
/// rounded to 8 bits, at scales by the greatest magnitude of the whole tensor: over axes that split it, other than samples, that is one
/// all_reduce of two floats for each product, on the device where the backend is one of a device. With
/// `float8_rows` at scales by those of each row of op(x) and each column of op(y): over axes that split
/// what the product adds up, one all_reduce of as many floats as there are rows and columns.
/// Source: torchao, `float8/float8_utils.py`: dynamic scaling (`tensor_to_scale`).
template <transpose TX, transpose TY, float8_operand X, float8_operand Y, class LayoutX, class LayoutY, class B,
          class C>
void multiply(const B& b, typename B::const_view x, typename B::const_view y, matrix_view<C, typename B::space> c,
              typename B::sum beta) {
  if constexpr (detail::multiplies_in_float8<B>) {
    constexpr bool whole = B::layouts::overlapped_pieces == 0;
    static_assert(detail::whole_tensors_are_scaled<whole, typename B::layouts::how>,
                  "heddle: products_in<float8> scales whole tensors: a sharding must not say overlapped<Pieces>, with "
                  "which products are of some rows at a time");
    if constexpr (whole) {
      auto& k = b.compute();
      constexpr bool by_rows = std::is_same_v<typename std::remove_cvref_t<decltype(k)>::scales_operands, float8_rows>;
      if constexpr (requires { typename std::remove_cvref_t<decltype(k)>::scales_in_memory; }) {
        const auto greatest = [&] {
          if constexpr (by_rows)
            return k.template greatest_of<TX, TY>(x, y);
          else
            return k.greatest_of(x, y);
        }();
        detail::reduce_greatest<LayoutX, LayoutY, by_rows>(b, greatest);
        k.template scaled_matmul<TX, TY, X, Y>(x, y, c, greatest, beta);
      } else if constexpr (by_rows) {
        const auto rows = static_cast<std::size_t>(c.extent(0));
        const std::span<float> greatest = k.room_for_rows(c.extent(0) + c.extent(1));
        k.template greatest_of_rows<TX>(x, greatest.first(rows));
        k.template greatest_of_rows<TY == transpose::yes ? transpose::no : transpose::yes>(y, greatest.subspan(rows));
        detail::reduce_greatest<LayoutX, LayoutY, true>(b, greatest);
        k.template scaled_matmul<TX, TY, X, Y>(x, y, c, greatest.first(rows), greatest.subspan(rows), beta);
      } else {
        std::array<float, 2> greatest{k.greatest(x), k.greatest(y)};
        detail::reduce_greatest<LayoutX, LayoutY, false>(b, std::span<float>(greatest));
        k.template scaled_matmul<TX, TY, X, Y>(x, y, c, greatest[0], greatest[1], beta);
      }
    }
  } else {
    compute::matmul<TX, TY>(b.compute(), x, y, c, beta);
  }
}

}  // namespace heddle::inline v0::model::layers
