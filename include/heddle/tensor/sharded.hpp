// heddle/tensor/sharded.hpp: the part of a distributed tensor that one rank holds.
#pragma once

#include <heddle/core/typestate.hpp>
#include <heddle/layout/halo.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/layout/part.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/runs.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

namespace detail {
// Where a tensor's part is memory of somebody else that no buffer can borrow. Empty on the host, where one can.
template <class T, class Space>
struct borrowed_memory {
  T* at = nullptr;
  std::size_t size = 0;
  borrowed_memory() = default;
  borrowed_memory(borrowed_memory&& other) noexcept
      : at(std::exchange(other.at, nullptr)), size(std::exchange(other.size, 0)) {}
  borrowed_memory& operator=(borrowed_memory&& other) noexcept {
    at = std::exchange(other.at, nullptr);
    size = std::exchange(other.size, 0);
    return *this;
  }
};
template <class T>
struct borrowed_memory<T, host_memory> {};

// Buffers on memory of somebody else: it must be taken from them before their end.
struct lending {
  template <class T>
  static buffer<T> lend(std::span<T> memory) noexcept {
    buffer<T> lent;
    lent.memory_ = host_memory::allocation<buffer<T>::alignment>::owner_of(memory.data());
    lent.size_ = memory.size();
    return lent;
  }
  template <class T>
  static void take_back(buffer<T>& lent) noexcept {
    static_cast<void>(lent.memory_.release());
    lent.size_ = 0;
  }
};
}  // namespace detail

/// One rank's part of a tensor of `Rank` dimensions: a local buffer, the layout, the shape of the whole, and which rank.
/// Moves, does not copy; clang refuses uses of a local one that was given away (`HEDDLE_CHECK_REQUESTS`). Along partial axes the local part is a contribution; along replicated ones a copy. `Space` is that of the
/// local memory, the host's if none is named; where host code may not touch it there are `local()` and `memory()` for queues.
/// Errors: `layout_error` if the rank is not in the mesh or the given local part has another size; a compile error if
/// the layout splits a dimension that the tensor does not have.
template <class T, std::size_t Rank, layout_like Layout, memory_space Space = host_memory>
class HEDDLE_CAN_BE_GIVEN_AWAY sharded {
 public:
  using value_type = T;
  using space = Space;
  using layout_type = Layout;
  static constexpr std::size_t dimensions = Rank;

  /// A part of zeros.
  template <std::int64_t... E>
    requires(sizeof...(E) == Rank && std::same_as<Space, host_memory>)
  sharded(const Layout& layout, const heddle::v0::shape<E...>& whole, int rank)
      : layout_(layout), whole_(make_shape(whole.extents())), rank_(rank), local_(layout.local_size(whole, rank)) {}
  /// A part of zeros in the space of the queue.
  template <std::int64_t... E>
    requires(sizeof...(E) == Rank)
  sharded(typename Space::queue& queue, const Layout& layout, const heddle::v0::shape<E...>& whole, int rank)
      : layout_(layout),
        whole_(make_shape(whole.extents())),
        rank_(rank),
        local_(queue, layout.local_size(whole, rank)) {}
  /// A part that is already there. Shapes: as many elements as the layout gives the rank, row-major.
  template <std::int64_t... E>
    requires(sizeof...(E) == Rank)
  sharded(const Layout& layout, const heddle::v0::shape<E...>& whole, int rank, buffer<T, Space> local)
      : layout_(layout), whole_(make_shape(whole.extents())), rank_(rank), local_(std::move(local)) {
    const std::int64_t wanted = layout.local_size(whole, rank);
    if (static_cast<std::int64_t>(local_.size()) != wanted) throw_size(wanted, local_.size());
  }
  /// A part in memory of somebody else, such as a flat buffer of all parameters: it must outlive this tensor and what
  /// that is moved to. `release` then gives a copy on the host, and refuses elsewhere.
  template <std::int64_t... E>
    requires(sizeof...(E) == Rank)
  sharded(const Layout& layout, const heddle::v0::shape<E...>& whole, int rank, row_view<T, Space> lent)
      : layout_(layout), whole_(make_shape(whole.extents())), rank_(rank) {
    const std::int64_t wanted = layout.local_size(whole, rank);
    if (static_cast<std::int64_t>(lent.size()) != wanted) throw_size(wanted, static_cast<std::size_t>(lent.size()));
    if constexpr (std::same_as<Space, host_memory>) {
      local_ = detail::lending::lend(lent);
    } else {
      borrowed_.at = lent.address();
      borrowed_.size = static_cast<std::size_t>(lent.size());
    }
    is_lent_ = true;
  }
  sharded(sharded&&) noexcept = default;
  /// The memory that was there goes, or back to whom it belongs.
  HEDDLE_SETS_STATE(unknown)
  sharded& operator=(sharded&& other) noexcept {
    if (this == &other) return *this;
    take_back();
    layout_ = std::move(other.layout_);
    whole_ = other.whole_;
    rank_ = other.rank_;
    local_ = std::move(other.local_);
    borrowed_ = std::move(other.borrowed_);
    is_lent_ = other.is_lent_;
    return *this;
  }
  ~sharded() { take_back(); }

