// heddle/infer/impl/sampling.hpp: penalties, filters and the draw of a token.
#pragma once

#include <heddle/compute/host/math.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/sampling.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace heddle::inline v0::infer {

namespace detail {
// Of equals the token with the lower id counts as the likelier.
inline bool likelier(const token_probability& a, const token_probability& b) noexcept {
  return a.log_probability != b.log_probability ? a.log_probability > b.log_probability : a.token < b.token;
}
// The n largest of `logits`, the largest first.
inline std::vector<token_probability> largest_logits(std::span<const double> logits, std::size_t n) {
  std::vector<token_probability> kept;  // a heap, the smallest in front
  if (n == 0) return kept;
  kept.reserve(n);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (kept.size() == n) {
      if (!(logits[i] > kept.front().log_probability)) continue;
      std::pop_heap(kept.begin(), kept.end(), likelier);
      kept.pop_back();
    }
    kept.push_back({static_cast<std::int32_t>(i), logits[i]});
    std::push_heap(kept.begin(), kept.end(), likelier);
  }
  std::sort_heap(kept.begin(), kept.end(), likelier);
  return kept;
}
// Sum of numbers in eight parts, which compilers add at once.
inline double sum_of(std::span<const double> x) noexcept {
  std::array<double, 8> sum{};
  std::size_t i = 0;
  for (; i + 8 <= x.size(); i += 8)
    for (std::size_t j = 0; j < 8; ++j) sum[j] += x[i + j];
  for (; i < x.size(); ++i) sum[0] += x[i];
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
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
                      " should be a number below infinity, got " + number_text(logit));
}
HEDDLE_INLINE void token_sampler::nothing_left() {
  throw numeric_error("heddle: every logit is minus infinity: no token may follow");
}

HEDDLE_INLINE void token_sampler::change(const request& r, std::span<const std::int32_t> answer,
                                         const token_counts& counts) {
  if (has_penalties(r.sampling)) apply_penalties(logits_, counts, r.sampling);
  if (r.mask) r.mask(answer, logits_);
}

HEDDLE_INLINE double token_sampler::weigh(double top, double temperature) {
  constexpr std::size_t lanes = 8;
  tokens_.clear();
  weights_.resize((logits_.size() + lanes - 1) / lanes * lanes);
  std::array<double, lanes> in;
  for (std::size_t i = 0; i < logits_.size(); i += lanes) {
    for (std::size_t j = 0; j < lanes; ++j)
      in[j] = i + j < logits_.size() ? logits_[i + j] : -std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < lanes; ++j) weights_[i + j] = compute::detail::exp_lane((in[j] - top) / temperature);
  }
  return detail::sum_of(weights_);
}

HEDDLE_INLINE std::vector<token_probability> token_sampler::likeliest(std::int64_t n) const {
  return detail::largest_logits(logits_, static_cast<std::size_t>(n));
}

HEDDLE_INLINE void token_sampler::keep(const sampling_options& s) {
  const double top = logits_[static_cast<std::size_t>(largest(std::span<const double>(logits_)))];
  if (s.top_k > 0 && s.top_k < static_cast<std::int64_t>(logits_.size())) {
    const std::vector<token_probability> best = likeliest(s.top_k);
    tokens_.clear();
    weights_.clear();
    for (const token_probability& t : best) {
      tokens_.push_back(t.token);
      weights_.push_back(compute::detail::exp_lane((t.log_probability - top) / s.temperature));
    }
    const double enough = s.top_p * detail::sum_of(weights_);
    double before = 0;
    for (double& w : weights_) before += before < enough ? w : std::exchange(w, 0);
  } else {
    const double total = weigh(top, s.temperature);
    if (s.top_p < 1) keep_nucleus(top, s, total);
  }
  for (double& w : weights_) w = w < s.min_p ? 0 : w;  // the largest is 1
}

// The likeliest tokens that reach `top_p` of the total. Tokens are counted by how far their logit is below the largest, so that only those at
// the same distance as the last one must be sorted.
HEDDLE_INLINE void token_sampler::keep_nucleus(double top, const sampling_options& s, double total) {
  constexpr double per_unit = 16;
  constexpr std::size_t classes = 1024;
  const auto class_of = [&](std::size_t i) {
    const double distance = (top - logits_[i]) / s.temperature * per_unit;
    return distance < static_cast<double>(classes - 1) ? static_cast<std::size_t>(distance) : classes - 1;
  };
  std::array<double, classes> mass{};
  for (std::size_t i = 0; i < logits_.size(); ++i) mass[class_of(i)] += weights_[i];
  const double enough = s.top_p * total;
  std::size_t last = 0;
  double before = 0;
  while (last + 1 < classes && before + mass[last] < enough) before += mass[last++];
  std::vector<token_probability> there;
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    const std::size_t c = class_of(i);
    if (c == last) there.push_back({static_cast<std::int32_t>(i), logits_[i]});
    if (c > last) weights_[i] = 0;
  }
  std::sort(there.begin(), there.end(), detail::likelier);
  for (const token_probability& t : there) {
    double& w = weights_[static_cast<std::size_t>(t.token)];
    before += before < enough ? w : std::exchange(w, 0);
  }
}

HEDDLE_INLINE std::int32_t token_sampler::pick(std::uint64_t seed, std::int64_t position) const {
  constexpr std::size_t part = 256;
  const std::span<const double> all(weights_);
  const auto part_from = [&](std::size_t i) { return all.subspan(i, (std::min)(part, all.size() - i)); };
  double total = 0;
  for (std::size_t i = 0; i < all.size(); i += part) total += detail::sum_of(part_from(i));
  double left = total * drawing_number(seed, position);
  std::size_t begin = 0;  // of the part that the number falls into
  for (std::size_t i = 0; i < all.size(); i += part) {
    const double sum = detail::sum_of(part_from(i));
    if (sum == 0) continue;
    begin = i;
    if (left < sum) break;
    left -= sum;
  }
  std::size_t last = begin;  // where rounding leaves none, the last token of the part
  for (std::size_t i = begin; i < begin + part_from(begin).size(); ++i) {
    if (weights_[i] == 0) continue;
    last = i;
    left -= weights_[i];
    if (left < 0) break;
  }
  return token_at(last);
}

HEDDLE_INLINE std::vector<token_probability> token_sampler::kept() const {
  const double total = detail::sum_of(weights_);
  std::vector<token_probability> result;
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (weights_[i] > 0) result.push_back({token_at(i), std::log(weights_[i] / total)});
  return result;
}

HEDDLE_INLINE void token_sampler::add_drawn_from(std::int64_t n, double temperature, drawn_token& to) const {
  if (temperature == 0) {
    to.log_probability = 0;
    if (n > 0) to.likeliest = {{to.token, 0}};
    return;
  }
  // Weights are exp((logit - greatest) / temperature).
  const double greatest = *std::max_element(logits_.begin(), logits_.end());
  to.log_probability =
      (logits_[static_cast<std::size_t>(to.token)] - greatest) / temperature - std::log(detail::sum_of(weights_));
  if (n == 0) return;
  to.likeliest = kept();
  std::sort(to.likeliest.begin(), to.likeliest.end(), detail::likelier);
  if (std::ssize(to.likeliest) > n) to.likeliest.resize(static_cast<std::size_t>(n));
}

}  // namespace heddle::inline v0::infer
