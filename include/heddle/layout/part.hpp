// heddle/layout/part.hpp: the local part of a tensor under any split policy, with index maps.
#pragma once

#include <heddle/core/shape.hpp>
#include <heddle/layout/box.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0 {
namespace detail {

// What one rank holds of one dimension: the cuts of that dimension, each applied to what the one before it left. At most
// `Axes` cuts, because each mesh axis cuts once.
template <std::size_t Axes>
class dimension_part {
 public:
  constexpr dimension_part() = default;
  constexpr explicit dimension_part(std::int64_t extent) : size_(extent), stored_(extent), span_(extent) {}

  // Errors: `layout_error` if the policy cannot cut so many elements into so many parts.
  constexpr void cut(const split_functions& how, int dim, std::int64_t parts, std::int64_t part) {
    require_fit(how, dim, size_, parts);
    levels_[count_++] = {&how, size_, parts, part};
    const std::int64_t memory = how.stored(size_, parts, part);
    const std::int64_t padded = stored_ == size_ ? memory : how.stored(stored_, parts, part);
    size_ = how.size(size_, parts, part);
    stored_ = padded > memory ? padded : memory;
  }

  // Adds up to `width` elements of the whole on either side. Requires cuts that leave one interval, without padding.
  constexpr void widen(std::int64_t width, std::int64_t extent) {
    const widened_interval held(size_ == 0 ? 0 : to_global(0), size_, width, extent);
    begin_ = held.begin;
    span_ = size_ = stored_ = held.end - held.begin;
    count_ = 0;
  }

  /// Elements held, and elements of memory they take (more than the size only where a policy pads).
  constexpr std::int64_t size() const noexcept { return size_; }
  constexpr std::int64_t stored() const noexcept { return stored_; }
  /// The place in the whole dimension of the part's element `local`. Requires `0 <= local < size()`.
  constexpr std::int64_t to_global(std::int64_t local) const noexcept {
    for (std::size_t i = count_; i-- > 0;)
      local = levels_[i].how->to_global(levels_[i].extent, levels_[i].parts, levels_[i].part, local);
    return begin_ + local;
  }
  /// How many elements, from `local` on, follow each other in the whole dimension too. At least 1.
  constexpr std::int64_t run(std::int64_t local) const noexcept {
    std::int64_t length = size_ - local;
    for (std::size_t i = count_; i-- > 0;) {
      const level& l = levels_[i];
      const std::int64_t here = l.how->run(l.extent, l.parts, l.part, local);
      if (here < length) length = here;
      local = l.how->to_global(l.extent, l.parts, l.part, local);
    }
    return length;
  }
  /// Whether the part has the element at `global` of the whole. Requires `0 <= global <` the extent.
  constexpr bool holds(std::int64_t global) const noexcept {
    global -= begin_;
    if (global < 0 || global >= span_) return false;
    for (std::size_t i = 0; i < count_; ++i) {
      const level& l = levels_[i];
      if (l.how->owner(l.extent, l.parts, global) != l.part) return false;
      global = l.how->to_local(l.extent, l.parts, global);
    }
    return true;
  }
  /// Its place inside the part. Requires `holds(global)`.
  constexpr std::int64_t to_local(std::int64_t global) const noexcept {
    global -= begin_;
    for (std::size_t i = 0; i < count_; ++i)
      global = levels_[i].how->to_local(levels_[i].extent, levels_[i].parts, global);
    return global;
  }
  /// Whether the part is one interval of the whole, because each of its cuts leaves one.
  constexpr bool contiguous() const noexcept {
    for (std::size_t i = 0; i < count_; ++i)
      if (!levels_[i].how->contiguous) return false;
    return true;
  }

 private:
  struct level {
    const split_functions* how = nullptr;
    std::int64_t extent = 0, parts = 1, part = 0;
  };
  level levels_[Axes == 0 ? 1 : Axes]{};
  std::size_t count_ = 0;
  std::int64_t size_ = 0, stored_ = 0;
  std::int64_t begin_ = 0, span_ = 0;  // the interval of the whole that the cuts divide
};

// What one rank holds of a tensor: the product of what it holds of each dimension, row-major in memory of `stored` extents.
template <std::size_t Rank, std::size_t Axes>
struct tensor_part {
  std::array<dimension_part<Axes>, Rank> dims{};

  constexpr std::array<std::int64_t, Rank> extents() const noexcept {
    std::array<std::int64_t, Rank> e{};
    for (std::size_t d = 0; d != Rank; ++d) e[d] = dims[d].size();
    return e;
  }
  constexpr std::array<std::int64_t, Rank> stored() const noexcept {
    std::array<std::int64_t, Rank> e{};
    for (std::size_t d = 0; d != Rank; ++d) e[d] = dims[d].stored();
    return e;
  }
  constexpr std::int64_t size() const noexcept { return countable_product_of(extents()); }
  constexpr bool contiguous() const noexcept {
    for (const auto& d : dims)
      if (!d.contiguous()) return false;
    return true;
  }
  constexpr bool holds(const std::array<std::int64_t, Rank>& index) const noexcept {
    for (std::size_t d = 0; d < Rank; ++d)
      if (!dims[d].holds(index[d])) return false;
    return true;
  }
  constexpr std::array<std::int64_t, Rank> to_local(std::array<std::int64_t, Rank> index) const noexcept {
    for (std::size_t d = 0; d < Rank; ++d) index[d] = dims[d].to_local(index[d]);
    return index;
  }
  constexpr std::array<std::int64_t, Rank> to_global(std::array<std::int64_t, Rank> index) const noexcept {
    for (std::size_t d = 0; d < Rank; ++d) index[d] = dims[d].to_global(index[d]);
    return index;
  }
};

template <std::size_t Rank, std::size_t Axes, std::size_t Cuts>
constexpr tensor_part<Rank, Axes> part_of(const cut_list<Cuts>& cuts, const mesh_numbers<Axes>& mesh,
                                          const std::array<std::int64_t, Rank>& extents, int rank) {
  tensor_part<Rank, Axes> part;
  for (std::size_t d = 0; d != Rank; ++d) part.dims[d] = dimension_part<Axes>(extents[d]);
  for (const cut& c : cuts)
    part.dims[static_cast<std::size_t>(c.dim)].cut(*c.how, c.dim, mesh.extents[c.axis], mesh.coordinate(c.axis, rank));
  for (const cut& c : cuts)
    if (c.halo != 0) part.dims[static_cast<std::size_t>(c.dim)].widen(c.halo, extents[static_cast<std::size_t>(c.dim)]);
  return part;
}

}  // namespace detail
}  // namespace heddle::inline v0
