// heddle/io/tokens/blend.hpp: blends corpora by weights, in Megatron's order.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/dataset.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// From which corpus each sample of a run comes. Sample s is taken from the corpus of which it has least: that with the
/// largest `weight * max(s, 1) - taken`, of several the first. Any sample is found in less than 4,096 steps, since what
/// was taken is kept every 4,096 samples; memory: 8 bytes of each corpus for each of those. Nothing is taken of a
/// corpus of weight 0.
/// Source: Megatron-LM, `build_blending_indices` of megatron/core/datasets/helpers.cpp; bit for bit its order of
/// corpora whose weights are above 0. The weights are divided by their sum, which is added up as numpy does.
class blend {
 public:
  /// `samples`: of the whole run. Errors: `config_error` for no corpus, a weight that is negative or no number, weights
  /// that are all 0 or whose sum is not finite, or a negative number of samples.
  blend(std::span<const double> weights, std::int64_t samples);

  struct place {
    std::int64_t corpus = 0, sample = 0;  ///< and the how manieth sample that is taken from it
    friend bool operator==(place, place) = default;
  };
  /// Where sample s comes from. Errors: `config_error` if the run has not so many.
  place operator()(std::int64_t sample) const;

  /// Calls f(sample, place) for samples [first, first + count), one after another.
  template <class F>
  void each(std::int64_t first, std::int64_t count, F&& f) const {
    require(first, count);
    if (count == 0) return;
    std::vector<std::int64_t> taken = taken_before(first);
    for (std::int64_t s = first; s < first + count; ++s) f(s, next(s, taken));
  }

  std::int64_t samples() const noexcept { return samples_; }
  /// Parts of 1.
  std::span<const double> weights() const noexcept { return weights_; }
  /// How many of the samples come from a corpus.
  std::int64_t samples_of(std::size_t corpus) const noexcept { return taken_.back()[corpus]; }
  friend std::string to_string(const blend& b) { return b.text(); }

 private:
  static constexpr std::int64_t kept_every = 4096;
  place next(std::int64_t sample, std::vector<std::int64_t>& taken) const noexcept;
  std::vector<std::int64_t> taken_before(std::int64_t sample) const;
  void require(std::int64_t first, std::int64_t count) const;
  std::string text() const;

  std::vector<double> weights_;
  std::int64_t samples_;
  std::vector<std::vector<std::int64_t>> taken_{};  // before samples 0, 4096, ..; behind the last
};

/// The samples of several sources of one context in the order of a blend, as `trainer.run` takes them. A corpus of
/// which more samples are taken than its order has begins again. Sources such as `token_source` are not copied and
/// must outlive it. Validation samples are those of each source, one source after another.
template <class Source>
class blended_source {
 public:
  /// Errors: `config_error` if there are not as many sources as corpora, or their contexts differ.
  blended_source(std::vector<const Source*> sources, blend order)
      : sources_(std::move(sources)), order_(std::move(order)) {
    if (sources_.size() != order_.weights().size())
      throw config_error("heddle: a blend of " + std::to_string(order_.weights().size()) + " weights with " +
                         std::to_string(sources_.size()) + " sources");
    for (const Source* s : sources_)
      if (s->context() != context())
        throw config_error("heddle: sources of a blend have samples of " + std::to_string(context()) + " and of " +
                           std::to_string(s->context()) + " tokens");
  }

  std::int64_t context() const { return sources_.front()->context(); }
  const blend& order() const noexcept { return order_; }
  std::int64_t validation_samples() const {
    std::int64_t n = 0;
    for (const Source* s : sources_) n += s->validation_samples();
    return n;
  }

  /// Shapes and errors: as those of the sources; `config_error` for a sample beyond those of the blend.
  template <class Id>
  void fill_train(sample_block block, std::span<Id> inputs, std::span<Id> targets) const {
    order_.each(block.first, block.count, [&](std::int64_t s, blend::place from) {
      const Source& source = *sources_[static_cast<std::size_t>(from.corpus)];
      const std::int64_t row = s - block.first;
      source.fill_train({from.sample % source.order().samples(), 1}, row_of(inputs, row), row_of(targets, row));
    });
  }
  template <class Id>
  void fill_validation(sample_block block, std::span<Id> inputs, std::span<Id> targets) const {
    std::int64_t row = 0, first = block.first;
    for (const Source* s : sources_) {
      const std::int64_t n = std::clamp(s->validation_samples() - first, std::int64_t{0}, block.count - row);
      if (n > 0) s->fill_validation({first, n}, row_of(inputs, row), row_of(targets, row));
      row += n;
      first = (std::max)(first - s->validation_samples(), std::int64_t{0});
    }
    if (block.first < 0 || row < block.count)
      throw config_error("heddle: validation samples " + std::to_string(block.first) + " to " +
                         std::to_string(block.first + block.count) + " asked, there are " +
                         std::to_string(validation_samples()));
  }

  /// Calls f(corpus, document, first, count) for the pieces of a sample of the run.
  template <class F>
  void each_piece(std::int64_t sample, F&& f) const {
    const blend::place from = order_(sample);
    const auto& order = sources_[static_cast<std::size_t>(from.corpus)]->order();
    order.each_piece(from.sample % order.samples(), [&](std::int64_t document, std::int64_t first, std::int64_t count) {
      f(from.corpus, document, first, count);
    });
  }

 private:
  template <class Id>
  std::span<Id> row_of(std::span<Id> rows, std::int64_t row) const {
    const auto at = static_cast<std::size_t>(row * context());
    return at > rows.size() ? std::span<Id>{} : rows.subspan(at);
  }

  std::vector<const Source*> sources_;
  blend order_;
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/tokens/blend.hpp>
#endif
