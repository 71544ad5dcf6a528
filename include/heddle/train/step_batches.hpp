// heddle/train/step_batches.hpp: the samples of one training step on one rank, cut into the microbatches of a schedule.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/train/stage_parts.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

/// What a trainer reads: an endless order of training samples addressed by global index, and held-out samples.
/// `fill_train({first, count}, tokens, targets)` writes consecutive samples; `io::basic_dataset` is one.
template <class D>
concept sample_source = requires(const D& data, std::span<std::int32_t> ids) {
  { data.context() } -> std::convertible_to<std::int64_t>;
  { data.validation_samples() } -> std::convertible_to<std::int64_t>;
  data.fill_train({std::int64_t{}, std::int64_t{}}, ids, ids);
  data.fill_validation({std::int64_t{}, std::int64_t{}}, ids, ids);
};

/// The microbatches of a step, with memory for their tokens and targets, and where they enter and leave the model.
template <class Batch>
class step_batches {
 public:
  /// Units: `max_samples` samples of `context` tokens in one microbatch.
  step_batches(schedule::table_view t, const stage_parts& parts, int pipeline_rank, std::int64_t max_samples,
               std::int64_t context)
      : context_(context),
        batches_(static_cast<std::size_t>(t.microbatches())),
        begins_here_(batches_.size(), false),
        ends_here_(batches_.size(), false) {
    const auto ids = static_cast<std::size_t>(max_samples * t.microbatches() * context);
    tokens_.resize(ids);
    targets_.resize(ids);
    const auto mark = [&](int part, std::vector<bool>& here) {
      for (const int s : parts.stages_of(part))
        for (int i = 0; i < t.microbatches() && t.rank_of(s) == pipeline_rank; ++i)
          if (t.handles(s, i)) here[static_cast<std::size_t>(i)] = true;
    };
    mark(0, begins_here_);
    mark(parts.parts() - 1, ends_here_);
  }

  std::span<const Batch> all() const noexcept { return batches_; }

  /// The step's samples of one dp rank, which are `samples` from `first` on. Only the ends of a pipeline read them.
  /// Errors: `config_error` if the data's samples have another length.
  template <sample_source Data>
  void load(const Data& data, std::int64_t first, std::int64_t samples, double loss_scale) {
    require_context(data);
    const balanced_split cut{samples, static_cast<std::int64_t>(batches_.size())};
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const auto part = static_cast<std::int64_t>(i);
      Batch& b = batches_[i];
      b.samples = static_cast<int>(cut.size(part));
      b.loss_scale = static_cast<decltype(b.loss_scale)>(loss_scale);
      const auto [tokens, targets] = memory(cut.offset(part), cut.size(part));
      if (begins_here_[i] || ends_here_[i])
        data.fill_train({first + cut.offset(part), cut.size(part)}, tokens, targets);
      b.tokens = tokens;
      b.targets = targets;
    }
  }

  /// Held-out samples [first, first + count), at most those of a step; they take the place of the step's.
  template <sample_source Data>
  Batch held_out(const Data& data, std::int64_t first, std::int64_t count) {
    require_context(data);
    const auto [tokens, targets] = memory(0, count);
    data.fill_validation({first, count}, tokens, targets);
    Batch b;
    b.tokens = tokens;
    b.targets = targets;
    b.samples = static_cast<int>(count);
    return b;
  }

  /// How many targets count, of the microbatches that leave the model on this rank: negative ones are ignored.
  double counted_targets() const {
    double n = 0;
    for (std::size_t i = 0; i < batches_.size(); ++i)
      if (ends_here_[i]) n += counted_targets(batches_[i].targets);
    return n;
  }
  static double counted_targets(std::span<const std::int32_t> targets) {
    return static_cast<double>(std::count_if(targets.begin(), targets.end(), [](std::int32_t id) { return id >= 0; }));
  }

  template <sample_source Data>
  void require_context(const Data& data) const {
    if (data.context() != context_)
      throw config_error("heddle: the data has samples of " + std::to_string(data.context()) +
                         " tokens, the model a context of " + std::to_string(context_));
  }

 private:
  struct ids {
    std::span<std::int32_t> tokens, targets;
  };
  ids memory(std::int64_t first, std::int64_t samples) {
    const auto at = static_cast<std::size_t>(first * context_), n = static_cast<std::size_t>(samples * context_);
    return {std::span<std::int32_t>(tokens_.data() + at, n), std::span<std::int32_t>(targets_.data() + at, n)};
  }

  std::int64_t context_;
  std::vector<std::int32_t> tokens_, targets_;
  std::vector<Batch> batches_;
  std::vector<bool> begins_here_, ends_here_;
};

}  // namespace heddle::inline v0::train
