// heddle/core/shape.hpp: the extents of a tensor, each known at compile time or at run time.
#pragma once

#include <heddle/core/error.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

/// Marks an extent that is known only at run time, as `std::dynamic_extent` does.
inline constexpr int dynamic = -1;

namespace detail {
// Out of line, so that making a shape stays small enough to be inlined.
[[noreturn]] inline void throw_negative_extent(std::int64_t extent) {
  throw layout_error("heddle: a shape got the negative extent " + std::to_string(extent));
}
[[noreturn]] inline void throw_too_many_elements(const std::int64_t* extents, std::size_t rank) {
  std::string text = "heddle: a shape of";
  for (std::size_t i = 0; i < rank; ++i) text += (i == 0 ? " " : " x ") + std::to_string(extents[i]);
  throw layout_error(text + " has more elements than a 64-bit number counts");
}
}  // namespace detail

/// The extents of a row-major tensor, major dimension first. `shape<8, 64>` is an empty object,
/// `shape{8, 64}` deduces `shape<dynamic, dynamic>`, and `shape<dynamic, 64>{8}` stores one number.
/// Units: elements. Errors: `layout_error` if an extent is negative.
template <std::int64_t... Extents>
class shape {
  static_assert(((Extents >= 0 || Extents == dynamic) && ...),
                "heddle: shape<...>: an extent must not be negative; write heddle::dynamic for one known at run time");

 public:
  static constexpr std::size_t rank() noexcept { return sizeof...(Extents); }
  static constexpr std::size_t dynamic_count = (std::size_t{0} + ... + (Extents == dynamic ? 1u : 0u));
  static constexpr bool is_static = dynamic_count == 0;

  constexpr shape() = default;

  /// The dynamic extents in order, or all extents in order (static ones must then agree).
  template <std::integral... N>
    requires(sizeof...(N) > 0 && (sizeof...(N) == dynamic_count || sizeof...(N) == sizeof...(Extents)))
  constexpr shape(N... n) {
    const std::array<std::int64_t, sizeof...(N)> given{static_cast<std::int64_t>(n)...};
    for (const std::int64_t extent : given)
      if (extent < 0) detail::throw_negative_extent(extent);
    if constexpr (sizeof...(N) == dynamic_count) {
      for (std::size_t i = 0; i < dynamic_count; ++i) sizes_[i] = given[i];
    } else {
      [[maybe_unused]] std::size_t stored = 0;
      for (std::size_t i = 0; i < rank(); ++i) {
        if (fixed[i] == dynamic) {
          if constexpr (!is_static) sizes_[stored++] = given[i];
        } else if (fixed[i] != given[i])
          throw layout_error("heddle: dimension " + std::to_string(i) + " is fixed at " + std::to_string(fixed[i]) +
                             ", got " + std::to_string(given[i]));
      }
    }
  }

  constexpr std::int64_t extent(std::size_t i) const noexcept {
    if constexpr (is_static) {
      return fixed[i];
    } else {
      if (fixed[i] != dynamic) return fixed[i];
      std::size_t stored = 0;
      for (std::size_t j = 0; j < i; ++j) stored += fixed[j] == dynamic ? 1u : 0u;
      return sizes_[stored];
    }
  }
  constexpr std::int64_t operator[](std::size_t i) const noexcept { return extent(i); }

  /// Number of elements: the product of the extents, 1 for rank 0.
  /// Errors: `layout_error` if it exceeds what std::int64_t holds.
  constexpr std::int64_t size() const {
    std::int64_t n = 1;
    bool empty = false, too_many = false;
    for (std::size_t i = 0; i < rank(); ++i) {
      const std::int64_t e = extent(i);
      empty = empty || e == 0;
      too_many = too_many || (e != 0 && n > (std::numeric_limits<std::int64_t>::max)() / e);
      n = too_many || e == 0 ? 0 : n * e;
    }
    if (too_many && !empty) detail::throw_too_many_elements(extents().data(), rank());
    return n;
  }

  constexpr std::array<std::int64_t, sizeof...(Extents)> extents() const noexcept {
    std::array<std::int64_t, sizeof...(Extents)> e{};
    for (std::size_t i = 0; i < rank(); ++i) e[i] = extent(i);
    return e;
  }

  template <std::int64_t... Others>
  friend constexpr bool operator==(const shape& a, const shape<Others...>& b) noexcept {
    if constexpr (sizeof...(Others) != sizeof...(Extents)) {
      return false;
    } else {
      for (std::size_t i = 0; i < rank(); ++i)
        if (a.extent(i) != b.extent(i)) return false;
      return true;
    }
  }

 private:
  // One more than needed, so that rank 0 has an array too.
  static constexpr std::array<std::int64_t, sizeof...(Extents) + 1> fixed{Extents..., 0};
  struct nothing {};
  using storage = std::conditional_t<is_static, nothing, std::array<std::int64_t, is_static ? 1 : dynamic_count>>;
  [[no_unique_address]] storage sizes_{};
};

namespace detail {
template <class>
inline constexpr std::int64_t dynamic_for = dynamic;
template <class Sequence>
struct all_dynamic;
template <std::size_t... Is>
struct all_dynamic<std::integer_sequence<std::size_t, Is...>> {
  using type = shape<(static_cast<void>(Is), std::int64_t{dynamic})...>;
};
}  // namespace detail

template <std::integral... N>
shape(N...) -> shape<detail::dynamic_for<N>...>;

/// A shape of `Rank` dimensions, all known at run time.
template <std::size_t Rank>
using dynamic_shape = typename detail::all_dynamic<std::make_index_sequence<Rank>>::type;

/// The shape with these extents. Errors: `layout_error` if one is negative.
template <std::size_t Rank>
constexpr dynamic_shape<Rank> make_shape(const std::array<std::int64_t, Rank>& extents) {
  return [&]<std::size_t... Is>(std::integer_sequence<std::size_t, Is...>) {
    if constexpr (Rank == 0)
      return dynamic_shape<0>{};
    else
      return dynamic_shape<Rank>(extents[Is]...);
  }(std::make_index_sequence<Rank>{});
}

/// `"8 x 64"`; `"scalar"` for rank 0.
template <std::int64_t... Extents>
std::string to_string(const shape<Extents...>& s) {
  if (sizeof...(Extents) == 0) return "scalar";
  std::string text;
  for (std::size_t i = 0; i < sizeof...(Extents); ++i) text += (i ? " x " : "") + std::to_string(s.extent(i));
  return text;
}

}  // namespace heddle::inline v0
