// heddle/model/stage_layers.hpp: the range of a model's layers on a pipeline stage.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::model {

/// Which layers a pipeline stage holds: blocks [first, first + count), the embedding on stage 0, the final norm and the
/// head on stage `stages - 1`. A stage may hold no block. Where several pipelines run copies of one model, `replica`
/// counts them; parameters count (in norms and saves) on the first. The memory of its weights or gradients may be lent by
/// the caller: then the stage allocates none (`of_stage::can_lend_weights`). Frozen weights are lent by themselves.
/// `tied_apart`: a stage with embedding and tied head keeps the head's share of the gradient apart, as two stages would.
struct stage_layers {
  int first = 0, count = 0;
  int stage = 0, stages = 1;
  int replica = 0;
  bool lent_weights = false, lent_gradients = false, lent_frozen = false;
  bool tied_apart = false;
  constexpr bool has_embedding() const noexcept { return stage == 0; }
  constexpr bool has_head() const noexcept { return stage == stages - 1; }
  friend constexpr bool operator==(const stage_layers&, const stage_layers&) = default;
};

/// The layers of one of `stages` stages when `layers` blocks are split evenly, the larger stages first.
constexpr stage_layers split_layers(int layers, int stage, int stages) noexcept {
  const balanced_split cut{layers, stages};
  return {static_cast<int>(cut.offset(stage)), static_cast<int>(cut.size(stage)), stage, stages};
}

/// The layers of one stage when stage s has `counts[s]` of the blocks.
/// Errors: `config_error` if the counts are not those of a model of `layers` blocks.
HEDDLE_INLINE stage_layers given_layers(int layers, int stage, std::span<const int> counts);

namespace detail {
// Of a configuration, what messages name.
struct stage_extents {
  std::int64_t layers, context, width;
};
// `of_token`: elements that a stage keeps for a token, at most.
HEDDLE_INLINE void require_stage(stage_layers part, stage_extents of, double of_token, int slots,
                                 std::int64_t max_samples, int deferred);
}  // namespace detail

/// Checks the arguments of a stage and returns its configuration. Errors: `config_error` if a stage cannot be made like
/// this.
template <class Config>
const Config& checked_stage(const Config& config, stage_layers part, int slots, std::int64_t max_samples,
                            int deferred) {
  config.validate();
  // More than a stage ever keeps for a token: elements of all its memory are then counted by 64 bits.
  double widths = static_cast<double>(config.width), ends = 0;
  if constexpr (requires { config.heads; }) widths += static_cast<double>(config.heads);
  if constexpr (requires { config.ffn; }) widths += static_cast<double>(config.ffn);
  if constexpr (requires { config.dense_ffn; }) widths += static_cast<double>(config.dense_ffn);
  if constexpr (requires { config.hidden + config.inputs; })
    widths += static_cast<double>(config.hidden) + static_cast<double>(config.inputs);
  if constexpr (requires { config.vocabulary; }) ends += 2.0 * static_cast<double>(config.vocabulary);
  if constexpr (requires { config.outputs; }) ends += 2.0 * static_cast<double>(config.outputs);
  const double of_token = (part.count + 4.0) * 32.0 * widths + ends;
  const detail::stage_extents extents{.layers = static_cast<std::int64_t>(config.layers),
                                      .context = static_cast<std::int64_t>(config.context),
                                      .width = static_cast<std::int64_t>(config.width)};
  detail::require_stage(part, extents, of_token, slots, max_samples, deferred);
  return config;
}

}  // namespace heddle::inline v0::model

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/model/impl/stage_layers.hpp>
#endif
