// heddle/plan/hybrid_data.hpp: documents of a step, each on as many ranks as it needs.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/plan/document_waves.hpp>
#include <heddle/plan/sequence_costs.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::plan {

/// What ranks wait for: `steps`: nobody waits between microbatches, so that a rank's sum over the step counts; `waves`: all wait for the
/// slowest in each microbatch, as with pipelines and weights that are gathered (`zero<3>`).
enum class balance : std::uint8_t { steps, waves };

/// Documents, longest first, each on ceil(tokens / `tokens_per_rank`) ranks, or more if it would keep a rank too long: those that have
/// least to do of those with room, in the earliest wave. `offloads`: activations that go to the host take no room (`sequence_costs::offloaded`). `seconds` of a wave are its
/// slowest rank's.
/// Errors: as `require_documents`; `config_error` for costs.
/// Source: Ge et al. 2025, arXiv:2502.21231 (ByteScale), sections 3 and 4.
HEDDLE_INLINE std::vector<document_wave> hybrid_data(std::span<const std::int64_t> lengths, int ranks,
                                                     std::int64_t tokens_per_rank, const sequence_costs& costs,
                                                     balance by = balance::steps, bool offloads = false);

/// Seconds that ranks compute in all waves, if nobody waits for another: the most, and the mean.
struct rank_seconds {
  double most = 0, mean = 0;
};
/// Those of waves, by the costs of each document on as many ranks as it has.
HEDDLE_INLINE rank_seconds seconds_of_ranks(std::span<const document_wave> waves, std::span<const std::int64_t> lengths,
                                            int ranks, const sequence_costs& costs);

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/hybrid_data.hpp>
#endif
