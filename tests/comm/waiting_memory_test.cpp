// Memory of waiting: a rank that sleeps allocates nothing, and where memory runs out its message is taken back.
// Compiled alone: replaces operator new.
#include "support.hpp"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

using namespace comm_test;

namespace {
thread_local std::int64_t allocations = 0;
thread_local std::int64_t left = -1;  // so many succeed, and the next fails; negative: all succeed

[[maybe_unused]] void* counted_memory(std::size_t bytes) {
  ++allocations;
  if (left == 0) {
    left = -1;
    throw std::bad_alloc();
  }
  if (left > 0) --left;
  if (void* p = std::malloc(bytes != 0 ? bytes : 1)) return p;
  throw std::bad_alloc();
}
}  // namespace
// Sanitizers bring their own operators, all of them or none: with them nothing is counted, and nothing fails.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HEDDLE_TEST_COUNTS_NOTHING
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEDDLE_TEST_COUNTS_NOTHING
#endif
#if !defined(HEDDLE_TEST_COUNTS_NOTHING)
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return counted_memory(bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
#endif

namespace {

// Two ranks without threads of their own: what they do is told by the test.
struct pair_of_ranks {
  hd::detail::world_state world;
  std::shared_ptr<hd::detail::group_state> group;
  explicit pair_of_ranks(int timeout_ms) : world(2, at_once(timeout_ms)), group(world.group("pair", {0, 1}, true)) {}

  static hd::launch_options at_once(int timeout_ms) {
    hd::launch_options o = options_ms(timeout_ms);
    o.spin = std::chrono::microseconds(0);
    return o;
  }
  bool sleeps(int r) {
    const std::lock_guard lock(world.rank(r).mutex);
    return !world.rank(r).waits.empty();
  }
  std::size_t asleep_for(int peer) {
    const std::lock_guard lock(world.rank(peer).mutex);
    return world.rank(peer).message_waits.size();
  }
};
// From rank 0 to rank 1.
void make(hd::detail::message& m, hd::comm_operation what, int& value) {
  m.call.what = what;
  m.call.count = 1;
  m.call.element_size = sizeof value;
  m.call.root = what == hd::comm_operation::send ? 1 : 0;
  m.from = m.to = &value;
  m.bytes = sizeof value;
}

}  // namespace

TEST_CASE("a receive that sleeps allocates nothing but the first time", "[comm][waiting]") {
  pair_of_ranks two(60'000);
  constexpr int rounds = 20;
  std::atomic<int> ended{0};
  std::int64_t counted[rounds] = {};
  int got[rounds] = {};
  std::thread receiver([&] {
    for (int k = 0; k < rounds; ++k) {
      hd::detail::message m;
      make(m, hd::comm_operation::recv, got[k]);
      const std::int64_t before = allocations;
      two.group->post(1, 0, m);
      two.group->wait(m);
      counted[k] = allocations - before;
      ++ended;
    }
  });
  for (int k = 0; k < rounds; ++k) {
    while (!two.sleeps(1)) std::this_thread::yield();
    int value = 100 + k;
    hd::detail::message m;
    make(m, hd::comm_operation::send, value);
    two.group->post(0, 1, m);
    two.group->wait(m);
    while (ended.load() <= k) std::this_thread::yield();
  }
  receiver.join();
  for (int k = 0; k < rounds; ++k) {
    CAPTURE(k);
    CHECK(got[k] == 100 + k);
    if (k > 0) CHECK(counted[k] == 0);
  }
#if !defined(HEDDLE_TEST_COUNTS_NOTHING)
  CHECK(counted[0] > 0);  // the lists of messages and waits
#endif
}

TEST_CASE("a wait that finds no memory takes its message back", "[comm][waiting]") {
  [[maybe_unused]] int failed = 0;
  bool timed_out = false;
  for (int k = 0; k < 1000 && !timed_out; ++k) {  // allocation k of the wait fails, until all succeed
    CAPTURE(k);
    pair_of_ranks two(1);
    int value = 0;
    hd::detail::message m;
    make(m, hd::comm_operation::recv, value);
    two.group->post(1, 0, m);
    std::string other;
    try {
      left = k;
      two.group->wait(m);
      left = -1;
      other = "the wait has returned";
    } catch (const std::bad_alloc&) {
      ++failed;
    } catch (const hd::comm_error&) {
      timed_out = true;
    }
    left = -1;
    CHECK(other.empty());
    CHECK_FALSE(two.sleeps(1));
    CHECK(two.asleep_for(0) == 0);
    CHECK_FALSE(two.group->cancel(m));  // it is in no mailbox: nobody will write to `value`
  }
  CHECK(timed_out);
#if !defined(HEDDLE_TEST_COUNTS_NOTHING)
  CHECK(failed > 3);  // in the lists of waits, and in reports
#endif
}
