// heddle/tensor/sharded.hpp: the part of a distributed tensor that one rank holds.
#pragma once

#include <heddle/layout/layout.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/runs.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

/// One rank's part of a tensor of `Rank` dimensions: a local buffer, the layout, the shape of the whole, and which rank.
/// Moves, does not copy. Along partial axes the local part is a contribution; along replicated ones a copy.
/// Errors: `layout_error` if the rank is not in the mesh or the given local part has another size; a compile error if
/// the layout splits a dimension that the tensor does not have.
template <class T, std::size_t Rank, layout_like Layout>
class sharded {
 public:
  using value_type = T;
  using layout_type = Layout;
  static constexpr std::size_t dimensions = Rank;

  /// A part of zeros.
  template <std::int64_t... E>
    requires(sizeof...(E) == Rank)
  sharded(const Layout& layout, const heddle::v0::shape<E...>& whole, int rank)
      : layout_(layout), whole_(make_shape(whole.extents())), rank_(rank), local_(layout.local_size(whole, rank)) {}
  /// A part that is already there. Shapes: as many elements as the layout gives the rank, row-major.
  template <std::int64_t... E>
    requires(sizeof...(E) == Rank)
  sharded(const Layout& layout, const heddle::v0::shape<E...>& whole, int rank, buffer<T> local)
      : layout_(layout), whole_(make_shape(whole.extents())), rank_(rank), local_(std::move(local)) {
    const std::int64_t wanted = layout.local_size(whole, rank);
    if (static_cast<std::int64_t>(local_.size()) != wanted) throw_size(wanted);
  }

  const Layout& layout() const noexcept { return layout_; }
  /// The shape of the whole tensor.
  dynamic_shape<Rank> shape() const noexcept { return whole_; }
  int rank() const noexcept { return rank_; }

  dynamic_shape<Rank> local_shape() const { return layout_.local_shape(whole_, rank_); }
  std::array<std::int64_t, Rank> local_offset() const { return layout_.local_offset(whole_, rank_); }
  view<T, dynamic_shape<Rank>> local() { return {local_.data(), local_shape()}; }
  view<const T, dynamic_shape<Rank>> local() const { return {local_.data(), local_shape()}; }
  std::span<T> elements() noexcept { return {local_.data(), local_.size()}; }
  std::span<const T> elements() const noexcept { return {local_.data(), local_.size()}; }
  /// Gives the memory away; the tensor is empty afterwards.
  buffer<T> release() && noexcept { return std::move(local_); }

 private:
  [[noreturn]] void throw_size(std::int64_t wanted) const {
    throw layout_error("heddle: rank " + std::to_string(rank_) + " holds " + std::to_string(wanted) + " elements of a tensor of " +
                       to_string(whole_) + " under " + to_string(layout_) + ", got " + std::to_string(local_.size()));
  }

  [[no_unique_address]] Layout layout_;
  dynamic_shape<Rank> whole_;
  int rank_ = 0;
  buffer<T> local_;
};

namespace detail {
template <layout_like L>
struct partial_op {
  using type = typename list_at<0, typename L::ops>::type;
};
template <std::size_t Rank>
constexpr std::array<std::int64_t, Rank> origin{};

// Whether the rank's contribution carries the values when one rank of each partial group does: coordinate 0 on those axes.
template <layout_like L>
bool carries_value(const L& layout, int rank) {
  const auto extents = layout.mesh().extents();
  for (std::size_t a = 0; a < extents.size(); ++a)
    if (L::table.use[a].role == axis_role::partial && mesh_coordinate(extents, a, rank) != 0) return false;
  return true;
}
}  // namespace detail

/// The part of a whole tensor that `rank` holds: what a scatter gives it. Along partial axes the first rank keeps the
/// values and the others hold the operator's identity. No communication: every rank has the whole.
template <class T, std::int64_t... E, layout_like Layout>
sharded<std::remove_const_t<T>, sizeof...(E), Layout> shard_of(view<T, shape<E...>> whole, const Layout& layout, int rank) {
  using value = std::remove_const_t<T>;
  constexpr std::size_t dims = sizeof...(E);
  sharded<value, dims, Layout> part(layout, make_shape(whole.shape().extents()), rank);
  if constexpr (Layout::has_partial) {
    if (!detail::carries_value(layout, rank)) {
      using op = typename detail::partial_op<Layout>::type;
      std::fill(part.elements().begin(), part.elements().end(), op::template identity<value>());
      return part;
    }
  }
  const auto extents = part.local_shape().extents();
  detail::copy_box<value, dims>(whole.data(), {whole.shape().extents(), part.local_offset()}, part.elements().data(),
                                {extents, detail::origin<dims>}, extents);
  return part;
}

/// The whole tensor, row-major, from the parts of all ranks, in rank order: what a gather gives. Partial contributions
/// are combined in rank order; of several copies the primary one is read. No communication: meant for tests and tools.
/// Errors: `layout_error` unless there is one part per rank, of one shape.
template <class T, std::size_t Rank, layout_like Layout>
buffer<T> assemble(std::span<const sharded<T, Rank, Layout>> parts) {
  if (parts.empty() || static_cast<int>(parts.size()) != parts[0].layout().mesh().size())
    throw layout_error("heddle: assemble needs one part per rank of the mesh, got " + std::to_string(parts.size()));
  const auto extents = parts[0].shape().extents();
  buffer<T> whole(parts[0].shape().size());
  if constexpr (Layout::has_partial)
    std::fill(whole.begin(), whole.end(), detail::partial_op<Layout>::type::template identity<T>());
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const auto& part = parts[r];
    if (part.rank() != static_cast<int>(r) || !(part.shape() == parts[0].shape()))
      throw layout_error("heddle: assemble needs the parts of one tensor in rank order; part " + std::to_string(r) +
                         " is rank " + std::to_string(part.rank()) + "'s of a tensor of " + to_string(part.shape()));
    if (!part.layout().is_primary(part.rank())) continue;
    const auto local = part.local_shape().extents();
    const T* source = part.elements().data();
    detail::for_each_run<Rank>({local, detail::origin<Rank>}, {extents, part.local_offset()}, local,
                               [&](std::int64_t from, std::int64_t to, std::int64_t count) {
                                 if constexpr (Layout::has_partial) {
                                   const typename detail::partial_op<Layout>::type op{};
                                   for (std::int64_t i = 0; i < count; ++i)
                                     whole.data()[to + i] = op(whole.data()[to + i], source[from + i]);
                                 } else {
                                   std::copy_n(source + from, count, whole.data() + to);
                                 }
                               });
  }
  return whole;
}

}  // namespace heddle::inline v0
