// heddle/train/step_batches.hpp: one rank's samples of a step, cut into microbatches.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/model/pair_batch.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/train/stage_parts.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {
// Of a model that was refused: whatever it is given, the error has been said.
template <class Batch>
inline constexpr bool is_batch_of_model = !requires { Batch::is_refused; };
// Whether microbatches are of documents of any length.
template <class Batch>
inline constexpr bool takes_documents = requires(const Batch& b) { b.positions; };
// A block of an endless order of samples or documents.
struct block_of_samples {
  std::int64_t first = 0, count = 0;
};
}  // namespace detail

/// Documents of any length: `length(d)` tokens has document d of `documents()`. `fill(d, first, inputs, targets)` writes tokens [first,
/// first + inputs.size()) of it and, for each, the token behind it (negative: ignored). Optional: `train_document(i)`, the document that
/// is number i of an endless order (else i modulo `documents()`); `validation_samples()`, how many held-out documents there are, and
/// `validation_document(i)`. A source of packs has `train_pack(i)` and `validation_pack(i)` instead, which give {first, count} of the
/// documents in a pack; `batch` and `validation_samples()` count packs. Called on a thread beside a step, so that calls must not disturb each other.
template <class D>
concept document_source =
    requires(const D& data, std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
      { data.documents() } -> std::convertible_to<std::int64_t>;
      { data.length(i) } -> std::convertible_to<std::int64_t>;
      data.fill(i, i, inputs, targets);
    };

/// What a trainer reads: an endless order of training samples addressed by global index, and held-out samples.
/// `fill_train({first, count}, inputs, targets)` writes consecutive samples of the kind that `Batch` holds: tokens and the
/// tokens behind them, as `io::basic_dataset` has them, or x and y of pairs, as `io::pairs`. For a sharding with a context split: a
/// `document_source`, such as `io::documents`.
template <class D, class Batch = model::batch<float>>
concept sample_source = detail::is_batch_of_model<Batch> &&
                        ((detail::takes_documents<Batch> && document_source<D>) ||
                         requires(const D& data, std::span<typename model::batch_contents<Batch>::input> inputs,
                                  std::span<typename model::batch_contents<Batch>::target> targets) {
  requires requires {
    { data.context() } -> std::convertible_to<std::int64_t>;
  } || requires {
    { data.inputs() } -> std::convertible_to<std::int64_t>;
    { data.targets() } -> std::convertible_to<std::int64_t>;
  };
  { data.validation_samples() } -> std::convertible_to<std::int64_t>;
  data.fill_train({std::int64_t{}, std::int64_t{}}, inputs, targets);
  data.fill_validation({std::int64_t{}, std::int64_t{}}, inputs, targets);
});

/// The microbatches of a step, with memory for their inputs and targets, and where they enter and leave the model.
template <class Batch>
class step_batches {
 public:
  using contents = model::batch_contents<Batch>;
  using input = typename contents::input;
  using target = typename contents::target;

  /// Units: `max_samples` samples in one microbatch, numbers of `one` sample.
  step_batches(schedule::table_view t, const stage_parts& parts, int pipeline_rank, std::int64_t max_samples,
               model::sample_extents one)
      : one_(one),
        batches_(static_cast<std::size_t>(t.microbatches())),
        begins_here_(batches_.size(), false),
        ends_here_(batches_.size(), false) {
    const std::int64_t samples = max_samples * t.microbatches();
    own_inputs_.resize(static_cast<std::size_t>(samples * one.inputs));
    own_targets_.resize(static_cast<std::size_t>(samples * one.targets));
    inputs_ = own_inputs_;
    targets_ = own_targets_;
    const auto mark = [&](int part, std::vector<bool>& here) {
      for (const int s : parts.stages_of(part))
        for (int i = 0; i < t.microbatches() && t.rank_of(s) == pipeline_rank; ++i)
          if (t.handles(s, i)) here[static_cast<std::size_t>(i)] = true;
    };
    mark(0, begins_here_);
    mark(parts.parts() - 1, ends_here_);
  }

  /// The most samples of a microbatch. `shares`: ranks with other samples.
  template <class Options>
  static std::int64_t most_samples(const Options& o, int shares, int microbatches, int /*context_ranks*/) noexcept {
    return balanced_split{balanced_split{o.batch, shares}.largest(), microbatches}.largest();
  }
  step_batches(const step_batches&) = delete;
  step_batches& operator=(const step_batches&) = delete;

  std::span<const Batch> all() const noexcept { return batches_; }
  /// Numbers of all inputs and of all targets of a step on this rank.
  std::size_t input_count() const noexcept { return inputs_.size(); }
  std::size_t target_count() const noexcept { return targets_.size(); }
  /// From here on samples lie in this memory of the caller's, of that many numbers.
  void lie_in(std::span<input> inputs, std::span<target> targets) noexcept {
    inputs_ = inputs;
    targets_ = targets;
  }

