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

template <std::int64_t... Extents>
class shape;

namespace detail {
struct countable_shape;

// Out of line, so that making a shape stays small enough to be inlined.
[[noreturn]] inline void throw_negative_extent(std::int64_t extent) {
  throw layout_error("heddle: a shape got the negative extent " + std::to_string(extent));
}
[[noreturn]] inline void throw_uncountable(const std::int64_t* extents, std::size_t rank, const char* what) {
  std::string text = "heddle: a shape of";
  for (std::size_t i = 0; i < rank; ++i) text += (i == 0 ? " " : " x ") + std::to_string(extents[i]);
  throw layout_error(text + " " + what + " than a 64-bit number counts");
}

}  // namespace detail

/// What stands for a count beyond 64 bits. Counts of elements and bytes are never negative, so products and sums with it are
/// `uncountable`, too: arithmetic goes on, and whoever needs the result refuses it.
inline constexpr std::int64_t uncountable = -1;

/// The product of two counts, or `uncountable`. Without a division, and in every compiler's constants: the halves of 64
/// bits are multiplied.
constexpr std::int64_t product_of_counts(std::int64_t a, std::int64_t b) noexcept {
  if ((a | b) >> 31 == 0) return a * b;
  if (a < 0 || b < 0) return uncountable;
  const std::uint64_t a_high = static_cast<std::uint64_t>(a) >> 32, a_low = static_cast<std::uint64_t>(a) & 0xffffffffu;
  const std::uint64_t b_high = static_cast<std::uint64_t>(b) >> 32, b_low = static_cast<std::uint64_t>(b) & 0xffffffffu;
  const std::uint64_t middle = a_high * b_low + a_low * b_high, low = a_low * b_low, product = low + (middle << 32);
  const bool fits = (a_high == 0 || b_high == 0) && middle >> 31 == 0 && product >= low && product >> 63 == 0;
  return fits ? static_cast<std::int64_t>(product) : uncountable;
}
/// The sum of two counts, or `uncountable`.
constexpr std::int64_t sum_of_counts(std::int64_t a, std::int64_t b) noexcept {
  return a < 0 || b < 0 || a > (std::numeric_limits<std::int64_t>::max)() - b ? uncountable : a + b;
}
/// The product of extents, or `uncountable`; 1 of none, 0 if one of them is.
constexpr std::int64_t product_of_counts(const std::int64_t* extents, std::size_t rank) noexcept {
  std::int64_t n = 1;
  bool empty = false;
  for (std::size_t i = 0; i < rank; ++i) {
    empty = empty || extents[i] == 0;
    n = product_of_counts(n, extents[i]);
  }
  return empty ? 0 : n;
}
template <std::size_t Rank>
constexpr std::int64_t product_of_counts(const std::array<std::int64_t, Rank>& extents) noexcept {
  return product_of_counts(extents.data(), Rank);
}

namespace detail {
// Whether so many extents are so small, each, that one need not multiply to see that their product is a number: what making
// a shape costs. No loop, which g++ would not unroll.
template <std::size_t Rank, class... N>
[[gnu::always_inline]] constexpr bool surely_countable(N... extents) noexcept {
  return (std::int64_t{0} | ... | extents) >> (63 / Rank) == 0;
}
// The same of extents that make a shape, so that it is known to be a number: costs nothing.
template <std::size_t Rank>
constexpr std::int64_t countable_product_of(const std::array<std::int64_t, Rank>& extents) noexcept {
  std::uint64_t n = 1;  // may wrap around before it meets a zero
  for (const std::int64_t e : extents) n *= static_cast<std::uint64_t>(e);
  return static_cast<std::int64_t>(n);
}
// Errors: `layout_error` that names the tensor's extents if there is no such number.
template <std::size_t Rank>
constexpr std::int64_t counted(std::int64_t n, const std::array<std::int64_t, Rank>& extents, const char* what) {
  if (n < 0) throw_uncountable(extents.data(), Rank, what);
  return n;
}
}  // namespace detail

/// The extents of a row-major tensor, major dimension first. `shape<8, 64>` is an empty object,
/// `shape{8, 64}` deduces `shape<dynamic, dynamic>`, and `shape<dynamic, 64>{8}` stores one number.
/// Units: elements. Errors: `layout_error` if an extent is negative or a 64-bit number does not count the elements; a
/// compile error where all extents are static.
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
  [[gnu::always_inline]] constexpr shape(N... n) {
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
    if constexpr (!is_static && rank() > 1)
      if (!detail::surely_countable<rank()>(static_cast<std::int64_t>(n)..., (Extents == dynamic ? 0 : Extents)...))
        require_countable();
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
  constexpr std::int64_t size() const noexcept { return detail::countable_product_of(extents()); }

  constexpr std::array<std::int64_t, sizeof...(Extents)> extents() const noexcept {
    std::array<std::int64_t, sizeof...(Extents)> e{};
    for (std::size_t i = 0; i != rank(); ++i) e[i] = extent(i);
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
  friend detail::countable_shape;

  constexpr void require_countable() const {
    const auto e = extents();
    if (product_of_counts(e) < 0) detail::throw_uncountable(e.data(), rank(), "has more elements");
  }

  // One more than needed, so that rank 0 has an array too.
  static constexpr std::array<std::int64_t, sizeof...(Extents) + 1> fixed{Extents..., 0};
  struct nothing {};
  using storage = std::conditional_t<is_static, nothing, std::array<std::int64_t, is_static ? 1 : dynamic_count>>;
  [[no_unique_address]] storage sizes_{};

  // Last, because clang leaves out the members that come after an assertion which fails.
  static_assert(((Extents == dynamic) || ...) ||
                    product_of_counts(std::array<std::int64_t, sizeof...(Extents)>{Extents...}) >= 0,
                "heddle: shape<...>: there are more elements than a 64-bit number counts");
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

namespace detail {
// The shape with extents of which each is known to be at most that of some other shape: nothing needs to be checked.
struct countable_shape {
  template <std::size_t Rank>
  static constexpr dynamic_shape<Rank> of(const std::array<std::int64_t, Rank>& extents) noexcept {
    dynamic_shape<Rank> s;
    if constexpr (Rank > 0) s.sizes_ = extents;
    return s;
  }
};
}  // namespace detail

/// The shape with these extents. Errors: as of `shape`.
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
  for (std::size_t i = 0; i != sizeof...(Extents); ++i) text += (i ? " x " : "") + std::to_string(s.extent(i));
  return text;
}

}  // namespace heddle::inline v0
