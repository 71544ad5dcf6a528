// heddle/rl/experience.hpp: answers as samples for a trainer of an rl::policy.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/rl/aggregate.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/rl/sample.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

/// The samples of one step, for `trainer.step` of an `rl::policy`: a `train::sample_source`. Samples of the step that
/// are not there are empty, and none of their tokens counts. A step without any token that counts is an error of the
/// trainer: ask `counted_tokens()` before. Numbers become floats. Shapes: `context` as the model's; a prompt and its
/// answer have at most context + 1 tokens.
class experience {
 public:
  /// `first`: the trainer's `samples_consumed()`, where the step's samples begin.
  /// Errors: `config_error` naming the sample and what does not fit.
  template <class Aggregate = aggregate::token_mean>
  experience(std::vector<sample> samples, std::int64_t context, std::int64_t first, const Aggregate& how = {})
      : samples_(std::move(samples)), context_(context), first_(first) {
    std::vector<double> own;
    double answers = 0;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      require_fitting(samples_[i], i);
      own.push_back(counted(samples_[i]));
      counted_ += own.back();
      if (own.back() > 0) ++answers;
    }
    for (const double n : own) factors_.push_back(n > 0 ? how.weight(n, answers, counted_) : 0);
  }

  std::int64_t context() const noexcept { return context_; }
  static constexpr std::int64_t validation_samples() noexcept { return 0; }
  /// Tokens that count, of all samples.
  double counted_tokens() const noexcept { return counted_; }
  const std::vector<sample>& samples() const noexcept { return samples_; }

  void fill_train(io::sample_block at, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    const auto n = static_cast<std::size_t>(context_);
    for (std::int64_t i = 0; i < at.count; ++i) {
      const auto of = static_cast<std::size_t>(i);
      fill(at.first + i - first_, inputs.subspan(of * n, n),
           targets.subspan(of * n * numbers_of_row, n * numbers_of_row));
    }
  }
  /// Nothing is held out.
  static void fill_validation(io::sample_block, std::span<std::int32_t>, std::span<std::int32_t>) noexcept {}

 private:
  static bool counts(const sample& s, std::size_t token) { return s.mask.empty() || s.mask[token]; }
  static double counted(const sample& s) {
    double n = 0;
    for (std::size_t t = 0; t < s.tokens.size(); ++t) n += counts(s, t) ? 1 : 0;
    return n;
  }
  void require_fitting(const sample& s, std::size_t index) const {
    const auto refuse = [&](const std::string& what) {
      throw config_error("heddle: rl::experience: sample " + std::to_string(index) + " " + what);
    };
    if (s.prompt.empty()) refuse("has no prompt, whose last token the first of the answer follows");
    const auto length = static_cast<std::int64_t>(s.prompt.size() + s.tokens.size());
    if (length > context_ + 1)
      refuse("has " + std::to_string(length) + " tokens; a context of " + std::to_string(context_) + " takes " +
             std::to_string(context_ + 1));
    const auto require = [&](std::size_t size, const char* what) {
      if (size != 0 && size != s.tokens.size())
        refuse("has " + std::to_string(s.tokens.size()) + " tokens in its answer, but " + std::to_string(size) + " " +
               what);
    };
    require(s.log_probabilities.size(), "log_probabilities");
    require(s.proximal.size(), "proximal log-probabilities");
    require(s.reference.size(), "reference log-probabilities");
    require(s.advantages.size(), "advantages");
    require(s.weights.size(), "weights");
    require(s.mask.size(), "numbers in its mask");
    for (const std::int32_t id : s.tokens)
      if (id < 0) refuse("has the token " + std::to_string(id) + " in its answer");
  }
  void fill(std::int64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    std::fill(inputs.begin(), inputs.end(), 0);
    std::fill(targets.begin(), targets.end(), 0);
    const std::size_t n = inputs.size();
    std::fill_n(targets.begin(), n, -1);
    if (index < 0 || index >= std::ssize(samples_)) return;
    const sample& s = samples_[static_cast<std::size_t>(index)];
    const std::size_t begin = s.prompt.size(), length = begin + s.tokens.size();
    for (std::size_t i = 0; i < (std::min)(n, length); ++i) inputs[i] = i < begin ? s.prompt[i] : s.tokens[i - begin];
    for (std::size_t t = 0; t < s.tokens.size(); ++t) {
      if (!counts(s, t)) continue;
      const std::size_t row = begin + t - 1;
      const auto of_token = [&](const std::vector<double>& v, double other) { return v.empty() ? other : v[t]; };
      const double behaviour = of_token(s.log_probabilities, 0);
      const double numbers[] = {of_token(s.advantages, s.advantage), behaviour, of_token(s.proximal, behaviour),
                                of_token(s.reference, 0),
                                of_token(s.weights, 1) * factors_[static_cast<std::size_t>(index)]};
      targets[row] = s.tokens[t];
      for (std::size_t c = 0; c < std::size(numbers); ++c)
        targets[(c + 1) * n + row] = std::bit_cast<std::int32_t>(static_cast<float>(numbers[c]));
    }
  }

  std::vector<sample> samples_;
  std::int64_t context_, first_;
  double counted_ = 0;
  std::vector<double> factors_{};
};

}  // namespace heddle::inline v0::rl
