// heddle/io/tokenizer/split_pattern.hpp: regular expressions of pre-tokenizers, matched by PCRE2.
#pragma once

#if !__has_include(<pcre2.h>)
#error "heddle/io/tokenizer/split_pattern.hpp needs pcre2.h: link heddle::tokenizer (Debian: apt install libpcre2-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/io/tokenizer/unicode_tables.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#if !defined(PCRE2_CODE_UNIT_WIDTH)
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace heddle::inline v0::io::detail {

inline std::string pcre2_message(int code) {
  PCRE2_UCHAR8 text[256] = {};
  pcre2_get_error_message_8(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// Rewrites a pattern in Oniguruma's syntax, in which tokenizer.json has them, for PCRE2. What both read alike is kept;
// \s, \d, properties and their complements become classes with exactly the members they have in the `tokenizers`
// package. Everything that the two might read differently is refused, so that no text is split in another way
// unnoticed.
class pattern_translation {
 public:
  explicit pattern_translation(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        bracket();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        interval();
      } else if (c == '^' || c == '$' || c == '.') {
        fail("'" + std::string(1, c) + "', which Oniguruma and PCRE2 read differently");
      } else {
        if (c == ')' && depth_ > 0) --depth_;
        out_ += c, ++at_;
      }
    }
    check_neighbours();
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& got) const {
    throw io_error(
        "at byte " + std::to_string(at_) +
        ": expected literals, classes, \\p{..}, \\s, \\d, groups (?:..), (?i:..), look-around and quantifiers, got " +
        got);
  }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  static void add_range(std::string& to, std::uint32_t first, std::uint32_t last) {
    char text[32];
    std::snprintf(text, sizeof text, first == last ? "\\x{%x}" : "\\x{%x}-\\x{%x}", first, last);
    to += text;
  }
  // What the installed PCRE2 may lack of a property; nothing for a property that is not among those.
  static std::optional<std::span<const code_point_range>> later(std::string_view property) {
    for (const later_members& p : later_of_properties)
      if (p.property == property) return p.ranges;
    return std::nullopt;
  }
  void add_property(std::string_view name, std::span<const code_point_range> more) {
    out_ += "\\p{", out_ += name, out_ += '}';
    for (const code_point_range r : more) add_range(out_, r.first, r.last);
  }

  // \s, \p{..} and the like; inside brackets without brackets of their own.
  void escape(bool in_class) {
    const char c = peek(1);
    constexpr std::string_view spaces =
        "\\x{9}-\\x{d} \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
    // Everything else, for \S inside brackets.
    constexpr std::string_view others =
        "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{"
        "2027}"
        "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{d7ff}\\x{e000}-\\x{10ffff}";
    if (c == 's' || c == 'S') {
      const std::string_view members = c == 's' || !in_class ? spaces : others;
      if (in_class)
        out_ += members;
      else
        out_ += c == 's' ? "[" : "[^", out_ += members, out_ += ']';
      at_ += 2;
      return;
    }
    if (c == 'p' || c == 'P') {
      const std::size_t end = in_.find('}', at_);
      if (peek(2) != '{' || end == std::string_view::npos) fail("\\" + std::string(1, c) + " without {..}");
      std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
      const bool inverse = c == 'P' || (!name.empty() && name.front() == '^');
      if (!name.empty() && name.front() == '^') {
        if (c == 'P') fail("\\P{^..}");
        name.remove_prefix(1);
      }
      const auto more = later(name);
      if (!more) fail("the property " + std::string(name.substr(0, 40)));
      if (inverse && in_class) {
        if (!more->empty()) fail("\\P{" + std::string(name) + "} inside brackets");
        out_ += "\\P{", out_ += name, out_ += '}';
      } else {
        if (!in_class) out_ += inverse ? "[^" : "[";
        add_property(name, *more);
        if (!in_class) out_ += ']';
      }
      at_ = end + 1;
      return;
    }
    if (c == 'd') {
      if (!in_class) out_ += '[';
      add_property("Nd", *later("Nd"));
      if (!in_class) out_ += ']';
      at_ += 2;
      return;
    }
    if (c == 'x') {  // \x{hex} or \xhh below 0x80
      std::uint32_t value = 0;
      std::size_t digits = 0, begin = at_ + 2;
      const bool braces = peek(2) == '{';
      if (braces) ++begin;
      for (; begin + digits < in_.size() && digits < (braces ? 6U : 2U); ++digits) {
        const char h = in_[begin + digits];
        const int digit = h >= '0' && h <= '9'   ? h - '0'
                          : h >= 'a' && h <= 'f' ? h - 'a' + 10
                          : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                                 : -1;
        if (digit < 0) break;
        value = value * 16 + static_cast<std::uint32_t>(digit);
      }
      const std::size_t end = begin + digits + (braces ? 1 : 0);
      if (digits == 0 || (braces && (end > in_.size() || in_[end - 1] != '}')) ||
          (!braces && (digits != 2 || value > 0x7f)) || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        fail("\\x without the number of a character");
      add_range(out_, value, value);
      at_ = end;
      return;
    }
    constexpr std::string_view plain = "rntfv", punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ";
    if (plain.find(c) != std::string_view::npos && c != '\0') {
      add_range(out_,
                static_cast<std::uint32_t>(c == 'r'   ? 13
                                           : c == 'n' ? 10
                                           : c == 't' ? 9
                                           : c == 'f' ? 12
                                                      : 11),
                static_cast<std::uint32_t>(c == 'r'   ? 13
                                           : c == 'n' ? 10
                                           : c == 't' ? 9
                                           : c == 'f' ? 12
                                                      : 11));
      at_ += 2;
    } else if (punctuation.find(c) != std::string_view::npos && c != '\0') {
      out_ += '\\', out_ += c;
      at_ += 2;
    } else {
      fail("the escape \\" + std::string(c == '\0' ? std::string_view("") : in_.substr(at_ + 1, 1)));
    }
  }

  void bracket() {
    const std::size_t begin = at_;
    out_ += '[', ++at_;
    if (peek() == '^') out_ += '^', ++at_;
    bool first = true, dash = false;  // dash: the member before is - and may begin the end of a range
    while (true) {
      if (at_ >= in_.size()) {
        at_ = begin;
        fail("[ without ]");
      }
      const char c = in_[at_];
      if (c == ']') {
        if (first) fail("an empty class, or ] as its first member");
        break;
      }
      const bool open = std::exchange(dash, c == '-' && !first);
      first = false;
      if (c == '\\') {
        const bool many = std::string_view("sSdpP").find(peek(1)) != std::string_view::npos;
        if (many && open) fail("a range that ends with a class");
        escape(true);
        if (many && peek() == '-' && peek(1) != ']') fail("a range that begins with a class");
      } else if (c == '[') {
        fail("a class inside a class");
      } else if (c == '&' && peek(1) == '&') {
        fail("&&");
      } else {
        out_ += c, ++at_;
      }
    }
    out_ += ']', ++at_;
  }

  void group() {
    static constexpr std::string_view kinds[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (peek(1) != '?') {
      if (peek(1) == '*') fail("(*");
      out_ += "(?:", ++at_, ++depth_;  // nothing asks for what groups captured
      return;
    }
    if (in_.substr(at_, 4) == "(?i:") return caseless();
    for (const std::string_view k : kinds)
      if (in_.substr(at_, k.size()) == k) {
        out_ += k, at_ += k.size(), ++depth_;
        return;
      }
    fail("the group " + std::string(in_.substr(at_, 4)));
  }

  // Whether one character folds to these two, or to three that begin or end with them: U+00DF, U+FB00 to U+FB06.
  // Source: CaseFolding.txt of Unicode, status F.
  static bool folded_from_one(char first, char second) {
    return (first == 's' && (second == 's' || second == 't')) ||
           (first == 'f' && (second == 'f' || second == 'i' || second == 'l'));
  }
  static char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

  // (?i:..) with alternatives of ASCII characters. Oniguruma lets one character match several letters that it folds to,
  // and PCRE2 does not; the two treat members of classes differently as well.
  void caseless() {
    constexpr std::string_view punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ";
    out_ += "(?i:", at_ += 4;
    ++caseless_groups_;
    char before = '\0';
    while (true) {
      const char c = peek();
      if (at_ >= in_.size()) fail("(?i: without )");
      if (c == ')' || c == '|') {
        caseless_last_ += before, before = '\0';
        out_ += c, ++at_;
        if (c == '|') continue;
        break;
      }
      char literal = c;
      if (c == '\\') {
        literal = peek(1);
        if (literal == '\0' || punctuation.find(literal) == std::string_view::npos)
          fail("\\ inside (?i:..) before something else than punctuation");
        out_ += c, ++at_;
      } else if (c < ' ' || c > '~' || std::string_view("[(*+?{.^$").find(c) != std::string_view::npos) {
        fail("something else than ASCII literals and | inside (?i:..)");
      }
      if (folded_from_one(lower(before), lower(literal)))
        fail("'" + std::string{before, literal} + "' inside (?i:..), which one character folds to");
      if (before == '\0') caseless_first_ += literal;
      before = literal;
      out_ += literal, ++at_;
    }
    if (depth_ > 0 || peek() == '*' || peek() == '+' || peek() == '{') caseless_repeats_ = true;
  }
  // Letters of two such groups, or of two rounds of one, may meet.
  void check_neighbours() const {
    if (caseless_groups_ < 2 && !caseless_repeats_) return;
    for (const char last : caseless_last_)
      for (const char first : caseless_first_)
        if (folded_from_one(lower(last), lower(first)))
          fail("(?i:..) that ends with '" + std::string(1, last) + "' and (?i:..) that begins with '" +
               std::string(1, first) + "': one character folds to both");
  }

  void interval() {
    const std::size_t end = in_.find('}', at_);
    const std::string_view text =
        end == std::string_view::npos ? std::string_view() : in_.substr(at_ + 1, end - at_ - 1);
    std::size_t commas = 0, digits = 0;
    for (const char c : text) {
      if (c == ',')
        ++commas;
      else if (c >= '0' && c <= '9')
        ++digits;
      else
        fail("{ that is no count");
    }
    if (digits == 0 || commas > 1 || text.front() == ',' || digits > 8) fail("{ that is no count");
    out_ += in_.substr(at_, end + 1 - at_);
    at_ = end + 1;
    // In Oniguruma {n,m}+ repeats the repetition; in PCRE2 it would not give anything back.
    if (peek() == '+' || peek() == '?') fail("{..} with + or ? behind it");
  }

  std::string_view in_;
  std::size_t at_ = 0, depth_ = 0;  // depth: groups that are open
  std::string out_;
  std::string caseless_first_, caseless_last_;  // characters that alternatives of (?i:..) begin and end with
  std::size_t caseless_groups_ = 0;
  bool caseless_repeats_ = false;
};

// A compiled pattern. Immutable; threads may share it.
class split_pattern {
 public:
  // Errors: `io_error` that begins with the byte of the pattern, without a prefix: the caller names the place.
  static split_pattern from_oniguruma(std::string_view pattern) {
    if (pattern.size() > 65536) throw io_error("expected at most 65536 bytes, got " + std::to_string(pattern.size()));
    return split_pattern(pattern_translation(pattern).run(), false);
  }
  static split_pattern literal(std::string_view text) { return split_pattern(std::string(text), true); }
  // What `single_word` tokens must not stand beside, as Rust's \w.
  static split_pattern word_character() {
    std::string pattern = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
    char text[32];
    for (const code_point_range r : later_word_characters) {
      std::snprintf(text, sizeof text, "\\x{%x}-\\x{%x}", r.first, r.last);
      pattern += text;
    }
    return split_pattern(pattern + "]", false);
  }

  // Room for the results of matches: one for each thread that matches.
  class room {
   public:
    explicit room(const split_pattern& p)
        : data_(pcre2_match_data_create_from_pattern_8(p.code_.get(), nullptr)),
          limits_(pcre2_match_context_create_8(nullptr)) {
      if (!data_ || !limits_) throw memory_error("heddle: no memory for a match of a regular expression");
    }
    pcre2_match_data_8* get() const noexcept { return data_.get(); }
    // A pattern that needs more than this for one match goes back and forth. The published ones take a step for each
    // character of white space, as they look behind all of it for a line break: so the limits grow with the text.
    pcre2_match_context_8* limits(std::size_t text) const noexcept {
      const auto bounded = [](std::size_t n) {
        return static_cast<std::uint32_t>((std::min)(n, std::size_t{0xffffffffU}));
      };
      text = (std::min)(text, std::size_t{0xffffffffU});
      pcre2_set_match_limit_8(limits_.get(), bounded(10000000 + std::uint64_t{4} * text));
      pcre2_set_heap_limit_8(limits_.get(), bounded(65536 + text / 2));  // KiB
      return limits_.get();
    }

   private:
    struct free_data {
      void operator()(pcre2_match_data_8* d) const noexcept { pcre2_match_data_free_8(d); }
    };
    struct free_limits {
      void operator()(pcre2_match_context_8* c) const noexcept { pcre2_match_context_free_8(c); }
    };
    std::unique_ptr<pcre2_match_data_8, free_data> data_;
    std::unique_ptr<pcre2_match_context_8, free_limits> limits_;
  };

  // The next match at or after `from` of a text that is valid UTF-8. Errors: `text_error` if it takes too long.
  std::optional<std::pair<std::size_t, std::size_t>> next(std::string_view text, std::size_t from, room& r) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR8>(text.data());
    pcre2_match_context_8* const limits = r.limits(text.size());
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    if (jit_) found = pcre2_jit_match_8(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, r.get(), limits);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)  // the interpreter has its stack on the heap
      found =
          pcre2_match_8(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r.get(), limits);
    if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (found < 0)
      throw text_error("heddle: the tokenizer's pattern cannot be matched at byte " + std::to_string(from) + " of " +
                       std::to_string(text.size()) + ": " + pcre2_message(found));
    const std::size_t* ends = pcre2_get_ovector_pointer_8(r.get());
    return std::pair(ends[0], ends[1]);
  }

 private:
  split_pattern(const std::string& pattern, bool literal) {
    int problem = 0;
    std::size_t at = 0;
    const std::uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
    code_.reset(
        pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern.data()), pattern.size(), options, &problem, &at, nullptr),
        pcre2_code_free_8);
    if (!code_) throw io_error("expected a regular expression, got one that PCRE2 refuses: " + pcre2_message(problem));
    jit_ = pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  std::shared_ptr<pcre2_code_8> code_;
  bool jit_ = false;
};

// Matches, and what is between them, from left to right: `take(begin, end, matched)`.
template <class Take>
void each_match(const split_pattern& pattern, split_pattern::room& room, std::string_view piece, Take&& take) {
  std::size_t done = 0, from = 0;
  std::optional<std::size_t> last;  // the end of the last match: no empty one directly behind it
  while (from <= piece.size()) {
    const auto m = pattern.next(piece, from, room);
    if (!m) break;
    const auto [begin, end] = *m;
    if (begin == end && last == end) {
      if (end == piece.size()) break;
      from = end + sequence_length(piece[end]);
      continue;
    }
    if (done != begin) take(done, begin, false);
    take(begin, end, true);
    done = from = end;
    last = end;
  }
  if (done != piece.size()) take(done, piece.size(), false);
}

}  // namespace heddle::inline v0::io::detail
