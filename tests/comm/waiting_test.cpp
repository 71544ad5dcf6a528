// Waiting: it sleeps, it wakes when it should, and it gives up in time.
#include <heddle/comm/threads/condition_word.hpp>

#include "support.hpp"

#include <cmath>
#include <ctime>
#include <memory>
#include <thread>

using namespace comm_test;

namespace {

static_assert(hd::starting_communicator<hd::threads_communicator>);

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
}  // namespace

TEMPLATE_TEST_CASE("a word wakes its sleepers, and lets them go when time is out", "[comm][waiting]",
                   hd::detail::wait_word, hd::detail::condition_word) {
  TestType word;
  const auto start = std::chrono::steady_clock::now();
  word.wait(word.load(), std::chrono::milliseconds(30));
  CHECK(seconds_since(start) >= 0.025);
  CHECK(seconds_since(start) < 5.0);

  word.wait(word.load() + 1, std::chrono::seconds(100));  // has changed already: returns at once
  const auto seen = word.load();
  word.notify();
  CHECK(word.load() == seen + 1);
  word.wait(seen, std::chrono::seconds(100));
  CHECK(seconds_since(start) < 5.0);

  // Two threads count to 2000 in turns: every wake-up that got lost would take 100 s.
  std::atomic<int> count{0};
  const auto turns = [&](int parity) {
    for (;;) {
      const auto before = word.load();
      const int n = count.load(std::memory_order_acquire);
      if (n >= 2000) break;
      if (n % 2 == parity) {
        count.store(n + 1, std::memory_order_release);
        word.notify();
      } else {
        word.wait(before, std::chrono::seconds(100));
      }
    }
  };
  std::thread other(turns, 1);
  turns(0);
  other.join();
  CHECK(count == 2000);
}

#if defined(__linux__)
TEST_CASE("ranks that wait use no processor time", "[comm][waiting]") {
  const auto thread_seconds = [] {
    ::timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  std::vector<double> used(8);
  std::vector<double> waited(8);
  hd::launch<hd::threads>(line{8}, [&](auto& world) {
    auto& c = world.all();
    c.barrier();
    const auto start = std::chrono::steady_clock::now();
    const double before = thread_seconds();
    int x = 0;
    if (c.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      c.barrier();
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      for (int r = 1; r < 8; ++r) c.send(std::span(&x, 1), r);
    } else {
      c.barrier();
      c.recv(std::span(&x, 1), 0);
    }
    used[static_cast<std::size_t>(c.rank())] = thread_seconds() - before;
    waited[static_cast<std::size_t>(c.rank())] = seconds_since(start);
  });
  for (std::size_t r = 0; r < 8; ++r) {
    CHECK(waited[r] > 0.29);
    CHECK(used[r] < 0.05 * waited[r]);
  }
}
#endif

TEST_CASE("no wake-up is lost in many small calls among more ranks than cores", "[comm][waiting]") {
  for (const int spin_us : {-1, 0, 50}) {
    hd::launch_options options = options_ms(20'000);
    options.spin = std::chrono::microseconds(spin_us);
    std::vector<long> sums(6);
    hd::launch<hd::threads>(line{6}, options, [&](auto& world) {
      auto& c = world.all();
      const int p = c.size(), r = c.rank();
      for (int i = 0; i < 300; ++i) {
        int x = i, y = 0;
        c.all_reduce(std::span(&x, 1), hd::plus{});
        auto request = c.irecv(std::span(&y, 1), (r + 1) % p);
        c.send(std::span(&x, 1), (r + p - 1) % p);
        request.wait();
        sums[static_cast<std::size_t>(r)] += y;
      }
    });
    CHECK(sums == std::vector<long>(6, 6L * 300 * 299 / 2));
  }
}

TEST_CASE("a timeout of zero waits for ever", "[comm][waiting]") {
  hd::launch<hd::threads>(line{2}, options_ms(0), [](auto& world) {
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    world.all().barrier();
  });
  SUCCEED();
}

TEST_CASE("a timeout of less than a millisecond ends", "[comm][waiting]") {
  using std::chrono::milliseconds;
  CHECK(hd::timeout_of(0) == milliseconds(0));
  CHECK(hd::timeout_of(1e-9) == milliseconds(1));
  CHECK(hd::timeout_of(0.0015) == milliseconds(2));
  CHECK(hd::timeout_of(2) == milliseconds(2000));
  CHECK(hd::timeout_of(1e300) == milliseconds(1'000'000'000'000));
  CHECK_THROWS_WITH(hd::timeout_of(-1), "heddle: a timeout must be a number of seconds from 0 on (0: for ever), got -1");
  CHECK_THROWS_AS(hd::timeout_of(std::nan("")), hd::config_error);
  hd::launch_options options;
  options.timeout = hd::timeout_of(1e-4);
  const auto late = [&] {
    hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>(2), options, [](auto& world) {
      if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(300));
      world.all().barrier();
    });
  };
  CHECK_THROWS_WITH(late(), Catch::Matchers::Contains("rank 0 has waited 1 ms in barrier"));
}

