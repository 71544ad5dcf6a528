// tests/train/small_dataset.hpp: a data set over a few tokens, of which some targets may be ignored.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/io/dataset.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace train_test {

/// `count` tokens below `words`, the same on every rank and in every run.
inline std::vector<std::uint8_t> noise(std::size_t count, int words) {
  const heddle::counter_random random(11, 3);
  std::vector<std::uint8_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<std::uint8_t>(random.integer(i) % static_cast<std::uint64_t>(words));
  return tokens;
}

class small_dataset {
 public:
  struct options {
    std::int64_t context = 0, batch = 0;
    std::int64_t ignore_every = 0;  // every so many targets is ignored; 0: none
    std::int64_t held_out = -1;     // not negative: validation samples that the data says it has
  };
  small_dataset(std::vector<std::uint8_t> tokens, const options& o)
      : o_(o),
        tokens_(std::move(tokens)),
        set_(std::span<const std::uint8_t>(tokens_),
             heddle::io::dataset_options{.context = o.context, .batch = o.batch, .validation = 0.2, .seed = 5}) {}
  small_dataset(const small_dataset&) = delete;  // the set refers to the tokens
  small_dataset& operator=(const small_dataset&) = delete;

  std::int64_t context() const { return o_.context; }
  std::int64_t validation_samples() const { return o_.held_out >= 0 ? o_.held_out : set_.validation_samples(); }
  void fill_train(heddle::io::sample_block block, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) const {
    set_.fill_train(block, tokens, targets);
    if (o_.ignore_every == 0) return;
    for (std::int64_t i = 0; i < block.count * o_.context; ++i)
      if ((block.first * o_.context + i) % o_.ignore_every == 0) targets[static_cast<std::size_t>(i)] = -100;
  }
  void fill_validation(heddle::io::sample_block block, std::span<std::int32_t> tokens,
                       std::span<std::int32_t> targets) const {
    set_.fill_validation(block, tokens, targets);
  }

 private:
  options o_;
  std::vector<std::uint8_t> tokens_;
  heddle::io::dataset set_;
};

}  // namespace train_test
