// heddle/infer/impl/sampling.hpp: penalties, filters and the draw of a token.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/infer/sampling.hpp>

#include <algorithm>

namespace heddle::inline v0::infer {

namespace detail {
// Stream of the counter-based numbers that tokens are drawn with.
inline constexpr std::uint64_t drawing_stream = 0x746f6b656e73u;

// Of equals the token with the lower id counts as the likelier.
inline bool likelier(const token_probability& a, const token_probability& b) noexcept {
  return a.log_probability != b.log_probability ? a.log_probability > b.log_probability : a.token < b.token;
}
inline bool less_likely(const token_probability& a, const token_probability& b) noexcept {
  return likelier(b, a);
}

// The likeliest that reach `top_p` of all together, the likeliest first. A heap gives them without sorting the rest.
inline std::vector<token_probability> nucleus(std::vector<token_probability> all, double top_p) {
  double total = 0;
  for (const token_probability& t : all) total += std::exp(t.log_probability);
  std::make_heap(all.begin(), all.end(), less_likely);
  std::vector<token_probability> kept;
  double sum = 0;
  for (auto end = all.end(); end != all.begin() && sum < top_p * total; --end) {
    std::pop_heap(all.begin(), end, less_likely);
    kept.push_back(*(end - 1));
    sum += std::exp(kept.back().log_probability);
  }
  return kept;
}
}  // namespace detail

HEDDLE_INLINE void apply_penalties(std::span<double> logits, const token_counts& counts, const sampling_options& s) {
  for (const auto& [token, count] : counts) {
    double& l = logits[static_cast<std::size_t>(token)];
    l = l > 0 ? l / s.repetition_penalty : l * s.repetition_penalty;
    if (count.answer > 0) l -= s.frequency_penalty * static_cast<double>(count.answer) + s.presence_penalty;
  }
}

HEDDLE_INLINE void token_sampler::not_a_number(std::size_t token, double logit) {
  throw numeric_error("heddle: the logit of token " + std::to_string(token) +
                      " should be a number below infinity, got " + std::to_string(logit));
}
HEDDLE_INLINE void token_sampler::nothing_left() {
  throw numeric_error("heddle: every logit is minus infinity: no token may follow");
}

HEDDLE_INLINE void token_sampler::change(const request& r, std::span<const std::int32_t> answer,
                                         const token_counts& counts) {
  if (has_penalties(r.sampling)) apply_penalties(scratch_, counts, r.sampling);
  if (r.mask) r.mask(answer, scratch_);
}

HEDDLE_INLINE double token_sampler::log_sum() const {
  const double top = *std::max_element(scratch_.begin(), scratch_.end());
  double sum = 0;
  for (const double l : scratch_) sum += std::exp(l - top);
  return top + std::log(sum);
}

HEDDLE_INLINE std::vector<token_probability> token_sampler::likeliest(std::int64_t n) const {
  std::vector<token_probability> all;
  if (n == 0) return all;
  all.reserve(scratch_.size());
  for (std::size_t i = 0; i < scratch_.size(); ++i) all.push_back({static_cast<std::int32_t>(i), scratch_[i]});
  const auto kept = static_cast<std::size_t>(n);
  std::partial_sort(all.begin(), all.begin() + n, all.end(), detail::likelier);
  all.resize(kept);
  return all;
}

HEDDLE_INLINE std::vector<token_probability> token_sampler::distribution(const sampling_options& s) {
  const double top = scratch_[static_cast<std::size_t>(largest(std::span<const double>(scratch_)))];
  std::vector<token_probability> left;
  left.reserve(scratch_.size());
  for (std::size_t i = 0; i < scratch_.size(); ++i)
    if (scratch_[i] > -std::numeric_limits<double>::infinity())
      left.push_back({static_cast<std::int32_t>(i), (scratch_[i] - top) / s.temperature});
  if (s.top_k > 0 && s.top_k < static_cast<std::int64_t>(left.size())) {
    std::nth_element(left.begin(), left.begin() + s.top_k, left.end(), detail::likelier);
    left.resize(static_cast<std::size_t>(s.top_k));
    std::sort(left.begin(), left.end(), detail::likelier);
  }
  if (s.top_p < 1) left = detail::nucleus(std::move(left), s.top_p);
  if (s.min_p > 0)
    std::erase_if(left, [&](const token_probability& t) { return std::exp(t.log_probability) < s.min_p; });
  return left;
}

HEDDLE_INLINE std::int32_t token_sampler::draw_from(const std::vector<token_probability>& from, std::uint64_t seed,
                                                    std::int64_t position) {
  double total = 0;
  for (const token_probability& t : from) total += std::exp(t.log_probability);
  const double uniform = counter_random(seed, detail::drawing_stream).uniform(static_cast<std::uint64_t>(position));
  double left = uniform * total;
  for (const token_probability& t : from) {
    left -= std::exp(t.log_probability);
    if (left < 0) return t.token;
  }
  return from.back().token;  // rounding
}

}  // namespace heddle::inline v0::infer
