// heddle/io/tokenizer/piece_text.hpp: SentencePiece's normalization, by a table.
#pragma once

#include <heddle/io/tokenizer/content_finder.hpp>
#include <heddle/io/tokenizer/decode_steps.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

// What texts become: a double array of darts-clone, whose values are places of texts that end with a zero byte.
// Source: Yata 2011, darts-clone; the layout of DecodePrecompiledCharsMap of SentencePiece's published code.
class character_map {
 public:
  character_map() = default;
  // Why `blob` is none, in `why`; the units are little-endian.
  static std::optional<character_map> read(std::string_view blob, std::string& why) {
    character_map map;
    if (blob.empty()) return map;
    const auto unit = [&](std::size_t at) {
      std::uint32_t u = 0;
      for (unsigned k = 0; k < 4; ++k) u |= std::uint32_t{static_cast<unsigned char>(blob[at + k])} << 8 * k;
      return u;
    };
    if (blob.size() < 4 || unit(0) % 4 != 0 || unit(0) < 4 || unit(0) > blob.size() - 4) {
      why = "expected a table of characters with its size before it, got " + std::to_string(blob.size()) + " bytes";
      return std::nullopt;
    }
    const std::size_t units = unit(0) / 4;
    for (std::size_t i = 0; i < units; ++i) map.units_.push_back(unit(4 + 4 * i));
    map.texts_ = blob.substr(4 + 4 * units);
    if (map.texts_.empty() || map.texts_.back() != '\0') {
      why = "expected texts that end with a zero byte in the table of characters";
      return std::nullopt;
    }
    for (std::size_t at = 0; at < map.texts_.size(); at = map.texts_.find('\0', at) + 1) {
      const std::string_view text(map.texts_.c_str() + at);
      if (valid_prefix(text) != text.size()) {
        why = "expected UTF-8 in the table of characters, got others at byte " + std::to_string(at) + " of its texts";
        return std::nullopt;
      }
    }
    return map;
  }

  // The longest that `text` begins with: its length and what it becomes.
  std::optional<std::pair<std::size_t, std::string_view>> longest(std::string_view text) const {
    std::optional<std::pair<std::size_t, std::string_view>> found;
    if (units_.empty()) return found;
    std::size_t at = offset(units_[0]);
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto c = static_cast<unsigned char>(text[i]);
      at ^= c;
      if (at >= units_.size() || (units_[at] & (0x80000000U | 0xffU)) != c) break;
      const std::uint32_t u = units_[at];
      at ^= offset(u);
      if ((u >> 8 & 1) == 0) continue;
      const std::size_t value = at < units_.size() ? units_[at] & 0x7fffffffU : texts_.size();
      if (value < texts_.size()) found.emplace(i + 1, std::string_view(texts_.c_str() + value));
    }
    return found;
  }

 private:
  static std::size_t offset(std::uint32_t unit) noexcept { return (unit >> 10) << ((unit & (1U << 9)) >> 6); }
  std::vector<std::uint32_t> units_;
  std::string texts_;
};

// Source: Normalizer::Normalize of SentencePiece's published code, 0.2.
struct piece_text {
  character_map map;
  content_finder kept;  // user-defined pieces
  bool prefix = true, single_spaces = true, marks = true, mark_behind = false, first_only = false;

  // Of a part of a text, which may be the one that begins it.
  std::string operator()(std::string_view text, bool begins) const {
    std::string out;
    const bool marked = prefix && (begins || !first_only);
    if (single_spaces)
      while (!text.empty()) {
        const auto [size, to] = first(text);
        if (to != " ") break;
        text.remove_prefix(size);
      }
    if (text.empty()) return out;
    const std::string_view space = marks ? space_mark : std::string_view(" ");
    if (marked && !mark_behind) out += space;
    bool behind_space = single_spaces;
    while (!text.empty()) {
      auto [size, to] = first(text);
      while (behind_space && to.starts_with(' ')) to.remove_prefix(1);
      for (const char c : to) {
        if (c == ' ')
          out += space;
        else
          out += c;
      }
      if (!to.empty()) behind_space = to.ends_with(' ');
      behind_space = behind_space && single_spaces;
      text.remove_prefix(size);
    }
    if (single_spaces)
      while (out.ends_with(space)) out.resize(out.size() - space.size());
    if (marked && mark_behind) out += space;
    return out;
  }

 private:
  // What a text begins with, and what that becomes. The text is UTF-8.
  std::pair<std::size_t, std::string_view> first(std::string_view text) const {
    if (const auto user = kept.longest(text, 0)) return {user->end, text.substr(0, user->end)};
    if (const auto found = map.longest(text)) return *found;
    const std::size_t size = sequence_length(text[0]);
    return {size, text.substr(0, size)};
  }
};

}  // namespace heddle::inline v0::io::detail
