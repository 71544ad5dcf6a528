// tests/train/buffer_pool_test.cpp: buffers that are lent are used again for the same size, and take no more than their limit.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/testing/checked_memory.hpp>
#include <heddle/train/buffer_pool.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

namespace hd = heddle;
using hd::testing::checked_memory;

}  // namespace

TEST_CASE("lent memory comes back to whoever wants as much", "[train][zero][memory]") {
  using memory = hd::train::buffer_pool<double>;
  hd::host_memory::queue queue;
  memory lent;
  lent.set_limit(8 * 30);
  auto a = lent.take(queue, 10, memory::contents::any, "a");
  auto b = lent.take(queue, 20, memory::contents::zeros, "b");
  CHECK(lent.lent_bytes() == 8 * 30);
  const double* const of_a = a.data();
  a[3] = 7;
  lent.give_back(std::move(a));
  CHECK(a.empty());
  CHECK(lent.lent_bytes() == 8 * 20);
  CHECK(lent.kept_bytes() == 8 * 10);
  a = lent.take(queue, 10, memory::contents::any, "a");
  CHECK(a.data() == of_a);
  CHECK(a[3] == 7);
  lent.give_back(std::move(a));
  a = lent.take(queue, 10, memory::contents::zeros, "a");
  CHECK(a.data() == of_a);
  CHECK(a[3] == 0);
  lent.give_back(std::move(a));
  // Another size: what is kept goes where both are more than the limit.
  auto c = lent.take(queue, 9, memory::contents::any, "c");
  CHECK(lent.kept_bytes() == 0);
  CHECK(lent.lent_bytes() == 8 * 29);
  CHECK(lent.peak_bytes() == 8 * 30);
  // What is lent may be more; then nothing is kept until it is less.
  auto d = lent.take(queue, 40, memory::contents::any, "d");
  CHECK(lent.peak_bytes() == 8 * 69);
  lent.give_back(std::move(d));
  CHECK(lent.kept_bytes() == 0);
  lent.give_back(std::move(b));
  lent.give_back(std::move(c));
  CHECK(lent.kept_bytes() == 8 * 29);
  lent.release_kept();
  CHECK(lent.kept_bytes() == 0);
  CHECK(lent.lent_bytes() == 0);
}

TEST_CASE("where there is no memory to lend, the error says what is lent and what was predicted",
          "[train][zero][memory]") {
  using memory = hd::train::buffer_pool<double, checked_memory>;
  constexpr std::int64_t too_many = std::int64_t{1} << 50;
  checked_memory::queue queue;
  memory lent;
  CHECK_THROWS_WITH(lent.take(queue, too_many, memory::contents::any, "weights"),
                    Catch::Contains("heddle: no memory for weights: 1125899906842624 elements of 8 bytes") &&
                        Catch::Contains("; 0 bytes are lent and 0 kept for later") && !Catch::Contains("predicted"));
  lent.set_limit(8 * 30);
  auto a = lent.take(queue, 10, memory::contents::any, "a"), b = lent.take(queue, 5, memory::contents::any, "b");
  CHECK_THROWS_AS(lent.take(queue, too_many, memory::contents::any, "weights"), hd::memory_error);
  CHECK_THROWS_WITH(
      lent.take(queue, too_many, memory::contents::any, "weights"),
      Catch::Contains(
          "; 120 bytes are lent and 0 kept for later, and the strategy predicted at most 240 of both on this rank"));
  CHECK(lent.lent_bytes() == 120);
  lent.give_back(std::move(a));
  lent.give_back(std::move(b));
  CHECK(lent.kept_bytes() == 120);
}

TEST_CASE("a host that is ahead of its queue takes no more lent memory than the limit", "[train][zero][memory]") {
  using memory = hd::train::buffer_pool<double, checked_memory>;
  constexpr std::uint64_t seed = 5;
  CAPTURE(seed);
  const hd::counter_random random(seed, 0);
  checked_memory::queue queue;
  const std::int64_t before = queue.most_bytes();
  memory lent;
  constexpr std::int64_t page = 4096 / sizeof(double), limit = 6 * 4096;
  lent.set_limit(limit);
  std::vector<hd::buffer<double, checked_memory>> out;
  std::int64_t pages = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const auto n = static_cast<std::int64_t>(1 + random.integer(2 * i) % 3);
    if (pages + n <= 6) {
      out.push_back(lent.take(queue, n * page, memory::contents::zeros, "some"));
      pages += n;
    } else {
      const std::size_t k = random.integer(2 * i + 1) % out.size();
      pages -= static_cast<std::int64_t>(out[k].size()) / page;
      lent.give_back(std::move(out[k]));
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(k));
    }
    REQUIRE(lent.lent_bytes() == pages * 4096);
    REQUIRE(lent.lent_bytes() + lent.kept_bytes() <= limit);
    if (!out.empty())  // so that the queue has work with pages which the host has given back meanwhile
      queue.run([](auto x) { std::fill(x.data(), x.data() + x.size(), 1.0); }, out.back().view());
  }
  queue.wait();
  CHECK(lent.peak_bytes() == limit);
  CHECK(queue.most_bytes() - before == limit);
}
