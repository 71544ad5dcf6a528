// heddle/io/tokenizer/content_finder.hpp: finds the longest text of a set in a text.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

// Finds contents in a text: leftmost, of those the longest, without overlap.
class content_finder {
 public:
  // The first of equal contents is found. (Contents may be equal once normalized; in the package the order is a hash
  // map's.)
  void insert(std::string_view content, std::size_t token) {
    if (content.empty()) return;
    std::size_t at = 0;
    for (const char c : content) {
      const auto next = child(at, c);
      if (next) {
        at = *next;
      } else {
        nodes_.emplace_back();
        auto& children = nodes_[at].children;
        children.insert(std::lower_bound(children.begin(), children.end(), std::pair(c, std::size_t{0})),
                        {c, nodes_.size() - 1});
        at = nodes_.size() - 1;
      }
    }
    if (!nodes_[at].token) nodes_[at].token = token;
    begins_[static_cast<unsigned char>(content.front())] = true;
    empty_ = false;
  }
  bool empty() const noexcept { return empty_; }

  struct match {
    std::size_t begin, end, token;
  };
  std::optional<match> next(std::string_view text, std::size_t from) const {
    for (; from < text.size(); ++from)
      if (const auto found = longest(text, from)) return found;
    return std::nullopt;
  }
  // The longest that begins at `from`.
  std::optional<match> longest(std::string_view text, std::size_t from) const {
    std::optional<match> found;
    if (empty_ || !begins_[static_cast<unsigned char>(text[from])]) return found;
    std::size_t at = 0;
    for (std::size_t i = from; i < text.size(); ++i) {
      const auto to = child(at, text[i]);
      if (!to) break;
      at = *to;
      if (nodes_[at].token) found = match{from, i + 1, *nodes_[at].token};
    }
    return found;
  }

 private:
  struct node {
    std::vector<std::pair<char, std::size_t>> children;  // in order
    std::optional<std::size_t> token;
  };
  std::optional<std::size_t> child(std::size_t at, char c) const {
    const auto& children = nodes_[at].children;
    const auto found = std::lower_bound(children.begin(), children.end(), std::pair(c, std::size_t{0}));
    if (found == children.end() || found->first != c) return std::nullopt;
    return found->second;
  }

  std::vector<node> nodes_ = std::vector<node>(1);
  std::array<bool, 256> begins_{};
  bool empty_ = true;
};

}  // namespace heddle::inline v0::io::detail
