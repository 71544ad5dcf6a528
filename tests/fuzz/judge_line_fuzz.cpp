// Lines of judges: a reward is a number, and whatever else they print is a reason without control characters.
#if __has_include(<nlohmann/json.hpp>)
#include <heddle/rl/subprocess.hpp>

#include "fuzz.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

HEDDLE_FUZZ_TARGET(judge_line) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  fuzz::accepted([&] {
    const auto j = heddle::rl::judgement_of_line(line);
    fuzz::require(std::isfinite(j.reward), "a reward is finite");
    fuzz::require(j.missing.size() < 1000, "a reason is short");
    fuzz::require(std::none_of(j.missing.begin(), j.missing.end(), [](unsigned char c) { return c < 0x20; }),
                  "a reason has no control characters");
  });
}
#endif
