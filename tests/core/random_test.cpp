#include <heddle/core/random.hpp>

#include "catch.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>

using heddle::counter_random;
using heddle::philox4x32;

TEST_CASE("Philox gives the numbers its authors published", "[core]") {
  // The known answers of Random123's test file kat_vectors for philox4x32 with ten rounds.
  using words = std::array<std::uint32_t, 4>;
  STATIC_REQUIRE(philox4x32({0, 0, 0, 0}, {0, 0}) == words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  STATIC_REQUIRE(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
                 words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  STATIC_REQUIRE(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
                 words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a random number depends on its seed, stream and index only", "[core][law]") {
  STATIC_REQUIRE(counter_random(1, 2).integer(3) == counter_random(1, 2).integer(3));
  STATIC_REQUIRE(counter_random(1, 2).uniform(3) < 1.0);
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    for (std::uint64_t stream = 0; stream < 8; ++stream)
      for (std::uint64_t index = 0; index < 64; ++index) seen.insert(counter_random(seed, stream).integer(index));
  CHECK(seen.size() == 8 * 8 * 64);
  // The upper halves of seed, stream and index count.
  const std::uint64_t high = std::uint64_t{1} << 40;
  CHECK(counter_random(high, 0).integer(0) != counter_random(0, 0).integer(0));
  CHECK(counter_random(0, high).integer(0) != counter_random(0, 0).integer(0));
  CHECK(counter_random(0, 0).integer(high) != counter_random(0, 0).integer(0));
}

TEST_CASE("uniform and normal numbers have the moments of their distributions", "[core][property]") {
  const std::uint64_t seed = std::random_device{}();
  CAPTURE(seed);
  const counter_random random(seed, 7);
  constexpr int n = 100000;
  double uniform_sum = 0, uniform_squares = 0, normal_sum = 0, normal_squares = 0, normal_fourth = 0;
  bool in_range = true, finite = true;
  for (std::uint64_t i = 0; i < n; ++i) {
    const double u = random.uniform(i), z = random.normal(i);
    in_range = in_range && u >= 0 && u < 1;
    finite = finite && std::isfinite(z);
    uniform_sum += u;
    uniform_squares += u * u;
    normal_sum += z;
    normal_squares += z * z;
    normal_fourth += z * z * z * z;
  }
  CHECK(in_range);
  CHECK(finite);
  // Six standard deviations of each estimate: one false alarm in about 10^8 runs.
  CHECK(uniform_sum / n == Approx(0.5).margin(6 * std::sqrt(1.0 / 12 / n)));
  CHECK(uniform_squares / n == Approx(1.0 / 3).margin(6 * std::sqrt((0.2 - 1.0 / 9) / n)));
  CHECK(normal_sum / n == Approx(0).margin(6 * std::sqrt(1.0 / n)));
  CHECK(normal_squares / n == Approx(1).margin(6 * std::sqrt(2.0 / n)));
  CHECK(normal_fourth / n == Approx(3).margin(6 * std::sqrt(96.0 / n)));
}

TEST_CASE("random numbers that are drawn by rank, or with one stream for all, are told from those by element",
          "[core][law]") {
  // Eight elements on one rank, and on two ranks with four each. Numbers belong to elements: the cut does not matter.
  constexpr std::uint64_t elements = 8;
  const auto whole = [](std::uint64_t i) { return counter_random(5, 1).integer(i); };
  const auto drawn = [](std::uint64_t ranks, auto&& number) {
    std::set<std::uint64_t> seen;
    std::uint64_t equal = 0;
    for (std::uint64_t r = 0; r < ranks; ++r)
      for (std::uint64_t i = 0; i < elements / ranks; ++i) {
        const std::uint64_t n = number(r, i, ranks);
        seen.insert(n);
        if (n == counter_random(5, 1).integer(r * (elements / ranks) + i)) ++equal;
      }
    return std::array<std::uint64_t, 2>{seen.size(), equal};  // different ones, those of one rank
  };
  using pair = std::array<std::uint64_t, 2>;
  const auto by_element = [&](std::uint64_t r, std::uint64_t i, std::uint64_t ranks) {
    return whole(r * (elements / ranks) + i);
  };
  for (const std::uint64_t ranks : {1u, 2u, 4u, 8u}) CHECK(drawn(ranks, by_element) == pair{elements, elements});
  // Negative controls. One seed for all ranks, indices from 0 on each: halves are equal where they should differ.
  const auto one_seed = [&](std::uint64_t, std::uint64_t i, std::uint64_t) { return whole(i); };
  CHECK(drawn(2, one_seed) == pair{elements / 2, elements / 2});
  // A stream for each rank: all differ, but they are other numbers than those of one rank.
  const auto by_rank = [](std::uint64_t r, std::uint64_t i, std::uint64_t) {
    return counter_random(5, 100 + r).integer(i);
  };
  CHECK(drawn(2, by_rank) == pair{elements, 0});
}
