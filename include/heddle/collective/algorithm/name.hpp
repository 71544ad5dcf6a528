// heddle/collective/algorithm/name.hpp: names of algorithms with parameters, as in programs.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace heddle::inline v0 {
namespace detail {

// A text put together in constant evaluation. Cut off where it is too long.
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

// "double_tree" and 4: "double_tree<4>"; "hierarchical", 8, "ring" and "pat": "hierarchical<8, ring, pat>".
template <class... Parameters>
constexpr short_text name_with(std::string_view plain, const Parameters&... parameters) {
  short_text text(plain);
  const char* before = "<";
  ((text += before, text += parameters, before = ", "), ...);
  text += ">";
  return text;
}

}  // namespace detail
}  // namespace heddle::inline v0
