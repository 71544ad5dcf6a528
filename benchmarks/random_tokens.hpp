// benchmarks/random_tokens.hpp: data sets of random tokens for benchmarks that train.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/io/dataset.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

/// Samples of `length` random tokens below `vocabulary`, the same ones whenever they are asked for; no held-out part. For those that do not look at the loss.
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

/// Random words, each with the one word that follows it, so that a loss has something to fall to.
struct paired_words {
  int sequence, vocabulary;
  struct block {
    std::int64_t first, count;
  };
  std::int64_t context() const { return sequence; }
  std::int64_t validation_samples() const { return 0; }
  void fill_train(block b, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    const heddle::counter_random random(1, 2);
    for (std::size_t i = 0; i < static_cast<std::size_t>(b.count * sequence); ++i) {
      tokens[i] = static_cast<std::int32_t>(random.integer(static_cast<std::uint64_t>(b.first * sequence) + i) %
                                            static_cast<std::uint64_t>(vocabulary));
      targets[i] = static_cast<std::int32_t>((std::int64_t{tokens[i]} * 7 + 3) % vocabulary);
    }
  }
  void fill_validation(block, std::span<std::int32_t>, std::span<std::int32_t>) const {}
};
