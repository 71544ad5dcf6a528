// heddle/io/pairs.hpp: pairs (x, y) in memory as training data, with a held-out part.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/permutation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>

namespace heddle::inline v0::io {

/// How a file of numbers becomes pairs (x, y) and batches.
struct pair_options {
  std::int64_t inputs = 1;   ///< numbers of a sample's x
  std::int64_t targets = 1;  ///< numbers of a sample's y; 1 for a class
  double validation = 0;     ///< part of the samples, at the end, that training never sees
  std::uint64_t seed = 0;
  bool shuffle = true;
};

/// Samples (x, y), row by row in `x` and `y`. Every epoch visits each training sample once, in an order computed from
/// (seed, epoch); as in `basic_dataset` everything is a pure function of the global sample index. The numbers are not copied:
/// they must outlive this.
/// Shapes: x [samples, inputs]; y [samples, targets].
/// Errors: `config_error` for options that cannot work, `io_error` if x and y do not hold equally many samples, or too few.
template <class X, class Y>
class pairs {
 public:
  pairs(std::span<const X> x, std::span<const Y> y, pair_options options) : x_(x), y_(y), options_(options) {
    if (options.inputs < 1 || options.targets < 1)
      throw config_error("heddle: a sample must have at least 1 input and 1 target, got " +
                         std::to_string(options.inputs) + " and " + std::to_string(options.targets));
    if (!(options.validation >= 0.0 && options.validation < 1.0))
      throw config_error("heddle: the validation part must be in [0, 1), got " + number_text(options.validation));
    const auto inputs = static_cast<std::int64_t>(x.size()), targets = static_cast<std::int64_t>(y.size());
    samples_ = inputs / options.inputs;
    if (inputs % options.inputs != 0 || targets % options.targets != 0 || targets / options.targets != samples_)
      throw io_error("heddle: " + std::to_string(inputs) + " inputs and " + std::to_string(targets) +
                     " targets are not equally many samples of " + std::to_string(options.inputs) + " and " +
                     std::to_string(options.targets));
    const std::int64_t needed = options.validation > 0.0 ? 2 : 1;
    if (samples_ < needed)
      throw io_error("heddle: the data has " + std::to_string(samples_) + " samples; " +
                     (needed == 2 ? "with a validation part " : "") + "at least " + std::to_string(needed) +
                     " are needed");
    if (options.validation > 0.0)
      held_out_ = std::clamp(static_cast<std::int64_t>(static_cast<double>(samples_) * options.validation),
                             std::int64_t{1}, samples_ - 1);
  }

  const pair_options& options() const noexcept { return options_; }
  std::int64_t inputs() const noexcept { return options_.inputs; }
  std::int64_t targets() const noexcept { return options_.targets; }
  /// Samples of one training epoch.
  std::int64_t train_samples() const noexcept { return samples_ - held_out_; }
  std::int64_t validation_samples() const noexcept { return held_out_; }

  /// Which pair is sample `sample` of the endless training order. Constant time.
  std::int64_t train_pair(std::int64_t sample) const noexcept {
    const std::int64_t n = train_samples();
    if (!options_.shuffle) return sample % n;
    return permutation(n, options_.seed, static_cast<std::uint64_t>(sample / n))(sample % n);
  }

  /// Whether values of type `From` are given as `To`: numbers are not classes.
  template <class From, class To>
  static constexpr bool converts = std::is_floating_point_v<To> || std::is_integral_v<From>;
  /// Writes the samples of a block of the training order, converted to the types of the spans. Errors: `config_error` if
  /// there is not room for them.
  template <class A, class B>
    requires(converts<X, A> && converts<Y, B>)
  void fill_train(sample_block block, std::span<A> x, std::span<B> y) const {
    require_room(block, x.size(), y.size());
    for (std::int64_t i = 0; i < block.count; ++i) copy(train_pair(block.first + i), i, x, y);
  }
  /// Writes held-out samples. Errors: `config_error` if the block leaves [0, validation_samples()) or does not fit.
  template <class A, class B>
    requires(converts<X, A> && converts<Y, B>)
  void fill_validation(sample_block block, std::span<A> x, std::span<B> y) const {
    if (block.first < 0 || block.count < 0 || block.count > held_out_ - block.first)
      throw config_error("heddle: " + std::to_string(block.count) + " validation samples from " +
                         std::to_string(block.first) + " on asked, there are " + std::to_string(held_out_));
    require_room(block, x.size(), y.size());
    for (std::int64_t i = 0; i < block.count; ++i) copy(train_samples() + block.first + i, i, x, y);
  }

 private:
  void require_room(sample_block block, std::size_t x, std::size_t y) const {
    const auto inputs = static_cast<std::size_t>(block.count * options_.inputs);
    const auto targets = static_cast<std::size_t>(block.count * options_.targets);
    if (x < inputs || y < targets)
      throw config_error("heddle: " + std::to_string(block.count) + " samples need room for " + std::to_string(inputs) +
                         " inputs and " + std::to_string(targets) + " targets, got " + std::to_string(x) + " and " +
                         std::to_string(y));
  }
  template <class A, class B>
  void copy(std::int64_t from, std::int64_t to, std::span<A> x, std::span<B> y) const {
    const auto convert = [&]<class From, class To>(std::span<const From> values, std::span<To> out, std::int64_t n) {
      std::transform(values.data() + from * n, values.data() + (from + 1) * n, out.data() + to * n,
                     [](From value) { return static_cast<To>(value); });
    };
    convert(x_, x, options_.inputs);
    convert(y_, y, options_.targets);
  }

  std::span<const X> x_;
  std::span<const Y> y_;
  pair_options options_;
  std::int64_t samples_ = 0, held_out_ = 0;
};

// Of ranges that live on: a temporary vector does not compile.
template <std::ranges::borrowed_range XRange, std::ranges::borrowed_range YRange>
pairs(XRange&&, YRange&&, pair_options)
    -> pairs<std::ranges::range_value_t<XRange>, std::ranges::range_value_t<YRange>>;

}  // namespace heddle::inline v0::io
