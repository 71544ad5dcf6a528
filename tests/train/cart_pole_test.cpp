// The cart with a pole against gymnasium's, the clipped objective against its definition, and what PPO learns.
#include "catch.hpp"

#include "cart_pole/ppo.hpp"
#include "number_given.hpp"

#include <heddle/comm/threads.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

TEST_CASE("cart_pole: 10,000 random steps equal gymnasium's", "[train][golden]") {
  std::uint64_t generator = 12345;  // as cart_pole_golden.py
  const auto draw = [&] {
    generator = generator * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(generator >> 11) / 9007199254740992.0;
  };
  const auto begin = [&] {
    cart_pole::state s{};
    for (double& e : s) e = 0.1 * draw() - 0.05;
    return s;
  };
  std::ifstream golden(HEDDLE_SOURCE_DIR "/tests/golden/cart_pole_golden.txt");
  int ended = 0, wanted_ended = 0;
  double total = 0, wanted_total = 0;
  REQUIRE(golden >> wanted_ended >> wanted_total);
  cart_pole::state s = begin();
  double worst = 0;
  for (int step = 0, place = 0; step < 10'000; ++step) {
    s = cart_pole::pushed(s, draw() < 0.5);
    for (const double e : s) total += (1 + place++ % 7) * e;
    if (step % 100 == 99)
      for (const double e : s) {
        double wanted = 0;
        REQUIRE(golden >> wanted);
        worst = (std::max)(worst, std::abs(e - wanted));
      }
    if (cart_pole::fallen(s)) {
      ++ended;
      s = begin();
    }
  }
  CHECK(worst < 1e-12);
  CHECK(ended == wanted_ended);
  CHECK(total == Approx(wanted_total).epsilon(1e-12));
}

TEST_CASE("cart_pole: the clipped objective has the gradient of its central differences", "[train]") {
  using f = cart_pole::clipped_objective;
  for (const double side : {-1.0, 1.0})
    for (const double advantage : {-1.5, 0.7})
      for (const double odds : {-2.0, -0.3, 0.4, 1.9}) {
        const double before = f::log_probability(0.35, side), h = 1e-6;
        const double difference =
            (f::value(odds + h, side, before, advantage) - f::value(odds - h, side, before, advantage)) / (2 * h);
        CHECK(f::gradient(odds, side, before, advantage)[0] == Approx(difference).margin(1e-8));
      }
}

TEST_CASE("cart_pole: a turn of PPO is the same on one rank and on two", "[train][ranks]") {
  std::array<cart_pole::outcome, 2> of;
  for (const int ranks : {1, 2})
    heddle::launch<heddle::threads>(heddle::mesh<heddle::axis<heddle::dp>>(ranks), [&](auto& world) {
      const auto o = cart_pole::train(world, {.most_steps = 1024, .epochs = 2});
      if (world.rank() == 0) of[static_cast<std::size_t>(ranks - 1)] = o;
    });
  CHECK(of[0].steps == 1024);
  CHECK(of[0].mean > 5);
  CHECK(of[0].mean == Approx(of[1].mean).epsilon(1e-12));
}

TEST_CASE("cart_pole: ranks without a whole number of environments, and too few steps, are refused", "[train][ranks]") {
  const auto refused = [](int ranks, const cart_pole::settings& of, const std::string& says) {
    CHECK_THROWS_WITH(heddle::launch<heddle::threads>(heddle::mesh<heddle::axis<heddle::dp>>(ranks),
                                                      [&](auto& world) { cart_pole::train(world, of); }),
                      Catch::Matchers::Contains("cart_pole: the " + says));
  };
  for (const int ranks : {3, 16})
    refused(ranks, {.most_steps = 1024},
            "8 environments must be a multiple of the ranks that play them, got " + std::to_string(ranks) + " ranks");
  refused(1, {.most_steps = 255}, "steps must be at least a turn of 256, got 255");
}

TEST_CASE("numbers of an example's command line are read whole and within their range", "[train]") {
  int whole = 7;
  double rate = 0.5;
  CHECK(number_given("test", "--ranks", "8", 1, 8, whole));
  CHECK(whole == 8);
  CHECK(number_given("test", "--rate", "1e-3", 1e-12, 1e12, rate));
  CHECK(rate == 1e-3);
  for (const char* wrong : {"x", "", "9", "0", "-1", "2x", "1.5", " 2", "99999999999"})
    CHECK_FALSE(number_given("test", "--ranks", wrong, 1, 8, whole));
  for (const char* wrong : {"x", "0", "nan", "inf", "1e400", "-1"})
    CHECK_FALSE(number_given("test", "--rate", wrong, 1e-12, 1e12, rate));
  CHECK(whole == 8);
  CHECK(rate == 1e-3);
}

TEST_CASE("cart_pole: PPO keeps the pole up for 475 of 500 steps within 200,000", "[train][ranks][slow]") {
  int solved = 0;
  for (const std::uint64_t seed : {1u, 2u, 3u, 4u, 5u})
    heddle::launch<heddle::threads>(heddle::mesh<heddle::axis<heddle::dp>>(2), [&](auto& world) {
      const auto o = cart_pole::train(world, {.seed = seed});
      if (world.rank() != 0) return;
      WARN("seed " << seed << ": " << o.mean << " after " << o.steps);
      solved += o.solved ? 1 : 0;
    });
  CHECK(solved >= 4);
}
