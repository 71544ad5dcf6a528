// heddle/collective/shuffled.hpp: reduce_scatter and all_gather of rows in an order of their own.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// An order of rows, cut into a run of rows for each rank of a group: rank r has the rows order[first of r], and those behind it. The
/// same on all ranks.
class row_shuffle {
 public:
  /// `order[i]`: the row at place i. `sizes`: rows of each rank.
  /// Errors: `config_error` for an order that does not name each row once, and for sizes whose sum is another.
  row_shuffle(std::span<const std::int32_t> order, std::span<const std::int64_t> sizes)
      : order_(order.begin(), order.end()), sizes_(sizes.begin(), sizes.end()) {
    std::vector<bool> seen(order_.size(), false);
    for (const std::int32_t row : order_) {
      if (row < 0 || static_cast<std::size_t>(row) >= seen.size() || seen[static_cast<std::size_t>(row)])
        throw config_error(text_of({"heddle: an order of ", seen.size(), " rows names each of them once, got row ", row,
                                    row >= 0 && static_cast<std::size_t>(row) < seen.size() ? " twice" : ""}));
      seen[static_cast<std::size_t>(row)] = true;
    }
    const std::int64_t sum = std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
    if (sum != std::ssize(order_) || std::any_of(sizes_.begin(), sizes_.end(), [](std::int64_t n) { return n < 0; }))
      throw config_error(text_of(
          {"heddle: an order of ", order_.size(), " rows is cut into sizes of at least 0 with that sum, got ", sum}));
  }
  /// With balanced sizes for so many ranks (`balanced_split`).
  row_shuffle(std::span<const std::int32_t> order, int ranks) : row_shuffle(order, even(std::ssize(order), ranks)) {}

  std::int64_t rows() const noexcept { return std::ssize(order_); }
  std::span<const std::int32_t> order() const noexcept { return order_; }
  std::span<const std::int64_t> sizes() const noexcept { return sizes_; }

  /// Rows in this order, and back in the old one. Shapes: both [rows, width].
  template <class T>
  void apply(std::span<const T> from, std::span<T> to, std::int64_t width) const {
    for (std::size_t i = 0; i < order_.size(); ++i)
      std::copy_n(from.data() + order_[i] * width, width, to.data() + static_cast<std::int64_t>(i) * width);
  }
  template <class T>
  void undo(std::span<const T> from, std::span<T> to, std::int64_t width) const {
    for (std::size_t i = 0; i < order_.size(); ++i)
      std::copy_n(from.data() + static_cast<std::int64_t>(i) * width, width, to.data() + order_[i] * width);
  }
  /// Elements of the rows of each rank.
  std::vector<std::int64_t> elements(std::int64_t width) const {
    std::vector<std::int64_t> all(sizes_);
    for (std::int64_t& n : all) n *= width;
    return all;
  }

 private:
  static std::vector<std::int64_t> even(std::int64_t rows, int ranks) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>((std::max)(ranks, 0)));
    for (std::size_t r = 0; r < sizes.size(); ++r) sizes[r] = balanced_split{rows, ranks}.size(static_cast<int>(r));
    return sizes;
  }

  std::vector<std::int32_t> order_;
  std::vector<std::int64_t> sizes_;
};

/// A group of ranks: any `communicator`, and others with the collective that is called (`reduce_scatter_v`, `all_gather_v`) for their elements.
template <class C>
concept shuffling_group = requires(C& c) {
  { c.rank() } -> std::convertible_to<int>;
  { c.size() } -> std::convertible_to<int>;
};

namespace detail {
inline void require_shuffle(const row_shuffle& s, int ranks, std::int64_t width, std::size_t whole, std::size_t own,
                            int rank) {
  if (std::ssize(s.sizes()) != ranks)
    throw config_error(
        text_of({"heddle: a group of ", ranks, " ranks shuffles rows by as many sizes, got ", s.sizes().size()}));
  const std::int64_t mine = s.sizes()[static_cast<std::size_t>(rank)] * width;
  if (static_cast<std::int64_t>(whole) != s.rows() * width || static_cast<std::int64_t>(own) != mine)
    throw config_error(text_of({"heddle: ", s.rows(), " rows of ", width, " elements are ", s.rows() * width, ", and ",
                                mine, " of them those of rank ", rank, "; got ", whole, " and ", own}));
}
}  // namespace detail

/// `own` becomes the fold of all ranks' `whole` for this rank's rows of the order.
/// Law: `shuffled_all_gather` after it is all_reduce, whatever the order and the sizes. Bytes are those of reduce_scatter_v.
/// Shapes: whole [rows, width] in the old order, own [rows of this rank, width].
/// Errors: `config_error` for another number of ranks or elements. Source: arXiv:2503.04398 (shuffled reduce-scatter).
template <shuffling_group C, class T, class Op>
void shuffled_reduce_scatter(C& comm, const row_shuffle& shuffle, std::int64_t width,
                             std::type_identity_t<std::span<const T>> whole, std::span<T> own, Op op) {
  detail::require_shuffle(shuffle, comm.size(), width, whole.size(), own.size(), comm.rank());
  std::vector<T> ordered(whole.size());
  shuffle.apply<T>(whole, ordered, width);
  comm.reduce_scatter_v(std::span<const T>(ordered), own, shuffle.elements(width), std::move(op));
}

/// `whole` gets the rows of all ranks, each at its place in the old order. Bytes are those of all_gather_v.
/// Shapes, errors: as `shuffled_reduce_scatter`. Source: arXiv:2503.04398 (shuffled all-gather).
template <shuffling_group C, class T>
void shuffled_all_gather(C& comm, const row_shuffle& shuffle, std::int64_t width,
                         std::type_identity_t<std::span<const T>> own, std::span<T> whole) {
  detail::require_shuffle(shuffle, comm.size(), width, whole.size(), own.size(), comm.rank());
  std::vector<T> ordered(whole.size());
  comm.all_gather_v(own, std::span<T>(ordered), shuffle.elements(width));
  shuffle.undo<T>(ordered, whole, width);
}

}  // namespace heddle::inline v0
