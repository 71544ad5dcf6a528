// heddle/rl/equal_parts.hpp: weights cut into parts of equal counts and nearly equal sums.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::rl {

/// Indices of weights in `parts` parts of equal counts whose sums are near each other, heaviest part first, by the
/// largest differencing method: tuples of one weight for each part are merged, those with the greatest spread first,
/// the heaviest of one to the lightest of the other. Errors: `config_error` where the parts cannot have equal counts,
/// or no weights.
/// Source: Karmarkar and Karp 1982, UCB/CSD 82/113; for equal counts as `seqlen_balanced_partitions` of verl.
HEDDLE_INLINE std::vector<std::vector<std::size_t>> equal_parts(std::span<const std::int64_t> weights,
                                                                std::size_t parts);

}  // namespace heddle::inline v0::rl

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rl/impl/equal_parts.hpp>
#endif
