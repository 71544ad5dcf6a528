// heddle/compute/relaxed_causal.hpp: the relaxed causal mask: rows also see their own block.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace heddle::inline v0::compute {

/// The relaxed causal mask of `sequences` sequences of `rows` rows each, one behind the other, in blocks of `block` rows; the last block may be
/// shorter. A query sees the keys of its own block and of all blocks before. Blocks of one row give the causal mask.
/// Errors: `layout_error` for a block of no rows. Source: Falcon, arXiv:2412.12639, section on relaxed causal-masked self-attention.
inline std::vector<attention_slice> relaxed_causal_slices(std::int64_t sequences, std::int64_t rows,
                                                          std::int64_t block) {
  if (block < 1)
    throw layout_error("heddle: relaxed_causal_slices: a block should have at least one row, got " +
                       std::to_string(block));
  std::vector<attention_slice> slices;
  for (std::int64_t s = 0; s < sequences; ++s)
    for (std::int64_t i = 0; i < rows; i += block) {
      const std::int64_t end = s * rows + (std::min)(i + block, rows);
      slices.push_back({s * rows + i, end, s * rows, end, slice_mask::full});
    }
  return slices;
}

}  // namespace heddle::inline v0::compute
