#include <heddle/core/error.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/expected_memory.hpp>
#include <heddle/testing/checked_memory.hpp>

#include "catch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

TEMPLATE_TEST_CASE("a buffer is aligned, zeroed and of the size asked for", "[tensor]", char, float, double,
                   std::int64_t) {
  for (const std::int64_t size : {0, 1, 3, 64, 1000}) {
    CAPTURE(size);
    const heddle::buffer<TestType> b(size);
    CHECK(b.size() == static_cast<std::size_t>(size));
    CHECK(b.empty() == (size == 0));
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 64 == 0);
    CHECK(b.end() - b.begin() == size);
    CHECK(std::all_of(b.begin(), b.end(), [](TestType x) { return x == TestType(0); }));
  }
}

TEST_CASE("memory that is not there is an error that names what it is for", "[tensor]") {
  const std::int64_t most = (std::numeric_limits<std::int64_t>::max)() / 8;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their allocators end the program
#if !defined(__has_feature)
#define HEDDLE_TEST_ALLOCATIONS 1
#elif !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#define HEDDLE_TEST_ALLOCATIONS 1
#endif
#endif
#if defined(HEDDLE_TEST_ALLOCATIONS)
  CHECK_THROWS_AS(heddle::buffer<double>(most), heddle::memory_error);
  CHECK_THROWS_WITH(heddle::buffer<double>(most, "the weights of wte"),
                    Catch::Matchers::Contains("heddle: no memory for the weights of wte: 1152921504606846975 elements "
                                              "of 8 bytes are 9223372036854775800 bytes; this process can have "));
#endif
  CHECK_THROWS_WITH(heddle::buffer<double>(most + 1, "wte"), Catch::Matchers::Contains(" of 8 bytes for wte"));
  CHECK(heddle::memory_limit() > 1 << 20);
}

namespace {
// The error of asking for more memory than there is.
std::string error_of_memory() {
  heddle::testing::limited_checked_memory device(64);
  heddle::testing::checked_memory::queue queue;
  try {
    const heddle::buffer<double, heddle::testing::checked_memory> x(queue, 9, "x");
  } catch (const heddle::memory_error& e) {
    return e.what();
  }
  return "";
}
}  // namespace

TEST_CASE("what was predicted of a thread's memory is in its errors, as long as it is expected", "[tensor]") {
  const std::string alone = "heddle: no memory for x: 9 elements of 8 bytes are 72 bytes; 64 are free there";
  CHECK(error_of_memory() == alone);
  {
    const heddle::expected_memory first([] { return "100 were predicted"; });
    const heddle::expected_memory silent([] { return ""; });
    const heddle::expected_memory throwing([]() -> std::string { throw heddle::config_error("heddle: not known"); });
    auto second = std::make_unique<heddle::expected_memory>([] { return "200 by another"; });
    CHECK(error_of_memory() == alone + "; 100 were predicted; 200 by another");
    std::string elsewhere;
    std::thread([&] {
      elsewhere = error_of_memory();
      second.reset();  // it may end on another thread
    }).join();
    CHECK(elsewhere == alone);
    CHECK(error_of_memory() == alone + "; 100 were predicted");
  }
  CHECK(error_of_memory() == alone);
}

TEST_CASE("a text of expected memory may ask for memory itself, and ends with its owner", "[tensor]") {
  const std::string alone = error_of_memory();
  {
    const heddle::expected_memory asks([] { return "then " + error_of_memory(); });
    const heddle::expected_memory fails([]() -> std::string { throw std::bad_alloc(); });
    const heddle::expected_memory last([] { return "100 were predicted"; });
    CHECK(error_of_memory() == alone + "; then " + alone + "; 100 were predicted");
    CHECK(error_of_memory() == alone + "; then " + alone + "; 100 were predicted");
  }
  {  // a thread that begins where another has ended, with its memory, is not that thread
    std::unique_ptr<heddle::expected_memory> left;
    std::thread([&] { left = std::make_unique<heddle::expected_memory>([] { return "of another"; }); }).join();
    for (int i = 0; i < 4; ++i) {
      std::string later;
      std::thread([&] { later = error_of_memory(); }).join();
      CHECK(later == alone);
    }
  }
  // One that ends on another thread while its text is called ends after that.
  std::atomic<bool> called = false, ends = false, said = false;
  bool in_order = false;
  auto expected = std::make_unique<heddle::expected_memory>([&] {
    called = true;
    while (!ends) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    said = true;
    return "300 were predicted";
  });
  std::thread other([&] {
    while (!called) std::this_thread::yield();
    ends = true;
    expected.reset();
    in_order = said;
  });
  const std::string text = error_of_memory();
  other.join();
  CHECK(text == alone + "; 300 were predicted");
  CHECK(in_order);
}

