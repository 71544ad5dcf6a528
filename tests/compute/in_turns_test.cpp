// Backends that share turns multiply one at a time, with the bits of their backend, and all else goes on.
#include "catch.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/in_turns.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/compute/ops/products.hpp>
#include <heddle/tensor/view.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace {
namespace turns_test {

namespace hd = heddle;
namespace cp = heddle::compute;
using namespace std::chrono_literals;

std::atomic<int> multiplying{0}, most{0};

// A host whose products take a while, and say how many run.
class slow_host : public cp::host<> {
 public:
  using cp::host<>::host;
  template <class Op, class T, class... V>
    requires std::is_base_of_v<cp::ops::product_operation, Op>
  void run(const V&... v) {
    const int now = ++multiplying;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::sleep_for(300us);
    cp::run<Op>(static_cast<cp::host<>&>(*this), v...);
    --multiplying;
  }
};

struct matrices {
  std::vector<double> a = std::vector<double>(6), b = std::vector<double>(12), c = std::vector<double>(8, -1.0);
  matrices() {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = 0.3 * static_cast<double>(i) - 1;
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = 1 / (1.0 + static_cast<double>(i));
  }
  template <class Backend>
  void multiply(Backend& with) {
    cp::matmul<cp::transpose::no, cp::transpose::yes>(
        with, hd::matrix_view<const double>(a.data(), hd::dynamic_shape<2>(2, 3)),
        hd::matrix_view<const double>(b.data(), hd::dynamic_shape<2>(4, 3)),
        hd::matrix_view<double>(c.data(), hd::dynamic_shape<2>(2, 4)));
  }
};

}  // namespace turns_test
}  // namespace

TEST_CASE("backends with the same turns multiply one at a time", "[compute][nano]") {
  using namespace turns_test;
  cp::host<> plain(1);
  matrices expected;
  expected.multiply(plain);
  for (const bool shared : {true, false}) {
    most = 0;
    cp::turns all(0us);
    std::atomic<int> different{0}, started{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        cp::in_turns<slow_host> backend(1);
        if (shared) backend.take_turns(&all);
        ++started;
        while (started < 3) std::this_thread::yield();
        for (int i = 0; i < 20; ++i) {
          matrices x;
          x.multiply(backend);
          different += x.c != expected.c;
        }
      });
    for (std::thread& t : threads) t.join();
    CHECK(different == 0);
    CHECK((most == 1) == shared);
  }
}

TEST_CASE("who multiplied last goes first, until it has not asked for a while", "[compute][nano]") {
  using namespace turns_test;
  cp::turns all(30s);
  const int first = 1, second = 2;
  all.keep_for(&first, 30s);
  std::atomic<int> at{0};
  int taken_at = -1;
  std::thread other([&] {
    all.take(&second);
    taken_at = at;
    all.give();
  });
  for (at = 1; at < 20; ++at) {
    all.take(&first);
    all.give();
  }
  all.keep_for(&second, 0s);  // whose turn it now is
  other.join();
  CHECK(taken_at == 20);

  // Other operations do not wait: this thread has the turn meanwhile.
  cp::turns busy;
  busy.take(&first);
  cp::in_turns<cp::host<>> backend(1);
  backend.take_turns(&busy);
  std::vector<double> x(8, 1.0), y(8);
  cp::run<cp::ops::copy>(backend, std::span<const double>(x), std::span<double>(y));
  CHECK(x == y);
  busy.give();
  matrices m;
  m.multiply(backend);  // after the patience of the turns
  CHECK(m.c[0] != -1);
}
