// heddle/core/shown_name.hpp: foreign names and shapes in errors, of bounded length.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace heddle::inline v0 {

/// A name as messages show it: at most 120 bytes, and no control characters.
inline std::string shown_name(std::string_view name) {
  constexpr std::size_t most = 120;
  std::string text(name.substr(0, most));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return name.size() > most ? text + "..." : text;
}

/// Extents as messages show them, as in `"[2,3]"`: at most 8.
inline std::string shown_extents(std::span<const std::int64_t> extents) {
  constexpr std::size_t most = 8;
  std::string text = "[";
  for (std::size_t d = 0; d < extents.size() && d < most; ++d) text += (d > 0 ? "," : "") + std::to_string(extents[d]);
  return text + (extents.size() > most ? ",...]" : "]");
}

}  // namespace heddle::inline v0
