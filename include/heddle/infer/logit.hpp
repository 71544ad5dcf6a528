// heddle/infer/logit.hpp: the concept of the element types that logits may have.
#pragma once

#include <heddle/core/half_precision.hpp>

#include <concepts>

namespace heddle::inline v0::infer {

/// Element types of logits. Those of 16 bits are widened to `sum_of_type`, which is exact, wherever something is computed from them.
template <class T>
concept logit = std::floating_point<T> || is_half_precision<T>;

}  // namespace heddle::inline v0::infer