TEST_CASE("a buffer moves, and does not copy", "[tensor][law]") {
  using buffer = heddle::buffer<int>;
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<buffer>);
  STATIC_REQUIRE_FALSE(std::is_copy_assignable_v<buffer>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<buffer>);
  STATIC_REQUIRE(std::is_nothrow_move_assignable_v<buffer>);

  buffer a(10);
  std::iota(a.begin(), a.end(), 1);
  const int* const where = a.data();
  buffer b = std::move(a);
  CHECK(b.data() == where);
  CHECK(b.size() == 10);
  CHECK(b[9] == 10);
  CHECK(a.size() == 0);  // NOLINT: what a moved-from buffer is, is part of its contract
  CHECK(a.data() == nullptr);

  buffer c(3);
  c = std::move(b);
  CHECK(c.data() == where);
  CHECK(b.empty());  // NOLINT
  buffer none;
  CHECK(none.empty());
}

TEST_CASE("a buffer refuses sizes that cannot be", "[tensor][error]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_AS(heddle::buffer<float>(-1), heddle::layout_error);
  CHECK_THROWS_WITH(heddle::buffer<float>(-1), Contains("heddle: ") && Contains("-1 elements of 4 bytes"));
  CHECK_THROWS_AS(heddle::buffer<double>((std::numeric_limits<std::int64_t>::max)()), heddle::layout_error);
}

TEST_CASE("a type that asks for more alignment gets it", "[tensor]") {
  struct alignas(256) wide {
    float x[64];
  };
  for (int i = 0; i < 4; ++i) {
    const heddle::buffer<wide> b(3 + i);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 256 == 0);
  }
}

TEST_CASE("the host's memory has a queue that does everything at once", "[tensor]") {
  using heddle::host_memory;
  STATIC_REQUIRE(heddle::memory_space<host_memory>);
  STATIC_REQUIRE(heddle::host_accessible_space<host_memory>);
  STATIC_REQUIRE(heddle::runs_host_code<host_memory::queue>);
  STATIC_REQUIRE(std::is_empty_v<host_memory::queue>);
  STATIC_REQUIRE(sizeof(heddle::buffer<float>) == 2 * sizeof(void*));
  STATIC_REQUIRE(std::is_same_v<heddle::space_of<const heddle::buffer<int>&>, host_memory>);
  STATIC_REQUIRE(std::is_same_v<heddle::space_of<std::vector<int>>, host_memory>);

  host_memory::queue queue;
  heddle::buffer<int> b(queue, 6, "six numbers");
  CHECK(std::all_of(b.begin(), b.end(), [](int x) { return x == 0; }));
  const std::vector<int> numbers{1, 2, 3, 4, 5, 6};
  queue.copy(numbers, b);
  CHECK(std::equal(b.begin(), b.end(), numbers.begin()));
  queue.run([](auto v) { v(0) += 10; }, b.view());
  std::vector<int> back(6);
  queue.copy(b.view(), back);
  queue.wait();
  CHECK(back == std::vector<int>{11, 2, 3, 4, 5, 6});
  queue.zero(b);
  CHECK(std::accumulate(b.begin(), b.end(), 0) == 0);
  std::vector<int> few(5);
  CHECK_THROWS_WITH(queue.copy(b, few), Catch::Matchers::Contains("heddle: ") &&
                                            Catch::Matchers::Contains("6 elements") &&
                                            Catch::Matchers::Contains("memory of 5"));
}
