// heddle/infer/impl/regex.hpp: a parser of regular expressions by recursive descent.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/infer/regex.hpp>

#include <algorithm>
#include <utility>

namespace heddle::inline v0::infer {

HEDDLE_INLINE regex::regex(std::string_view pattern) : pattern_(pattern) {
  if (pattern_.size() > most_bytes)
    throw grammar_error("heddle: a regular expression should have at most " + std::to_string(most_bytes) +
                        " bytes, got " + std::to_string(pattern_.size()));
  begins_ = skip("^");
  root_ = choice(0);
  if (!at_end()) wrong("')' closes no group");
  if ((begins_ || ends_) && alternatives_)
    throw grammar_error(
        "heddle: a regular expression with alternatives outside groups has no '^' and '$': put them into a group");
}

HEDDLE_INLINE void regex::wrong(const std::string& what) const {
  wrong_at(at_, what);
}
HEDDLE_INLINE void regex::wrong_at(std::size_t at, const std::string& what) const {
  throw grammar_error("heddle: a regular expression, byte " + std::to_string(at) + ": " + what);
}
HEDDLE_INLINE bool regex::skip(std::string_view text) noexcept {
  if (!std::string_view(pattern_).substr(at_).starts_with(text)) return false;
  at_ += text.size();
  return true;
}
HEDDLE_INLINE std::size_t regex::add(node n) {
  // What walks the tree is as deep as it: `a{1}{1}{1}...` is as many levels as there are braces.
  for (const std::size_t p : n.parts) n.depth = (std::max)(n.depth, nodes_[p].depth + 1);
  if (n.depth > most_depth) wrong("groups and repetitions in more than " + std::to_string(most_depth) + " levels");
  nodes_.push_back(std::move(n));
  return nodes_.size() - 1;
}

HEDDLE_INLINE std::uint32_t regex::code_point() {
  const std::size_t begin = at_;
  const auto lead = static_cast<unsigned char>(pattern_[at_++]);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  std::uint32_t c = lead & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) {
    if (at_end() || (static_cast<unsigned char>(pattern_[at_]) & 0xC0) != 0x80) wrong_at(begin, "is no UTF-8");
    c = c << 6 | (static_cast<unsigned char>(pattern_[at_++]) & 0x3F);
  }
  constexpr std::uint32_t least[] = {0, 0x80, 0x800, 0x10000};
  if (lead < 0xC2 || lead > 0xF4 || c < least[more] || c > last_code_point || (c >= 0xD800 && c <= 0xDFFF))
    wrong_at(begin, "is no UTF-8");
  return c;
}
HEDDLE_INLINE std::uint32_t regex::hex(int digits) {
  std::uint32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const char c = at_end() ? '\0' : pattern_[at_];
    const int d = c >= '0' && c <= '9'   ? c - '0'
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                         : -1;
    if (d < 0) wrong("an escape needs " + std::to_string(digits) + " hexadecimal digits");
    value = value * 16 + static_cast<std::uint32_t>(d);
    ++at_;
  }
  return value;
}

