// heddle/io/tokenizer/normalize.hpp: Unicode's normal form C, by utf8proc, as the `tokenizers` package has it.
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
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

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

inline void append_utf8proc_nfc(std::string& to, std::string_view text) {
  if (text.empty()) return;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &made, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> keep(made, &std::free);
  if (size < 0)
    throw text_error("heddle: a text of " + std::to_string(text.size()) +
                     " bytes cannot be normalized: " + utf8proc_errmsg(size));
  to.append(reinterpret_cast<const char*>(made), static_cast<std::size_t>(size));
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
