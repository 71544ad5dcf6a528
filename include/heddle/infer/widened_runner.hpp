// heddle/infer/widened_runner.hpp: a runner with logits of 16 bits as one with logits of float.
#pragma once

#include <heddle/compute/token_draws.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/drawing_runner.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace heddle::inline v0::infer {

/// A runner whose logits and residual streams have 16 bits, by reference, with both in float: the same numbers. An engine takes either; this one is for `any_runner<float>`, with
/// which an engine is compiled once for models of float and of 16 bits, and for decoding policies that compute in float from residual streams.
/// Tokens that the runner draws are drawn from its own logits, which are not widened then.
template <step_runner Runner>
  requires is_half_precision<typename Runner::scalar>
class widened_runner {
  using narrow = typename Runner::scalar;

 public:
  using scalar = sum_of_type<narrow>;
  using capabilities = runner_capabilities<Runner>;

  /// The runner must outlive this.
  explicit widened_runner(Runner& runner) noexcept : runner_(std::addressof(runner)) {}

  step_limits limits() const { return runner_->limits(); }
  /// As of the runner. Shapes: logits [wanted rows, vocabulary]. Errors: the runner's.
  void run(const step& s, std::span<scalar> logits) {
    const std::span<narrow> found = room(logits.size());
    runner_->run(s, found);
    std::copy(found.begin(), found.end(), logits.begin());
    take_streams(s);
  }
  /// As of `drawing_runner`.
  bool draws() const noexcept
    requires drawing_runner<Runner>
  {
    return runner_->draws();
  }
  /// None: logits are widened on their way.
  std::span<scalar> logits_memory(std::size_t) noexcept
    requires drawing_runner<Runner>
  {
    return {};
  }
  void run(const step& s, std::span<scalar> logits, std::span<const compute::token_draw> draws,
           std::span<compute::token_drawn> drawn)
    requires drawing_runner<Runner>
  {
    const std::span<narrow> found = room(logits.size());
    runner_->run(s, found, draws, drawn);
    take_streams(s);
    if (found.empty()) return;
    const std::size_t words = found.size() / s.wanted.size();
    auto draw = draws.begin();
    for (std::size_t r = 0; r < s.wanted.size(); ++r) {
      if (draw != draws.end() && draw->row == static_cast<std::int64_t>(r)) {
        ++draw;
        continue;
      }
      std::ranges::copy(found.subspan(r * words, words), logits.subspan(r * words, words).begin());
    }
  }
  /// As of `stream_runner`.
  std::span<const scalar> streams() const noexcept
    requires stream_runner<Runner>
  {
    return streams_;
  }

 private:
  void take_streams(const step& s) {
    if constexpr (stream_runner<Runner>)
      if (s.streams) {
        const std::span<const narrow> found = runner_->streams();
        streams_.assign(found.begin(), found.end());
      }
  }
  // The runner's memory for n logits, or memory of this.
  std::span<narrow> room(std::size_t n) {
    if constexpr (drawing_runner<Runner>)
      if (n > 0)
        if (const std::span<narrow> there = runner_->logits_memory(n); !there.empty()) return there;
    logits_.resize(n);
    return logits_;
  }

  Runner* runner_;
  std::vector<narrow> logits_{};
  std::vector<scalar> streams_{};
};

}  // namespace heddle::inline v0::infer
