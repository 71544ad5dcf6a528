// heddle/infer/handed_words.hpp: a handed-over request as words of 64 bits.
#pragma once

#include <heddle/infer/hand_over.hpp>
#include <heddle/infer/request.hpp>

#include <bit>
#include <cstdint>
#include <vector>

namespace heddle::inline v0::infer::detail {

inline void add_list(std::vector<std::int64_t>& to, const std::vector<std::int32_t>& all) {
  to.push_back(std::ssize(all));
  to.insert(to.end(), all.begin(), all.end());
}
inline std::vector<std::int32_t> list_in(const std::int64_t*& at) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(*at++));
  for (std::int32_t& x : all) x = static_cast<std::int32_t>(*at++);
  return all;
}

/// Its options, its text and its blocks; a mask is a function and stays behind.
inline void add_words(std::vector<std::int64_t>& to, const handed_sequence& h) {
  const sampling_options& s = h.asked.sampling;
  const auto number = [](double x) { return std::bit_cast<std::int64_t>(x); };
  to.insert(to.end(), {static_cast<std::int64_t>(h.id), static_cast<std::int64_t>(h.seed), h.computed,
                       h.cached_prompt_tokens, h.asked.max_tokens, h.asked.log_probabilities.value_or(-1),
                       static_cast<std::int64_t>(h.asked.log_probabilities_of), h.asked.ignore_end_tokens ? 1 : 0,
                       number(s.temperature), s.top_k, number(s.top_p), number(s.min_p), number(s.repetition_penalty),
                       number(s.frequency_penalty), number(s.presence_penalty), s.seed ? 1 : 0,
                       static_cast<std::int64_t>(s.seed.value_or(0))});
  for (const auto* list : {&h.asked.prompt, &h.asked.stop_tokens, &h.tokens, &h.blocks}) add_list(to, *list);
}
inline handed_sequence handed_in_words(const std::int64_t*& at) {
  handed_sequence h;
  sampling_options& s = h.asked.sampling;
  const auto number = [&] { return std::bit_cast<double>(*at++); };
  h.id = static_cast<request_id>(*at++);
  h.seed = static_cast<std::uint64_t>(*at++);
  h.computed = *at++;
  h.cached_prompt_tokens = *at++;
  h.asked.max_tokens = *at++;
  if (const std::int64_t n = *at++; n >= 0) h.asked.log_probabilities = n;
  h.asked.log_probabilities_of = static_cast<log_probability_of>(*at++);
  h.asked.ignore_end_tokens = *at++ != 0;
  s.temperature = number();
  s.top_k = *at++;
  s.top_p = number();
  s.min_p = number();
  s.repetition_penalty = number();
  s.frequency_penalty = number();
  s.presence_penalty = number();
  const bool seeded = *at++ != 0;
  const auto seed = static_cast<std::uint64_t>(*at++);
  if (seeded) s.seed = seed;
  for (auto* list : {&h.asked.prompt, &h.asked.stop_tokens, &h.tokens, &h.blocks}) *list = list_in(at);
  return h;
}

}  // namespace heddle::inline v0::infer::detail
