// The task: sets of numbers of some bits, drawn with repetition; the answer is the bits of the second smallest.
#pragma once

#include <heddle/core/random.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace second_minimum {

/// Sets one after the other. `one_hot` has two numbers per bit of an element: whether it is 0 and whether it is 1.
struct sets {
  int bits = 4;
  std::vector<std::int64_t> trees{0};
  std::vector<float> one_hot, answers;  // [elements, 2 bits], [sets, bits]
  std::int64_t elements() const { return trees.back(); }
  std::int64_t count() const { return static_cast<std::int64_t>(trees.size()) - 1; }
};

/// `count` sets of `least` to `most` elements, the same for the same seed and stream.
inline sets draw(int bits, std::int64_t count, int least, int most, std::uint64_t seed, std::uint64_t stream) {
  const heddle::counter_random random(seed, stream);
  std::uint64_t at = 0;
  sets all;
  all.bits = bits;
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

/// The sets of `all` at `chosen`, the elements of each in another order for every stream.
inline sets pick(const sets& all, std::span<const std::int64_t> chosen, std::uint64_t seed, std::uint64_t stream) {
  const heddle::counter_random random(seed, stream);
  std::uint64_t at = 0;
  sets some;
  some.bits = all.bits;
  std::vector<std::int64_t> order;
  for (const std::int64_t s : chosen) {
    const std::int64_t begin = all.trees[static_cast<std::size_t>(s)], end = all.trees[static_cast<std::size_t>(s) + 1];
    order.resize(static_cast<std::size_t>(end - begin));
    std::iota(order.begin(), order.end(), begin);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.integer(at++) % i]);
    for (const std::int64_t i : order) {
      const auto from = all.one_hot.begin() + i * 2 * all.bits;
      some.one_hot.insert(some.one_hot.end(), from, from + 2 * all.bits);
    }
    const auto answer = all.answers.begin() + s * all.bits;
    some.answers.insert(some.answers.end(), answer, answer + all.bits);
    some.trees.push_back(some.trees.back() + end - begin);
  }
  return some;
}

}  // namespace second_minimum
