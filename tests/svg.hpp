// tests/svg.hpp: what tests ask of pictures: counts of texts, whether the markup is well-formed, and attributes of a tag.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace svg_test {

inline std::size_t count(std::string_view text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

// Tags balance, attributes are quoted, no stray markup in text: what a strict XML parser needs of a file like ours.
inline bool well_formed(std::string_view text) {
  std::vector<std::string_view> open;
  while (!text.empty()) {
    const std::size_t lt = text.find('<');
    if (text.substr(0, lt).find('>') != std::string_view::npos) return false;
    if (lt == std::string_view::npos) break;
    const std::size_t gt = text.find('>', lt);
    if (gt == std::string_view::npos) return false;
    const std::string_view tag = text.substr(lt + 1, gt - lt - 1);
    text.remove_prefix(gt + 1);
    if (tag.find('<') != std::string_view::npos || count(tag, "\"") % 2 != 0) return false;
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty();
}

inline double attribute(std::string_view tag, std::string_view name) {
  const std::string key = " " + std::string(name) + "=\"";
  const std::size_t at = tag.find(key);
  return at == std::string_view::npos ? 0.0 : std::stod(std::string(tag.substr(at + key.size(), 16)));
}

}  // namespace svg_test
