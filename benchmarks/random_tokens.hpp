// benchmarks/random_tokens.hpp: a data set of random tokens, for benchmarks that train and do not look at the loss.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/io/dataset.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

/// Samples of `length` random tokens below `vocabulary`, the same ones whenever they are asked for; no held-out part.
struct random_tokens {
  std::int64_t length = 128;
  std::int64_t vocabulary = 512;

  std::int64_t context() const { return length; }
  std::int64_t validation_samples() const { return 0; }
  void fill_train(heddle::io::sample_block block, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) const {
    const heddle::counter_random random(1, 3);
    const auto words = static_cast<std::uint64_t>(vocabulary);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto at = static_cast<std::uint64_t>(block.first * length) + i;
      tokens[i] = static_cast<std::int32_t>(random.integer(2 * at) % words);
      targets[i] = static_cast<std::int32_t>(random.integer(2 * at + 1) % words);
    }
  }
  void fill_validation(heddle::io::sample_block block, std::span<std::int32_t> tokens,
                       std::span<std::int32_t> targets) const {
    fill_train(block, tokens, targets);
  }
};
