// tests/plan/offload_amount_test.cpp: how much a store of some bandwidth is given: the worked table, and by definition.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/offload_amount.hpp>

#include <limits>
#include <vector>

namespace hd = heddle;
namespace pl = heddle::plan;

TEST_CASE("the worked table: 24 layers of 0.5 GB and 10 ms", "[plan][offload]") {
  const std::vector<pl::offload_scope> layers(24, {0.5e9, 0.010});
  const auto first = [&](double gb) { return pl::amount_to_offload(layers, gb * 1e9).first_kept; };
  CHECK(first(12.5) == 11);
  CHECK(first(25) == 17);
  CHECK(first(40) == 22);
  CHECK(first(50) == 24);
  CHECK(first(0) == 0);
  CHECK(first(std::numeric_limits<double>::infinity()) == 24);
  const auto a = pl::amount_to_offload(layers, 40e9);
  CHECK(a.bytes == 11e9);
  CHECK(a.kept_bytes == 1e9);
}

TEST_CASE("the amount is that of the rule, walked scope by scope", "[plan][offload][property]") {
  const std::uint64_t seed = 20;
  CAPTURE(seed);
  const hd::counter_random random(seed, 1);
  std::uint64_t at = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<pl::offload_scope> scopes(1 + random.integer(at++) % 20);
    for (auto& s : scopes) {
      s.bytes = static_cast<double>(1 + random.integer(at++) % 1000);
      s.seconds = static_cast<double>(1 + random.integer(at++) % 100);
    }
    double total = 0, forward = 0;
    for (const auto& s : scopes) total += s.bytes, forward += s.seconds;
    const double rate = total / forward * (0.05 + 0.01 * static_cast<double>(random.integer(at++) % 100));
    const std::size_t kept = pl::amount_to_offload(scopes, rate).first_kept;
    double bytes = 0, seconds = 0;
    for (std::size_t n = 0; n < scopes.size() && n <= kept; ++n) {
      const double window = 3 * forward - 2 * seconds;
      if (n < kept) CHECK(bytes + 2 * scopes[n].bytes < rate * window);
      if (n == kept) CHECK(bytes + 2 * scopes[n].bytes >= rate * window * (1 - 1e-6));
      const double needed = bytes + 2 * scopes[n].bytes;
      bytes += scopes[n].bytes;
      seconds += scopes[n].seconds;
      // The same, seen when the scope is saved and a store that has written all the time has the rest waiting.
      CHECK(bytes - rate * seconds - pl::most_waiting_bytes(scopes, n, rate) ==
            Approx(needed - rate * window).margin(1e-6 * rate * forward));
    }
    // A faster store is never given less.
    CHECK(pl::amount_to_offload(scopes, 2 * rate).first_kept >= kept);
  }
}

TEST_CASE("what is kept anyway, and what cannot be measured", "[plan][offload]") {
  // A scope without bytes is no reason to stop.
  const std::vector<pl::offload_scope> some{{10, 1}, {0, 1}, {10, 1}};
  CHECK(pl::amount_to_offload(some, 100).first_kept == 3);
  CHECK(pl::amount_to_offload({}, 1).first_kept == 0);
  CHECK(pl::needed_bytes_per_second(some, 0) == 20.0 / 9);
  CHECK_THROWS_AS(pl::needed_bytes_per_second(some, some.size()), hd::config_error);
  const std::vector<pl::offload_scope> bad{{-1, 1}};
  CHECK_THROWS_AS(pl::amount_to_offload(bad, 1), hd::config_error);
  CHECK_THROWS_AS(pl::amount_to_offload(some, std::numeric_limits<double>::quiet_NaN()), hd::config_error);
  // Scopes that take no time cannot hide anything.
  const std::vector<pl::offload_scope> quick{{10, 0}, {10, 0}};
  CHECK(pl::amount_to_offload(quick, 1e12).first_kept == 0);
  CHECK(pl::most_waiting_bytes(quick, 1, std::numeric_limits<double>::infinity()) == -10);
}

TEST_CASE("reads start two layers ahead, and earlier where they would be late", "[plan][offload]") {
  const std::vector<double> back(10, 20.0);
  const std::vector<double> fast(10, 20.0), slower(10, 21.0), slow(10, 40.0);
  CHECK(pl::read_now(9, 8, 2, 0, fast, back));
  CHECK(pl::read_now(9, 7, 2, 0, fast, back));
  CHECK_FALSE(pl::read_now(9, 6, 2, 0, fast, back));
  CHECK_FALSE(pl::read_now(9, 9, 2, 0, fast, back));
  CHECK(pl::read_now(9, 6, 2, 0, slow, back));        // eight reads of 40 do not fit into 9 x 20
  CHECK(pl::read_now(9, 6, 2, 35, slower, back));     // those before take too long
  CHECK_FALSE(pl::read_now(9, 6, 2, 0, slower, back));
  CHECK_FALSE(pl::read_now(9, 6, 2, 60, slow, back));  // late, but the reads last until the next backward begins
  CHECK_FALSE(pl::read_now(9, 2, 2, 0, slow, back));  // three reads of 40 in 8 x 20
}

TEST_CASE("bytes of a layer and the life of a drive", "[plan][offload]") {
  CHECK(pl::activation_bytes_per_layer(1024, 8, 8192, 64) == 34.0 * 1024 * 8 * 8192);
  CHECK(pl::activation_bytes_per_layer(1024, 8, 8192, 64, 1, false) ==
        1024.0 * 8 * 8192 * (34 + 5.0 * 64 * 1024 / 8192));
  CHECK(pl::activation_bytes_per_layer(1024, 8, 8192, 64, 2) == (10 + 12) * 1024.0 * 8 * 8192);
  CHECK(pl::drive_life_seconds(1e15, 1e10, 2) == 2e5);
}
