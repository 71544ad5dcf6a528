// heddle/train/further_targets.hpp: a data set whose targets are tokens further on, for heads that predict those.
#pragma once

#include <heddle/io/dataset.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline v0::train {

/// A data set whose targets are `ahead` tokens further on: what head number `ahead` of Medusa (from 1 on) is trained on. The last `ahead` targets of a sample are ignored.
template <class Dataset>
struct further_targets {
  const Dataset* data;
  std::int64_t ahead;

  std::int64_t context() const { return data->context(); }
  std::int64_t validation_samples() const { return data->validation_samples(); }
  template <class Input, class Target>
  void fill_train(io::sample_block block, std::span<Input> tokens, std::span<Target> targets) const {
    data->fill_train(block, tokens, targets);
    shift(targets);
  }
  template <class Input, class Target>
  void fill_validation(io::sample_block block, std::span<Input> tokens, std::span<Target> targets) const {
    data->fill_validation(block, tokens, targets);
    shift(targets);
  }

 private:
  template <class Target>
  void shift(std::span<Target> targets) const {
    const std::int64_t n = context();
    for (std::size_t first = 0; first < targets.size(); first += static_cast<std::size_t>(n))
      for (std::int64_t i = 0; i < n; ++i)
        targets[first + static_cast<std::size_t>(i)] =
            i + ahead < n ? targets[first + static_cast<std::size_t>(i + ahead)] : Target(-100);
  }
};

}  // namespace heddle::inline v0::train
