// tests/rl/words_test.cpp: samples and states of rollouts come back from their numbers, and other numbers are refused.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/rl/words.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace hd = heddle;
namespace rl = heddle::rl;

namespace {

rl::rollout_state random_state(std::uint64_t seed) {
  const hd::counter_random random(seed, 8);
  std::uint64_t at = 0;
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random.integer(at++) % n); };
  const auto numbers = [&](std::int64_t n) {
    std::vector<double> x;
    while (n-- > 0) x.push_back(below(9) == 0 ? -std::numeric_limits<double>::infinity() : random.normal(at++));
    return x;
  };
  const auto tokens = [&](std::int64_t n) {
    std::vector<std::int32_t> x;
    while (n-- > 0) x.push_back(static_cast<std::int32_t>(below(1000)));
    return x;
  };
  rl::rollout_state s{.version = below(9), .wanted = below(9), .counts = {1, 2, 3, 4, 5, 6, below(100)}};
  for (std::int64_t n = below(3); n > 0; --n) s.prompts.push_back({below(50), tokens(below(5))});
  for (std::int64_t n = below(4); n > 0; --n) {
    auto& group = s.groups.emplace_back();
    for (std::int64_t k = below(4); k > 0; --k) {
      rl::sample& x = group.emplace_back();
      x.id = below(90), x.group = below(9), x.reward = random.normal(at++), x.advantage = random.normal(at++);
      x.finish = static_cast<hd::infer::finish_reason>(below(5));
      const std::int64_t length = below(6);
      x.prompt = tokens(below(4)), x.tokens = tokens(length), x.log_probabilities = numbers(length);
      if (below(2) == 0) x.proximal = numbers(length), x.reference = numbers(length);
      if (below(2) == 0) x.advantages = numbers(length), x.weights = numbers(length);
      for (std::int64_t i = 0; i < length; ++i) x.mask.push_back(below(2) == 0);
      for (std::int64_t i = below(3); i > 0; --i) x.segments.push_back({below(5), below(7)});
    }
  }
  return s;
}

}  // namespace

TEST_CASE("samples and states come back from their words, in any cut of them an error", "[rl][words]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const rl::rollout_state s = random_state(seed);
    const auto words = rl::to_words(s);
    CHECK(rl::rollout_state_of(words) == s);
    for (std::size_t n = 0; n < words.size(); ++n)
      CHECK_THROWS_AS(rl::rollout_state_of(std::span(words).first(n)), hd::config_error);
    const hd::counter_random random(seed, 9);
    for (std::uint64_t i = 0; i < 40; ++i) {  // other numbers: a state with those numbers, or an error
      auto other = words;
      other[random.integer(3 * i) % other.size()] = static_cast<std::int64_t>(random.integer(3 * i + 1) >> (random.integer(3 * i + 2) % 64));
      try {
        const auto read = rl::rollout_state_of(other);
        CHECK(rl::to_words(read) == other);
      } catch (const hd::config_error&) {
      }
    }
    std::vector<std::int64_t> several{7};
    for (const auto& group : s.groups) rl::append_words(several, group);
    std::span<const std::int64_t> left = std::span(several).subspan(1);
    for (const auto& group : s.groups) CHECK(rl::take_samples(left) == group);
    CHECK(left.empty());
  }
  CHECK_THROWS_WITH(rl::rollout_state_of(std::vector<std::int64_t>{1, 2}), Catch::Contains("end too early"));
  auto more = rl::to_words(rl::rollout_state{});
  more.push_back(0);
  CHECK_THROWS_WITH(rl::rollout_state_of(more), Catch::Contains("1 words follow"));
}
