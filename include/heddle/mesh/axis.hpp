// heddle/mesh/axis.hpp: a named direction of a device mesh, with a size known now or at start-up.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/core/type_name.hpp>

#include <concepts>
#include <string>

namespace heddle::inline v0 {

/// The usual axes. Any type may serve as a tag; users declare their own the same way.
struct dp {};  ///< data parallel: ranks hold the same weights and see different samples
struct pp {};  ///< pipeline parallel: ranks hold different layers
struct tp {};  ///< tensor parallel: ranks hold parts of the same layer
struct cp {};  ///< context parallel: ranks hold parts of the same sequence
struct ep {};  ///< expert parallel: ranks hold different experts

namespace detail {
// In a function: clang takes a class whose own assertion failed for broken, and says so at every use.
template <int Size>
constexpr bool axis_size_checked() {
  static_assert(Size > 0,
                "heddle: axis<Tag, Size>: Size must be positive; leave it out if it is known only at start-up");
  return true;
}
}  // namespace detail

/// A mesh axis. `Tag` is any type and serves as the name; `Size` is the number of ranks along it, or `dynamic`.
template <class Tag, int Size = dynamic>
struct axis {
  static_assert(detail::axis_size_checked<Size>());
  using tag = Tag;
  static constexpr bool is_static = true;
  static constexpr int fixed_size = Size > 0 ? Size : 1;
  HEDDLE_HD static constexpr int size() noexcept { return fixed_size; }
};

template <class Tag>
struct axis<Tag, dynamic> {
  using tag = Tag;
  static constexpr bool is_static = false;
  static constexpr int fixed_size = dynamic;

  axis() = default;
  /// Errors: `mesh_error` if `size` is not positive.
  constexpr explicit axis(int size) : size_(size) {
    if (size <= 0)
      throw mesh_error("heddle: axis " + std::string(short_type_name<Tag>()) + " needs at least one rank, got " +
                       std::to_string(size));
  }
  HEDDLE_HD constexpr int size() const noexcept { return size_; }

 private:
  int size_ = 1;
};

/// A mesh axis: a tag, and a size that is known now (`is_static`, `fixed_size`) or at start-up.
template <class A>
concept axis_like = requires(const A a) {
  typename A::tag;
  { A::is_static } -> std::convertible_to<bool>;
  { A::fixed_size } -> std::convertible_to<int>;
  { a.size() } -> std::same_as<int>;
};

}  // namespace heddle::inline v0
