// heddle/infer/sampling.hpp: draws tokens from logits: penalties, mask, top-k, top-p, min-p.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/logit.hpp>
#include <heddle/infer/request.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace heddle::inline v0::infer {

/// How often the tokens of a prompt and of its answer occur, for penalties.
class token_counts {
 public:
  /// Counts of one token. `answer`: times in the answer; 0 for a token of the prompt alone.
  struct count {
    std::int64_t answer = 0;
  };
  void add_prompt(std::span<const std::int32_t> tokens) {
    for (const std::int32_t t : tokens) counts_.try_emplace(t);
  }
  void add_answer(std::int32_t token) { ++counts_[token].answer; }
  auto begin() const noexcept { return counts_.begin(); }
  auto end() const noexcept { return counts_.end(); }

 private:
  std::unordered_map<std::int32_t, count> counts_{};
};

/// Whether any penalty of `s` changes a logit, so that tokens must be counted.
constexpr bool has_penalties(const sampling_options& s) noexcept {
  return s.repetition_penalty != 1 || s.frequency_penalty != 0 || s.presence_penalty != 0;
}

/// Applies the penalties: to the logit l of each token of prompt and answer first l / r (l > 0) or l * r (l <= 0) with the repetition penalty r, then, to
/// tokens of the answer, l - frequency * times - presence.
/// Source: Keskar et al. 2019, "CTRL", arXiv:1909.05858, section 4.1; OpenAI's API reference, "frequency and presence penalties".
void apply_penalties(std::span<double> logits, const token_counts& counts, const sampling_options& s);

/// A token that was drawn; log-probabilities where they were asked for.
struct drawn_token {
  std::int32_t token = 0;
  std::optional<double> log_probability{};
  std::vector<token_probability> likeliest{};
};

/// The number in [0, 1) that the token at a position is drawn with.
constexpr double drawing_number(std::uint64_t seed, std::int64_t position) noexcept {
  constexpr std::uint64_t stream = 0x746f6b656e73u;  // of the counter-based numbers that tokens are drawn with
  return counter_random(seed, stream).uniform(static_cast<std::uint64_t>(position));
}

/// Draws tokens. In this order: penalties, mask, then the likeliest token (temperature 0), or temperature, top-k, top-p, min-p and a number
/// that depends on the seed and on the token's position alone, so that a token does not depend on what else an engine did.
/// The filters are those of Hugging Face's `generate`, in its order: top-k keeps the k largest logits; top-p keeps, of these, the likeliest
/// until their probability reaches p; min-p then drops those with less than p times the largest probability. Of equals the token with the
/// lower id counts as the likelier. Log-probabilities are those of the model's own logits, before all this, or of what is left after it, as the request says. Logits of 16 bits are those numbers in float.
/// Sources: Holtzman et al. 2020, arXiv:1904.09751 (top-p); Nguyen et al. 2024, arXiv:2407.01082 (min-p).
class token_sampler {
 public:
  /// The token at `position` (tokens of prompt and answer before it). Shapes: logits [vocabulary].
  /// Errors: `numeric_error` if a logit is NaN or plus infinity, or if no token is left; whatever the mask throws.
  template <logit T>
  drawn_token draw(std::span<const T> logits, const request& r, std::uint64_t seed, std::int64_t position,
                   std::span<const std::int32_t> answer, const token_counts& counts) {
    drawn_token drawn{.token = largest(logits)};
    const bool changed = has_penalties(r.sampling) || r.mask;
    if (r.log_probabilities || changed || r.sampling.temperature > 0) logits_.assign(logits.begin(), logits.end());
    double normalizer = 0;
    const bool of_model = r.log_probabilities && r.log_probabilities_of == log_probability_of::model;
    if (of_model) {
      const double top = logits_[static_cast<std::size_t>(drawn.token)];
      normalizer = top + std::log(weigh(top, 1));
      drawn.likeliest = likeliest(*r.log_probabilities);
    }
    if (changed) change(r, answer, counts);
    if (r.sampling.temperature > 0) {
      keep(r.sampling);
      drawn.token = pick(seed, position);
    } else if (changed) {
      drawn.token = largest(std::span<const double>(logits_));
    }
    if (of_model) {
      drawn.log_probability = static_cast<double>(logits[static_cast<std::size_t>(drawn.token)]) - normalizer;
      for (token_probability& t : drawn.likeliest) t.log_probability -= normalizer;
    } else if (r.log_probabilities) {
      add_drawn_from(*r.log_probabilities, r.sampling.temperature, drawn);
    }
    return drawn;
  }

  /// The distribution that `draw` draws from at a temperature above 0: the tokens that are left, with their log-probabilities. Errors: as of `draw`.
  template <logit T>
  std::vector<token_probability> candidates(std::span<const T> logits, const request& r,
                                            std::span<const std::int32_t> answer, const token_counts& counts) {
    largest(logits);
    logits_.assign(logits.begin(), logits.end());
    change(r, answer, counts);
    keep(r.sampling);
    return kept();
  }

  /// Throws what `draw` throws for a logit that is no number below infinity, and where no token is left. Errors: `numeric_error`, which this is.
  [[noreturn]] static void not_a_number(std::size_t token, double logit);
  [[noreturn]] static void nothing_left();

 private:
  // The first of the largest logits.
  template <class T>
  static std::int32_t largest(std::span<const T> logits) {
    using S = sum_of_type<T>;
    constexpr std::size_t lanes = 16;
    constexpr S infinity = std::numeric_limits<S>::infinity();
    std::array<S, lanes> top, odd{};
    top.fill(-infinity);
    std::size_t i = 0;
    for (; i + lanes <= logits.size(); i += lanes)
      for (std::size_t j = 0; j < lanes; ++j) {
        const S x = logits[i + j];
        top[j] = x > top[j] ? x : top[j];
        odd[j] += x - x;  // NaN unless x is finite
      }
    for (; i < logits.size(); ++i) {
      const S x = logits[i];
      top[0] = x > top[0] ? x : top[0];
      odd[0] += x - x;
    }
    S best = -infinity, any_odd = 0;
    for (std::size_t j = 0; j < lanes; ++j) {
      best = top[j] > best ? top[j] : best;
      any_odd += odd[j];
    }
    if (any_odd != 0)
      for (std::size_t j = 0; j < logits.size(); ++j)
        if (!(S{logits[j]} < infinity)) not_a_number(j, static_cast<double>(logits[j]));
    if (best == -infinity) nothing_left();
    return static_cast<std::int32_t>(std::find(logits.begin(), logits.end(), best) - logits.begin());
  }
  void change(const request& r, std::span<const std::int32_t> answer, const token_counts& counts);
  double weigh(double top,
               double temperature);  // weights exp((logit - top) / temperature) of all tokens, and their sum
  std::vector<token_probability> likeliest(std::int64_t n) const;  // the n largest logits
  void keep(const sampling_options& s);                            // weights of the tokens that the filters leave
  void keep_nucleus(double top, const sampling_options& s, double total);
  std::int32_t pick(std::uint64_t seed, std::int64_t position) const;
  std::vector<token_probability> kept() const;
  void add_drawn_from(std::int64_t n, double temperature, drawn_token& to) const;  // its log-probabilities
  std::int32_t token_at(std::size_t i) const { return tokens_.empty() ? static_cast<std::int32_t>(i) : tokens_[i]; }

  std::vector<double> logits_{};
  std::vector<double> weights_{};       // 0 for a token that is left out
  std::vector<std::int32_t> tokens_{};  // of the weights; empty: all, by id
};

}  // namespace heddle::inline v0::infer

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/infer/impl/sampling.hpp>
#endif
