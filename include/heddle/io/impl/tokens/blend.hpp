// heddle/io/impl/tokens/blend.hpp: bodies of heddle/io/tokens/blend.hpp.
#pragma once

#include <heddle/io/tokens/blend.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::io {
namespace detail {

// numpy.sum of doubles: eight sums side by side of up to 128 numbers, halves of more.
inline double numpy_sum(std::span<const double> x) noexcept {
  const std::size_t n = x.size();
  if (n > 128) {
    const std::size_t half = n / 2 - n / 2 % 8;
    return numpy_sum(x.first(half)) + numpy_sum(x.subspan(half));
  }
  double sum = 0;
  std::size_t i = 0;
  if (n >= 8) {
    double r[8];
    for (std::size_t k = 0; k < 8; ++k) r[k] = x[k];
    for (i = 8; i + 8 <= n; i += 8)
      for (std::size_t k = 0; k < 8; ++k) r[k] += x[i + k];
    sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  }
  for (; i < n; ++i) sum += x[i];
  return sum;
}

}  // namespace detail

HEDDLE_INLINE blend::blend(std::span<const double> weights, std::int64_t samples)
    : weights_(weights.begin(), weights.end()), samples_(samples) {
  if (weights.empty() || samples < 0)
    throw config_error("heddle: a blend of " + std::to_string(weights.size()) + " corpora with " +
                       std::to_string(samples) + " samples; expected 1 corpus or more, and no negative number");
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (!(weights[i] >= 0) || !std::isfinite(weights[i]))
      throw config_error("heddle: weight " + std::to_string(i) + " of a blend is " + number_text(weights[i]) +
                         "; expected 0 or more");
  const double sum = detail::numpy_sum(weights_);
  if (sum == 0) throw config_error("heddle: all " + std::to_string(weights.size()) + " weights of a blend are 0");
  if (!std::isfinite(sum))
    throw config_error("heddle: the sum of the " + std::to_string(weights.size()) +
                       " weights of a blend is no finite number; expected weights of a sum below 1.8e308");
  for (double& w : weights_) w /= sum;
  std::vector<std::int64_t> taken(weights_.size(), 0);
  for (std::int64_t s = 0; s < samples_; ++s) {
    if (s % kept_every == 0) taken_.push_back(taken);
    next(s, taken);
  }
  taken_.push_back(std::move(taken));
}

HEDDLE_INLINE blend::place blend::next(std::int64_t sample, std::vector<std::int64_t>& taken) const noexcept {
  const double s = static_cast<double>((std::max)(sample, std::int64_t{1}));
  std::size_t best = 0;
  double most = 0;
  bool found = false;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    const volatile double due = weights_[i] * s;  // rounded: not fused with the difference, as in Megatron
    const double behind = due - static_cast<double>(taken[i]);
    if (found && !(behind > most)) continue;
    found = true;
    best = i;
    most = behind;
  }
  return {static_cast<std::int64_t>(best), taken[best]++};
}

HEDDLE_INLINE std::vector<std::int64_t> blend::taken_before(std::int64_t sample) const {
  std::vector<std::int64_t> taken = taken_[static_cast<std::size_t>(sample / kept_every)];
  for (std::int64_t s = sample / kept_every * kept_every; s < sample; ++s) next(s, taken);
  return taken;
}

HEDDLE_INLINE void blend::require(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0 || first + count > samples_)
    throw config_error("heddle: samples " + std::to_string(first) + " to " + std::to_string(first + count) +
                       " of a blend of " + std::to_string(samples_) + "; give it those of the whole run");
}

HEDDLE_INLINE blend::place blend::operator()(std::int64_t sample) const {
  require(sample, 1);
  std::vector<std::int64_t> taken = taken_before(sample);
  return next(sample, taken);
}

HEDDLE_INLINE std::string blend::text() const {
  std::string t = "blend of";
  for (std::size_t i = 0; i < weights_.size(); ++i) t += (i == 0 ? " " : ", ") + number_text(weights_[i]);
  return t + ", samples " + std::to_string(samples_);
}

}  // namespace heddle::inline v0::io
