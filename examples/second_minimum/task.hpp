// The task: sets of numbers below 16, drawn with repetition; the answer is the four bits of the second smallest.
#pragma once

#include <heddle/core/random.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace second_minimum {

inline constexpr int bits = 4;

/// Sets one after the other. `one_hot` has 8 numbers per element: for each bit whether it is 0 and whether it is 1.
struct sets {
  std::vector<std::int64_t> trees{0};
  std::vector<float> one_hot, answers;  // [elements, 2 bits], [sets, bits]
  std::int64_t elements() const { return trees.back(); }
  std::int64_t count() const { return static_cast<std::int64_t>(trees.size()) - 1; }
};

/// `count` sets of `least` to `most` elements, the same for the same seed and stream.
inline sets draw(std::int64_t count, int least, int most, std::uint64_t seed, std::uint64_t stream) {
  const heddle::counter_random random(seed, stream);
  std::uint64_t at = 0;
  sets all;
  for (std::int64_t s = 0; s < count; ++s) {
    const int size = least + static_cast<int>(random.integer(at++) % static_cast<std::uint64_t>(most - least + 1));
    std::vector<int> values;
    for (int i = 0; i < size; ++i) {
      values.push_back(static_cast<int>(random.integer(at++) % (1U << bits)));
      for (int b = 0; b < bits; ++b)
        for (int v = 0; v < 2; ++v) all.one_hot.push_back((values.back() >> b & 1) == v ? 1.0f : 0.0f);
    }
    std::nth_element(values.begin(), values.begin() + 1, values.end());
    for (int b = 0; b < bits; ++b) all.answers.push_back(static_cast<float>(values[1] >> b & 1));
    all.trees.push_back(all.trees.back() + size);
  }
  return all;
}

}  // namespace second_minimum
