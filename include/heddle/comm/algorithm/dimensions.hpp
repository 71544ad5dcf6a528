// heddle/comm/algorithm/dimensions.hpp: ranks as the points of a grid, for algorithms that work along its dimensions.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace heddle::inline v0 {
namespace detail {

/// A text put together in constant evaluation: the name of an algorithm that has parameters. Cut off where it is too
/// long.
struct short_text {
  std::array<char, 160> text{};
  std::size_t size = 0;

  constexpr short_text() = default;
  constexpr explicit short_text(std::string_view plain) { *this += plain; }
  constexpr short_text& operator+=(std::string_view more) {
    for (const char c : more) put(c);
    return *this;
  }
  constexpr short_text& operator+=(int n) {  // not negative
    int scale = 1;
    while (n / scale >= 10) scale *= 10;
    for (; scale > 0; scale /= 10) put(static_cast<char>('0' + n / scale % 10));
    return *this;
  }
  constexpr void put(char c) {
    if (size < text.size()) text[size++] = c;
  }
  constexpr operator std::string_view() const noexcept { return {text.data(), size}; }
};

/// A grid of ranks: the last dimension varies fastest, as in a mesh; every dimension is a ring.
template <int... Extents>
struct dimensions {
  static_assert(sizeof...(Extents) > 0 && ((Extents > 0) && ...),
                "heddle: name the extent of every dimension of the torus, each positive");
  static constexpr int count = static_cast<int>(sizeof...(Extents));
  static constexpr std::array<int, sizeof...(Extents)> extents{Extents...};
  static constexpr int ranks = (1 * ... * Extents);

  static constexpr int extent(int d) noexcept { return extents[static_cast<std::size_t>(d)]; }
  static constexpr int stride(int d) noexcept {
    int n = 1;
    for (int i = d + 1; i < count; ++i) n *= extent(i);
    return n;
  }
  static constexpr int coordinate(int rank, int d) noexcept { return rank / stride(d) % extent(d); }
  /// The rank with this coordinate instead; coordinates are taken modulo the extent.
  static constexpr int with(int rank, int d, int coordinate_there) noexcept {
    const int x = (coordinate_there % extent(d) + extent(d)) % extent(d);
    return rank + (x - coordinate(rank, d)) * stride(d);
  }

  /// "torus<4, 8>" for "torus".
  static constexpr short_text name(std::string_view plain) {
    short_text text(plain);
    for (int d = 0; d < count; ++d) {
      text += d == 0 ? "<" : ", ";
      text += extent(d);
    }
    text += ">";
    return text;
  }
};

}  // namespace detail
}  // namespace heddle::inline v0
