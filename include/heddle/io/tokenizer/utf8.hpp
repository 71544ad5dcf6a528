// heddle/io/tokenizer/utf8.hpp: checks, repairs and steps through UTF-8.
#pragma once

#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::inline v0 {

/// A text that cannot be encoded or tokens that cannot be decoded: names the byte or the token, and what was expected.
struct text_error : error {
  using error::error;
};

}  // namespace heddle::inline v0

namespace heddle::inline v0::io::detail {

inline constexpr std::string_view replacement_character = "\xef\xbf\xbd";  // U+FFFD

// The UTF-8 sequence that a text begins with. `length` bytes form a code point (`whole`), or are the longest beginning
// of one that ends there, where the text has `more` after it or might be continued.
struct utf8_sequence {
  int length = 0;
  bool whole = false;
  bool open = false;  // the text ended within the sequence
};

inline utf8_sequence first_sequence(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  int length = 0;
  unsigned low = 0x80, high = 0xbf;  // of the second byte: no overlong forms, no surrogates, nothing over U+10FFFF
  if (lead >= 0xc2 && lead <= 0xdf)
    length = 2;
  else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  } else {
    return {1, false, false};
  }
  for (int i = 1; i < length; ++i) {
    if (static_cast<std::size_t>(i) >= text.size()) return {i, false, true};
    const unsigned b = byte(static_cast<std::size_t>(i));
    if (b < low || b > high) return {i, false, false};
    low = 0x80, high = 0xbf;
  }
  return {length, true, false};
}

// How many bytes of the text are whole sequences, from its begin.
inline std::size_t valid_prefix(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const utf8_sequence s = first_sequence(text.substr(at));
    if (!s.whole) return at;
    at += static_cast<std::size_t>(s.length);
  }
  return at;
}

// Appends what of `text` is whole, with U+FFFD for each longest beginning of a sequence and for each other byte, as
// Unicode recommends (chapter 3.9). Returns where a sequence begins that the text may go on with; `text.size()` if none.
inline std::size_t append_repaired(std::string& to, std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t whole = valid_prefix(text.substr(at));
    to += text.substr(at, whole);
    at += whole;
    if (at == text.size()) break;
    const utf8_sequence s = first_sequence(text.substr(at));
    if (s.open) return at;
    to += replacement_character;
    at += static_cast<std::size_t>(s.length);
  }
  return at;
}

// The code point that valid UTF-8 has at `at`.
inline std::uint32_t code_point_at(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + i])); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return lead;
  if (lead < 0xe0) return (lead & 0x1f) << 6 | (byte(1) & 0x3f);
  if (lead < 0xf0) return (lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
  return (lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
}
inline std::size_t sequence_length(char lead) noexcept {
  const auto b = static_cast<unsigned char>(lead);
  return b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}
// Where the last code point of valid UTF-8 before `end` begins.
inline std::size_t before(std::string_view text, std::size_t end) noexcept {
  do --end;
  while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
  return end;
}
inline void append_code_point(std::string& to, std::uint32_t c) {
  const auto put = [&](std::uint32_t b) { to += static_cast<char>(static_cast<unsigned char>(b)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 0x3f)), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  }
}

// White_Space of Unicode, the same in all versions since 6.3.
constexpr bool is_white_space(std::uint32_t c) noexcept {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

}  // namespace heddle::inline v0::io::detail
