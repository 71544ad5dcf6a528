// Buffers of online training: their published figures, and what holds while threads put and get.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/train/online/received_steps.hpp>
#include <heddle/train/online/reservoir.hpp>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

using Catch::Matchers::Contains;

namespace online_buffers_test {
namespace {

namespace ht = heddle::train;
static_assert(ht::sample_buffer<ht::reservoir<int>> && ht::sample_buffer<ht::fifo<int>> &&
              ht::sample_buffer<ht::firo<int>>);

struct buffer_outcome {
  std::int64_t idle = 0, seen = 0, unseen = 0, never = 0;
  double mean = 0, deviation = 0, age = 0;
};
// A sample arrives each tick and `rho` are asked for; then what is left.
template <class Buffer>
buffer_outcome ticks(int rho, std::int64_t arrivals, std::uint64_t seed) {
  Buffer buffer({.capacity = 1000, .threshold = 200, .seed = seed});
  std::vector<int> draws(static_cast<std::size_t>(arrivals), 0);
  buffer_outcome o;
  for (std::int64_t i = 0; i < arrivals; ++i) {
    REQUIRE(buffer.put(static_cast<int>(i)));
    for (int k = 0; k < rho; ++k) {
      if (buffer.ready())
        ++draws[static_cast<std::size_t>(*buffer.get())];
      else
        ++o.idle;
    }
  }
  o.seen = buffer.counters().seen;
  o.unseen = buffer.counters().unseen;
  o.age = buffer.counters().mean_age();
  buffer.close();
  while (const auto x = buffer.get()) ++draws[static_cast<std::size_t>(*x)];
  CHECK_FALSE(buffer.put(1));
  CHECK_FALSE(buffer.ready());
  o.mean = std::accumulate(draws.begin(), draws.end(), 0.0) / static_cast<double>(arrivals);
  for (const int d : draws) {
    o.deviation += (d - o.mean) * (d - o.mean);
    o.never += d == 0;
  }
  o.deviation = std::sqrt(o.deviation / static_cast<double>(arrivals));
  CHECK(buffer.counters().mean_draws() == Approx(o.mean));
  return o;
}
// A simulation of 100 steps after another, 4 at a time; how many are in a batch of 32, in the second half.
template <class Buffer>
double simulations_in_batch(std::int64_t capacity, int rho) {
  Buffer buffer({.capacity = capacity, .threshold = capacity / 5, .seed = 9});
  std::vector<int> batch(32);
  double sum = 0, batches = 0, owed = 0;
  for (int i = 0; i < 40000; ++i) {
    // Steps of the running four arrive in turn.
    REQUIRE(buffer.put(i / 400 * 4 + i % 4));
    for (owed += rho; owed >= 32; owed -= 32) {
      if (!buffer.ready() || buffer.counters().seen + buffer.counters().unseen < 32) continue;
      REQUIRE(buffer.get(std::span(batch)) == 32);
      if (i >= 20000) {
        sum += static_cast<double>(std::set<int>(batch.begin(), batch.end()).size());
        ++batches;
      }
    }
  }
  return sum / batches;
}

}  // namespace

TEST_CASE("a reservoir has the published idle gets, draws and ages", "[train][online][published]") {
  constexpr std::uint64_t seed = 45;
  CAPTURE(seed);
  const std::array rho{1, 2, 4, 8};
  const std::array idle{200, 400, 800, 1600};
  const std::array mean{1.04, 2.03, 4.01, 7.97}, deviation{0.27, 1.46, 3.42, 7.36}, age{924., 719., 776., 851.};
  const std::array unseen{999., 499., 251., 120.};
  for (std::size_t i = 0; i < rho.size(); ++i) {
    CAPTURE(rho[i]);
    const buffer_outcome o = ticks<ht::reservoir<int>>(rho[i], 20000, seed);
    CHECK(o.idle == idle[i]);
    CHECK(o.mean == Approx(mean[i]).epsilon(0.03));
    CHECK(o.deviation == Approx(deviation[i]).epsilon(0.05));
    CHECK(o.age == Approx(age[i]).epsilon(0.05));
    CHECK(static_cast<double>(o.unseen) == Approx(unseen[i]).epsilon(0.12));
    CHECK((o.seen + o.unseen == 1000 && o.never == 0));
    const buffer_outcome in_order = ticks<ht::fifo<int>>(rho[i], 20000, seed),
                         at_random = ticks<ht::firo<int>>(rho[i], 20000, seed);
    CHECK((in_order.idle == (rho[i] - 1) * 20000 && at_random.idle == (rho[i] - 1) * 20000 + 200));
    CHECK((in_order.mean == 1 && in_order.deviation == 0 && at_random.mean == 1 && at_random.deviation == 0));
  }
}

TEST_CASE("batches of a reservoir mix simulations, those of a fifo do not", "[train][online][published]") {
  for (const int rho : {2, 4, 8}) {
    CAPTURE(rho);
    CHECK(std::abs(simulations_in_batch<ht::reservoir<int>>(4000, rho) - 26) <= 1);
    CHECK(std::abs(simulations_in_batch<ht::reservoir<int>>(1000, rho) - 17) <= 1);
  }
  CHECK(simulations_in_batch<ht::fifo<int>>(4000, 1) < 5);
}

TEST_CASE("draws are uniform over the buffer, and a batch has no sample twice", "[train][online][law]") {
  ht::reservoir<int> buffer({.capacity = 100, .threshold = 10, .seed = 4});
  for (int i = 0; i < 100; ++i) REQUIRE(buffer.put(i));
  std::vector<double> picks(100, 0);
  std::vector<int> batch(20);
  constexpr int batches = 5000;
  for (int b = 0; b < batches; ++b) {
    REQUIRE(buffer.get(std::span(batch)) == 20);
    REQUIRE(std::set<int>(batch.begin(), batch.end()).size() == 20);
    for (const int x : batch) ++picks[static_cast<std::size_t>(x)];
  }
  double chi = 0;
  const double expected = batches * 20 / 100.0;
  for (const double p : picks) chi += (p - expected) * (p - expected) / expected;
  CHECK(std::abs(chi - 99 * 0.8) < 4 * std::sqrt(2 * 99.0));  // draws without repetition: times (100 - 20) / 100
  std::vector<int> too_many(101);
  CHECK_THROWS_WITH(buffer.get(std::span(too_many)), Contains("a batch of 101 samples of a buffer of 100"));
  CHECK_THROWS_WITH(ht::fifo<int>({.capacity = 5, .threshold = 5}),
                    Contains("a buffer of 5 samples with a threshold of 5"));
  CHECK_THROWS_AS(ht::fifo<int>({.capacity = 0, .threshold = 0}), heddle::config_error);
}

namespace {
template <class Buffer>
void holds_under_threads() {
  Buffer buffer({.capacity = 64, .threshold = 16, .seed = 3});
  std::atomic<int> producing{2};
  std::vector<std::thread> producers;
  for (int p = 0; p < 2; ++p)
    producers.emplace_back([&, p] {
      for (int i = 0; i < 3000; ++i)
        if (!buffer.put(10000 * p + i)) std::abort();
      if (--producing == 0) buffer.close();
    });
  std::map<int, int> drawn;
  std::vector<int> batch(8);
  std::int64_t most = 0;
  while (const std::int64_t n = buffer.get(std::span(batch))) {
    for (std::int64_t i = 0; i < n; ++i) ++drawn[batch[static_cast<std::size_t>(i)]];
    const auto c = buffer.counters();
    most = std::max(most, c.seen + c.unseen);
  }
  for (std::thread& t : producers) t.join();
  CHECK(drawn.size() == 6000);
  CHECK(most <= 64);
  const ht::buffer_counters c = buffer.counters();
  CHECK((c.put == 6000 && c.seen + c.unseen == 0));
  CHECK((c.exposures[0] == 0 && std::accumulate(c.exposures.begin(), c.exposures.end(), std::int64_t{0}) == 6000));
}
}  // namespace

TEST_CASE("every sample is drawn, none is lost, and a buffer has never more than its capacity",
          "[train][online][law]") {
  holds_under_threads<ht::reservoir<int>>();
  holds_under_threads<ht::firo<int>>();
  holds_under_threads<ht::fifo<int>>();
}

TEST_CASE("steps that a simulation sends again are known", "[train][online]") {
  ht::received_steps steps;
  for (std::uint32_t s = 0; s < 3; ++s)
    for (std::uint32_t t = 0; t < 50; t += 2) CHECK(steps.insert(s, t));
  for (std::uint32_t t = 0; t < 50; ++t) CHECK(steps.insert(1, t) == (t % 2 == 1));
  CHECK((steps.count() == 100 && steps.again() == 25 && steps.simulations() == 3));
  // Steps that are far apart cost no memory between them.
  for (std::uint32_t s = 0; s < 2000; ++s) CHECK((steps.insert(s, (1u << 30) - 1) && !steps.insert(s, (1u << 30) - 1)));
}

}  // namespace online_buffers_test