  const Layout& layout() const noexcept { return layout_; }
  /// The shape of the whole tensor.
  dynamic_shape<Rank> shape() const noexcept { return whole_; }
  int rank() const noexcept { return rank_; }
  /// Whether the memory is somebody else's.
  bool is_lent() const noexcept { return is_lent_; }

  /// The shape of the memory. Where a split policy pads, the elements are the first `valid_shape()` of it.
  dynamic_shape<Rank> local_shape() const { return layout_.local_shape(whole_, rank_); }
  dynamic_shape<Rank> valid_shape() const { return layout_.valid_shape(whole_, rank_); }
  /// Where the part begins in the whole; a compile error where parts are not intervals (see `layout().part`).
  std::array<std::int64_t, Rank> local_offset() const { return layout_.local_offset(whole_, rank_); }
  /// Errors: `layout_error` if the memory was released.
  HEDDLE_CALLABLE_WHEN("unknown")
  view<T, dynamic_shape<Rank>, Space> local() {
    const dynamic_shape<Rank> s = local_shape();
    require_all(s);
    return {memory().address(), s};
  }
  HEDDLE_CALLABLE_WHEN("unknown")
  view<const T, dynamic_shape<Rank>, Space> local() const {
    const dynamic_shape<Rank> s = local_shape();
    require_all(s);
    return {memory().address(), s};
  }
  /// All that the rank holds, padding too, in a row.
  HEDDLE_CALLABLE_WHEN("unknown")
  vector_view<T, Space> memory() noexcept {
    if constexpr (!std::same_as<Space, host_memory>)
      if (is_lent_) return {borrowed_.at, detail::row_shape(static_cast<std::int64_t>(borrowed_.size))};
    return local_.view();
  }
  HEDDLE_CALLABLE_WHEN("unknown")
  vector_view<const T, Space> memory() const noexcept {
    if constexpr (!std::same_as<Space, host_memory>)
      if (is_lent_) return {borrowed_.at, detail::row_shape(static_cast<std::int64_t>(borrowed_.size))};
    return local_.view();
  }
  /// Compilers print the line of what was not to be called, with the sentence on it.
  // clang-format off
  HEDDLE_CALLABLE_WHEN("unknown")
  std::span<T> elements() noexcept  // heddle: host code may not touch the elements of this memory: call kernels of the backend, or copy_to<host_memory>(queue, x)
    requires host_accessible_space<Space>
  {
    return memory().elements();
  }
  HEDDLE_CALLABLE_WHEN("unknown")
  std::span<const T> elements() const noexcept  // heddle: host code may not touch the elements of this memory, see above
    requires host_accessible_space<Space>
  {
    return memory().elements();
  }
  // clang-format on
  /// Gives the memory away, or a copy of it if it is lent; afterwards there are no elements, and `local` refuses.
  /// Errors: `memory_error` if there is no memory for a copy; `layout_error` if the memory is lent and not the host's.
  buffer<T, Space> release() && {
    if constexpr (std::same_as<Space, host_memory>) {
      if (is_lent_) {
        buffer<T> copy(static_cast<std::int64_t>(local_.size()));
        std::copy(local_.begin(), local_.end(), copy.begin());
        take_back();
        return copy;
      }
    } else if (is_lent_ && borrowed_.size != 0) {
      throw layout_error("heddle: rank " + std::to_string(rank_) + "'s part of a tensor of " + to_string(whole_) +
                         " lies in memory of somebody else, which only a queue can copy: copy_of(queue, x)");
    }
    return std::move(local_);
  }

