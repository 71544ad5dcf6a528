// heddle/train/gpt2_state.hpp: the bytes of GPT-2's weights, gradients and moments as a formula, beside its activations.
#pragma once

#include <heddle/core/policy.hpp>
#include <heddle/core/split.hpp>
#include <heddle/train/activations/gpt2_memory.hpp>
#include <heddle/train/zero.hpp>

#include <cstdint>

namespace heddle::inline v0::train {

/// `gpt2_memory` with what a stage holds from step to step, so that `schedule::fits` and `static_profile` count all of a
/// training run: what `bytes_held` counts, of the first rank along dp and tp, which has the most. `Shape` is a
/// `gpt2_shape` that may also say
/// - `dp`: ranks that share the moments under `zero<1>`; 1 without;
/// - `ends_on_one_rank`: the rank of the head has the embedding, too, as in V shapes and in schedules with two chains;
///   the head then uses that weight and keeps only a gradient of its own. False without.
/// Units: bytes.
template <class T, gpt2_shape Shape, class Zero = zero<1>, policy Activations = activations::keep>
struct gpt2_with_state : gpt2_memory<T, Shape, Activations> {
  using activations_only = gpt2_memory<T, Shape, Activations>;

  static constexpr int dp = [] {
    if constexpr (requires { Shape::dp; })
      return Shape::dp;
    else
      return 1;
  }();
  static constexpr bool ends_on_one_rank = [] {
    if constexpr (requires { Shape::ends_on_one_rank; })
      return Shape::ends_on_one_rank;
    else
      return false;
  }();

  /// The flat buffer of a stage's weights; that of its gradients has as many.
  static constexpr std::int64_t weight_bytes(int stage) noexcept {
    const model::stage_layers part = activations_only::layers_of(stage);
    const std::int64_t d = Shape::config.width;
    std::int64_t n = part.count * block_bytes_of_weights();
    if (part.has_embedding()) n += embedding_bytes() + detail::in_lines<T>(Shape::config.context * d);
    if (part.has_head()) n += 2 * detail::in_lines<T>(d);
    if (part.has_head() && !part.has_embedding() && !ends_on_one_rank) n += embedding_bytes();
    return n;
  }
  /// Two moments of each weight, of which `zero<1>` keeps a share.
  static constexpr std::int64_t moment_bytes(int stage) noexcept {
    const std::int64_t elements = weight_bytes(stage) / static_cast<std::int64_t>(sizeof(T));
    return 2 * (Zero::stage == 0 ? elements : balanced_split{elements, dp}.largest()) *
           static_cast<std::int64_t>(sizeof(T));
  }
  /// Weights, gradients and moments, and the gradient of a tied embedding that is not in the flat buffers.
  static constexpr std::int64_t state_bytes(int stage) noexcept {
    const model::stage_layers part = activations_only::layers_of(stage);
    // A head that uses the embedding's weight has a gradient of its own; that of a head elsewhere comes to the embedding.
    const bool one_more = part.has_embedding() != part.has_head() && part.has_head() == ends_on_one_rank;
    const std::int64_t gradient =
        activations_only::words() * Shape::config.width * static_cast<std::int64_t>(sizeof(T));
    return 2 * weight_bytes(stage) + moment_bytes(stage) + (one_more ? gradient : 0);
  }
  constexpr std::int64_t resident_bytes(int stage) const noexcept {
    return activations_only::resident_bytes(stage) + state_bytes(stage);
  }

 private:
  static constexpr std::int64_t embedding_bytes() noexcept {
    return detail::in_lines<T>(activations_only::words() * Shape::config.width);
  }
  // Two norms, attention and the two layers behind it, each with its biases.
  static constexpr std::int64_t block_bytes_of_weights() noexcept {
    const auto e = activations_only::extents();
    const std::int64_t heads = e.heads * e.head_dim;
    return 6 * detail::in_lines<T>(e.width) + detail::in_lines<T>(e.width * 3 * heads) +
           detail::in_lines<T>(3 * heads) + detail::in_lines<T>(heads * e.width) +
           detail::in_lines<T>(e.width * e.hidden) + detail::in_lines<T>(e.hidden) +
           detail::in_lines<T>(e.hidden * e.width);
  }
};

}  // namespace heddle::inline v0::train
