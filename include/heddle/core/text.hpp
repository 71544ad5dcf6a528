// heddle/core/text.hpp: numbers in words, and messages put together from parts.
#pragma once

#include <heddle/core/config.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace heddle::inline v0 {

/// A number in as few digits as tell it from all others of its type: `"0.1"`, `"1e-07"`, `"nan"`. `std::to_string` cuts after six decimals.
HEDDLE_INLINE std::string number_text(double x);
HEDDLE_INLINE std::string number_text(float x);
inline std::string number_text(std::integral auto x) {
  return std::to_string(x);
}
/// A number rounded to so many decimals, for people; as `"1.2346e+15"` where it has more than 15 digits before them.
HEDDLE_INLINE std::string rounded_text(double x, int decimals);
/// The same with as many more decimals, up to 12, as give small numbers three digits: `"0.000731"`.
HEDDLE_INLINE std::string digits_text(double x, int decimals);

/// A part of a message: words, a character, or a whole number in decimal digits. It refers to its words: for arguments
/// of `text_of`.
class message_part {
 public:
  message_part(std::string_view words) : words_(words.data()), size_(words.size()) {}
  message_part(const char* words) : message_part(std::string_view(words)) {}
  message_part(const std::string& words) : message_part(std::string_view(words)) {}
  template <std::same_as<char> Char>
  message_part(Char c) : words_(digits_), size_(1), digits_{c} {}
  template <std::integral Number>
    requires(!std::same_as<Number, char> && !std::same_as<Number, bool>)
  message_part(Number number) {
    if constexpr (std::signed_integral<Number>)
      set_number(static_cast<unsigned long long>(number), number < 0);
    else
      set_number(number, false);
  }
  message_part(const message_part&) = delete;
  message_part& operator=(const message_part&) = delete;

  std::string_view words() const noexcept { return {words_, size_}; }

 private:
  HEDDLE_INLINE void set_number(unsigned long long number, bool negative);

  const char* words_ = nullptr;
  std::size_t size_ = 0;
  char digits_[24] = {};
};

/// The parts of a message put together: `"heddle: rank 3 of 4"` for `{"heddle: rank ", 3, " of ", 4}`.
HEDDLE_INLINE std::string text_of(std::initializer_list<message_part> parts);

/// The text of an error without its first word "heddle: ", for a message that begins with its own.
inline std::string_view without_prefix(std::string_view what) {
  constexpr std::string_view prefix = "heddle: ";
  return what.starts_with(prefix) ? what.substr(prefix.size()) : what;
}

namespace detail {
// "2 x 3" for the numbers 2 and 3 with " x " between them.
HEDDLE_INLINE std::string joined_numbers(std::span<const std::int64_t> numbers, std::string_view between);
}  // namespace detail

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/core/impl/text.hpp>
#endif
