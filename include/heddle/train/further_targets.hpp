// heddle/train/further_targets.hpp: a data set whose targets are tokens further on.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/dataset.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::train {

/// A data set whose targets are `ahead` tokens further on: what head number `ahead` of Medusa (from 1 on) is trained on. The last `ahead` targets of a sample are ignored.
/// Errors: its functions that fill throw `config_error` unless `ahead` is at least 1 and less than the context.
template <class Dataset>
struct further_targets {
  const Dataset* data;
  std::int64_t ahead;

  std::int64_t context() const { return data->context(); }
  std::int64_t validation_samples() const { return data->validation_samples(); }
  template <class Input, class Target>
  void fill_train(io::sample_block block, std::span<Input> tokens, std::span<Target> targets) const {
    data->fill_train(block, tokens, targets);
    shift(block.count, targets);
  }
  template <class Input, class Target>
  void fill_validation(io::sample_block block, std::span<Input> tokens, std::span<Target> targets) const {
    data->fill_validation(block, tokens, targets);
    shift(block.count, targets);
  }

 private:
  // Of the samples that were filled: buffers may be larger.
  template <class Target>
  void shift(std::int64_t samples, std::span<Target> targets) const {
    const std::int64_t n = context();
    if (ahead < 1 || ahead >= n)
      throw config_error("heddle: further_targets.ahead must be 1 to " + std::to_string(n - 1) +
                         " (less than the context), got " + std::to_string(ahead));
    for (std::int64_t sample = 0; sample < samples; ++sample) {
      const std::span<Target> of = targets.subspan(static_cast<std::size_t>(sample * n), static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i)
        of[static_cast<std::size_t>(i)] = i + ahead < n ? of[static_cast<std::size_t>(i + ahead)] : Target(-100);
    }
  }
};

}  // namespace heddle::inline v0::train
