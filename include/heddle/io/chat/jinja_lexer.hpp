// heddle/io/chat/jinja_lexer.hpp: cuts the source of a chat template into tokens, as jinja2 does.
#pragma once

#include <heddle/io/chat/jinja_value.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

enum class jinja_token_kind {
  end,
  data,
  name,
  text,
  whole,
  real,
  sign,
  output_begin,
  output_end,
  block_begin,
  block_end
};

struct jinja_token {
  jinja_token_kind kind = jinja_token_kind::end;
  int line = 1;
  std::string text{};
};

inline bool is_jinja_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
}

// What a string between quotes means: Python's escapes.
inline std::string jinja_unescaped(std::string_view s, int line) {
  std::string out;
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '\\' || i + 1 == s.size()) {
      out += s[i];
      continue;
    }
    const char c = s[++i];
    constexpr std::string_view names = "nrtabfv\\'\"", mean = "\n\r\t\a\b\f\v\\'\"";
    if (const std::size_t at = names.find(c); at != std::string_view::npos) {
      out += mean[at];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      std::uint32_t code = 0;
      const auto got = std::from_chars(s.data() + i + 1, s.data() + (std::min)(i + 1 + digits, s.size()), code, 16);
      if (got.ptr != s.data() + i + 1 + digits || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        throw template_error(line, "a string has an escape \\" + std::string(1, c) + " that is no character");
      append_code_point(out, code);
      i += digits;
    } else if (c >= '0' && c <= '7') {
      std::uint32_t code = 0;
      std::size_t n = 0;
      for (; n < 3 && i + n < s.size() && s[i + n] >= '0' && s[i + n] <= '7'; ++n)
        code = code * 8 + static_cast<std::uint32_t>(s[i + n] - '0');
      i += n - 1;
      append_code_point(out, code);
    } else if (c != '\n') {
      out += {'\\', c};
    }
  }
  return out;
}

