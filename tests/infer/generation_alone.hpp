// tests/infer/generation_alone.hpp: texts that a runner continues without an engine: the prompt in one step, then a token in each, by the definition.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/infer/step.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace alone {

namespace inf = heddle::infer;

/// Logits behind a text in the widened type, whose first `known` tokens are in the cache.
template <class Runner>
std::vector<heddle::sum_of_type<typename Runner::scalar>> logits_behind(Runner& runner,
                                                                        const std::vector<std::int32_t>& text,
                                                                        std::int64_t known) {
  using T = typename Runner::scalar;
  const inf::step_limits limits = runner.limits();
  const std::int64_t length = std::ssize(text), blocks = (length + limits.block_rows - 1) / limits.block_rows;
  inf::step s{.tokens = {text.begin() + known, text.end()},
              .sequences = {{0, length - known, known, 0, blocks}},
              .wanted = {length - known - 1}};
  for (std::int64_t b = 0; b < blocks; ++b) s.blocks.push_back(static_cast<std::int32_t>(b));
  std::vector<T> found(static_cast<std::size_t>(limits.vocabulary));
  runner.run(s, std::span<T>(found));
  return {found.begin(), found.end()};
}

template <class L>
std::vector<double> log_probabilities(const std::vector<L>& logits) {
  double sum = 0;
  for (const L l : logits) sum += std::exp(static_cast<double>(l));
  std::vector<double> all;
  for (const L l : logits) all.push_back(static_cast<double>(l) - std::log(sum));
  return all;
}

/// The likeliest `tokens` tokens behind a prompt, of equals the lowest, with their log-probabilities.
template <class Runner>
std::pair<std::vector<std::int32_t>, std::vector<double>> generated(Runner& runner, std::vector<std::int32_t> text,
                                                                    std::int64_t tokens) {
  std::pair<std::vector<std::int32_t>, std::vector<double>> found;
  for (std::int64_t known = 0; tokens > 0; --tokens) {
    const auto logits = logits_behind(runner, text, known);
    std::size_t best = 0;
    for (std::size_t i = 1; i < logits.size(); ++i)
      if (logits[i] > logits[best]) best = i;
    known = std::ssize(text);
    text.push_back(static_cast<std::int32_t>(best));
    found.first.push_back(text.back());
    found.second.push_back(log_probabilities(logits)[best]);
  }
  return found;
}

}  // namespace alone
