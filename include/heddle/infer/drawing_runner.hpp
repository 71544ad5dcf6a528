// heddle/infer/drawing_runner.hpp: runners that draw tokens, and what engines get of a step.
#pragma once

#include <heddle/compute/token_draws.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/sampling.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace heddle::inline v0::infer {

/// A `step_runner` that may draw tokens itself. `draws()`: whether it does. `logits_memory(n)`: its own memory of the host for n logits, valid until the next call, to which they come
/// without a copy on the way; empty if it has none. `run(step, logits, draws, drawn)`: as `run`; logits of the rows that `draws` names (of the wanted ones, ascending)
/// are not written: their tokens come to `drawn`; `logits` may be empty where it names all of them. Errors: `config_error` for draws where it draws none.
template <class R>
concept drawing_runner =
    step_runner<R> && requires(R& runner, const R& that, const step& s, std::span<typename R::scalar> logits,
                               std::span<const compute::token_draw> draws, std::span<compute::token_drawn> drawn) {
      { that.draws() } -> std::same_as<bool>;
      { runner.logits_memory(std::size_t{}) } -> std::same_as<std::span<typename R::scalar>>;
      runner.run(s, logits, draws, drawn);
    };

/// Whether a runner that draws tokens draws those of a request. The host's sampler draws where the request has a mask, penalties, or asks for the log-probabilities of other tokens
/// or of what filters leave.
inline bool is_drawn_by_runner(const request& r) {
  const sampling_options& s = r.sampling;
  const bool whole = s.temperature > 0 && s.top_k == 0 && s.top_p == 1 && s.min_p == 0;
  return !r.mask && !has_penalties(s) && r.log_probabilities.value_or(0) == 0 &&
         (!r.log_probabilities || r.log_probabilities_of == log_probability_of::model || whole);
}

/// What comes of a step: the logits of its wanted rows, in memory of the runner's or its own, and the tokens that the runner drew in place of logits.
template <logit T>
class step_results {
 public:
  void clear() {
    draws_.clear();
    drawn_.clear();
  }
  /// The tokens of `rows` wanted rows from `row` on are those of a request from `position` on: the runner draws them if it can.
  template <step_runner Runner>
  void ask(const Runner& runner, std::size_t row, const request& r, std::uint64_t seed, std::int64_t position,
           std::int64_t rows) {
    if constexpr (drawing_runner<Runner>) {
      if (!runner.draws() || !is_drawn_by_runner(r)) return;
      for (std::int64_t i = 0; i < rows; ++i)
        draws_.push_back({.temperature = r.sampling.temperature,
                          .top_p = r.sampling.top_p,
                          .min_p = r.sampling.min_p,
                          .uniform = drawing_number(seed, position + i),
                          .top_k = r.sampling.top_k,
                          .row = static_cast<std::int64_t>(row) + i,
                          .log_probability = r.log_probabilities.has_value(),
                          .log_probability_temperature =
                              r.log_probabilities_of == log_probability_of::drawn ? r.sampling.temperature : 1});
    }
  }
  /// Runs the step. The logits are valid until the next call. Errors: the runner's.
  template <step_runner Runner>
  std::span<const T> run(Runner& runner, const step& s, std::int64_t vocabulary) {
    const std::size_t n = s.wanted.size() * static_cast<std::size_t>(vocabulary);
    if constexpr (drawing_runner<Runner>) {
      std::span<T> there;
      if (draws_.empty() || draws_.size() < s.wanted.size()) {  // else all are drawn
        there = runner.logits_memory(n);
        if (there.empty()) there = own(n);
      }
      drawn_.resize(draws_.size());
      runner.run(s, there, std::span<const compute::token_draw>(draws_), std::span<compute::token_drawn>(drawn_));
      return there;
    } else {
      runner.run(s, own(n));
      return own_;
    }
  }
  /// The token of a wanted row, if the runner drew it. Errors: `numeric_error`, as the sampler's.
  std::optional<drawn_token> drawn(std::size_t row) const {
    const auto at = std::lower_bound(draws_.begin(), draws_.end(), static_cast<std::int64_t>(row),
                                     [](const compute::token_draw& d, std::int64_t r) { return d.row < r; });
    if (at == draws_.end() || at->row != static_cast<std::int64_t>(row)) return std::nullopt;
    const compute::token_drawn& d = drawn_[static_cast<std::size_t>(at - draws_.begin())];
    if (d.flaw == compute::token_flaw::not_a_number)
      token_sampler::not_a_number(static_cast<std::size_t>(d.token), d.log_probability);
    if (d.flaw == compute::token_flaw::nothing_left) token_sampler::nothing_left();
    drawn_token token{.token = d.token};
    if (at->log_probability) token.log_probability = d.log_probability;
    return token;
  }

 private:
  std::span<T> own(std::size_t n) {
    own_.resize(n);
    return own_;
  }
  std::vector<T> own_{};
  std::vector<compute::token_draw> draws_{};  // by row
  std::vector<compute::token_drawn> drawn_{};
};

}  // namespace heddle::inline v0::infer
