// tests/infer/greedy_tokens.hpp: tokens chosen greedily by a runner, step by step with its cache.
#pragma once

#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace infer_test {

using token_lists = std::vector<std::vector<std::int32_t>>;

/// Appends `count` tokens to every prompt: all prompts in one step, then a row of each in a step.
template <class Runner>
token_lists greedy_tokens(Runner& runner, const token_lists& prompts, std::size_t count) {
  const heddle::infer::step_limits limits = runner.limits();
  const auto words = static_cast<std::size_t>(limits.vocabulary);
  token_lists made(prompts.size());
  heddle::infer::step step;
  for (std::size_t s = 0; s < prompts.size(); ++s) {
    const auto rows = static_cast<std::int64_t>(prompts[s].size());
    const std::int64_t blocks = (rows + static_cast<std::int64_t>(count) + limits.block_rows - 1) / limits.block_rows;
    const auto first = static_cast<std::int64_t>(step.blocks.size());
    step.sequences.push_back({step.rows(), rows, 0, first, blocks});
    for (std::int64_t b = first; b < first + blocks; ++b) step.blocks.push_back(static_cast<std::int32_t>(b));
    step.tokens.insert(step.tokens.end(), prompts[s].begin(), prompts[s].end());
    step.wanted.push_back(step.rows() - 1);
  }
  std::vector<float> logits(prompts.size() * words);
  while (made[0].size() < count) {
    runner.run(step, logits);
    step.tokens.clear();
    step.wanted.clear();
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(s * words);
      const auto best = std::max_element(row, row + static_cast<std::ptrdiff_t>(words)) - row;
      made[s].push_back(static_cast<std::int32_t>(best));
      heddle::infer::sequence_rows& q = step.sequences[s];
      q = {static_cast<std::int64_t>(s), 1, q.position + q.rows, q.first_block, q.blocks};
      step.wanted.push_back(step.rows());
      step.tokens.push_back(made[s].back());
    }
  }
  return made;
}

}  // namespace infer_test
