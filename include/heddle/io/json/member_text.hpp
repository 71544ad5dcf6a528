// heddle/io/json/member_text.hpp: cuts the text of a member's value out of the text of a JSON object, as it stands there.
#pragma once

#include <heddle/io/json/strict.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace heddle::inline v0::io {

namespace detail {

// Goes through the text of a JSON value, each byte once. What is no JSON ends early, not out of bounds.
class json_scan {
 public:
  explicit json_scan(std::string_view text) : text_(text) {}

  bool at_end() const noexcept { return at_ == text_.size(); }
  char here() const noexcept { return at_end() ? '\0' : text_[at_]; }
  std::size_t at() const noexcept { return at_; }
  void step() noexcept { ++at_; }
  void spaces() noexcept {
    while (!at_end() && is_space(here())) step();
  }
  bool skip(char c) noexcept {
    spaces();
    if (at_end() || here() != c) return false;
    step();
    return true;
  }
  // A string, with its quotation marks.
  std::string_view string() noexcept {
    const std::size_t begin = at_;
    bool open = true;
    for (step(); !at_end() && open; step()) {
      open = here() != '"';
      if (here() == '\\' && at_ + 1 < text_.size()) step();
    }
    return text_.substr(begin, at_ - begin);
  }
  // A value, up to the comma or bracket behind it, without the spaces around it.
  std::string_view value() noexcept {
    spaces();
    const std::size_t begin = at_;
    std::size_t end = at_;
    for (std::int64_t levels = 0; !at_end(); end = is_space(text_[at_ - 1]) ? end : at_) {
      const char c = here();
      if (levels == 0 && (c == ',' || c == '}' || c == ']')) break;
      levels += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      if (c == '"')
        string();
      else
        step();
    }
    return text_.substr(begin, end - begin);
  }
  static bool is_space(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

// Whether a string of JSON, with its quotation marks, says `name`, which may be spelled with escapes.
inline bool is_name(std::string_view string, std::string_view name) {
  if (string.find('\\') == std::string_view::npos)
    return string.size() == name.size() + 2 && string.substr(1, name.size()) == name;
  const nlohmann::json decoded = nlohmann::json::parse(string, nullptr, false);
  return decoded.is_string() && decoded.get_ref<const std::string&>() == name;
}

}  // namespace detail

/// The text of the value of member `name` in `json`, the valid text of an object; of several members with that name the last one, which is the one that parsers keep. It is cut out as it stands:
/// with the order of its members, which a parsed object has not. None: it has no such member, or `json` is no object. Each byte is looked at once, and those of names with escapes twice;
/// `looked_at` counts them.
inline std::optional<std::string_view> member_text(std::string_view json, std::string_view name,
                                                   std::int64_t* looked_at = nullptr) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (json.starts_with(byte_order_mark)) json.remove_prefix(byte_order_mark.size());
  detail::json_scan in(json);
  std::optional<std::string_view> found;
  std::size_t names = 0;
  if (in.skip('{')) {
    do {
      in.spaces();
      if (in.here() != '"') break;
      const std::string_view member = in.string();
      const bool is = detail::is_name(member, name);
      names += member.size();
      if (!in.skip(':')) break;
      const std::string_view value = in.value();
      if (is) found = value;
    } while (in.skip(','));
  }
  if (looked_at != nullptr) *looked_at += static_cast<std::int64_t>(in.at() + names);
  return found;
}

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

/// The text of a JSON value without the spaces and line ends outside its strings.
inline std::string without_spaces(std::string_view json) {
  detail::json_scan in(json);
  std::string out;
  while (!in.at_end()) {
    const std::size_t begin = in.at();
    if (in.here() == '"')
      out += in.string();
    else if (in.step(); !detail::json_scan::is_space(json[begin]))
      out += json[begin];
  }
  return out;
}

}  // namespace heddle::inline v0::io
