// heddle/io/dataset.hpp: the tokens of each sample of a training run, and the samples of each rank.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/permutation.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::io {

/// Where a run stands in its data. A count of samples, and nothing about ranks: a save made on one mesh resumes on any.
struct data_position {
  std::int64_t consumed = 0;  ///< samples of the global order that were trained on

  friend constexpr bool operator==(data_position, data_position) = default;
};

/// Consecutive samples of the global order.
struct sample_block {
  std::int64_t first = 0;
  std::int64_t count = 0;

  friend constexpr bool operator==(sample_block, sample_block) = default;
};

/// Part `part` of `parts` of a block: balanced, so that parts differ by at most one sample. May be empty.
constexpr sample_block part_of(sample_block block, std::int64_t part, std::int64_t parts) noexcept {
  const balanced_split cut{block.count, parts};
  return {block.first + cut.offset(part), cut.size(part)};
}

/// How tokens become samples and batches.
struct dataset_options {
  std::int64_t context = 128;  ///< tokens a sample feeds to the model; it spans one more, the last target
  std::int64_t batch = 16;     ///< samples per step over all ranks
  double validation = 0.05;    ///< part of the chunks, at the end of the tokens, that training never sees
  std::uint64_t seed = 0;
  bool shuffle = true;
};

/// A token stream cut into chunks of `context + 1` tokens that overlap by one, and an endless order of samples over
/// them: every epoch visits each training chunk once, in an order computed from (seed, epoch).
/// Everything is a pure function of the global sample index; a rank's share only chooses indices. The union of the
/// shares of all ranks and microbatches of a step is therefore the same set on every mesh.
/// The tokens are not copied: they must outlive the dataset.
/// Errors: `config_error` for options that cannot work, `io_error` if there are too few tokens.
template <class Token>
class basic_dataset {
 public:
  basic_dataset(std::span<const Token> tokens, dataset_options options) : basic_dataset(tokens, {}, false, options) {}
  /// Samples one behind the other, `context` tokens and as many targets each, of which negative ones are ignored; neither is copied.
  /// Errors: as above; `config_error` if there are not as many targets as tokens.
  basic_dataset(std::span<const Token> tokens, std::span<const Token> targets, dataset_options options)
      : basic_dataset(tokens, targets, true, options) {
    if (tokens.size() != targets.size())
      throw config_error("heddle: " + std::to_string(tokens.size()) + " tokens should have as many targets, got " +
                         std::to_string(targets.size()));
  }

  const dataset_options& options() const noexcept { return options_; }
  std::int64_t context() const noexcept { return options_.context; }
  std::int64_t batch() const noexcept { return options_.batch; }
  std::int64_t chunks() const noexcept { return chunks_; }
  /// Chunks of one training epoch.
  std::int64_t train_samples() const noexcept { return chunks_ - held_out_; }
  std::int64_t validation_samples() const noexcept { return held_out_; }

  /// Where step `step` begins, when every step so far had `batch()` samples.
  data_position at_step(std::int64_t step) const noexcept { return {step * options_.batch}; }
  data_position after_step(data_position p) const noexcept { return {p.consumed + options_.batch}; }
  std::int64_t epoch(std::int64_t sample) const noexcept { return sample / train_samples(); }

  /// The samples of the step at `p`, over all ranks.
  sample_block samples(data_position p) const noexcept { return {p.consumed, options_.batch}; }
  /// The samples of one data-parallel rank in the step at `p`. Balanced; may be empty.
  sample_block samples(data_position p, int dp_rank, int dp_size) const noexcept {
    return part_of(samples(p), dp_rank, dp_size);
  }
  /// The samples of one microbatch of one data-parallel rank in the step at `p`. Balanced; may be empty.
  sample_block samples(data_position p, int dp_rank, int dp_size, int microbatch, int microbatches) const noexcept {
    return part_of(samples(p, dp_rank, dp_size), microbatch, microbatches);
  }
  /// The most samples that any rank and microbatch gets: what buffers must hold.
  std::int64_t largest_microbatch(int dp_size, int microbatches) const noexcept {
    return balanced_split{balanced_split{options_.batch, dp_size}.largest(), microbatches}.largest();
  }

  /// The chunk that is sample `sample` of the endless training order. Constant time.
  std::int64_t train_chunk(std::int64_t sample) const noexcept {
    const std::int64_t n = train_samples();
    if (!options_.shuffle) return sample % n;
    return permutation(n, options_.seed, static_cast<std::uint64_t>(sample / n))(sample % n);
  }
  /// The chunk of held-out sample `sample`; these are not shuffled.
  std::int64_t validation_chunk(std::int64_t sample) const noexcept { return train_samples() + sample; }

