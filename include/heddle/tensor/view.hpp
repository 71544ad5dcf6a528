// heddle/tensor/view.hpp: a row-major look at memory somebody else owns, extents static or dynamic.
#pragma once

#include <heddle/core/shape.hpp>

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
}  // namespace detail

/// A non-owning, contiguous, row-major view of a tensor: what kernels take. Cheap to copy; static extents take no room.
/// `view<const T, S>` only reads. Converts from `view<T, S>`, and from and to a layout_right `std::mdspan` where the
/// standard library has one.
/// Errors: `layout_error` if a span's size is not the shape's.
template <class T, class Shape>
  requires detail::is_shape<Shape>
class view {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using shape_type = Shape;

  constexpr view() = default;
  constexpr view(T* data, Shape shape) noexcept : data_(data), shape_(shape) {}
  constexpr view(std::span<T> data, Shape shape) : data_(data.data()), shape_(shape) {
    if (static_cast<std::int64_t>(data.size()) != shape.size())
      throw layout_error("heddle: a view of shape " + to_string(shape) + " needs " + std::to_string(shape.size()) +
                         " elements, got " + std::to_string(data.size()));
  }
  template <class U>
    requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>)
  constexpr view(view<U, Shape> other) noexcept : data_(other.data()), shape_(other.shape()) {}

  static constexpr std::size_t rank() noexcept { return Shape::rank(); }
  constexpr T* data() const noexcept { return data_; }
  constexpr Shape shape() const noexcept { return shape_; }
  constexpr std::int64_t extent(std::size_t i) const noexcept { return shape_.extent(i); }
  constexpr std::int64_t size() const noexcept { return shape_.size(); }
  constexpr std::span<T> elements() const noexcept { return {data_, static_cast<std::size_t>(size())}; }

  /// The element at these indices, which must be in range.
  template <class... Indices>
    requires(sizeof...(Indices) == Shape::rank())
  constexpr T& operator()(Indices... indices) const noexcept {
    const std::array<std::int64_t, sizeof...(Indices)> at{static_cast<std::int64_t>(indices)...};
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < rank(); ++d) offset = offset * shape_.extent(d) + at[d];
    return data_[offset];
  }

#if defined(__cpp_lib_mdspan)
  template <class Extents>
    requires(Extents::rank() == Shape::rank())
  constexpr view(std::mdspan<T, Extents, std::layout_right> m) : data_(m.data_handle()) {
    shape_ = [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      return Shape(static_cast<std::int64_t>(m.extent(Is))...);
    }(std::make_index_sequence<Shape::rank()>{});
  }
  constexpr operator std::mdspan<T, std::dextents<std::int64_t, Shape::rank()>, std::layout_right>() const noexcept {
    return {data_, shape_.extents()};
  }
#endif

 private:
  T* data_ = nullptr;
  [[no_unique_address]] Shape shape_{};
};

/// A matrix of run-time extents: rows x columns.
template <class T>
using matrix_view = view<T, dynamic_shape<2>>;

}  // namespace heddle::inline v0
