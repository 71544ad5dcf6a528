// heddle/layout/named_shape.hpp: a parameter by path and shape, and its kind by path.
#pragma once

#include <heddle/core/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

/// A parameter of a model: its path, parts separated by '/' or '.', and its extents: `{"h/0/mlp/fc_in/kernel", {64, 256}}`.
/// As Flax names them: weights of linear layers end in "kernel" and are [in, out], lookup tables in "embedding". As PyTorch does:
/// both end in "weight", a linear layer's is [out, in], and the part before tells tables (`embed_tokens`, `wte`, ...).
/// Errors: `layout_error` (a compile error in constant expressions) for more than four dimensions.
struct named_shape {
  static constexpr int max_rank = 4;
  std::string_view path{};
  std::array<std::int64_t, 4> extents{};
  int rank = 0;

  constexpr named_shape() = default;
  constexpr named_shape(std::string_view name, std::initializer_list<std::int64_t> shape) : path(name) {
    for (const std::int64_t extent : shape) add(extent);
  }
  constexpr void add(std::int64_t extent) {
    if (rank == max_rank) throw layout_error("heddle: named_shape: a parameter has at most 4 dimensions");
    extents[static_cast<std::size_t>(rank++)] = extent;
  }
};

/// How the weights of linear layers lie whose last part is "weight". "kernel" is [in, out] always.
enum class weight_order : unsigned char {
  by_name,  ///< [out, in], PyTorch's; but [in, out] where the layer is called as GPT-2's Conv1D (c_attn, c_fc, c_proj, q_attn)
  in_out,
  out_in
};

namespace detail {

constexpr std::size_t last_separator(std::string_view path) {
  for (std::size_t i = path.size(); i-- > 0;)
    if (path[i] == '/' || path[i] == '.') return i;
  return std::string_view::npos;
}
// The parts of a path, from the end: part 0 is the leaf. Empty beyond the first.
constexpr std::string_view path_part(std::string_view path, std::size_t from_end) {
  for (;; --from_end) {
    const std::size_t at = last_separator(path);
    if (from_end == 0) return at == std::string_view::npos ? path : path.substr(at + 1);
    if (at == std::string_view::npos) return {};
    path = path.substr(0, at);
  }
}
constexpr std::string_view without_leaf(std::string_view path) {
  const std::size_t at = last_separator(path);
  return at == std::string_view::npos ? std::string_view{} : path.substr(0, at);
}

constexpr bool part_matches(std::string_view pattern, std::string_view text) {
  // '*' with one level of going back, which is all that wildcards without classes need.
  std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}
constexpr bool path_ends_with(std::string_view path, std::string_view pattern) {
  for (;;) {
    const std::size_t p = last_separator(pattern), t = last_separator(path);
    const bool first_of_pattern = p == std::string_view::npos, first_of_path = t == std::string_view::npos;
    if (!part_matches(first_of_pattern ? pattern : pattern.substr(p + 1), first_of_path ? path : path.substr(t + 1)))
      return false;
    if (first_of_pattern) return true;
    if (first_of_path) return false;
    pattern = pattern.substr(0, p);
    path = path.substr(0, t);
  }
}

constexpr char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
constexpr bool has_ignoring_case(std::string_view text, std::string_view word) {
  for (std::size_t i = 0; i + word.size() <= text.size(); ++i) {
    std::size_t j = 0;
    while (j < word.size() && lower(text[i + j]) == word[j]) ++j;
    if (j == word.size()) return true;
  }
  return false;
}
// Whether the path goes through attention: "attention" or "attn" in it, in any case of letters. One pass: compilers count
// the steps of constant expressions, and a model has hundreds of paths.
constexpr bool goes_through_attention(std::string_view path) {
  for (std::size_t i = 0; i + 4 <= path.size(); ++i)
    if (lower(path[i]) == 'a' && lower(path[i + 1]) == 't' && lower(path[i + 2]) == 't' &&
        (lower(path[i + 3]) == 'n' || has_ignoring_case(path.substr(i + 3, 6), "ention")))
      return true;
  return false;
}
constexpr bool same_text(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) return false;
  return true;
}
constexpr bool has_token(std::string_view name, std::string_view token) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= name.size(); ++i)
    if (i == name.size() || name[i] == '_') {
      if (name.substr(begin, i - begin) == token) return true;
      begin = i + 1;
    }
  return false;
}
constexpr bool begins_or_ends_with_one_of(std::string_view name, std::string_view letters) {
  return !name.empty() &&
         (letters.find(name.front()) != std::string_view::npos || letters.find(name.back()) != std::string_view::npos);
}

// Compilers count the steps of constant expressions: one pass over the name, and no literal whose length is counted anew.
inline constexpr std::string_view weight_leaf = "weight", kernel_leaf = "kernel", embedding_leaf = "embedding";
inline constexpr std::array<std::string_view, 4> table_names{"wte", "wpe", "shared", "relative_attention_bias"};
inline constexpr std::array<std::string_view, 4> conv1d_names{"c_attn", "c_fc", "c_proj", "q_attn"};
// A parameter as the rules see it: what PyTorch calls weight is a kernel or an embedding, and kernels are [in, out].
struct seen_parameter {
  named_shape shape{};
  std::string_view leaf{};
  bool turned = false;  // the parameter itself is [out, in]
  constexpr int own_dim(int dim) const { return turned && dim >= 0 ? shape.rank - 1 - dim : dim; }
};
constexpr bool names_table(std::string_view name) {
  for (std::size_t i = 0; i + 4 < name.size(); ++i)  // "embed", "Embed"
    if (name[i] == 'e' || name[i] == 'E')
      if (name[i + 1] == 'm' && name[i + 2] == 'b' && name[i + 3] == 'e' && name[i + 4] == 'd') return true;
  for (const std::string_view table : table_names)
    if (same_text(name, table)) return true;
  return false;
}
constexpr bool names_conv1d(std::string_view name) {
  if (name.size() < 2 || name[1] != '_') return false;
  for (const std::string_view conv1d : conv1d_names)
    if (same_text(name, conv1d)) return true;
  return false;
}
constexpr seen_parameter seen(const named_shape& p, weight_order order) {
  seen_parameter s{p, path_part(p.path, 0)};
  if (p.rank != 2 || !same_text(s.leaf, weight_leaf)) return s;
  const std::string_view name = path_part(p.path.substr(0, p.path.size() - s.leaf.size()), 1);
  if (name.empty()) return s;
  const bool table = names_table(name);
  s.leaf = table ? embedding_leaf : kernel_leaf;
  s.turned = !table && (order == weight_order::out_in || (order == weight_order::by_name && !names_conv1d(name)));
  if (s.turned) {
    s.shape.extents[0] = p.extents[1];
    s.shape.extents[1] = p.extents[0];
  }
  return s;
}
constexpr std::vector<seen_parameter> seen(std::span<const named_shape> parameters, weight_order order) {
  std::vector<seen_parameter> all;
  all.reserve(parameters.size());
  for (const named_shape& p : parameters) all.push_back(seen(p, order));
  return all;
}

}  // namespace detail
}  // namespace heddle::inline v0
