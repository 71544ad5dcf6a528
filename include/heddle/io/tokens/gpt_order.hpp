// heddle/io/tokens/gpt_order.hpp: the order in which Megatron trains GPTs, bit for bit.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/tokens/token_store.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::io {

/// Settings of `gpt_order`, with Megatron's names for them where they differ.
struct gpt_order_options {
  std::int64_t context = 1024;  ///< tokens a sample feeds to the model (sequence_length); it spans one more
  std::int64_t samples = 0;     ///< of the whole run (num_samples): how many decides how epochs are shuffled
  std::uint32_t seed = 1234;    ///< random_seed
  std::int64_t first = 0;       ///< documents [first, end) of the store, of a split; the sequences of an index
  std::int64_t end = -1;        ///< negative: all of them
};

/// Documents are shuffled, epochs of them together; what follows each other in that order is cut into samples that
/// overlap by one token, and these are shuffled. Bit for bit that of Megatron-LM with the same settings:
/// `megatron/core/datasets/gpt_dataset.py`, whose shuffles are those of `numpy.random.RandomState(seed)`. A last epoch
/// of which less than 0.8 is needed is shuffled apart.
/// Memory: 12 bytes for each document of each epoch, and 4 for each sample; counts are of 64 bits.
class gpt_order {
 public:
  /// Errors: `config_error` for settings that cannot be, or more than 2^31 - 2 documents and samples; `io_error` if the
  /// documents have no tokens.
  template <token_store Store>
  gpt_order(const Store& store, gpt_order_options options) : options_(options) {
    if (options_.end < 0) options_.end = store.documents();
    require(store.documents());
    std::vector<std::int64_t> lengths;
    for (std::int64_t d = options_.first; d < options_.end; ++d) lengths.push_back(store.length(d));
    build(lengths);
  }

  /// At least `options().samples`.
  std::int64_t samples() const noexcept { return static_cast<std::int64_t>(order_.size()); }
  std::int64_t epochs() const noexcept { return epochs_; }
  const gpt_order_options& options() const noexcept { return options_; }

  /// Where a token is: in which document of the shuffled order (`document`: in the store), and the how manieth of it.
  struct place {
    std::int64_t position = 0, document = 0, offset = 0;
    friend bool operator==(place, place) = default;
  };
  /// Where the cut with this number begins, before samples are shuffled.
  place begin_of(std::int64_t cut) const noexcept { return token_place(cut * options_.context); }
  /// Where token t of all epochs behind each other is.
  place token_place(std::int64_t token) const noexcept;
  /// Which cut is sample i of the run.
  std::int64_t cut(std::int64_t sample) const noexcept { return order_[static_cast<std::size_t>(sample)]; }

  /// Calls f(document, first, count) for the pieces of which sample i, of `context + 1` tokens, consists.
  /// Errors: `config_error` for a sample that the order does not have.
  template <class F>
  void each_piece(std::int64_t sample, F&& f) const {
    require_sample(sample);
    place at = begin_of(cut(sample));
    for (std::int64_t left = options_.context + 1; left > 0; ++at.position, at.offset = 0) {
      const auto p = static_cast<std::size_t>(at.position);
      const std::int64_t count = (std::min)(left, begins_[p + 1] - begins_[p] - at.offset);
      if (count > 0) f(options_.first + documents_[p], at.offset, count);
      left -= count;
    }
  }
  friend std::string to_string(const gpt_order& o) {
    return "gpt_order seed " + std::to_string(o.options_.seed) + ", context " + std::to_string(o.options_.context) +
           ", samples " + std::to_string(o.options_.samples) + ", documents " + std::to_string(o.options_.first) +
           " to " + std::to_string(o.options_.end);
  }

 private:
  void require(std::int64_t documents) const;
  void require_sample(std::int64_t sample) const;
  void build(std::span<const std::int64_t> lengths);

  gpt_order_options options_;
  std::int64_t epochs_ = 1;
  std::vector<std::int32_t> documents_{};  // shuffled, all epochs
  std::vector<std::int64_t> begins_{};     // of each of them in all tokens
  std::vector<std::uint32_t> order_{};
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/tokens/gpt_order.hpp>
#endif
