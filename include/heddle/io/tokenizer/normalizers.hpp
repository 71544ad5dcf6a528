// heddle/io/tokenizer/normalizers.hpp: changes of a text before it is split into words.
#pragma once

#include <heddle/io/tokenizer/normalize.hpp>
#include <heddle/io/tokenizer/piece_text.hpp>
#include <heddle/io/tokenizer/replaced_text.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::inline v0::io::detail {

struct composed_text {};  // normal form C
struct prefixed_text {    // not where there is no text
  std::string prefix;
};
struct stripped_space {  // White_Space of the begin and the end
  bool left = false, right = false;
};
using normalizer = std::variant<composed_text, prefixed_text, replaced_text, stripped_space, piece_text>;

// A part of a text after all of them: of `room` where something changed.
inline std::string_view normalized(const std::vector<normalizer>& all, std::string_view text, bool begins,
                                   std::string& room) {
  for (const normalizer& n : all) {
    if (std::holds_alternative<composed_text>(n)) {
      if (surely_normalized(text)) continue;
      room = nfc(text);
    } else if (const auto* prefixed = std::get_if<prefixed_text>(&n)) {
      if (text.empty()) continue;
      room = prefixed->prefix + std::string(text);
    } else if (const auto* replaced = std::get_if<replaced_text>(&n)) {
      room = (*replaced)(text);
    } else if (const auto* strip = std::get_if<stripped_space>(&n)) {
      while (strip->left && !text.empty() && is_white_space(code_point_at(text, 0)))
        text.remove_prefix(sequence_length(text[0]));
      while (strip->right && !text.empty() && is_white_space(code_point_at(text, before(text, text.size()))))
        text.remove_suffix(text.size() - before(text, text.size()));
      continue;
    } else {
      room = std::get<piece_text>(n)(text, begins);
    }
    text = room;
  }
  return text;
}

}  // namespace heddle::inline v0::io::detail