TEST_CASE("the longest timeout and the longest polling there are do not end at once", "[comm][waiting]") {
  hd::launch_options options;
  options.timeout = (std::chrono::milliseconds::max)();
  options.spin = (std::chrono::microseconds::max)();
  hd::launch<hd::threads>(line{2}, options, [](auto& world) {
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    world.all().barrier();
  });
  SUCCEED();
}

TEST_CASE("ranks that take turns run one at a time, and give their turn away where they wait", "[comm][waiting]") {
  struct shared {
    hd::threads_communicator::turns turns{};
    int inside = 0, rounds = 0;  // which nothing but the turns guards
    bool first_has_ended = false;
  };
  for (const int ranks : {1, 2, 5}) {
    std::vector<int> wrong(static_cast<std::size_t>(ranks), -1);
    hd::launch<hd::threads>(line{ranks}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      const auto all = c.shared_with_all(c.rank() == 0 ? std::make_shared<shared>() : nullptr);
      int bad = 0;
      for (int time = 0; time < 2; ++time)
        c.by_turns(all->turns, [&] {
          for (int i = 0; i < 10; ++i) {
            bad += all->inside++ != 0 ? 1 : 0;
            ++all->rounds;
            std::this_thread::yield();
            --all->inside;
            int x = i, y = 0;
            c.all_reduce(std::span(&x, 1), hd::plus{});
            auto request = c.irecv(std::span(&y, 1), (c.rank() + 1) % c.size());
            c.send(std::span(&x, 1), (c.rank() + c.size() - 1) % c.size());
            request.wait();
            bad += y != i * c.size() ? 1 : 0;
          }
        });
      c.barrier();
      wrong[static_cast<std::size_t>(c.rank())] = bad + (all->rounds != 20 * c.size() ? 1 : 0);
    });
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
  // One that fails leaves when the first rank has ended, which waits for another or has the turn next.
  for (const int failing : {0, 1, 2})
    for (const bool waits : {false, true}) {
      std::vector<int> ended(3, 1);
      const ending end = run_to_the_end(3, options_ms(20'000), [&](auto& world) {
        auto& c = world.all();
        const auto all = c.shared_with_all(c.rank() == 0 ? std::make_shared<shared>() : nullptr);
        try {
          c.by_turns(all->turns, [&] {
            struct at_end {
              shared& of;
              bool first;
              ~at_end() {
                if (first) of.first_has_ended = true;
              }
            } const mark{*all, c.rank() == 0};
            c.barrier();
            if (c.rank() == failing) throw hd::config_error("enough");
            if (waits) c.barrier();
            c.barrier();
          });
        } catch (const hd::error&) {
          ended[static_cast<std::size_t>(c.rank())] = all->first_has_ended ? 1 : 0;
          throw;
        }
      });
      CHECK(end.thrown == "heddle: rank " + std::to_string(failing) + ": enough");
      CHECK(ended == std::vector<int>(3, 1));
    }
}
