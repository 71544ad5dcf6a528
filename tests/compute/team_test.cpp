#include "catch.hpp"

#include <heddle/compute/host/team.hpp>
#include <heddle/core/random.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using heddle::compute::team;

TEST_CASE("a team runs each part once", "[compute][team]") {
  for (const int threads : {1, 2, 3, 5, 8}) {
    team workers(threads);
    CHECK(workers.size() == threads);
    for (int parts = 0; parts <= 3 * threads; ++parts) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(3 * threads) + 1);
      workers.run(parts, [&](int w) { ++calls[static_cast<std::size_t>(w)]; });
      for (int w = 0; w <= 3 * threads; ++w) CHECK(calls[static_cast<std::size_t>(w)] == (w < parts ? 1 : 0));
    }
  }
}

TEST_CASE("a worker that comes late computes parts of the round at hand", "[compute][team]") {
  // More threads than processors, and rounds of all lengths: workers wake in rounds that others have ended. Parts write
  // plain memory of their round, so that a part that is computed twice, or with another round's body, is a data race.
  team workers(7);
  const heddle::counter_random random(3, 0);
  std::uint64_t drawn = 0;
  const auto mixed = [](int round, int work) {  // takes so long
    std::uint32_t x = static_cast<std::uint32_t>(round);
    for (int i = 0; i < work; ++i) x = x * 31 + static_cast<std::uint32_t>(i);
    return static_cast<int>(x % 1000000);
  };
  int wrong = 0;
  for (int round = 0; round < 3000; ++round) {
    const int parts = static_cast<int>(random.integer(drawn++) % 20);
    std::vector<int> written(static_cast<std::size_t>(parts), -1);
    const int work = static_cast<int>(random.integer(drawn++) % (round % 8 == 0 ? 20000 : 200));
    workers.run(parts, [&written, &mixed, round, work](int part) {
      if (part % 3 == 0) std::this_thread::yield();  // so that others come to compute some where processors are few
      written[static_cast<std::size_t>(part)] = mixed(round, work) + part;
    });
    const int right = mixed(round, work);
    for (int part = 0; part < parts; ++part) wrong += written[static_cast<std::size_t>(part)] != right + part;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a part that takes long holds up no other part", "[compute][team]") {
  // Whoever has part 0 waits in it for all others, which are more than there are other threads.
  team workers(3);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> others{0};
    workers.run(9, [&](int part) {
      if (part != 0) {
        if (++others == 8) others.notify_all();
        return;
      }
      for (int now = others; now < 8; now = others) others.wait(now);
    });
    CHECK(others == 8);
  }
}

TEST_CASE("split covers a range without gaps or overlaps, at the given borders", "[compute][team]") {
  for (const int threads : {1, 2, 3, 5}) {
    team workers(threads);
    for (const std::int64_t n : {0, 1, 7, 8, 9, 63, 64, 65, 1000})
      for (const std::int64_t step : {1, 8, 64})
        for (const std::int64_t grain : {0, 1, 10, 2000}) {
          std::vector<std::atomic<int>> seen(static_cast<std::size_t>(n));
          std::atomic<int> bad{0}, parts{0};
          workers.split(n, grain, step, [&](std::int64_t begin, std::int64_t end) {
            ++parts;
            if (begin % step != 0 || begin >= end || end > n) ++bad;
            for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
          });
          CAPTURE(threads, n, step, grain);
          CHECK(bad == 0);
          CHECK(parts <= threads);
          if (grain > 0) CHECK(parts <= (std::max)(std::int64_t{1}, n / grain));
          int wrong = 0;
          for (const auto& s : seen) wrong += s != 1;
          CHECK(wrong == 0);
        }
  }
}

TEST_CASE("split gives each thread several parts where that is asked for", "[compute][team]") {
  for (const int threads : {1, 2, 5}) {
    team workers(threads);
    for (const std::int64_t n : {1, 7, 100}) {
      std::atomic<std::int64_t> sum{0};
      std::atomic<int> parts{0};
      workers.split(
          n, 1, 1,
          [&](std::int64_t begin, std::int64_t end) {
            ++parts;
            for (std::int64_t i = begin; i < end; ++i) sum += i;
          },
          4);
      CHECK(sum == n * (n - 1) / 2);
      CHECK(parts == (threads == 1 ? 1 : (std::min)(n, std::int64_t{4} * threads)));
    }
  }
}

