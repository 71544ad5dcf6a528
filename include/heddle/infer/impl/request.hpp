// heddle/infer/impl/request.hpp: the checks of a request.
#pragma once

#include <heddle/infer/request.hpp>

#include <cmath>
#include <sstream>

namespace heddle::inline v0::infer {

namespace detail {
[[noreturn]] inline void request_value_error(const std::string& field, const std::string& expected, double got) {
  std::ostringstream text;
  text << "should be " << expected << ", got " << got;
  throw request_error(field, text.str());
}
inline void require_in_vocabulary(const std::string& field, std::span<const std::int32_t> tokens,
                                  std::int64_t vocabulary) {
  for (const std::int32_t t : tokens)
    if (t < 0 || t >= vocabulary)
      throw request_error(field,
                          "token " + std::to_string(t) + " is not in the vocabulary of " + std::to_string(vocabulary));
}
}  // namespace detail

HEDDLE_INLINE void require_request(const request& r, std::int64_t vocabulary, std::int64_t context) {
  using detail::request_value_error;
  if (r.prompt.empty()) throw request_error("prompt", "it should have at least one token, got none");
  const auto length = static_cast<std::int64_t>(r.prompt.size());
  if (length >= context) throw context_error(length, context);
  detail::require_in_vocabulary("prompt", r.prompt, vocabulary);
  detail::require_in_vocabulary("stop_tokens", r.stop_tokens, vocabulary);
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  if (r.max_tokens < 1) request_value_error("max_tokens", "at least 1", number(r.max_tokens));
  if (r.log_probabilities && (*r.log_probabilities < 0 || *r.log_probabilities > vocabulary))
    request_value_error("log_probabilities", "from 0 to the vocabulary's " + std::to_string(vocabulary),
                        number(*r.log_probabilities));
  const sampling_options& s = r.sampling;
  if (!std::isfinite(s.temperature) || s.temperature < 0)
    request_value_error("temperature", "a finite number of at least 0", s.temperature);
  if (s.top_k < 0) request_value_error("top_k", "at least 1, or 0 for all tokens", number(s.top_k));
  if (!(s.top_p > 0 && s.top_p <= 1)) request_value_error("top_p", "above 0 and at most 1", s.top_p);
  if (!(s.min_p >= 0 && s.min_p <= 1)) request_value_error("min_p", "from 0 to 1", s.min_p);
  if (!std::isfinite(s.repetition_penalty) || s.repetition_penalty <= 0)
    request_value_error("repetition_penalty", "a finite number above 0", s.repetition_penalty);
  if (!std::isfinite(s.frequency_penalty))
    request_value_error("frequency_penalty", "a finite number", s.frequency_penalty);
  if (!std::isfinite(s.presence_penalty))
    request_value_error("presence_penalty", "a finite number", s.presence_penalty);
}

}  // namespace heddle::inline v0::infer
