// tests/train/random_tokens.hpp: samples of random tokens and targets, the same on every rank and in every run.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/io/dataset.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace train_test {

template <int Context, int Words, int HeldOut = 2>
struct random_tokens {
  std::int64_t context() const { return Context; }
  std::int64_t validation_samples() const { return HeldOut; }
  void fill_train(heddle::io::sample_block block, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) const {
    const heddle::counter_random random(11, 3);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto at = static_cast<std::uint64_t>(block.first * Context) + i;
      tokens[i] = static_cast<std::int32_t>(random.integer(2 * at) % Words);
      targets[i] = static_cast<std::int32_t>(random.integer(2 * at + 1) % Words);
    }
  }
  void fill_validation(heddle::io::sample_block block, std::span<std::int32_t> tokens,
                       std::span<std::int32_t> targets) const {
    fill_train({block.first + 1000, block.count}, tokens, targets);
  }
};

}  // namespace train_test
