// heddle/model/feature_text.hpp: defines a text with the features that a model has at its tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace heddle::inline v0::model {

/// Tokens, and the residual stream of each after the model's final norm. Shapes: features [tokens, width].
template <class T>
struct feature_text {
  std::vector<std::int32_t> tokens{};
  std::vector<T> features{};
};

}  // namespace heddle::inline v0::model
