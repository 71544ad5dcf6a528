// heddle/comm/algorithm/name.hpp: names of algorithms that have a parameter, as they are spelled in a program.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace heddle::inline v0 {
namespace detail {

// "double_tree" and 4: "double_tree<4>".
template <int Value>
struct numbered_name {
  std::array<char, 64> text{};
  std::size_t size = 0;

  constexpr explicit numbered_name(std::string_view plain) {
    static_assert(Value >= 0);
    for (const char c : plain) text[size++] = c;
    text[size++] = '<';
    std::size_t digits = 1;
    for (int rest = Value / 10; rest > 0; rest /= 10) ++digits;
    int rest = Value;
    for (std::size_t i = digits; i-- > 0; rest /= 10) text[size + i] = static_cast<char>('0' + rest % 10);
    size += digits;
    text[size++] = '>';
  }
  constexpr operator std::string_view() const noexcept { return {text.data(), size}; }
};

// "scatter_all_gather" and an algorithm named "ring": "scatter_all_gather<ring>".
template <class Inner>
struct nested_name {
  std::array<char, 128> text{};
  std::size_t size = 0;

  constexpr explicit nested_name(std::string_view plain) {
    for (const char c : plain) text[size++] = c;
    text[size++] = '<';
    for (const char c : std::string_view(Inner::name)) text[size++] = c;
    text[size++] = '>';
  }
  constexpr operator std::string_view() const noexcept { return {text.data(), size}; }
};

}  // namespace detail
}  // namespace heddle::inline v0
