// heddle/io/tokenizer/normalize.hpp: Unicode's normal form C, as `tokenizers` has it.
#pragma once

#if !__has_include(<utf8proc.h>)
#error \
    "heddle/io/tokenizer/normalize.hpp needs utf8proc.h: link heddle::tokenizer (Debian: apt install libutf8proc-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/io/tokenizer/unicode_tables.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace heddle::inline v0::io::detail {

inline bool is_normalization_barrier(std::uint32_t c) noexcept {
  const auto* const end = std::end(normalization_barriers);
  const auto* const r = std::lower_bound(std::begin(normalization_barriers), end, c,
                                         [](code_point_range a, std::uint32_t b) { return a.last < b; });
  return r != end && r->first <= c;
}

// Whether a text is its own normal form whatever the version: nothing below U+0300 composes or moves.
inline bool surely_normalized(std::string_view text) noexcept {
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0xcc) return false;
  return true;
}

// utf8proc_map sorts combining marks in quadratic time, so the marks are sorted here.
inline void append_utf8proc_nfc(std::string& to, std::string_view text) {
  if (surely_normalized(text)) {
    to += text;
    return;
  }
  constexpr auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto check = [&](utf8proc_ssize_t got) {
    if (got < 0)
      throw text_error("heddle: a text of " + std::to_string(text.size()) +
                       " bytes cannot be normalized: " + utf8proc_errmsg(got));
    return static_cast<std::size_t>(got);
  };
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  std::vector<std::tuple<int, std::size_t, utf8proc_int32_t>> marks;  // behind points: class, and place among them
  const auto take_marks = [&] {
    if (marks.empty()) return;
    if (marks.size() > 1) std::sort(marks.begin(), marks.end());
    for (const auto& m : marks) points.push_back(std::get<2>(m));
    marks.clear();
  };
  std::array<utf8proc_int32_t, 32> parts{};  // Unicode has at most 4 for a character
  for (std::size_t at = 0; at < text.size(); at += sequence_length(text[at])) {
    int boundary = 0;
    const std::size_t n =
        check(utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point_at(text, at)), parts.data(),
                                      static_cast<utf8proc_ssize_t>(parts.size()), options, &boundary));
    if (n > parts.size()) check(UTF8PROC_ERROR_OVERFLOW);
    for (std::size_t i = 0; i < n; ++i) {
      const int combining_class = utf8proc_get_property(parts[i])->combining_class;
      if (combining_class != 0) {
        marks.emplace_back(combining_class, marks.size(), parts[i]);
        continue;
      }
      take_marks();
      points.push_back(parts[i]);
    }
  }
  take_marks();
  points.resize(check(utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), options)));
  for (const utf8proc_int32_t c : points) append_code_point(to, static_cast<std::uint32_t>(c));
}

// Normal form C of valid UTF-8. The package's tables are of Unicode 9: characters that later versions move or compose
// stay where they are, and nothing moves or composes over them.
inline std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t begin = 0, at = 0;
  while (at < text.size()) {
    const std::size_t n = sequence_length(text[at]);
    if (n > 1 && is_normalization_barrier(code_point_at(text, at))) {
      append_utf8proc_nfc(out, text.substr(begin, at - begin));
      out += text.substr(at, n);
      begin = at + n;
    }
    at += n;
  }
  append_utf8proc_nfc(out, text.substr(begin));
  return out;
}

}  // namespace heddle::inline v0::io::detail