 private:
  void take_back() noexcept {
    if constexpr (std::same_as<Space, host_memory>)
      if (is_lent_) detail::lending::take_back(local_);
  }
  [[noreturn]] void throw_size(std::int64_t wanted, std::size_t got) const {
    throw layout_error("heddle: rank " + std::to_string(rank_) + " holds " + std::to_string(wanted) +
                       " elements of a tensor of " + to_string(whole_) + " under " + to_string(layout_) + ", got " +
                       std::to_string(got));
  }

  // Requires the size that the shape of the memory needs.
  void require_all(const dynamic_shape<Rank>& s) const {
    if (memory().size() != s.size())
      throw layout_error("heddle: a view of shape " + to_string(s) + " needs " + std::to_string(s.size()) +
                         " elements, got " + std::to_string(memory().size()));
  }

  [[no_unique_address]] Layout layout_;
  dynamic_shape<Rank> whole_;
  int rank_ = 0;
  bool is_lent_ = false;
  buffer<T, Space> local_;
  [[no_unique_address]] detail::borrowed_memory<T, Space> borrowed_{};
};

/// All that the rank holds, padding too, in a row as kernels take it: a span on the host, a `vector_view` elsewhere.
template <class T, std::size_t Rank, layout_like Layout, memory_space Space>
row_view<T, Space> elements_of(sharded<T, Rank, Layout, Space>& x) noexcept {
  return elements_of(x.memory());
}
template <class T, std::size_t Rank, layout_like Layout, memory_space Space>
row_view<const T, Space> elements_of(const sharded<T, Rank, Layout, Space>& x) noexcept {
  return elements_of(x.memory());
}

