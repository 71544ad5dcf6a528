#include "catch.hpp"

#include <heddle/compute/host/team.hpp>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using heddle::compute::team;

TEST_CASE("a team runs each part once", "[compute][team]") {
  for (const int threads : {1, 2, 3, 5, 8}) {
    team workers(threads);
    CHECK(workers.size() == threads);
    for (int parts = 0; parts <= threads; ++parts) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(threads) + 1);
      workers.run(parts, [&](int w) { ++calls[static_cast<std::size_t>(w)]; });
      for (int w = 0; w <= threads; ++w) CHECK(calls[static_cast<std::size_t>(w)] == (w < parts ? 1 : 0));
    }
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

TEST_CASE("a team has at least one thread", "[compute][team]") {
  CHECK_THROWS_AS(team(0), heddle::config_error);
  CHECK_THROWS_WITH(team(-2), "heddle: a compute backend needs at least 1 thread, got -2");
}
