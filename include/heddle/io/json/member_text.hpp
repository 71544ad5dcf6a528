// heddle/io/json/member_text.hpp: the text of a member's value in a JSON object's text.
#pragma once

#include <heddle/io/json/strict.hpp>

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
/// `looked_at` counts them. `is_whole`: gets whether the object ends, after a member, and only spaces follow it.
inline std::optional<std::string_view> member_text(std::string_view json, std::string_view name,
                                                   std::int64_t* looked_at = nullptr, bool* is_whole = nullptr) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (json.starts_with(byte_order_mark)) json.remove_prefix(byte_order_mark.size());
  detail::json_scan in(json);
  std::optional<std::string_view> found;
  std::size_t names = 0;
  bool in_member = true;
  if (in.skip('{')) {
    do {
      in_member = true;
      in.spaces();
      if (in.here() != '"') break;
      const std::string_view member = in.string();
      const bool is = detail::is_name(member, name);
      names += member.size();
      if (!in.skip(':')) break;
      const std::string_view value = in.value();
      if (is) found = value;
      in_member = value.empty();
    } while (in.skip(','));
  }
  if (looked_at != nullptr) *looked_at += static_cast<std::int64_t>(in.at() + names);
  if (is_whole != nullptr) {
    *is_whole = !in_member && in.skip('}');
    in.spaces();
    *is_whole = *is_whole && in.at_end();
  }
  return found;
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
