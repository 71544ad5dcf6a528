// heddle/core/impl/text.hpp: bodies of heddle/core/text.hpp.
#pragma once

#include <heddle/core/text.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace heddle::inline v0 {

namespace detail {
template <class T>
std::string shortest_text(T x) {
  if (x != x) return "nan";  // never with a sign
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, x).ptr};
}
}  // namespace detail

HEDDLE_INLINE std::string number_text(double x) {
  return detail::shortest_text(x);
}
HEDDLE_INLINE std::string number_text(float x) {
  return detail::shortest_text(x);
}
HEDDLE_INLINE std::string rounded_text(double x, int decimals) {
  if (x - x != 0) return number_text(x);  // not finite
  char text[64];
  std::snprintf(text, sizeof text, x < 1e15 && x > -1e15 ? "%.*f" : "%.*e",
                decimals < 0 ? 0 : decimals > 20 ? 20 : decimals, x);
  return text;
}
HEDDLE_INLINE std::string digits_text(double x, int decimals) {
  double shown = x < 0 ? -x : x;
  for (int i = 0; i < decimals; ++i) shown *= 10;
  for (; shown > 0 && shown < 100 && decimals < 12; shown *= 10) ++decimals;
  return rounded_text(x, decimals);
}

HEDDLE_INLINE void message_part::set_number(unsigned long long number, bool negative) {
  if (negative) number = 0 - number;
  char* first = digits_ + sizeof digits_;
  do {
    *--first = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  if (negative) *--first = '-';
  words_ = first;
  size_ = static_cast<std::size_t>(digits_ + sizeof digits_ - first);
}

HEDDLE_INLINE std::string text_of(std::initializer_list<message_part> parts) {
  std::string text;
  for (const message_part& part : parts) text += part.words();
  return text;
}

namespace detail {
HEDDLE_INLINE std::string joined_numbers(std::span<const std::int64_t> numbers, std::string_view between) {
  std::string text;
  for (const std::int64_t n : numbers) {
    if (!text.empty()) text += between;
    text += std::to_string(n);
  }
  return text;
}

}  // namespace detail

}  // namespace heddle::inline v0
