// heddle/train/language_state.hpp: the bytes of a language model's weights, gradients and moments as a formula, beside its
// activations.
#pragma once

#include <heddle/core/policy.hpp>
#include <heddle/core/split.hpp>
#include <heddle/train/activations/language_memory.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/zero.hpp>

#include <cstdint>

namespace heddle::inline v0::train {

/// `language_memory` with what a stage holds from step to step, so that `schedule::fits` and `static_profile` count all of a
/// training run: what `bytes_held` counts, of the first rank along dp and tp, which has the most. `Shape` is a
/// `language_shape` that may also say
/// - `dp`: ranks that share the moments under `zero<1>`, the gradients under `zero<2>`, the weights under `zero<3>`; 1
///   without;
/// - `ends_on_one_rank`: the rank of the head has the embedding, too, as in V shapes and in schedules with two chains;
///   a tied head then uses that weight and keeps only a gradient of its own. False without.
/// With `zero<2>` and `zero<3>` whole gradients are counted as if they stayed: a bound where a rank has several stages. With
/// `zero<3>` whole weights are `gathered_bytes`, for tables with UNSHARD (`schedule::passes::unshard`).
/// Under a `precision`: without the rooms of its optimizer (`mixed_optimizer::room_bytes`). Units: bytes.
template <class Model, language_shape Shape, class Zero = zero<1>, policy Activations = activations::keep,
          class Precision = precision<>>
struct language_with_state : language_memory<Model, Shape, Activations> {
  using activations_only = language_memory<Model, Shape, Activations>;
  using T = typename Model::scalar;

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

  /// The flat buffer of a stage's weights, whole; that of its gradients has as many.
  static constexpr std::int64_t weight_bytes(int stage) noexcept {
    const model::stage_layers part = activations_only::layers_of(stage);
    const auto& all = activations_only::description;
    std::int64_t n = part.count * place.parameter_elements(all.block);
    if (part.has_embedding()) n += place.parameter_elements(all.in);
    if (part.has_head()) n += place.parameter_elements(all.out);
    if (tied && part.has_head() && !part.has_embedding() && !ends_on_one_rank) n += lines_of_table();
    return activations_only::in_bytes(n);
  }
  /// Two moments of each weight, of which `zero<1>` keeps a share.
  static constexpr std::int64_t moment_bytes(int stage) noexcept {
    return 2 * owned(stage) * static_cast<std::int64_t>(sizeof(typename Precision::template moment<T>));
  }
  /// With `zero<3>`: between UNSHARD and RESHARD of the stage; with the embedding's stage where its head uses that.
  static constexpr std::int64_t gathered_bytes(int stage) noexcept {
    if (Zero::stage < 3 || dp == 1) return 0;
    const model::stage_layers part = activations_only::layers_of(stage);
    const bool borrows = tied && part.has_head() && !part.has_embedding() && ends_on_one_rank;
    return weight_bytes(stage) + (borrows ? weight_bytes(0) : 0);
  }
  /// The master weights that a `precision` keeps, of which `zero<1>` keeps a share; 0 where weights are their own masters.
  static constexpr std::int64_t master_bytes(int stage) noexcept {
    if (!Precision::template keeps_masters<T>) return 0;
    return owned(stage) * static_cast<std::int64_t>(sizeof(typename Precision::template master<T>));
  }
  /// Weights, gradients, moments and masters, and the gradient of a tied embedding that is not in the flat buffers.
  static constexpr std::int64_t state_bytes(int stage) noexcept {
    const model::stage_layers part = activations_only::layers_of(stage);
    // A head that uses the embedding's weight has a gradient of its own; that of a head elsewhere comes to the embedding.
    const bool one_more = tied && part.has_embedding() != part.has_head() && part.has_head() == ends_on_one_rank;
    const std::int64_t share = activations_only::in_bytes(owned(stage));
    const std::int64_t weights = Zero::stage < 3 ? weight_bytes(stage) : share;
    const std::int64_t gradients = Zero::stage < 2 ? weight_bytes(stage) : share + (dp > 1 ? weight_bytes(stage) : 0);
    return weights + gradients + moment_bytes(stage) + master_bytes(stage) +
           (one_more ? activations_only::in_bytes(table()) : 0);
  }
  constexpr std::int64_t resident_bytes(int stage) const noexcept {
    return activations_only::resident_bytes(stage) + state_bytes(stage);
  }

 private:
  using activations_only::place;
  // Elements whose state the first rank along dp keeps.
  static constexpr std::int64_t owned(int stage) noexcept {
    const std::int64_t elements = weight_bytes(stage) / static_cast<std::int64_t>(sizeof(T));
    return Zero::stage == 0 ? elements : balanced_split{elements, dp}.largest();
  }
  static constexpr bool tied = decltype(activations_only::description.out)::tied;
  // The token embedding on this rank.
  static constexpr std::int64_t table() noexcept {
    return place.local_parameter(activations_only::description.in.parameters().template get<0>());
  }
  static constexpr std::int64_t lines_of_table() noexcept { return activations_only::places::in_lines(table()); }
};

/// The `language_with_state` of a GPT-2 with elements `T`.
template <class T, language_shape Shape, class Zero = zero<1>, policy Activations = activations::keep,
          class Precision = precision<>>
using gpt2_with_state = language_with_state<model::gpt2<T>, Shape, Zero, Activations, Precision>;

}  // namespace heddle::inline v0::train
