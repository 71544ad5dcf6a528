// heddle/io/tokenizer/json_string.hpp: the text that a string of JSON stands for.
#pragma once

#include <heddle/io/tokenizer/utf8.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::inline v0::io {

/// What a string of JSON says that stands there with its quotation marks, into `to`. False if it is none: other
/// values, characters below a space, escapes that are none, half of a pair of surrogates, bytes that are no UTF-8.
inline bool read_string(std::string_view json, std::string& to) {
  to.clear();
  if (json.size() < 2 || json.front() != '"' || json.back() != '"') return false;
  json = json.substr(1, json.size() - 2);
  std::size_t at = 0;
  const auto unit = [&]() -> std::int64_t {  // of \uXXXX, behind the u
    std::int64_t value = 0;
    if (json.size() - at < 4) return -1;
    for (const std::size_t end = at + 4; at < end; ++at) {
      const auto digit =
          std::string_view("0123456789abcdef").find(static_cast<char>(json[at] | (json[at] > '9' ? 32 : 0)));
      if (digit == std::string_view::npos) return -1;
      value = 16 * value + static_cast<std::int64_t>(digit);
    }
    return value;
  };
  for (;;) {
    const std::size_t begin = at;
    while (at < json.size() && static_cast<unsigned char>(json[at]) >= 0x20 && json[at] != '\\' && json[at] != '"')
      ++at;
    to.append(json, begin, at - begin);
    if (at == json.size()) return detail::valid_prefix(to) == to.size();
    if (json[at] != '\\' || at + 1 == json.size()) return false;
    const char c = json[at + 1];
    at += 2;
    constexpr std::string_view names = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
    if (const std::size_t k = names.find(c); k != std::string_view::npos) {
      to += meant[k];
    } else if (c == 'u') {
      std::int64_t code = unit();
      if (code >= 0xd800 && code < 0xdc00) {  // the first of a pair
        if (json.substr(at, 2) != "\\u") return false;
        at += 2;
        const std::int64_t second = unit();
        if (second < 0xdc00 || second > 0xdfff) return false;
        code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
      } else if (code < 0 || (code >= 0xdc00 && code < 0xe000)) {
        return false;
      }
      detail::append_code_point(to, static_cast<std::uint32_t>(code));
    } else {
      return false;
    }
  }
}

}  // namespace heddle::inline v0::io
