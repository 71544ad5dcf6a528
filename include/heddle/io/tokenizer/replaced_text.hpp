// heddle/io/tokenizer/replaced_text.hpp: replaces matches of a pattern in a text.
#pragma once

#include <heddle/io/tokenizer/split_pattern.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace heddle::inline v0::io::detail {

struct replaced_text {
  std::optional<split_pattern> pattern;  // none: the literal
  std::string literal, content;

  std::string operator()(std::string_view text) const {
    std::string out;
    if (pattern) {
      split_pattern::room room(*pattern);
      each_match(*pattern, room, text, [&](std::size_t begin, std::size_t end, bool matched) {
        out += matched ? std::string_view(content) : text.substr(begin, end - begin);
      });
      return out;
    }
    std::size_t done = 0;
    for (std::size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, done)) {
      out += text.substr(done, at - done);
      out += content;
      done = at + literal.size();
    }
    return out += text.substr(done);
  }
};

}  // namespace heddle::inline v0::io::detail
