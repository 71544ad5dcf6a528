#include <heddle/testing/checked_memory.hpp>

#include "catch.hpp"
#include "faults.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
using fault_test::faults;
using hd::testing::checked_memory;

namespace {
template <class T>
const volatile char* byte_of(const T* at) {
  return reinterpret_cast<const volatile char*>(at);
}
}  // namespace

TEST_CASE("checked memory is a space whose elements the host cannot name", "[testing][memory]") {
  using buffer = hd::buffer<float, checked_memory>;
  using matrix = hd::matrix_view<float, checked_memory>;
  STATIC_REQUIRE(hd::memory_space<checked_memory>);
  STATIC_REQUIRE_FALSE(hd::host_accessible_space<checked_memory>);
  STATIC_REQUIRE(hd::runs_host_code<checked_memory::queue>);
  STATIC_REQUIRE(std::is_same_v<hd::space_of<const matrix&>, checked_memory>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<buffer, std::int64_t>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<buffer>);
  STATIC_REQUIRE(std::is_convertible_v<matrix, hd::matrix_view<const float, checked_memory>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<matrix, hd::matrix_view<float>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<hd::matrix_view<float>, matrix>);
  const auto reads = [](auto&& x) {
    return requires { x[0]; } || requires { x(0, 0); } || requires { x.data(); } || requires { x.begin(); } ||
           requires { x.elements(); };
  };
  CHECK_FALSE(reads(buffer{}));
  CHECK_FALSE(reads(matrix{}));
  CHECK(reads(hd::buffer<float>{}));
  CHECK(reads(hd::matrix_view<float>{}));
}

TEST_CASE("what goes into checked memory comes out of it", "[testing][memory]") {
  checked_memory::queue queue;
  for (const std::int64_t n : {0, 1, 7, 1023, 1024, 5000}) {
    CAPTURE(n);
    hd::buffer<float, checked_memory> a(queue, n, "a"), b(queue, n, "b");
    std::vector<float> in(static_cast<std::size_t>(n)), out(in.size(), -1.0f);
    std::iota(in.begin(), in.end(), 1.0f);
    queue.copy(b, out);  // fresh memory is zero
    queue.wait();
    CHECK(out == std::vector<float>(in.size(), 0.0f));
    queue.copy(in, a);
    queue.run(
        [](auto x) {
          for (float& e : x.elements()) e *= 2;
        },
        a.view());
    queue.copy(a, b);
    queue.zero(a);
    queue.copy(b.view(), out);
    queue.wait();
    for (float& e : in) e *= 2;
    CHECK(out == in);
    queue.copy(a, out);
    queue.wait();
    CHECK(out == std::vector<float>(in.size(), 0.0f));
  }
}

TEST_CASE("the host cannot touch checked memory, before, during or after its use", "[testing][memory]") {
  checked_memory::queue queue;
  hd::buffer<double, checked_memory> a(queue, 600, "a"), b(queue, 600, "b");
  CHECK(reinterpret_cast<std::uintptr_t>(a.address()) % 64 == 0);
  queue.wait();
  CHECK(faults(byte_of(a.address())));
  CHECK(faults(byte_of(a.address() + 599)));
  std::atomic<bool> inside{false}, go_on{false};
  queue.run(
      [&](auto x) {
        x(3) = 5;
        inside = true;
        while (!go_on) std::this_thread::yield();
      },
      a.view());
  while (!inside) std::this_thread::yield();
  CHECK(faults(byte_of(b.address())));  // not named by what runs
  CHECK_FALSE(faults(byte_of(a.address() + 3)));
  go_on = true;
  queue.wait();
  CHECK(faults(byte_of(a.address() + 3)));
  bool behind = false, kept = true;
  queue.run(
      [&](auto x) {
        behind = faults(byte_of(x.data()) + 600 * sizeof(double));
        kept = faults(byte_of(x.data()));
      },
      a.view());
  queue.wait();
  CHECK(behind);
  CHECK_FALSE(kept);
}

TEST_CASE("two queues have their own order and share pages", "[testing][memory]") {
  checked_memory::queue first;
  checked_memory::queue second = first.beside();
  hd::buffer<int, checked_memory> x(first, 3000, "x"), y(second, 3000, "y");
  const std::vector<int> in(3000, 7);
  first.copy(in, x);
  first.wait();
  second.wait();
  std::atomic<int> readers{0};
  std::array<std::int64_t, 2> sums{};
  const auto meet = [&](std::int64_t& sum) {
    return [&readers, &sum](auto v) {
      ++readers;
      while (readers < 2) std::this_thread::yield();  // both have it open now
      for (const int e : v.elements()) sum += e;
    };
  };
  first.run(meet(sums[0]), std::as_const(x).view());
  second.run(meet(sums[1]), std::as_const(x).view());
  first.wait();
  second.wait();
  CHECK(sums == std::array<std::int64_t, 2>{21000, 21000});
  CHECK(faults(byte_of(x.address() + 1500)));
  // Parts of one buffer share a page: one queue's end must not close what the other uses.
  std::atomic<bool> done{false};
  const hd::view<int, hd::dynamic_shape<1>, checked_memory> low(x.address(), hd::dynamic_shape<1>{10}),
      next(x.address() + 10, hd::dynamic_shape<1>{10});
  first.run(
      [&](auto v) {
        while (!done) std::this_thread::yield();
        v(9) = 1;
      },
      low);
  second.run([](auto v) { v(0) = 2; }, next);
  second.wait();
  done = true;
  first.wait();
  std::vector<int> out(20);
  first.copy(hd::view<int, hd::dynamic_shape<1>, checked_memory>(x.address(), hd::dynamic_shape<1>{20}), out);
  first.wait();
  CHECK(out[9] == 1);
  CHECK(out[10] == 2);
}