TEST_CASE("an exception in a part reaches the caller, and the team works on", "[compute][team]") {
  team workers(3);
  for (int thrower = 0; thrower < 3; ++thrower) {
    std::string what;
    try {
      workers.run(3, [&](int w) {
        if (w >= thrower) throw std::runtime_error("part " + std::to_string(w));
      });
    } catch (const std::runtime_error& e) {
      what = e.what();
    }
    CHECK(what == "part " + std::to_string(thrower));
    std::atomic<int> sum{0};
    workers.run(3, [&](int w) { sum += w; });
    CHECK(sum == 3);
  }
}

TEST_CASE("a team on lent threads gives its parts to them", "[compute][team]") {
  struct lender {
    int calls = 0, parts = 0;
    static void run(void* self, int parts, void (*call)(void*, int), void* context) {
      auto& mine = *static_cast<lender*>(self);
      ++mine.calls;
      mine.parts += parts;
      for (int w = parts; w-- > 0;) std::thread([=] { call(context, w); }).join();
    }
  } lends;
  team workers(3, {&lender::run, &lends});
  CHECK(workers.size() == 3);
  const auto caller = std::this_thread::get_id();
  std::vector<int> parts;
  workers.run(3, [&](int w) {
    if (std::this_thread::get_id() != caller) parts.push_back(w);
  });
  CHECK(parts == std::vector<int>{2, 1, 0});
  std::int64_t sum = 0;
  workers.split(64, 1, 8, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
  CHECK(sum == 64);
  CHECK(lends.calls == 2);
  CHECK(lends.parts == 6);
  workers.run(1, [&](int) { CHECK(std::this_thread::get_id() == caller); });  // one part is the caller's
  CHECK_THROWS_WITH(workers.run(3,
                                [](int w) {
                                  if (w > 0) throw std::runtime_error("part " + std::to_string(w));
                                }),
                    "part 1");
  CHECK_THROWS_AS(team(0, {&lender::run, &lends}), heddle::config_error);
  std::atomic<int> by_its_own{0};
  team(2, {}).run(2, [&](int) { ++by_its_own; });  // nobody lends any
  CHECK(by_its_own == 2);
}

TEST_CASE("what a lender throws reaches the caller, and no later round", "[compute][team]") {
  struct lender {
    bool broken = true;
    static void run(void* self, int parts, void (*call)(void*, int), void* context) {
      for (int w = 0; w < parts; ++w) call(context, w);
      if (static_cast<lender*>(self)->broken) throw std::runtime_error("no threads to lend");
    }
  } lends;
  team workers(2, {&lender::run, &lends});
  const auto throws = [](int) { throw std::logic_error("a part"); };
  CHECK_THROWS_WITH(workers.run(2, throws), "no threads to lend");
  lends.broken = false;
  int calls = 0;
  workers.run(2, [&](int) { ++calls; });
  CHECK(calls == 2);
  CHECK_THROWS_WITH(workers.run(2, throws), "a part");
}

TEST_CASE("a team wakes after it has gone to sleep", "[compute][team]") {
  team workers(2);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> calls{0};
    workers.run(2, [&](int) { ++calls; });
    CHECK(calls == 2);
  }
  for (int i = 0; i < 2000; ++i) workers.run(2, [](int) {});
}

TEST_CASE("several teams work at the same time", "[compute][team]") {
  std::atomic<std::int64_t> sum{0};
  {
    std::vector<std::jthread> ranks;
    for (int r = 0; r < 4; ++r)
      ranks.emplace_back([&sum] {
        team workers(2);
        for (int i = 0; i < 200; ++i)
          workers.split(100, 1, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
      });
  }
  CHECK(sum == 4 * 200 * 100);
}

TEST_CASE("a team has at least one thread and at most 65535", "[compute][team]") {
  CHECK_THROWS_AS(team(0), heddle::config_error);
  CHECK_THROWS_WITH(team(-2), "heddle: a compute backend needs at least 1 thread, got -2");
  CHECK_THROWS_WITH(team(65536), "heddle: a compute backend has at most 65535 threads, got 65536");
}

TEST_CASE("a team has at most 65535 parts to run", "[compute][team]") {
  for (const int threads : {1, 2}) {
    team workers(threads);
    std::atomic<int> calls{0};
    CHECK_THROWS_WITH(workers.run(65536, [&](int) { ++calls; }),
                      "heddle: a team has at most 65535 parts to run, got 65536");
    CHECK(calls == 0);
    workers.run(65535, [&](int) { ++calls; });
    CHECK(calls == 65535);
  }
}
