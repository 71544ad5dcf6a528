// heddle/infer/memory_plan.hpp: the bytes that a rank of a model for inference takes, by kind.
#pragma once

#include <algorithm>
#include <cstdint>

namespace heddle::inline v0::infer {

/// Bytes of the backend's memory that a `model_runner` takes on a rank, before it is made (`model_runner::plan`). What the backend keeps for itself, such as workspaces
/// of product libraries, and rooms of sorts of routed experts, are not in it.
struct memory_plan {
  std::int64_t parameters = 0;
  std::int64_t cache = 0;
  std::int64_t states = 0;     ///< that layers keep of sequences
  std::int64_t workspace = 0;  ///< activations of a step, and what rows are routed by
  std::int64_t inputs = 0;     ///< tokens, slices and pages of a step, and draws; 0 where kernels run on the host
  std::int64_t messages = 0;   ///< rows from and to other stages, and logits on their way
  std::int64_t streams = 0;    ///< taken in the first step that keeps residual streams on a device
  std::int64_t attention = 0;  ///< of a step, for a moment: parts of keys
  std::int64_t drawing = 0;    ///< of a step, for a moment: weights of the tokens of up to `head_rows` rows
  std::int64_t frozen = 0;     ///< of the parameters, those that the description does not train

  /// From the beginning to the end.
  std::int64_t held() const noexcept { return parameters + cache + states + workspace + inputs + messages; }
  /// The most in a step: attention and drawing follow each other.
  std::int64_t total() const noexcept { return held() + streams + (std::max)(attention, drawing); }
  friend bool operator==(const memory_plan&, const memory_plan&) = default;
};

}  // namespace heddle::inline v0::infer
