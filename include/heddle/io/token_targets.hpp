// heddle/io/token_targets.hpp: tokens of a text of which some count, as a model is given them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::io {

/// Tokens that a model is given, and of each the token behind it where that counts. Shapes: as many targets as tokens.
struct token_targets {
  /// The target of a token behind which nothing counts.
  static constexpr std::int32_t ignored = -100;

  std::vector<std::int32_t> tokens{}, targets{};
};

/// Of a text's tokens all but the last, which is only a target. `counts`: of each token whether it is one.
inline token_targets targets_of(std::span<const std::int32_t> ids, const std::vector<bool>& counts) {
  token_targets out;
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    out.tokens.push_back(ids[i]);
    out.targets.push_back(counts[i + 1] ? ids[i + 1] : token_targets::ignored);
  }
  return out;
}

}  // namespace heddle::inline v0::io
