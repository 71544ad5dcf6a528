// heddle/model/token_positions.hpp: positions of tokens and causal slices for batches of equally long sequences.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/model/layer.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::model {

/// Kept from call to call while sequences have one length.
class token_positions {
 public:
  void prepare(std::int64_t max_samples, std::int64_t sequence) {
    if (sequence == sequence_ || sequence == 0) return;
    sequence_ = sequence;
    positions_.resize(static_cast<std::size_t>(max_samples * sequence));
    for (std::size_t r = 0; r < positions_.size(); ++r)
      positions_[r] = static_cast<std::int32_t>(static_cast<std::int64_t>(r) % sequence);
    slices_ = compute::causal_sequences(max_samples, sequence);
  }
  /// The position of each row in its sequence.
  std::span<const std::int32_t> rows(extent_of_batch e) const noexcept {
    return std::span<const std::int32_t>(positions_).first(static_cast<std::size_t>(e.rows()));
  }
  /// Causal attention inside each sequence.
  std::span<const compute::attention_slice> slices(extent_of_batch e) const noexcept {
    const auto n = e.sequence == 0 ? std::size_t{0} : static_cast<std::size_t>(e.samples);
    return std::span<const compute::attention_slice>(slices_).first(n);
  }

 private:
  std::int64_t sequence_ = 0;
  std::vector<std::int32_t> positions_{};
  std::vector<compute::attention_slice> slices_{};
};

}  // namespace heddle::inline v0::model
