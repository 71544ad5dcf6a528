// heddle/infer/step_rows.hpp: positions, cache rows and attention slices of the rows of a step.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/infer/step.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::infer {

/// What layers read of a step besides its tokens. Keys are counted in the order of `step::blocks`: key j is row
/// blocks[j / block_rows] * block_rows + j % block_rows of the cache.
class step_rows {
 public:
  step_rows() = default;
  /// Requires a step that `require_step` accepts, and a cache of fewer than 2^31 rows.
  void prepare(const step& s, std::int64_t block_rows) {
    block_rows_ = block_rows;
    positions_.clear();
    places_.clear();
    slices_.clear();
    pages_.assign(s.blocks.begin(), s.blocks.end());
    for (const sequence_rows& q : s.sequences) {
      for (std::int64_t t = q.position; t < q.position + q.rows; ++t) {
        const std::int64_t block = pages_[static_cast<std::size_t>(q.first_block + t / block_rows)];
        positions_.push_back(static_cast<std::int32_t>(t));
        places_.push_back(static_cast<std::int32_t>(block * block_rows + t % block_rows));
      }
      const std::int64_t key = q.first_block * block_rows;
      slices_.push_back(
          {q.first_row, q.first_row + q.rows, key, key + q.position + q.rows, compute::slice_mask::causal});
    }
  }
  /// Of each row: its position in its sequence, and its row in the cache.
  std::span<const std::int32_t> positions() const noexcept { return positions_; }
  std::span<const std::int32_t> places() const noexcept { return places_; }
  /// Causal attention of each sequence's rows to its tokens up to the row itself.
  std::span<const compute::attention_slice> slices() const noexcept { return slices_; }
  compute::key_pages pages() const noexcept { return {pages_, block_rows_}; }

 private:
  std::int64_t block_rows_ = 0;
  std::vector<std::int32_t> positions_{}, places_{}, pages_{};
  std::vector<compute::attention_slice> slices_{};
};

}  // namespace heddle::inline v0::infer
