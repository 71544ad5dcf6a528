// Context tables in memory that the host may not touch: the bits of the host's executor, whatever takes how long.
#include <heddle/testing/checked_backend.hpp>

#include "catch.hpp"
#include "context/device_trials.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace hd = heddle;
namespace hc = heddle::compute;
using device_trials::differences;
using device_trials::sizes;

// Takes its time before it attends, on the thread of the queue.
struct late_backend : hc::host<> {
  std::mt19937 random{};
  int most_us = 0;
  explicit late_backend(unsigned seed = 0, int us = 0) : hc::host<>(1), random(seed), most_us(us) {}
  void sleep() {
    const int us = static_cast<int>(random() % static_cast<unsigned>(most_us + 1));
    if (us > most_us / 2) std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
  template <class... Arguments>
  void attention(const Arguments&... x) {
    sleep();
    hc::host<>::attention(x...);
  }
  template <class... Arguments>
  void attention_backward(const Arguments&... x) {
    sleep();
    hc::host<>::attention_backward(x...);
  }
};
struct checked_host : hd::testing::checked_backend<hc::host<>> {
  checked_host() : checked_backend(1) {}
};
struct checked_late : hd::testing::checked_backend<late_backend> {
  static unsigned next() {
    static std::atomic<unsigned> seed{0};
    return ++seed;
  }
  checked_late() : checked_backend(next(), 200) {}
};

}  // namespace

TEST_CASE("every carrier has the host's bits in memory that the host may not touch", "[context][memory]") {
  for (const int ranks : {1, 2, 3, 4}) {
    CHECK(differences<double, checked_host>(ranks, {4, 2, 4, 6}, static_cast<unsigned>(ranks), 0) == "");
    CHECK(differences<float, checked_host>(ranks, {8, 1, 3, 5}, static_cast<unsigned>(10 + ranks), 0) == "");
  }
  // An odd number of 16-bit elements stands before the numbers of a row.
  CHECK(differences<hd::bf16, checked_host>(3, {3, 3, 2, 3}, 20, 0) == "");
}

TEST_CASE("delays of queues on some ranks change no bits", "[context][memory]") {
  CHECK(differences<double, checked_late>(4, {4, 2, 4, 4}, 31, 0, 20) == "");
}