  /// The `context + 1` tokens of a chunk of a stream.
  std::span<const Token> chunk(std::int64_t index) const noexcept {
    return tokens_.subspan(static_cast<std::size_t>(index * options_.context),
                           static_cast<std::size_t>(options_.context + 1));
  }

  /// Writes the samples of a block of the training order: tokens and, one position later, targets.
  /// Shapes: `inputs` and `targets` hold at least `block.count * context()` elements; sample-major.
  /// Errors: `config_error` if they are too small.
  template <class Id>
  void fill_train(sample_block block, std::span<Id> inputs, std::span<Id> targets) const {
    require_room(block, inputs.size(), targets.size());
    for (std::int64_t i = 0; i < block.count; ++i) copy_chunk(train_chunk(block.first + i), i, inputs, targets);
  }
  /// Writes held-out samples. Errors: `config_error` if the block leaves [0, validation_samples()) or does not fit.
  template <class Id>
  void fill_validation(sample_block block, std::span<Id> inputs, std::span<Id> targets) const {
    if (block.first < 0 || block.count < 0 || block.first + block.count > held_out_)
      throw config_error("heddle: validation samples " + std::to_string(block.first) + " to " +
                         std::to_string(block.first + block.count) + " asked, there are " + std::to_string(held_out_));
    require_room(block, inputs.size(), targets.size());
    for (std::int64_t i = 0; i < block.count; ++i) copy_chunk(validation_chunk(block.first + i), i, inputs, targets);
  }

 private:
  basic_dataset(std::span<const Token> tokens, std::span<const Token> targets, bool rows, dataset_options options)
      : tokens_(tokens), targets_(targets), options_(options) {
    if (options.context < 1)
      throw config_error("heddle: the context must be at least 1 token, got " + std::to_string(options.context));
    if (options.batch < 1)
      throw config_error("heddle: the batch must be at least 1 sample, got " + std::to_string(options.batch));
    if (!(options.validation >= 0.0 && options.validation < 1.0))
      throw config_error("heddle: the validation part must be in [0, 1), got " + number_text(options.validation));
    const std::int64_t behind = rows ? 0 : 1;  // the target of the last token is one of the tokens
    chunks_ = tokens.empty() ? 0 : (static_cast<std::int64_t>(tokens.size()) - behind) / options.context;
    const std::int64_t needed = options.validation > 0.0 ? 2 : 1;
    if (chunks_ < needed)
      throw io_error("heddle: the data has " + std::to_string(tokens.size()) + " tokens; a context of " +
                     std::to_string(options.context) + (needed == 2 ? " with a validation part" : "") +
                     " needs at least " + std::to_string(needed * options.context + behind));
    if (options.validation > 0.0) {
      held_out_ = static_cast<std::int64_t>(static_cast<double>(chunks_) * options.validation);
      if (held_out_ < 1) held_out_ = 1;
      if (held_out_ > chunks_ - 1) held_out_ = chunks_ - 1;
    }
  }
  void require_room(sample_block block, std::size_t inputs, std::size_t targets) const {
    const auto needed = static_cast<std::size_t>(block.count * options_.context);
    if (inputs < needed || targets < needed)
      throw config_error("heddle: " + std::to_string(block.count) + " samples of " + std::to_string(options_.context) +
                         " tokens need " + std::to_string(needed) + " elements, got room for " +
                         std::to_string(inputs) + " inputs and " + std::to_string(targets) + " targets");
  }
  template <class Id>
  void copy_chunk(std::int64_t index, std::int64_t row, std::span<Id> inputs, std::span<Id> targets) const {
    const auto n = static_cast<std::size_t>(options_.context);
    const std::size_t to = static_cast<std::size_t>(row) * n, at = static_cast<std::size_t>(index) * n;
    const auto behind = targets_.empty() ? tokens_.subspan(at + 1, n) : targets_.subspan(at, n);
    for (std::size_t t = 0; t < n; ++t) {
      inputs[to + t] = static_cast<Id>(tokens_[at + t]);
      targets[to + t] = static_cast<Id>(behind[t]);
    }
  }

  std::span<const Token> tokens_, targets_;  // the latter of samples that have their own
  dataset_options options_;
  std::int64_t chunks_ = 0;
  std::int64_t held_out_ = 0;
};

/// A dataset of byte tokens.
using dataset = basic_dataset<std::uint8_t>;

}  // namespace heddle::inline v0::io