// Behind a backslash: a code point, or a class that goes to `set`.
HEDDLE_INLINE std::uint32_t regex::escaped(std::vector<code_points>& set) {
  if (at_end()) wrong("nothing follows '\\'");
  const std::size_t begin = at_;
  const char c = pattern_[at_++];
  const auto named = [&](std::vector<code_points> s) {
    set = c >= 'a' ? std::move(s) : complement(s);
    return std::uint32_t{0};
  };
  switch (c) {
    case 'd':
    case 'D':
      return named({{'0', '9'}});
    case 'w':
    case 'W':
      return named({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
    case 's':
    case 'S':
      return named({{'\t', '\r'}, {' ', ' '}});
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '0':
      if (!at_end() && pattern_[at_] >= '0' && pattern_[at_] <= '9') wrong_at(begin, "octal escapes are not supported");
      return 0;
    case 'x':
      return hex(2);
    case 'u': {
      std::uint32_t value = 0;
      if (skip("{")) {
        int digits = 0;
        for (; !at_end() && pattern_[at_] != '}' && digits < 6; ++digits) value = value * 16 + hex(1);
        if (digits == 0 || !skip("}")) wrong_at(begin, "'\\u{' needs 1 to 6 hexadecimal digits and '}'");
      } else {
        value = hex(4);
      }
      if (value > last_code_point || (value >= 0xD800 && value <= 0xDFFF))
        wrong_at(begin, "an escape should be a code point that is no surrogate");
      return value;
    }
    default:
      break;
  }
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9');
  if (c >= '1' && c <= '9') wrong_at(begin, "back references are not supported");
  if (letter || static_cast<unsigned char>(c) >= 0x80)
    wrong_at(begin, letter ? std::string("'\\") + c + "' is not supported" : "'\\' before this character");
  return static_cast<unsigned char>(c);
}

HEDDLE_INLINE std::size_t regex::choice(int level) {
  if (level > most_levels) wrong("groups in more than " + std::to_string(most_levels) + " levels");
  node n{.what = kind::choice};
  n.parts.push_back(sequence(level));
  while (skip("|")) n.parts.push_back(sequence(level));
  if (level == 0) alternatives_ = n.parts.size() > 1;
  return n.parts.size() == 1 ? n.parts[0] : add(std::move(n));
}
HEDDLE_INLINE std::size_t regex::sequence(int level) {
  node n{.what = kind::sequence};
  while (!at_end() && pattern_[at_] != '|' && pattern_[at_] != ')') {
    if (level == 0 && pattern_[at_] == '$' && at_ + 1 == pattern_.size()) {
      ++at_;
      ends_ = true;
      break;
    }
    n.parts.push_back(repeated(atom(level)));
  }
  return n.parts.size() == 1 ? n.parts[0] : add(std::move(n));
}

// Reads "m}", "m,}" or "m,n}" behind a brace.
HEDDLE_INLINE bool regex::numbers(std::int64_t& least, std::int64_t& most) {
  const auto number = [&](std::int64_t& to) {
    const std::size_t begin = at_;
    for (to = 0; !at_end() && pattern_[at_] >= '0' && pattern_[at_] <= '9'; ++at_)
      to = (std::min)(to * 10 + (pattern_[at_] - '0'), std::int64_t{1'000'000});
    return at_ > begin;
  };
  if (!number(least)) return false;
  most = least;
  if (skip(",") && !number(most)) most = -1;
  return skip("}");
}
HEDDLE_INLINE std::size_t regex::repeated(std::size_t part) {
  while (!at_end()) {
    node n{.what = kind::repeat, .parts = {part}};
    const std::size_t begin = at_;
    if (skip("*"))
      n.most = -1;
    else if (skip("+"))
      n.least = 1, n.most = -1;
    else if (skip("?"))
      n.most = 1;
    else if (skip("{")) {
      if (!numbers(n.least, n.most)) wrong_at(begin, "'{' should begin {m}, {m,} or {m,n}; '\\{' is the character");
      if (n.least > most_repeats || n.most > most_repeats || (n.most >= 0 && n.most < n.least))
        wrong_at(begin, "a repetition should be of at most " + std::to_string(most_repeats) + ", and m not above n");
    } else
      return part;
    skip("?");  // the shortest match first: the same texts
    if (!at_end() && (pattern_[at_] == '*' || pattern_[at_] == '+' || pattern_[at_] == '?'))
      wrong("nothing to repeat; put what is repeated into a group");
    part = add(std::move(n));
  }
  return part;
}

HEDDLE_INLINE std::size_t regex::atom(int level) {
  const std::size_t begin = at_;
  node n{.what = kind::set};
  switch (pattern_[at_]) {
    case '(': {
      ++at_;
      if (!skip("?:") && !at_end() && pattern_[at_] == '?')
        wrong_at(begin, "of groups only '(' and '(?:' are supported");
      const std::size_t inside = choice(level + 1);
      if (!skip(")")) wrong_at(begin, "the group does not end");
      return inside;
    }
    case '[':
      ++at_;
      n.set = character_class();
      break;
    case '.':
      ++at_;
      n.set = complement({{'\n', '\n'}, {'\r', '\r'}});
      break;
    case '\\': {
      ++at_;
      const std::uint32_t c = escaped(n.set);
      if (n.set.empty()) n.set = {{c, c}};
      break;
    }
    case '*':
    case '+':
    case '?':
    case '{':
      wrong("nothing to repeat");
    case '^':
    case '$':
      wrong("'^' can only be the first and '$' the last character");
    case ']':
    case '}':
      wrong("write '\\" + std::string(1, pattern_[at_]) + "' for the character");
    default: {
      const std::uint32_t c = code_point();
      n.set = {{c, c}};
    }
  }
  return add(std::move(n));
}

HEDDLE_INLINE std::vector<code_points> regex::character_class() {
  const std::size_t begin = at_ - 1;
  const bool not_these = skip("^");
  std::vector<code_points> all;
  const auto one = [&](std::vector<code_points>& set) {
    return skip("\\") ? (!at_end() && pattern_[at_] == 'b' ? (++at_, std::uint32_t{8}) : escaped(set)) : code_point();
  };
  while (true) {
    if (at_end()) wrong_at(begin, "the class does not end");
    if (skip("]")) break;
    std::vector<code_points> set;
    const std::size_t here = at_;
    const std::uint32_t low = one(set);
    std::uint32_t high = low;
    if (set.empty() && at_ + 1 < pattern_.size() && pattern_[at_] == '-' && pattern_[at_ + 1] != ']') {
      ++at_;
      std::vector<code_points> other;
      high = one(other);
      if (!other.empty() || high < low) wrong_at(here, "a range should go from a character to a later one");
    }
    if (set.empty()) set = {{low, high}};
    all.insert(all.end(), set.begin(), set.end());
  }
  all = canonical(std::move(all));
  return not_these ? complement(all) : all;
}

HEDDLE_INLINE std::int32_t regex::append_node(byte_grammar& g, std::int32_t from, std::size_t index,
                                              bool in_json) const {
  const node& n = nodes_[index];
  g.count();
  switch (n.what) {
    case kind::set:
      return in_json ? g.one_of_in_json(from, n.set) : g.one_of(from, n.set);
    case kind::sequence:
      for (const std::size_t p : n.parts) from = append_node(g, from, p, in_json);
      return from;
    case kind::choice: {
      const std::int32_t to = g.add();
      for (const std::size_t p : n.parts) g.jump(append_node(g, from, p, in_json), to);
      return to;
    }
    case kind::repeat:
      return g.repeat(from, n.least, n.most, [&](std::int32_t at) { return append_node(g, at, n.parts[0], in_json); });
    case kind::nothing:
      break;
  }
  return from;
}

HEDDLE_INLINE std::int32_t regex::append(byte_grammar& g, std::int32_t from, bool in_json) const {
  return append_node(g, from, root_, in_json);
}

HEDDLE_INLINE std::shared_ptr<const byte_dfa> compile_regex(std::string_view pattern, const std::bitset<256>& bytes,
                                                            grammar_limits limits) {
  const regex parsed(pattern);
  byte_grammar g(limits);
  return g.compile(parsed.append(g, 0), bytes);
}

}  // namespace heddle::inline v0::infer