  /// The step's samples of one dp rank, which are `samples` from `first` on. Only the ends of a pipeline read them.
  /// Errors: `config_error` if the data's samples are of another size.
  template <sample_source<Batch> Data>
  void load(const Data& data, std::int64_t first, std::int64_t samples, double loss_scale) {
    require_fitting(data);
    const balanced_split cut{samples, static_cast<std::int64_t>(batches_.size())};
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const auto part = static_cast<std::int64_t>(i);
      Batch& b = batches_[i];
      b.samples = static_cast<int>(cut.size(part));
      b.loss_scale = static_cast<decltype(b.loss_scale)>(loss_scale);
      const auto at = memory(cut.offset(part), cut.size(part));
      if (begins_here_[i] || ends_here_[i])
        data.fill_train({first + cut.offset(part), cut.size(part)}, at.inputs, at.targets);
      contents::give(b, at.inputs, at.targets);
    }
  }

  /// Held-out samples [first, first + count), at most those of a step; they take the place of the step's.
  template <sample_source<Batch> Data>
  Batch held_out(const Data& data, std::int64_t first, std::int64_t count) {
    require_fitting(data);
    const auto at = memory(0, count);
    data.fill_validation({first, count}, at.inputs, at.targets);
    Batch b;
    contents::give(b, at.inputs, at.targets);
    b.samples = static_cast<int>(count);
    return b;
  }

  /// How many held-out samples one microbatch has.
  static constexpr std::int64_t held_out_at_once(std::int64_t max_samples) noexcept { return max_samples; }

  /// `check(batch, begins, ends)` of those that enter the model on this rank, leave it, or both.
  template <class Check>
  void check_ends(Check&& check) const {
    for (std::size_t i = 0; i < batches_.size(); ++i)
      if (begins_here_[i] || ends_here_[i]) check(batches_[i], bool{begins_here_[i]}, bool{ends_here_[i]});
  }

  /// How many targets count, of the microbatches that leave the model on this rank: negative ids are ignored, or as the batch says, whose
  /// `batch_contents` may have `static double counted(std::span<const target>, sample_extents)`.
  double counted_targets() const {
    double n = 0;
    for (std::size_t i = 0; i < batches_.size(); ++i)
      if (ends_here_[i]) n += counted_targets(batches_[i].targets);
    return n;
  }
  double counted_targets(std::span<const target> targets) const {
    if constexpr (requires { contents::counted(targets, one_); })
      return contents::counted(targets, one_);
    else if constexpr (std::is_integral_v<target>)
      return static_cast<double>(std::count_if(targets.begin(), targets.end(), [](target id) { return id >= 0; }));
    else
      return static_cast<double>(targets.size());
  }

  template <sample_source<Batch> Data>
  void require_fitting(const Data& data) const {
    if constexpr (requires { data.context(); }) {
      if (data.context() != one_.inputs)
        throw config_error("heddle: the data has samples of " + std::to_string(data.context()) +
                           " tokens, the model a context of " + std::to_string(one_.inputs));
    } else if (data.inputs() != one_.inputs || data.targets() != one_.targets) {
      throw config_error("heddle: the data has samples of " + std::to_string(data.inputs()) + " inputs and " +
                         std::to_string(data.targets()) + " targets, the model takes " + std::to_string(one_.inputs) +
                         " and " + std::to_string(one_.targets) +
                         (one_.target_rows == 1 ? std::string()
                                                : ", since each of " + std::to_string(one_.target_rows) +
                                                      " rows has targets; layers::pooled gives a head the mean of a "
                                                      "sample's rows"));
    }
  }

 private:
  struct numbers {
    std::span<input> inputs;
    std::span<target> targets;
  };
  numbers memory(std::int64_t first, std::int64_t samples) {
    const auto part = [&](auto& all, std::int64_t of_one) {
      return all.subspan(static_cast<std::size_t>(first * of_one), static_cast<std::size_t>(samples * of_one));
    };
    return {part(inputs_, one_.inputs), part(targets_, one_.targets)};
  }

  model::sample_extents one_;
  std::vector<input> own_inputs_;
  std::vector<target> own_targets_;
  std::span<input> inputs_;
  std::span<target> targets_;
  std::vector<Batch> batches_;
  std::vector<bool> begins_here_, ends_here_;
};

namespace detail {
// Targets of the step that count on this rank: as its stages say, or as the batches do.
template <class HeldStages, class Batches>
double counted_targets(HeldStages& held, const Batches& batches) {
  if constexpr (model::of_stage::counts_targets<typename HeldStages::stage_type>) {
    double n = 0;
    held.for_each([&](auto& h) { n += static_cast<double>(h.stage.counted_targets()); });
    return n;
  } else {
    return batches.counted_targets();
  }
}
}  // namespace detail

}  // namespace heddle::inline v0::train