TEST_CASE("what follows an event of another queue begins when that is done, or left out", "[testing][memory]") {
  STATIC_REQUIRE(hd::concurrent_queue<checked_memory::queue>);
  STATIC_REQUIRE_FALSE(hd::concurrent_queue<hd::host_memory::queue>);
  checked_memory::queue first;
  checked_memory::queue second = first.beside();
  std::atomic<bool> go{false};
  std::atomic<int> done{0};
  std::atomic<int> seen{-1};
  first.run([&] {
    while (!go) std::this_thread::yield();
    done = 1;
  });
  const auto event = first.record();
  first.run([&] { done = 2; });
  second.after(event);
  second.run([&] { seen = done.load(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(seen == -1);
  go = true;
  second.wait();
  CHECK(seen >= 1);
  first.wait();
  second.after(event);  // has happened
  second.wait();
  first.run([] { throw hd::layout_error("heddle: of the work"); });
  second.after(first.record());  // left out
  CHECK_NOTHROW(second.wait());
  CHECK_THROWS_WITH(first.wait(), "heddle: of the work");
}

TEST_CASE("checked memory counts what is copied from the host and to it", "[testing][memory]") {
  checked_memory::queue queue;
  hd::buffer<int, checked_memory> x(queue, 30, "x"), y(queue, 30, "y");
  std::vector<int> values(30, 4);
  CHECK(queue.bytes_copied_with_host() == 0);
  queue.copy(values, x);
  CHECK(queue.bytes_copied_with_host() == 120);
  queue.copy(x, y);
  CHECK(queue.bytes_copied_with_host() == 120);
  checked_memory::queue other = queue.beside();
  queue.wait();
  other.copy(y, values);
  CHECK(queue.bytes_copied_with_host() == 240);
  other.wait();
}

TEST_CASE("checked memory counts bytes until all that was queued on them is done", "[testing][memory]") {
  checked_memory::queue queue;
  hd::buffer<int, checked_memory> x(queue, 30, "x");
  CHECK(queue.most_bytes() == 120);
  std::atomic<bool> goes_on = false;
  queue.run(
      [&](auto) {
        while (!goes_on) std::this_thread::yield();
      },
      x.view());
  x = {};
  x = hd::buffer<int, checked_memory>(queue, 10, "x");  // the first one is in use
  CHECK(queue.most_bytes() == 160);
  goes_on = true;
  queue.wait();
  x = hd::buffer<int, checked_memory>(queue, 30, "x");
  CHECK(queue.most_bytes() == 160);
  queue.wait();
}

TEST_CASE("errors of queued work come out of the next wait", "[testing][memory]") {
  checked_memory::queue queue;
  hd::buffer<int, checked_memory> x(queue, 4, "x");
  bool ran = false;
  queue.run([](auto) { throw hd::layout_error("heddle: of the work"); }, x.view());
  queue.run([&](auto) { ran = true; }, x.view());
  CHECK_THROWS_WITH(queue.wait(), "heddle: of the work");
  CHECK_FALSE(ran);  // what follows an error may depend on it
  queue.run([&](auto) { ran = true; }, x.view());
  CHECK_NOTHROW(queue.wait());
  CHECK(ran);

  std::vector<int> few(3);
  CHECK_THROWS_AS(queue.copy(x, few), hd::layout_error);
  hd::view<int, hd::dynamic_shape<1>, checked_memory> gone;
  {
    hd::buffer<int, checked_memory> y(queue, 4, "y");
    gone = y.view();
  }
  CHECK_THROWS_AS(queue.zero(gone), hd::memory_error);
  CHECK_THROWS_AS(checked_memory::queue{}.zero(x), hd::memory_error);
  CHECK_THROWS_WITH((hd::buffer<double, checked_memory>(queue, std::int64_t{1} << 59, "wte")),
                    Catch::Matchers::Contains("heddle: no memory for wte"));
}

TEST_CASE("memory that is released is kept until the work on it is done", "[testing][memory]") {
  std::vector<int> out(100);
  std::atomic<bool> go_on{false};
  checked_memory::queue queue;
  const int* where = nullptr;
  {
    hd::buffer<int, checked_memory> x(queue, 100, "x");
    where = x.address();
    queue.run(
        [&](auto v) {
          while (!go_on) std::this_thread::yield();
          v(99) = 4;
        },
        x.view());
    queue.copy(x, out);
  }
  go_on = true;
  queue.wait();
  CHECK(out[99] == 4);
  CHECK(faults(byte_of(where)));
  std::optional<hd::buffer<int, checked_memory>> later;
  {
    checked_memory::queue short_lived;
    later.emplace(short_lived, 10, "later");
    short_lived.run(
        [](auto v) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          v(0) = 1;
        },
        later->view());
  }
  later.reset();  // outlived its queue
}

TEST_CASE("a queue that ends while an exception unwinds leaves out what has not begun", "[testing][memory]") {
  std::atomic<int> ran{0};
  std::atomic<bool> began{false};
  try {
    checked_memory::queue queue;
    hd::buffer<int, checked_memory> x(queue, 1, "x");
    queue.run(
        [&](auto) {
          began = true;
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          ++ran;
        },
        x.view());
    for (int i = 0; i < 10; ++i) queue.run([&](auto) { ++ran; }, x.view());
    while (!began) std::this_thread::yield();
    throw std::runtime_error("of the host");
  } catch (const std::runtime_error&) {
  }
  CHECK(ran == 1);
}