namespace detail {
// Errors: `layout_error` if the memory was released or moved away.
template <class T, std::size_t Rank, class L, class Space>
void require_held(const sharded<T, Rank, L, Space>& x) {
  if (x.memory().size() != 0 || x.layout().local_size(x.shape(), x.rank()) == 0) return;
  throw layout_error("heddle: rank " + std::to_string(x.rank()) + "'s part of a tensor of " + to_string(x.shape()) +
                     " under " + to_string(x.layout()) + " was released or moved from, and holds nothing any more");
}

template <layout_like L>
struct partial_op {
  using type = typename list_at<0, typename L::ops>::type;
};
// A tensor that is not split.
template <std::size_t Axes, std::size_t Rank>
tensor_part<Rank, Axes> whole_part(const std::array<std::int64_t, Rank>& extents) {
  tensor_part<Rank, Axes> part;
  for (std::size_t d = 0; d < Rank; ++d) part.dims[d] = dimension_part<Axes>(extents[d]);
  return part;
}

// What two parts have in common; name the sender first.
template <std::size_t Rank, std::size_t Axes, std::size_t Others>
memory_overlap<Rank> overlap_of(const tensor_part<Rank, Axes>& from, const tensor_part<Rank, Others>& to) {
  memory_overlap<Rank> o;
  for (std::size_t d = 0; d != Rank; ++d) o.along[d] = common_stretches(from.dims[d], to.dims[d]);
  return o;
}

// What a part and the whole tensor have in common, without the part's halo, which other ranks own.
template <class Layout, std::int64_t... E>
memory_overlap<sizeof...(E)> owned_overlap(const Layout& layout, const shape<E...>& whole, int rank) {
  const auto held = layout.part(whole, rank);
  auto o = overlap_of(held, whole_part<Layout::mesh_type::rank>(whole.extents()));
  if constexpr (Layout::has_halo) {
    const auto owned = without_halo<Layout>{layout.mesh()}.part(whole, rank);
    for (std::size_t d = 0; d < sizeof...(E); ++d) {
      if (owned.dims[d].size() == held.dims[d].size()) continue;
      const std::int64_t begin = owned.dims[d].to_global(0);
      o.along[d] = stretch_list({begin - held.dims[d].to_global(0), begin, owned.dims[d].size()});
    }
  }
  return o;
}

// Axis number `At` of the mesh, for the compiler's message; none where it has fewer.
template <std::size_t At, class L>
using axis_if_any = typename decltype(axis_at<(At < L::mesh_type::rank), At>(typename L::mesh_type::tags{}))::type;

// The first axis with this role; carries its name into the message of an assertion.
template <layout_like L>
constexpr std::size_t first_axis_of(axis_role role) {
  constexpr std::size_t axes = L::mesh_type::rank;
  for (std::size_t a = 0; a < axes; ++a)
    if (L::table.use[a].role == role) return a;
  return axes;
}
template <bool Ok, class... Names>
inline constexpr bool values_make_one_tensor = Ok;
template <layout_like L>
consteval bool has_a_whole() {
  constexpr std::size_t at = first_axis_of<L>(axis_role::varying);
  constexpr bool ok = at == L::mesh_type::rank;
  static_assert(values_make_one_tensor<ok, axis_if_any<at, L>>,
                "heddle: assemble: the values vary along an axis, so they are no parts of one tensor; "
                "say with assume<To> what they mean");
  return ok;
}

// Whether the rank's contribution carries the values when one rank of each partial group does: coordinate 0 on those axes.
template <layout_like L>
bool carries_value(const L& layout, int rank) {
  const auto extents = layout.mesh().extents();
  for (std::size_t a = 0; a < extents.size(); ++a)
    if (L::table.use[a].role == axis_role::partial && mesh_coordinate(extents, a, rank) != 0) return false;
  return true;
}
}  // namespace detail

/// The same part in memory of space `To`, copied through the queue, which is one of `To`'s space or of the part's; returns when
/// it is there. `copy_to<host_memory>(queue, x)` brings to the host what is somewhere else.
/// Errors: what the queue's work has thrown; `layout_error` if the part was released or moved from.
template <memory_space To, class Queue, class T, std::size_t Rank, layout_like Layout, memory_space From>
sharded<T, Rank, Layout, To> copy_to(Queue& queue, const sharded<T, Rank, Layout, From>& x) {
  detail::require_held(x);
  auto out = [&] {
    if constexpr (std::same_as<To, host_memory>)
      return sharded<T, Rank, Layout, To>(x.layout(), x.shape(), x.rank());
    else
      return sharded<T, Rank, Layout, To>(queue, x.layout(), x.shape(), x.rank());
  }();
  queue.copy(x.memory(), out.memory());
  queue.wait();
  return out;
}

/// A second tensor with the same elements in the same space, copied in the order of the queue.
/// Errors: `layout_error` if the part was released or moved from.
template <class T, std::size_t Rank, layout_like Layout, memory_space Space>
sharded<T, Rank, Layout, Space> copy_of(typename Space::queue& queue, const sharded<T, Rank, Layout, Space>& x) {
  detail::require_held(x);
  sharded<T, Rank, Layout, Space> copy(queue, x.layout(), x.shape(), x.rank());
  queue.copy(x.memory(), copy.memory());
  return copy;
}

/// The part of a whole tensor that `rank` holds: what a scatter gives it. Along partial axes the first rank keeps the
/// values and the others hold the operator's identity; along varying axes each rank gets the same values. No communication: every rank has the whole.
template <class T, std::int64_t... E, layout_like Layout>
sharded<std::remove_const_t<T>, sizeof...(E), Layout> shard_of(view<T, shape<E...>> whole, const Layout& layout,
                                                               int rank) {
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
  const auto extents = whole.shape().extents();
  const auto held = layout.part(whole.shape(), rank);
  detail::copy_overlap(detail::overlap_of(detail::whole_part<Layout::mesh_type::rank>(extents), held), whole.data(),
                       extents, part.elements().data(), held.stored());
  return part;
}

