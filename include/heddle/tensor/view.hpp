// heddle/tensor/view.hpp: a row-major look at memory somebody else owns, extents static or dynamic.
#pragma once

#include <heddle/core/shape.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#if __has_include(<mdspan>)
#include <mdspan>
#endif

namespace heddle::inline v0 {

namespace detail {
template <class>
inline constexpr bool is_shape = false;
template <std::int64_t... E>
inline constexpr bool is_shape<shape<E...>> = true;

[[noreturn]] inline void throw_index_of_view(std::int64_t index, std::size_t dim, const std::string& shape) {
  throw layout_error("heddle: index " + std::to_string(index) + " is outside dimension " + std::to_string(dim) +
                     " of a view of shape " + shape);
}
}  // namespace detail

/// A non-owning, contiguous, row-major view of a tensor: what kernels take. Cheap to copy; static extents take no room.
/// `view<const T, S>` only reads. Converts from `view<T, S>`, and from and to a layout_right `std::mdspan` where the
/// standard library has one. `Space` is the space of the memory, the host's if none is named; where host code may not touch
/// the elements there are `address()`, shape and size only.
/// Errors: `layout_error` if a span's size is not the shape's.
template <class T, class Shape, memory_space Space = host_memory>
  requires detail::is_shape<Shape>
class view {
 public:
  using space = Space;
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using shape_type = Shape;

  constexpr view() = default;
  constexpr view(T* data, Shape shape) noexcept : data_(data), shape_(shape) {}
  constexpr view(std::span<T> data, Shape shape)
    requires host_accessible_space<Space>
      : data_(data.data()), shape_(shape) {
    if (static_cast<std::int64_t>(data.size()) != shape.size())
      throw layout_error("heddle: a view of shape " + to_string(shape) + " needs " + std::to_string(shape.size()) +
                         " elements, got " + std::to_string(data.size()));
  }
  template <class U>
    requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>)
  constexpr view(view<U, Shape, Space> other) noexcept : data_(other.address()), shape_(other.shape()) {}

  static constexpr std::size_t rank() noexcept { return Shape::rank(); }
  /// Where the elements are, in the space: for queues and for what is launched on them.
  constexpr T* address() const noexcept { return data_; }
  constexpr T* data() const noexcept
    requires host_accessible_space<Space>
  {
    return data_;
  }
  constexpr Shape shape() const noexcept { return shape_; }
  constexpr std::int64_t extent(std::size_t i) const noexcept { return shape_.extent(i); }
  constexpr std::int64_t size() const noexcept { return shape_.size(); }
  constexpr std::span<T> elements() const noexcept
    requires host_accessible_space<Space>
  {
    return {data_, static_cast<std::size_t>(size())};
  }

  /// The element at these indices, which must be in range. Errors: `layout_error` if not, where HEDDLE_CHECK_BOUNDS is on.
  template <class... Indices>
    requires(sizeof...(Indices) == Shape::rank() && host_accessible_space<Space>)
  constexpr T& operator()(Indices... indices) const noexcept(!HEDDLE_CHECK_BOUNDS) {
    const std::array<std::int64_t, sizeof...(Indices)> at{static_cast<std::int64_t>(indices)...};
#if HEDDLE_CHECK_BOUNDS
    for (std::size_t d = 0; d < rank(); ++d)
      if (at[d] < 0 || at[d] >= shape_.extent(d)) detail::throw_index_of_view(at[d], d, to_string(shape_));
#endif
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < rank(); ++d) offset = offset * shape_.extent(d) + at[d];
    return data_[offset];
  }

#if defined(__cpp_lib_mdspan)
  template <class Extents>
    requires(Extents::rank() == Shape::rank() && host_accessible_space<Space>)
  constexpr view(std::mdspan<T, Extents, std::layout_right> m) : data_(m.data_handle()) {
    shape_ = [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      return Shape(static_cast<std::int64_t>(m.extent(Is))...);
    }(std::make_index_sequence<Shape::rank()>{});
  }
  constexpr operator std::mdspan<T, std::dextents<std::int64_t, Shape::rank()>, std::layout_right>() const noexcept
    requires host_accessible_space<Space>
  {
    return {data_, shape_.extents()};
  }
#endif

 private:
  T* data_ = nullptr;
  [[no_unique_address]] Shape shape_{};
};

/// A matrix of run-time extents: rows x columns.
template <class T, memory_space Space = host_memory>
using matrix_view = view<T, dynamic_shape<2>, Space>;
/// Elements in a row, as many as are known at run time.
template <class T, memory_space Space = host_memory>
using vector_view = view<T, dynamic_shape<1>, Space>;
/// One element, such as a sum that a kernel adds to.
template <class T, memory_space Space = host_memory>
using scalar_view = view<T, shape<>, Space>;
/// A row as kernels take it: `std::span` in the host's memory, `vector_view` elsewhere.
template <class T, memory_space Space = host_memory>
using row_view = std::conditional_t<std::is_same_v<Space, host_memory>, std::span<T>, vector_view<T, Space>>;

namespace detail {
// Of a count that cannot be negative: no check is left of making the shape.
[[gnu::always_inline]] constexpr dynamic_shape<1> row_shape(std::int64_t count) noexcept {
#if defined(__GNUC__)
  if (count < 0) __builtin_unreachable();
#endif
  return dynamic_shape<1>{count};
}
// `count` elements of a row, from `begin` on.
template <class T, class Space>
constexpr vector_view<T, Space> within(vector_view<T, Space> row, std::int64_t begin, std::int64_t count) noexcept {
  return {row.address() + begin, row_shape(count)};
}
template <class T>
constexpr vector_view<T> row_of(std::span<T> x) noexcept {
  return {x.data(), row_shape(static_cast<std::int64_t>(x.size()))};
}
}  // namespace detail

/// A row of `count` elements at this address of the space: a `std::span` on the host, a `vector_view` elsewhere.
template <class Space, class T>
constexpr row_view<T, Space> row_at(T* address, std::int64_t count) noexcept {
  if constexpr (std::is_same_v<Space, host_memory>)
    return {address, static_cast<std::size_t>(count)};
  else
    return {address, detail::row_shape(count)};
}

/// All elements of a view in a row.
template <class T, class Shape, class Space>
constexpr row_view<T, Space> elements_of(const view<T, Shape, Space>& x) noexcept {
  return row_at<Space>(x.address(), x.size());
}

}  // namespace heddle::inline v0