// Cuts a source into tokens, with transformers' settings: a line end behind a block goes, and so do spaces before one at the begin of its line.
class jinja_lexer {
 public:
  explicit jinja_lexer(std::string_view source) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        s_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        s_ += source[i];
      }
    }
    if (s_.ends_with('\n')) s_.pop_back();
  }
  std::vector<jinja_token> tokens() {
    while (at_ < s_.size()) text();
    out_.push_back({jinja_token_kind::end, line_, ""});
    return std::move(out_);
  }

 private:
  void skip(std::size_t n) {
    for (; n > 0; --n) line_ += s_[at_++] == '\n' ? 1 : 0;
  }
  void skip_spaces() {
    while (at_ < s_.size() && is_jinja_space(s_[at_])) skip(1);
  }
  bool starts(std::string_view what) const { return std::string_view(s_).substr(at_).starts_with(what); }
  void after_block() {
    if (at_ < s_.size() && s_[at_] == '\n') skip(1);
  }
  // The text before what begins at `end`: cut as its sign says.
  void data(std::size_t end, char sign, bool block) {
    const bool line_start = at_ == 0 || s_[at_ - 1] == '\n';
    std::string text = s_.substr(at_, end - at_);
    if (sign == '-') {
      while (!text.empty() && is_jinja_space(text.back())) text.pop_back();
    } else if (sign != '+' && block) {
      const std::size_t line = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
      if ((line > 0 || line_start) && text.find_first_not_of(" \t\v\f\x1c\x1d\x1e\x1f", line) == std::string::npos)
        text.resize(line);
    }
    if (!text.empty()) out_.push_back({jinja_token_kind::data, line_, std::move(text)});
    skip(end - at_);
  }
  void text() {
    std::size_t open = s_.find('{', at_);
    while (open != std::string::npos &&
           (open + 1 == s_.size() || (s_[open + 1] != '{' && s_[open + 1] != '%' && s_[open + 1] != '#')))
      open = s_.find('{', open + 1);
    if (open == std::string::npos) return data(s_.size(), '+', false);
    const char kind = s_[open + 1],
               sign = open + 2 < s_.size() && (s_[open + 2] == '-' || s_[open + 2] == '+') ? s_[open + 2] : ' ';
    data(open, sign, kind != '{');
    const int begun = line_;
    skip(sign == ' ' ? 2 : 3);
    if (kind == '#') return comment(begun);
    if (kind == '%' && raw()) return;
    const bool block = kind == '%';
    out_.push_back({block ? jinja_token_kind::block_begin : jinja_token_kind::output_begin, begun, ""});
    inside(block, begun);
  }
  void comment(int begun) {
    const std::size_t end = s_.find("#}", at_);
    if (end == std::string::npos) throw template_error(begun, "a comment has no end #}");
    const char sign = end > at_ ? s_[end - 1] : ' ';
    skip(end + 2 - at_);
    if (sign == '-')
      skip_spaces();
    else if (sign != '+')
      after_block();
  }
  // {% raw %} up to {% endraw %}.
  bool raw() {
    std::size_t i = at_;
    const auto spaces = [&] {
      while (i < s_.size() && is_jinja_space(s_[i])) ++i;
    };
    spaces();
    if (s_.compare(i, 3, "raw") != 0) return false;
    i += 3;
    spaces();
    const bool cut = s_.compare(i, 1, "-") == 0;
    if (cut) ++i;
    if (s_.compare(i, 2, "%}") != 0) return false;
    const int begun = line_;
    skip(i + 2 - at_);
    if (cut) skip_spaces();
    for (std::size_t end = s_.find("{%", at_); end != std::string::npos; end = s_.find("{%", end + 2)) {
      i = end + 2;
      const char sign = i < s_.size() && (s_[i] == '-' || s_[i] == '+') ? s_[i++] : ' ';
      spaces();
      if (s_.compare(i, 6, "endraw") != 0) continue;
      i += 6;
      spaces();
      const char close = i < s_.size() && (s_[i] == '-' || s_[i] == '+') ? s_[i++] : ' ';
      if (s_.compare(i, 2, "%}") != 0) continue;
      data(end, sign, true);
      skip(i + 2 - at_);
      if (close == '-')
        skip_spaces();
      else if (close != '+')
        after_block();
      return true;
    }
    throw template_error(begun, "{% raw %} has no {% endraw %}");
  }
  void sign(std::string_view what) {
    out_.push_back({jinja_token_kind::sign, line_, std::string(what)});
    skip(what.size());
  }
  // Tokens up to the end of an output or a block.
  void inside(bool block, int begun) {
    std::string open;
    while (true) {
      skip_spaces();
      if (at_ >= s_.size()) throw template_error(begun, block ? "a block has no end %}" : "an output has no end }}");
      if (open.empty() && (starts(block ? "%}" : "}}") || starts(block ? "-%}" : "-}}") || (block && starts("+%}")))) {
        const char how = s_[at_];
        out_.push_back({block ? jinja_token_kind::block_end : jinja_token_kind::output_end, line_, ""});
        skip(how == '-' || how == '+' ? 3 : 2);
        if (how == '-')
          skip_spaces();
        else if (block && how != '+')
          after_block();
        return;
      }
      const char c = s_[at_];
      if (c >= '0' && c <= '9') {
        number();
      } else if (is_letter(c)) {
        std::size_t end = at_;
        while (end < s_.size() && (is_letter(s_[end]) || (s_[end] >= '0' && s_[end] <= '9'))) ++end;
        out_.push_back({jinja_token_kind::name, line_, s_.substr(at_, end - at_)});
        skip(end - at_);
      } else if (c == '"' || c == '\'') {
        std::size_t end = at_ + 1;
        while (end < s_.size() && s_[end] != c) end += s_[end] == '\\' ? 2 : 1;
        if (end >= s_.size()) throw template_error(line_, "a string has no end");
        out_.push_back({jinja_token_kind::text, line_,
                        jinja_unescaped(std::string_view(s_).substr(at_ + 1, end - at_ - 1), line_)});
        skip(end + 1 - at_);
      } else {
        brackets(open, c);
        for (const char* two : {"==", "!=", "<=", ">=", "//", "**"})
          if (starts(two)) {
            sign(two);
            goto next;
          }
        if (std::string_view("+-*/%~<>=()[]{}|.,:").find(c) == std::string_view::npos)
          throw template_error(line_, "an unexpected character " + jinja_repr(s_.substr(at_, sequence_length(c))));
        sign(std::string_view(s_).substr(at_, 1));
      next:;
      }
    }
  }
  void brackets(std::string& open, char c) const {
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (open.empty() || open.back() != c)
      throw template_error(line_, "an unexpected '" + std::string(1, c) + "'" +
                                      (open.empty() ? "" : ", expected '" + std::string(1, open.back()) + "'"));
    open.pop_back();
  }
  static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
  }
  void number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < s_.size() && ((s_[end] >= '0' && s_[end] <= '9') || s_[end] == '_')) ++end;
    };
    const auto digit = [&](std::size_t i) { return i < s_.size() && s_[i] >= '0' && s_[i] <= '9'; };
    if (s_[at_] == '0' && at_ + 1 < s_.size())
      if (const std::size_t kind = std::string_view("xXoObB").find(s_[at_ + 1]); kind != std::string_view::npos) {
        std::uint64_t i = 0;
        const auto got = std::from_chars(s_.data() + at_ + 2, s_.data() + s_.size(), i,
                                         kind < 2   ? 16
                                         : kind < 4 ? 8
                                                    : 2);
        if (got.ec != std::errc() || (i >> 63) != 0) throw template_error(line_, "a number that cannot be read");
        out_.push_back({jinja_token_kind::whole, line_, std::to_string(i)});
        return skip(static_cast<std::size_t>(got.ptr - (s_.data() + at_)));
      }
    digits();
    bool real = false;
    if (end < s_.size() && s_[end] == '.' && digit(end + 1) && !(!out_.empty() && out_.back().text == ".")) {
      real = true;
      ++end;
      digits();
    }
    if (end < s_.size() && (s_[end] == 'e' || s_[end] == 'E') &&
        (digit(end + 1) || (end + 1 < s_.size() && (s_[end + 1] == '-' || s_[end + 1] == '+') && digit(end + 2)))) {
      real = true;
      end += 2;
      digits();
    }
    std::string text;
    for (std::size_t i = at_; i < end; ++i)
      if (s_[i] != '_') text += s_[i];
    out_.push_back({real ? jinja_token_kind::real : jinja_token_kind::whole, line_, std::move(text)});
    skip(end - at_);
  }

  std::string s_{};
  std::vector<jinja_token> out_{};
  std::size_t at_ = 0;
  int line_ = 1;
};

}  // namespace heddle::inline v0::io::detail
