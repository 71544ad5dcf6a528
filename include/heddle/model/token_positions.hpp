// heddle/model/token_positions.hpp: positions and attention slices of sequences.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/model/layer.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::model {

/// Kept from call to call with the same arguments. `block`: tokens see their block of so many tokens and those before it; 0: the tokens up to them; -1: all of
/// their sequence (`reach_rows` of a model's reach).
class token_positions {
 public:
  /// `window`: tokens that rows of `windowed` see; 0: there are none.
  explicit token_positions(std::int64_t block = 0) noexcept : block_(block) {}
  void prepare(std::int64_t max_samples, std::int64_t sequence, std::int64_t window = 0) {
    if (sequence == 0 || (sequence == sequence_ && max_samples == max_samples_ && window == window_)) return;
    sequence_ = 0;  // until all is there: memory may be short
    positions_.resize(static_cast<std::size_t>(max_samples * sequence));
    for (std::size_t r = 0; r < positions_.size(); ++r)
      positions_[r] = static_cast<std::int32_t>(static_cast<std::int64_t>(r) % sequence);
    prepare_slices(max_samples, sequence);
    windowed_.clear();
    for (std::int64_t b = 0; b < max_samples && window > 0; ++b)
      for (const compute::attention_slice& s :
           compute::causal_window(b * sequence, (b + 1) * sequence, 0, b * sequence, window))
        windowed_.push_back(s);
    of_sample_ = sequence > window ? 2 : 1;
    max_samples_ = max_samples;
    window_ = window;
    sequence_ = sequence;
  }
  /// The position of each row in its sequence.
  std::span<const std::int32_t> rows(extent_of_batch e) const noexcept {
    return std::span<const std::int32_t>(positions_).first(static_cast<std::size_t>(e.rows()));
  }
  /// Attention inside each sequence.
  std::span<const compute::attention_slice> slices(extent_of_batch e) const noexcept {
    return std::span<const compute::attention_slice>(slices_).first(static_cast<std::size_t>(slice_count(e)));
  }
  std::int64_t slice_count(extent_of_batch e) const noexcept {
    if (e.sequence == 0) return 0;
    return e.samples * (block_ <= 0 ? 1 : (e.sequence + block_ - 1) / block_);
  }
  /// Causal attention inside each sequence to the last tokens of the window.
  std::span<const compute::attention_slice> windowed(extent_of_batch e) const noexcept {
    const auto n = e.sequence == 0 || windowed_.empty() ? std::size_t{0} : static_cast<std::size_t>(e.samples);
    return std::span<const compute::attention_slice>(windowed_).first(n * of_sample_);
  }
  std::int64_t sequence() const noexcept { return sequence_; }

 private:
  void prepare_slices(std::int64_t max_samples, std::int64_t sequence) {
    if (block_ == 0) {
      slices_ = compute::causal_sequences(max_samples, sequence);
      return;
    }
    slices_.clear();
    const std::int64_t rows = block_ < 0 ? sequence : block_;
    for (std::int64_t begin = 0; begin < max_samples * sequence; begin += sequence)
      for (std::int64_t first = 0; first < sequence; first += rows) {
        const std::int64_t end = begin + (first + rows < sequence ? first + rows : sequence);
        slices_.push_back({begin + first, end, begin, end, compute::slice_mask::full});
      }
  }

  std::int64_t block_ = 0;
  std::int64_t sequence_ = 0, max_samples_ = 0, window_ = 0;  // what is there
  std::vector<std::int32_t> positions_{};
  std::vector<compute::attention_slice> slices_{}, windowed_{};
  std::size_t of_sample_ = 1;  // of `windowed_`
};

/// Positions of tokens in the memory of a backend: copied, and waited for, when arguments change.
template <memory_space Space>
class token_positions_in {
 public:
  explicit token_positions_in(std::int64_t block = 0) noexcept : host_(block) {}
  void prepare(typename Space::queue& queue, std::int64_t max_samples, std::int64_t sequence, std::int64_t window = 0) {
    if (sequence == 0 || (sequence == ready_ && max_samples == max_samples_ && window == window_)) return;
    ready_ = 0;  // until they are there: the queue may throw
    host_.prepare(max_samples, sequence, window);
    const extent_of_batch all{max_samples, sequence};
    positions_ = buffer<std::int32_t, Space>(queue, all.rows(), "the positions of tokens");
    slices_ = buffer<compute::attention_slice, Space>(queue, host_.slice_count(all), "the slices of sequences");
    queue.copy(host_.rows(all), positions_);
    queue.copy(host_.slices(all), slices_);
    of_sample_ = 0;
    windowed_ = {};
    if (const auto list = host_.windowed(all); !list.empty()) {
      of_sample_ = static_cast<std::int64_t>(list.size()) / max_samples;
      windowed_ = buffer<compute::attention_slice, Space>(queue, static_cast<std::int64_t>(list.size()),
                                                          "the slices of windows");
      queue.copy(list, windowed_);
    }
    queue.wait();
    max_samples_ = max_samples;
    window_ = window;
    ready_ = sequence;
  }
  compute::token_ids_in<Space> rows(extent_of_batch e) const noexcept {
    return row_at<Space>(positions_.address(), e.rows());
  }
  row_view<const compute::attention_slice, Space> slices(extent_of_batch e) const noexcept {
    return row_at<Space>(slices_.address(), host_.slice_count(e));
  }
  row_view<const compute::attention_slice, Space> windowed(extent_of_batch e) const noexcept {
    return row_at<Space>(windowed_.address(), e.sequence == 0 ? 0 : e.samples * of_sample_);
  }

 private:
  token_positions host_{};
  std::int64_t ready_ = 0, max_samples_ = 0, window_ = 0;  // what lies in the memory, and the length of sequences
  buffer<std::int32_t, Space> positions_{};
  buffer<compute::attention_slice, Space> slices_{}, windowed_{};
  std::int64_t of_sample_ = 0;  // of `windowed_`
};
template <>
class token_positions_in<host_memory> : public token_positions {
 public:
  using token_positions::token_positions;
  void prepare(host_memory::queue&, std::int64_t max_samples, std::int64_t sequence, std::int64_t window = 0) {
    token_positions::prepare(max_samples, sequence, window);
  }
};

}  // namespace heddle::inline v0::model
