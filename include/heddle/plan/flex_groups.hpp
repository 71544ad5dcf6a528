// heddle/plan/flex_groups.hpp: documents of a step on groups of ranks of unlike sizes.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/plan/document_waves.hpp>
#include <heddle/plan/sequence_costs.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::plan {

/// What `flex_groups` tries.
struct flex_options {
  int smallest = 2;  ///< ranks of the smallest group, a power of two; 1 where the ranks are an odd number
  int scan = 5;      ///< how many numbers of microbatches are tried, from the fewest on
};

/// Cuts the documents, longest first, into microbatches and each microbatch's ranks into aligned groups of powers of two, so that the sum of
/// the slowest groups' seconds is small: all ways to write the ranks as such groups, each filled longest document first where it ends
/// first. Up to ten documents of a microbatch are placed by exhaustive search. Never slower than the best `single_degree`.
/// Errors: as `require_documents`, and `config_error` for options.
/// Source: Wang et al. 2024, arXiv:2412.01523 (FlexSP), with search in the place of its integer program.
HEDDLE_INLINE std::vector<document_wave> flex_groups(std::span<const std::int64_t> lengths, int ranks,
                                                     std::int64_t tokens_per_rank, const sequence_costs& costs,
                                                     const flex_options& options = {});

/// The same with groups of `degree` ranks only, a divisor of the ranks: documents are packed into groups, each where least room is left.
/// Errors: as `require_documents` of so many ranks; `config_error` for the degree.
HEDDLE_INLINE std::vector<document_wave> single_degree(std::span<const std::int64_t> lengths, int ranks, int degree,
                                                       std::int64_t tokens_per_rank, const sequence_costs& costs);

/// Seconds of all waves, one after the other.
HEDDLE_INLINE double seconds_of(std::span<const document_wave> waves);

namespace detail {
/// All ways to write `ranks` as powers of two from `smallest` on, sizes falling.
HEDDLE_INLINE std::vector<std::vector<int>> group_sizes(int ranks, int smallest);
}  // namespace detail

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/flex_groups.hpp>
#endif
