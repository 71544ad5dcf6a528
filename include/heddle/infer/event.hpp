// heddle/infer/event.hpp: the events of an engine: tokens of requests, and how requests end.
#pragma once

#include <heddle/infer/finish_reason.hpp>
#include <heddle/infer/request.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace heddle::inline v0::infer {

/// A token and the natural logarithm of its probability.
struct token_probability {
  std::int32_t token = 0;
  double log_probability = 0;
  friend bool operator==(const token_probability&, const token_probability&) = default;
};

/// A token of a request, its end, or both. The last event of a request, and no other, has a `finish` that is not `none`.
struct event {
  request_id id = 0;
  std::optional<std::int32_t> token{};         ///< none: the request ended without a further one; a stop token is one
  std::int64_t index = 0;                      ///< of the token in the answer; without a token: tokens of the answer
  std::optional<double> log_probability{};     ///< of the token, where the request asks for it
  std::vector<token_probability> likeliest{};  ///< as many as the request asks for, the likeliest first
  finish_reason finish = finish_reason::none;
  std::string message{};                  ///< of an error
  std::int64_t cached_prompt_tokens = 0;  ///< tokens of the prompt that were found in the cache when the request began
  friend bool operator==(const event&, const event&) = default;
};

}  // namespace heddle::inline v0::infer
