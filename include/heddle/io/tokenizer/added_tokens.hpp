// heddle/io/tokenizer/added_tokens.hpp: tokens that are found before words are split.
#pragma once

#include <heddle/io/tokenizer/byte_pair_encoding.hpp>
#include <heddle/io/tokenizer/content_finder.hpp>
#include <heddle/io/tokenizer/split_pattern.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// A token that was added to the merged vocabulary, with the fields that tokenizer.json gives it.
struct added_token {
  token_id id = 0;
  std::string content;
  bool single_word = false;  ///< not found inside a word
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;       ///< takes the white space after it along
  bool normalized = true;    ///< looked for in the normalized text
  bool special = false;      ///< a mark such as the end of a text; decoding can leave it out
};

}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io::detail {

// Cuts a text at the added tokens of one kind: those of the text as it came, or those of the normalized one.
class added_token_splitter {
 public:
  added_token_splitter() = default;
  // `contents` are what to look for: those of the tokens, normalized where the text is.
  void add(const added_token& token, std::string_view content) {
    finder_.insert(content, tokens_.size());
    tokens_.push_back(token);
    if (token.single_word && !word_) word_ = split_pattern::word_character();
  }

  // Calls `text(view)` and `token(id)` from left to right.
  template <class Text, class Token>
  void split(std::string_view all, bool special_as_text, Text&& text, Token&& token) const {
    std::size_t start = 0;  // of what no call has had yet
    if (!finder_.empty()) {
      std::optional<split_pattern::room> room;
      if (word_) room.emplace(*word_);
      for (auto m = finder_.next(all, 0); m; m = finder_.next(all, m->end)) {
        const added_token& t = tokens_[m->token];
        if (special_as_text && t.special) continue;
        if (t.single_word) {
          if (m->begin > 0 && is_word(all, before(all, m->begin), *room)) continue;
          if (m->end < all.size() && is_word(all, m->end, *room)) continue;
        }
        std::size_t begin = m->begin, end = m->end;
        if (t.lstrip) {
          while (begin > start && is_white_space(code_point_at(all, before(all, begin)))) begin = before(all, begin);
          begin = (std::max)(begin, start);
        }
        if (t.rstrip) {
          end = (std::max)(end, start);  // a token before took white space up to there
          while (end < all.size() && is_white_space(code_point_at(all, end))) end += sequence_length(all[end]);
        }
        if (begin >= end) continue;  // all white space, and a token before took it
        if (start < begin) text(all.substr(start, begin - start));
        token(t.id);
        start = end;
      }
    }
    if (start < all.size()) text(all.substr(start));
  }

 private:
  bool is_word(std::string_view all, std::size_t at, split_pattern::room& room) const {
    return word_->next(all.substr(at, sequence_length(all[at])), 0, room).has_value();
  }

  content_finder finder_;
  std::vector<added_token> tokens_;
  std::optional<split_pattern> word_;
};

}  // namespace heddle::inline v0::io::detail
