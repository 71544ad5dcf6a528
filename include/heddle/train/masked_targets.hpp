// heddle/train/masked_targets.hpp: data for masked models: random masks, trajectories.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/dataset.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// A data set whose tokens are masked, each with the probability p of its sample, and whose targets are the tokens that
/// were there; elsewhere targets are ignored (-100).
/// p = (1 - least) t + least, t uniform in [0, 1), both by counter: they depend on the seed and the sample's number in
/// the global order alone, so that any mesh has the same masks.
/// `shifted`: the row of a token predicts the one behind it (Dream); the first token of a sample is then never a
/// target. `numbers`: of each target; of a model whose rows have several, such as
/// `rl::numbers_of_row` of an `rl::policy`, every row is a target with the weight 1 / p in the last number, 0 where
/// there is no mask, so that the mean over all tokens is LLaDA's loss.
/// Errors: its functions that fill throw `config_error` for a mask below 0, `least` outside (0, 1], `numbers` below 1
/// and targets that have no room.
/// Source: Nie et al. 2025, arXiv:2502.09992, equation 3 and algorithm 1 (least = 1e-3).
template <class Dataset>
struct masked_targets {
  const Dataset* data;
  std::int32_t mask_token;
  std::uint64_t seed = 0;
  bool shifted = false;
  int numbers = 1;
  double least = 1e-3;

  std::int64_t context() const { return data->context(); }
  std::int64_t validation_samples() const { return data->validation_samples(); }
  template <class Input, class Target>
  void fill_train(io::sample_block block, std::span<Input> tokens, std::span<Target> targets) const {
    std::vector<Target> next(static_cast<std::size_t>(block.count * context()));
    data->fill_train(block, tokens, std::span<Target>(next));
    mask(block, 2 * seed, tokens, targets);
  }
  template <class Input, class Target>
  void fill_validation(io::sample_block block, std::span<Input> tokens, std::span<Target> targets) const {
    std::vector<Target> next(static_cast<std::size_t>(block.count * context()));
    data->fill_validation(block, tokens, std::span<Target>(next));
    mask(block, 2 * seed + 1, tokens, targets);
  }

 private:
  template <class Input, class Target>
  void mask(io::sample_block block, std::uint64_t stream, std::span<Input> tokens, std::span<Target> targets) const {
    const auto n = static_cast<std::size_t>(context()), count = static_cast<std::size_t>(block.count);
    if (mask_token < 0 || numbers < 1 || !(least > 0 && least <= 1))
      throw config_error(
          "heddle: masked_targets: the mask should be at least 0, numbers at least 1, least in (0, 1]; got " +
          std::to_string(mask_token) + ", " + std::to_string(numbers) + " and " + number_text(least));
    const std::size_t of_sample = n * static_cast<std::size_t>(numbers);
    if (targets.size() < count * of_sample)
      throw config_error("heddle: masked_targets: " + std::to_string(block.count) + " samples have " +
                         std::to_string(count * of_sample) + " numbers of targets, got room for " +
                         std::to_string(targets.size()));
    for (std::size_t s = 0; s < count; ++s) {
      const counter_random random(stream, static_cast<std::uint64_t>(block.first) + s);
      const double p = (1 - least) * random.uniform(0) + least;
      const std::span<Input> in = tokens.subspan(s * n, n);
      const std::span<Target> to = targets.subspan(s * of_sample, of_sample);
      for (Target& t : to) t = Target(0);
      for (std::size_t i = 0; i < n; ++i) to[i] = Target(-100);
      for (std::size_t i = 0; i < n; ++i) {
        const bool is_mask = random.uniform(1 + i) < p;
        if (!shifted || i > 0) put(to, n, i - (shifted ? 1 : 0), static_cast<Target>(in[i]), is_mask, p);
        if (is_mask) in[i] = static_cast<Input>(mask_token);
      }
    }
  }
  template <class Target>
  void put(std::span<Target> to, std::size_t n, std::size_t row, Target token, bool is_mask, double p) const {
    if (numbers == 1) {
      if (is_mask) to[row] = token;
      return;
    }
    to[row] = token;
    if constexpr (sizeof(Target) == sizeof(float))
      to[static_cast<std::size_t>(numbers - 1) * n + row] =
          std::bit_cast<Target>(is_mask ? static_cast<float>(1 / p) : 0.0f);
  }
};
template <class Dataset>
masked_targets(const Dataset*, std::int32_t) -> masked_targets<Dataset>;

