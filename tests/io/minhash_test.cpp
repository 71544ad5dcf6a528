// Documents that resemble each other: how often they are found, and that ranks find the same ones together.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/tokens/candidate_pairs.hpp>
#include <heddle/io/tokens/minhash.hpp>
#include <heddle/mesh/parse.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

using Catch::Matchers::Contains;

namespace minhash_test {
namespace {

namespace hio = heddle::io;
struct ranks_axis {};
using minhash_mesh = heddle::mesh<heddle::axis<ranks_axis>>;

}  // namespace

TEST_CASE("sets of a known similarity become candidates as often as the formula says", "[io][tokens][law]") {
  constexpr std::uint64_t seed = 45;
  CAPTURE(seed);
  const hio::minhash_options settings{.bands = 20, .rows = 5, .seed = seed};
  CHECK(hio::candidate_probability(0.5, settings) == Approx(0.470).margin(5e-4));
  CHECK(hio::candidate_probability(0.8, settings) == Approx(0.9996).margin(5e-5));
  const hio::minhash hash(settings);
  constexpr int pairs = 3000;
  for (const double similarity : {0.5, 0.8}) {
    // Of 90 items, 45 and 72 in common.
    constexpr int all = 90;
    const int common = static_cast<int>(std::lround(similarity * all)), apart = (all - common) / 2;
    int found = 0;
    double alike = 0;
    for (std::uint64_t p = 0; p < pairs; ++p) {
      const heddle::counter_random random(seed, p + (similarity > 0.6 ? 1000000 : 0));
      std::vector<std::uint64_t> a, b;
      for (std::uint64_t i = 0; i < all; ++i) {
        const std::uint64_t x = random.integer(i);
        if (i < static_cast<std::uint64_t>(common + apart)) a.push_back(x);
        if (i < static_cast<std::uint64_t>(common) || i >= static_cast<std::uint64_t>(common + apart)) b.push_back(x);
      }
      const double jaccard = static_cast<double>(common) / all;
      REQUIRE(jaccard == similarity);
      const auto sa = hash.signature(a), sb = hash.signature(b);
      const auto ka = hash.keys(sa), kb = hash.keys(sb);
      bool any = false;
      for (std::size_t i = 0; i < ka.size(); ++i) any = any || ka[i] == kb[i];
      found += any;
      alike += hio::minhash::alike(sa, sb);
    }
    const double p = hio::candidate_probability(similarity, settings);
    CHECK(std::abs(found - pairs * p) <= std::max(3 * std::sqrt(pairs * p * (1 - p)), 3.0));
    CHECK(std::abs(alike / pairs - similarity) <= 3 * std::sqrt(similarity * (1 - similarity) / 100 / pairs));
  }
  CHECK_THROWS_AS(hio::minhash({.bands = 0}), heddle::config_error);
}

TEST_CASE("any number of ranks finds the same pairs, and keeps the first of those that are alike",
          "[io][tokens][ranks]") {
  // Documents of a chain: 0 and 3 share a key, 3 and 7, 2 and 5 two keys; 9 has one twice.
  std::vector<hio::document_key> keys{{11, 0}, {11, 3}, {40, 3}, {40, 7}, {5, 2},
                                      {5, 5},  {6, 2},  {6, 5},  {8, 9},  {8, 9}};
  const heddle::counter_random random(45, 2);
  for (std::uint64_t i = 0; i < 3000; ++i)
    keys.push_back(
        {1000 + random.integer(2 * i) % 2500, 10 + static_cast<std::int64_t>(random.integer(2 * i + 1) % 900)});
  // By definition.
  std::map<std::uint64_t, std::set<std::int64_t>> by_key;
  for (const auto& k : keys) by_key[k.key].insert(k.document);
  std::set<hio::document_pair> expected;
  for (const auto& [key, documents] : by_key)
    for (const std::int64_t d : documents)
      if (d != *documents.begin()) expected.insert({*documents.begin(), d});
  for (const int ranks : {1, 2, 3, 5, 8}) {
    std::mutex mutex;
    int same = 0;
    heddle::launch<heddle::threads>(minhash_mesh(ranks), [&](auto& world) {
      std::vector<hio::document_key> mine;
      for (std::size_t i = 0; i < keys.size(); ++i)
        if (static_cast<int>(i * 7 % 13) % world.size() == world.rank()) mine.push_back(keys[i]);
      const auto pairs = hio::candidate_pairs(world.template along<ranks_axis>(), mine);
      const std::lock_guard lock(mutex);
      same += std::equal(pairs.begin(), pairs.end(), expected.begin(), expected.end()) ? 1 : 0;
    });
    CHECK(same == ranks);
  }
  const std::array<hio::document_pair, 3> pairs{{{0, 3}, {3, 7}, {2, 5}}};
  const std::vector<bool> goes = hio::later_of_pairs(pairs, 9);
  CHECK(goes == std::vector<bool>{false, false, false, true, false, true, false, true, false});
}

TEST_CASE("texts of which little is changed are alike, others are not", "[io][tokens]") {
  const hio::minhash hash;
  std::vector<std::int32_t> a, b, c;
  for (std::int32_t i = 0; i < 400; ++i) a.push_back(i * i % 977);
  b = a;
  b[200] = 5000;
  for (std::int32_t i = 0; i < 400; ++i) c.push_back(i * 31 % 1009);
  const auto signature = [&](const std::vector<std::int32_t>& x) {
    return hash.signature(hio::token_shingles(std::span<const std::int32_t>(x)));
  };
  CHECK(hio::minhash::alike(signature(a), signature(a)) == 1);
  CHECK(hio::minhash::alike(signature(a), signature(b)) > 0.9);
  CHECK(hio::minhash::alike(signature(a), signature(c)) < 0.1);
  CHECK(hio::token_shingles(std::span<const std::int32_t>(a).first(3)).size() == 1);
  CHECK(hio::token_shingles(std::span<const std::int32_t>(a).first(0)).empty());
}

}  // namespace minhash_test
