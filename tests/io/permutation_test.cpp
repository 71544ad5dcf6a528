// The computed shuffle is a bijection for every size, looks random, and depends on seed and epoch.
#include "catch.hpp"

#include <heddle/io/permutation.hpp>

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace io = heddle::io;

TEST_CASE("the permutation is a bijection with its inverse, for every size up to 2000", "[io][permutation][law][exhaustive]") {
  STATIC_REQUIRE(io::permutation(10, 3).position_of(io::permutation(10, 3)(7)) == 7);
  std::int64_t wrong = 0;
  for (std::int64_t n = 1; n <= 2000; ++n) {
    const io::permutation p(n, 1234 + static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(n % 5));
    std::vector<bool> seen(static_cast<std::size_t>(n), false);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t x = p(i);
      if (x < 0 || x >= n || seen[static_cast<std::size_t>(x)] || p.position_of(x) != i) {
        ++wrong;
        continue;
      }
      seen[static_cast<std::size_t>(x)] = true;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("large sizes stay in range and invert", "[io][permutation]") {
  for (const std::int64_t n : {(std::int64_t{1} << 31) + 11, (std::int64_t{1} << 40) - 3, (std::int64_t{1} << 62) + 1,
                               std::int64_t{9223372036854775807}}) {
    const io::permutation p(n, 77, 3);
    std::set<std::int64_t> seen;
    bool good = true;
    for (std::int64_t i = 0; i < 2000; ++i) {
      const std::int64_t at = i % 2 == 0 ? i : n - 1 - i;
      const std::int64_t x = p(at);
      good = good && x >= 0 && x < n && p.position_of(x) == at && seen.insert(x).second;
    }
    CHECK(good);
  }
}

TEST_CASE("seed and epoch choose the order", "[io][permutation]") {
  const auto same = [](const io::permutation& a, const io::permutation& b) {
    int equal = 0;
    for (std::int64_t i = 0; i < 1000; ++i) equal += a(i) == b(i);
    return equal;
  };
  CHECK(same(io::permutation(1000, 1, 0), io::permutation(1000, 1, 0)) == 1000);
  CHECK(same(io::permutation(1000, 1, 0), io::permutation(1000, 1, 1)) < 10);
  CHECK(same(io::permutation(1000, 1, 0), io::permutation(1000, 2, 0)) < 10);
  CHECK_THROWS_AS(io::permutation(-1, 0), heddle::config_error);
  CHECK(io::permutation(1, 5)(0) == 0);
}

// Mean and spread of a chi-square statistic with k - 1 degrees of freedom: k - 1 and sqrt(2 (k - 1)).
TEST_CASE("positions and successive differences are uniform within three sigma", "[io][permutation][exhaustive]") {
  constexpr std::size_t bins = 64;
  const auto sigmas = [](const std::vector<double>& counts, double total) {
    double chi = 0.0;
    const double expected = total / static_cast<double>(counts.size());
    for (const double c : counts) chi += (c - expected) * (c - expected) / expected;
    const double degrees = static_cast<double>(counts.size()) - 1.0;
    return (chi - degrees) / std::sqrt(2.0 * degrees);
  };
  for (const std::int64_t n : {4096, 5000, 65537}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(n, seed);
      const io::permutation p(n, seed);
      std::vector<double> differences(bins, 0.0), pairs(bins, 0.0);
      for (std::int64_t i = 0; i + 1 < n; ++i) {
        const std::int64_t d = ((p(i + 1) - p(i)) % n + n) % n;  // uniform on 1..n-1
        differences[static_cast<std::size_t>((d - 1) * static_cast<std::int64_t>(bins) / (n - 1))] += 1.0;
        const auto cell = [n](std::int64_t x) { return static_cast<std::size_t>(x * 8 / n); };
        pairs[cell(i) * 8 + cell(p(i))] += 1.0;
      }
      // Bins whose widths differ by one element add less than a hundredth of a sigma here. Upper side only: counts of a
      // permutation vary less than independent draws.
      CHECK(sigmas(differences, static_cast<double>(n - 1)) < 3.0);
      CHECK(sigmas(pairs, static_cast<double>(n - 1)) < 3.0);
    }
  }
}

TEST_CASE("the orders of small sizes are all reached about equally", "[io][permutation]") {
  // n = 4: 24 orders over 4800 seeds, 200 each expected.
  std::vector<double> counts(256, 0.0);
  for (std::uint64_t seed = 0; seed < 4800; ++seed) {
    const io::permutation p(4, seed);
    std::size_t code = 0;
    for (std::int64_t i = 0; i < 4; ++i) code = code * 4 + static_cast<std::size_t>(p(i));
    counts[code] += 1.0;
  }
  int reached = 0;
  for (const double c : counts) reached += c > 0.0;
  // Rounds of a Feistel network on two bits are permutations of four elements of either sign.
  CHECK(reached == 24);
  for (const double c : counts) CHECK((c == 0.0 || (c > 100.0 && c < 320.0)));
}
