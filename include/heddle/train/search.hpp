// heddle/train/search.hpp: ranks strategies for a number of devices, with reasons for refusals.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/plan/strategy_space.hpp>
#include <heddle/train/strategy_choice.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// Why a strategy is refused.
enum class reason_kind { divides, memory, schedule, network, trainer };
/// Their names in reports.
inline constexpr std::array<std::string_view, 5> reason_names{"divides", "memory", "schedule", "network", "trainer"};

/// A reason in words.
struct search_reason {
  reason_kind kind = reason_kind::divides;
  std::string text{};
  double amount =
      0;  ///< by how much: bytes that are missing (memory), ranks too many (network); 0 where there is no measure
};

/// What a layer takes on one rank. Units: seconds and bytes, of one microbatch where it says so.
struct search_layer {
  double forward = 0, backward_input = 0,
         backward_weight = 0;      ///< of a microbatch, communication inside of them included
  double again = -1;               ///< of a microbatch whose layer is recomputed, besides; below 0: a forward
  double reduction = 0;            ///< at the end of a step: sums of gradients, gathered weights, optimizer
  double gather = 0;               ///< of its weights under ZeRO-3, beside each pass of a microbatch
  std::int64_t state_bytes = 0;    ///< weights, gradients and moments that stay
  std::int64_t lent_bytes = 0;     ///< whole weights and gradients while its stage is in use (ZeRO-2 and 3)
  std::int64_t saved_bytes = 0;    ///< from forward to backward, of a microbatch
  std::int64_t input_bytes = 0;    ///< the same where the layer is recomputed
  std::int64_t waiting_bytes = 0;  ///< from the backward of the input to that of the weights, of a microbatch
  std::int64_t waiting_again_bytes = 0;  ///< what waits besides where the layer is recomputed: activations of its own
};

/// What a cost source says of a mesh: of all layers, of both ends and of the rank besides.
struct search_costs {
  std::vector<search_layer> layers{};  ///< one for all blocks, or one for each
  search_layer first{}, last{};        ///< what the first stage (embedding) and the last (head and loss) have besides
  std::int64_t rank_bytes = 0;         ///< of each rank besides: messages, context
  std::int64_t stage_bytes = 0;        ///< of each stage besides: its workspace
  std::int64_t again_bytes = 0;        ///< of each stage that recomputes blocks: what one of them makes again
  double message_seconds = 0;          ///< of a boundary tensor to the next stage
  double spread = 0;                   ///< of the measured seconds, as a part of them
  bool extrapolated = false;           ///< outside of what was measured
  std::optional<search_reason>
      refused{};  ///< heads that do not divide, a network that is too slow, layers that cannot be split
};

/// What a cost source is asked for: a mesh, a ZeRO stage, a microbatch.
struct search_point {
  std::vector<std::pair<std::string, int>> axes{};
  int zero = 0;
  int samples = 1;  ///< of a microbatch on a rank
  std::string dtype{"f32"};
  /// Ranks along an axis; 1 if it has none of this name.
  int extent(std::string_view name) const {
    for (const auto& [axis, n] : axes)
      if (axis == name) return n;
    return 1;
  }
};
/// The costs of a point: a profile, a paper trace, a published model. Called once for each.
using cost_source = std::function<search_costs(const search_point&)>;

/// A strategy as it is, where costs of layers only add up.
struct search_score {
  double seconds = 0;                      ///< of a step
  double bubble = 0;                       ///< idle part of the pipeline
  std::int64_t bytes = 0;                  ///< of the fullest rank
  double tokens_per_second = 0, mfu = 0;   ///< 0: not told
  std::optional<search_reason> refused{};  ///< what no program runs
};

/// What is searched. The axis `dp` splits samples and shares states, `pp` is the pipeline.
struct search_space {
  int ranks = 8, layers = 1;
  std::int64_t batch = 8;                   ///< samples of a step, over all ranks
  std::int64_t device_bytes = 80000000000;  ///< that a rank may hold
  /// The axes of meshes; a mesh with more ranks along one than its `most` (tensor parallelism beyond a node) is
  /// refused.
  std::vector<plan::space_axis> axes{{"dp"}, {"pp"}, {"tp", 8}};
  std::vector<std::string> schedules{"1f1b", "interleaved:2", "interleaved:4", "zb-h1"};
  std::vector<int> zero{0, 1, 2, 3};
  bool recompute = true;           ///< tries "first n" and "full" where "none" does not fit
  std::int64_t most_samples = 64;  ///< of a microbatch
  std::string dtype{"f32"};
  int simulated = 20, nearest = 3;  ///< how many candidates are simulated, and refusals for memory told
  /// What the program's trainer does not run, if anything: asked of candidates that fit.
  std::function<std::optional<search_reason>(const strategy_choice&)> trainer{};
  /// Scores the strategies that would be simulated, and the nearest misses, in place of their costs.
  std::function<search_score(const strategy_choice&)> exact{};
};

/// A strategy that fits, with what the simulation says of it.
struct searched_strategy {
  strategy_choice choice{};
  int samples = 1;         ///< of a microbatch
  double seconds = 0;      ///< of a step: simulated
  double bound = 0;        ///< no schedule of these costs is faster
  double spread = 0;       ///< of `seconds`, as a part of them
  double bubble = 0;       ///< idle part of the simulated pipeline
  std::int64_t bytes = 0;  ///< of the fullest rank
  bool extrapolated = false;
  double tokens_per_second = 0, mfu = 0;  ///< where `search_space::exact` tells them
};
/// A strategy that does not, and why.
struct refused_strategy {
  strategy_choice choice{};
  int samples = 1;
  search_reason reason{};
};

/// What a search found.
struct search_result {
  std::vector<searched_strategy> best{};    ///< fastest first
  std::vector<refused_strategy> nearest{};  ///< refused for memory, the least missing bytes first
  std::array<std::int64_t, 5> refused{};    ///< by kind
  /// One example of each kind that was refused.
  std::array<std::string, 5> examples{};
  std::int64_t candidates = 0, scored = 0;
};

/// All meshes x ZeRO stages x microbatches x schedules: each candidate is scored or refused with a reason. A score has
/// the layers of each stage by the exact minimum of the slowest stage under the memory of each (as even as can be,
/// where a rank has several stages), and recomputes the first n blocks. The best by a lower bound are simulated and
/// ranked; `space.exact`, where there is one, scores them in place of that, and the nearest misses, which then fit or
/// not as it says. On one rank along pp or dp, where schedules and ZeRO stages do not differ, the first of each is searched.
/// Errors: `config_error` for a space without ranks, layers, samples, schedules or stages; what `costs` throws.
HEDDLE_INLINE search_result search(const search_space& space, const cost_source& costs);

/// A table of the best, then refusals by kind with the nearest misses.
HEDDLE_INLINE std::string to_string(const search_result& result);

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/search.hpp>
#endif