/// A text, and of each of its tokens the step of decoding that committed it: 0 for those of the prompt, then 1, 2, ...
struct trajectory {
  std::vector<std::int32_t> tokens{};
  std::vector<std::int32_t> steps{};
};

/// Samples of recorded trajectories, as a data set: of a text that step i has left the tokens that a later step j
/// commits are targets, so that the model learns to make several steps at once. For each sample i and j > i are drawn
/// by
/// counter. Tokens of steps up to i are there, the others are masks; targets are the tokens of steps i + 1 to j, the
/// others are ignored. Texts shorter than the context end in masks that nothing is learned from.
/// Errors: its functions that fill throw `config_error` for no trajectories, and for one that has other numbers of
/// tokens and steps, no step after the prompt, more tokens than the context, or a token or step below 0.
/// Source: trajectory distillation of dInfer, arXiv:2510.08666: L = -E sum over the positions k that are masked in s_i
/// and not in s_j of log p(s_j[k] | s_i).
struct trajectory_targets {
  std::span<const trajectory> texts;
  std::int64_t length = 0;  ///< the model's context
  std::int32_t mask_token = 0;
  std::uint64_t seed = 0;
  bool shifted = false;

  std::int64_t context() const noexcept { return length; }
  static constexpr std::int64_t validation_samples() noexcept { return 0; }
  template <class Input, class Target>
  void fill_train(io::sample_block block, std::span<Input> tokens, std::span<Target> targets) const {
    const auto n = static_cast<std::size_t>(length);
    if (texts.empty()) throw config_error("heddle: trajectory_targets: there should be at least one text, got none");
    for (std::size_t s = 0; s < static_cast<std::size_t>(block.count); ++s) {
      const counter_random random(seed, static_cast<std::uint64_t>(block.first) + s);
      const std::size_t number = random.integer(0) % texts.size();
      const trajectory& t = texts[number];
      const std::int32_t last = last_step(t, number);
      const auto from = static_cast<std::int32_t>(random.integer(1) % static_cast<std::uint64_t>(last));
      const auto to = from + 1 + static_cast<std::int32_t>(random.integer(2) % static_cast<std::uint64_t>(last - from));
      for (std::size_t i = 0; i < n; ++i) {
        tokens[s * n + i] = static_cast<Input>(mask_token);
        targets[s * n + i] = Target(-100);
      }
      for (std::size_t i = 0; i < t.tokens.size(); ++i) {
        if (t.steps[i] <= from) tokens[s * n + i] = static_cast<Input>(t.tokens[i]);
        if (t.steps[i] > from && t.steps[i] <= to && (!shifted || i > 0))
          targets[s * n + i - (shifted ? 1 : 0)] = static_cast<Target>(t.tokens[i]);
      }
    }
  }
  /// Nothing is held out.
  template <class Input, class Target>
  static void fill_validation(io::sample_block, std::span<Input>, std::span<Target>) noexcept {}

 private:
  std::int32_t last_step(const trajectory& t, std::size_t number) const {
    const auto refuse = [&](const std::string& what) {
      throw config_error("heddle: trajectory_targets: text " + std::to_string(number) + " " + what);
    };
    if (t.tokens.size() != t.steps.size())
      refuse("should have a step for each of its " + std::to_string(t.tokens.size()) + " tokens, got " +
             std::to_string(t.steps.size()));
    if (std::ssize(t.tokens) > length)
      refuse("should have at most " + std::to_string(length) + " tokens, the context, got " +
             std::to_string(t.tokens.size()));
    std::int32_t last = 0;
    for (std::size_t i = 0; i < t.tokens.size(); ++i) {
      if (t.tokens[i] < 0 || t.steps[i] < 0)
        refuse("has token " + std::to_string(t.tokens[i]) + " at step " + std::to_string(t.steps[i]) +
               ", which should be at least 0");
      if (t.steps[i] > last) last = t.steps[i];
    }
    if (last < 1) refuse("should have tokens of a step after the prompt's, step 0");
    return last;
  }
};

}  // namespace heddle::inline v0::train
