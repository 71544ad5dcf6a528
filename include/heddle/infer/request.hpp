// heddle/infer/request.hpp: a request: prompt, sampling, and the errors of requests.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Number of a request in its engine: 1, 2, ... in the order of `submit`.
using request_id = std::uint64_t;

/// How a request's tokens are drawn; the order in which the members apply is that of `token_sampler`. The defaults draw from the
/// model's own distribution.
struct sampling_options {
  double temperature = 1;         ///< logits are divided by it; 0 takes the likeliest token, the first of equals
  std::int64_t top_k = 0;         ///< only this many of the likeliest tokens; 0: all
  double top_p = 1;               ///< only the likeliest tokens that reach this probability together
  double min_p = 0;               ///< only tokens with at least this part of the likeliest token's probability
  double repetition_penalty = 1;  ///< divides positive and multiplies negative logits of tokens of prompt and answer
  double frequency_penalty = 0;   ///< taken from a token's logit once for each time that the answer has it
  double presence_penalty = 0;    ///< taken from the logit of each token that the answer has
  std::optional<std::uint64_t> seed{};  ///< none: one that follows from the engine's seed and the request's number
  friend bool operator==(const sampling_options&, const sampling_options&) = default;
};

/// Constrains an answer: called for each token that is to be drawn with the answer's tokens so far; sets the logits of tokens that must
/// not follow to minus infinity. Shapes: logits [vocabulary]. It should depend on its arguments alone. What it throws ends the request.
using logits_mask = std::function<void(std::span<const std::int32_t> answer, std::span<double> logits)>;

/// Whose log-probabilities: `model`, softmax of the model's own logits; `drawn`, the distribution that the token is drawn from, behind penalties, mask,
/// temperature and filters, of the tokens that are left (temperature 0: of the likeliest alone).
enum class log_probability_of { model, drawn };

/// What an engine is asked to do: continue a prompt.
struct request {
  std::vector<std::int32_t> prompt{};  ///< token ids, at least one
  std::int64_t max_tokens = 16;        ///< of the answer, which also ends where the context does
  sampling_options sampling{};
  /// None: no log-probabilities. n: that of each token drawn, and of the n likeliest tokens at its place.
  std::optional<std::int64_t> log_probabilities{};
  log_probability_of log_probabilities_of = log_probability_of::model;
  std::vector<std::int32_t> stop_tokens{};  ///< end the answer, beside the engine's own end tokens
  bool ignore_end_tokens = false;           ///< the engine's own end tokens (EOS) do not end the answer
  logits_mask mask{};
};

/// A request that cannot be served as it is. `field()` names its member.
class request_error : public config_error {
 public:
  request_error(std::string field, const std::string& what)
      : config_error("heddle: a request's " + field + ": " + what), field_(std::move(field)) {}
  const std::string& field() const noexcept { return field_; }

 private:
  std::string field_;
};

/// A prompt that leaves no room for an answer. Units: tokens.
class context_error : public request_error {
 public:
  context_error(std::int64_t prompt_tokens, std::int64_t context)
      : request_error("prompt", "it has " + std::to_string(prompt_tokens) +
                                    " tokens, a prompt and its answer have at most " + std::to_string(context) +
                                    " together"),
        prompt_tokens_(prompt_tokens),
        context_(context) {}
  std::int64_t prompt_tokens() const noexcept { return prompt_tokens_; }
  /// Most tokens of prompt and answer together.
  std::int64_t context() const noexcept { return context_; }

 private:
  std::int64_t prompt_tokens_;
  std::int64_t context_;
};

/// As many requests wait as may wait; a later try may succeed.
struct queue_full_error : error {
  using error::error;
};

/// Checks a request against a model's vocabulary and the most tokens that prompt and answer may have together.
/// Errors: `context_error` for a prompt that leaves no room for an answer, `request_error` for any other member out of its range.
void require_request(const request& r, std::int64_t vocabulary, std::int64_t context);

}  // namespace heddle::inline v0::infer

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/infer/impl/request.hpp>
#endif