/// The whole tensor, row-major, from the parts of all ranks, in rank order: what a gather gives. Partial contributions
/// are combined in rank order; of several copies the primary one is read, and of halos nothing. No communication: meant for tests and tools.
/// Errors: `layout_error` unless there is one part per rank, of one shape, on one mesh; a compile error for varying values.
template <class T, std::size_t Rank, layout_like Layout>
buffer<T> assemble(std::span<const sharded<T, Rank, Layout>> parts) {
  if constexpr (!detail::has_a_whole<Layout>()) {
    return {};
  } else {
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
      if (!(part.layout() == parts[0].layout()))
        throw layout_error("heddle: assemble needs parts on one mesh; part 0 is on " +
                           to_string(parts[0].layout().mesh()) + ", part " + std::to_string(r) + " on " +
                           to_string(part.layout().mesh()));
      if (!part.layout().is_primary(part.rank())) continue;
      const T* source = part.elements().data();
      const auto held = part.layout().part(part.shape(), part.rank());
      if (static_cast<std::int64_t>(part.elements().size()) != part.local_shape().size())
        throw layout_error("heddle: assemble: part " + std::to_string(r) + " was released");
      detail::for_each_run(detail::owned_overlap(part.layout(), part.shape(), part.rank()), held.stored(), extents,
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
}

namespace detail {
// The first axis that changes its meaning although neither side calls it varying.
template <layout_like To, layout_like From>
constexpr std::size_t not_assumable() {
  using ops = joined_lists<typename From::ops, typename To::ops>;
  using splits = joined_lists<typename From::splits, typename To::splits>;
  constexpr auto from = joint_table<ops, splits, From>::value, to = joint_table<ops, splits, To>::value;
  constexpr std::size_t axes = From::mesh_type::rank;
  for (std::size_t a = 0; a < axes; ++a)
    if (from.use[a].role != axis_role::varying && to.use[a].role != axis_role::varying && !(from.use[a] == to.use[a]))
      return a;
  return axes;
}
template <bool Ok, class... Names>
inline constexpr bool only_varying_axes_change = Ok;
template <layout_like To, layout_like From>
consteval bool can_be_assumed() {
  constexpr bool one_mesh = std::is_same_v<typename To::mesh_type, typename From::mesh_type>;
  static_assert(one_mesh, "heddle: assume<To>: the layout is on another mesh than the tensor");
  if constexpr (one_mesh) {
    constexpr std::size_t at = not_assumable<To, From>();
    constexpr bool ok = at == From::mesh_type::rank;
    static_assert(only_varying_axes_change<ok, axis_if_any<at, From>>,
                  "heddle: assume<To> gives a meaning to varying axes only, and this one has a meaning already; "
                  "use redistribute");
    return ok;
  } else {
    return false;
  }
}
}  // namespace detail

/// Says what varying values mean, or that values need mean nothing: the same memory under layout `To`, as parts of a tensor
/// of shape `whole`. Nothing is moved and nothing can be checked but the sizes.
/// Errors: `layout_error` if `To` gives the rank another number of elements; a compile error if an axis changes that is
/// varying on neither side.
template <layout_like To, class T, std::size_t Rank, layout_like From, memory_space Space, std::int64_t... E>
  requires(sizeof...(E) == Rank)
sharded<T, Rank, To, Space> assume(sharded<T, Rank, From, Space>&& x, const shape<E...>& whole) {
  if constexpr (detail::can_be_assumed<To, From>())
    return sharded<T, Rank, To, Space>(To{x.layout().mesh()}, make_shape(whole.extents()), x.rank(),
                                       std::move(x).release());
  else
    throw layout_error("heddle: assume: not possible");  // already refused
}
template <layout_like To, class T, std::size_t Rank, layout_like From, memory_space Space>
sharded<T, Rank, To, Space> assume(sharded<T, Rank, From, Space>&& x) {
  const dynamic_shape<Rank> whole = x.shape();
  return assume<To>(std::move(x), whole);
}

}  // namespace heddle::inline v0
