// States of rollouts from numbers: what is accepted and written again is the same numbers.
#include <heddle/rl/words.hpp>

#include "fuzz.hpp"

#include <cstdint>
#include <cstring>
#include <vector>

HEDDLE_FUZZ_TARGET(rollout_words) {
  namespace rl = heddle::rl;
  std::vector<std::int64_t> words(size / sizeof(std::int64_t));
  if (!words.empty()) std::memcpy(words.data(), data, words.size() * sizeof(std::int64_t));
  fuzz::accepted([&] {
    const rl::rollout_state state = rl::rollout_state_of(words);
    fuzz::require(rl::to_words(state) == words, "a state is written as it was read");
  });
}
