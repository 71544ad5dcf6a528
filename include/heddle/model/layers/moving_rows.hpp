// heddle/model/layers/moving_rows.hpp: gathers rows for products, and scatters their sums.
#pragma once

#include <heddle/compute/overlapped_matmul.hpp>
#include <heddle/core/split.hpp>
#include <heddle/model/layers/call.hpp>
#include <heddle/model/layers/settlement.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::model::layers {

/// Some rows of a matrix; a view of nothing stays one.
template <class T, class Space>
matrix_view<T, Space> rows_of(matrix_view<T, Space> m, row_range rows) {
  if (m.address() == nullptr && m.extent(0) == 0) return m;
  return {m.address() + rows.first * m.extent(1), dynamic_shape<2>(rows.count, m.extent(1))};
}

/// Whether the verbs of a layer may be called for some of a batch's rows at a time. One whose verbs can says so: `static constexpr
/// bool takes_some_rows = true`. Layers with tensors of their own that forward leaves for backward cannot.
template <class Layer>
inline constexpr bool takes_some_rows = requires { requires Layer::takes_some_rows; };

namespace detail {
template <bool Ok, class Space>
inline constexpr bool rows_overlap_in = Ok;
// Whether rows go from From to To along one axis, nothing happens along others, and the sharding wants products beside it.
template <class From, class To, class B>
constexpr bool overlaps() {
  if constexpr (B::layouts::overlapped_pieces > 0 && B::template moves_rows<From, To>) {
    static_assert(rows_overlap_in<B::on_host, typename B::space>,
                  "heddle: overlapped<Pieces>: products run beside messages in the host's memory only; with this "
                  "backend leave it out of split<dim::sequence, ...>");
    using moved = rows_moved<From, To>;
    for (std::size_t a = 0; a < moved::along.size(); ++a)
      if (a != moved::at && moved::along[a] != settlement::nothing) return false;
    return B::on_host;
  } else {
    return false;
  }
}
template <class Group>
std::vector<std::int64_t> rows_of_ranks(const Group& group, std::int64_t rows) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < group.size(); ++r) counts.push_back(balanced_split{rows, group.size()}.size(r));
  return counts;
}
inline constexpr int overlap_tag = 11;  // of messages that run beside products
}  // namespace detail

/// Calls `use(rows, at)` for the rows of `x` in layout `To`: once for all of them, which are `x` itself or gathered in the
/// tensor `tag` of the layer (`call::gathered`), or, where the sharding says `overlapped` and all `Readers` take some rows at a time,
/// for each piece as it arrives. `at`: which rows these are. Where they are not `needed`, once with what lies there.
template <class From, class To, class... Readers, class B, class Tag, class Use>
void use_gathered(const B& b, Tag tag, typename B::const_view x, bool needed, Use&& use) {
  if constexpr ((takes_some_rows<Readers> && ...) && detail::overlaps<From, To, B>()) {
    if (needed) {
      auto&& group = b.run().world.template along_if<detail::axis_of_moved_rows<From, To>>();
      const auto counts = detail::rows_of_ranks(group, b.rows());
      const auto all = b[tag];
      compute::gather_rows_for<std::remove_reference_t<decltype(group)>, typename B::scalar>(
          group, x, counts, all,
          [&](std::int64_t first, std::int64_t count) {
            const row_range at{first, count};
            use(typename B::const_view(rows_of(all, at)), at);
          },
          {B::layouts::overlapped_pieces, detail::overlap_tag});
      return;
    }
  }
  const auto rows = b.template gathered<From, To>(tag, x, needed);
  use(rows, row_range{0, rows.extent(0)});
}

/// Calls `make(rows, at)` to make the rows of a sum in layout `From`, and brings it to `to`: once for all of them, in the tensor
/// `tag` of the layer or in `to` itself (`call::room`), or, where the sharding says `overlapped` and all `Writers` take some rows at a
/// time, piece by piece while the sums of other ranks are under way.
template <class From, class To, class... Writers, class B, class Tag, class Make>
void make_scattered(const B& b, Tag tag, typename B::view to, Make&& make) {
  if constexpr ((takes_some_rows<Writers> && ...) && detail::overlaps<From, To, B>()) {
    auto&& group = b.run().world.template along_if<detail::axis_of_moved_rows<From, To>>();
    const auto counts = detail::rows_of_ranks(group, b.rows());
    using T = typename B::scalar;
    const auto sums = b[tag];
    const typename B::view arriving(sums.address() + sums.size(), sums.shape());  // see `detail::copies_in`
    compute::scatter_sums_of<std::remove_reference_t<decltype(group)>, T>(
        group, counts, sums, arriving, to,
        [&](std::int64_t first, typename B::view part) { make(part, row_range{first, part.extent(0)}); },
        [&](std::span<T> more, std::span<T> sum) {
          compute::run<compute::ops::add>(b.compute(), std::span<const T>(more), std::span<const T>(sum), sum);
        },
        {B::layouts::overlapped_pieces, detail::overlap_tag});
  } else {
    const auto sum = b.template room<From, To>(tag, to);
    make(sum, row_range{0, sum.extent(0)});
    b.template redistribute_in_place<From, To>(sum, to);
  }
}

}  // namespace heddle::inline v0::model::layers
