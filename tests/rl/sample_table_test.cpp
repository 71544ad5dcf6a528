// tests/rl/sample_table_test.cpp: each row once for each task and none early; bits and samplers equal those of TransferQueue.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/rl/equal_parts.hpp>
#include <heddle/rl/row_board.hpp>
#include <heddle/rl/sample_table.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace rl = heddle::rl;
using Catch::Matchers::Contains;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEDDLE_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HEDDLE_TEST_SANITIZED 1
#endif
#endif

namespace {

struct prompt {
  using type = std::vector<std::int32_t>;
};
struct answer {
  using type = std::vector<std::int32_t>;
};
struct reward {
  using type = double;
};
struct advantage {
  using type = float;
};
using rollout_stage = rl::stage<rl::needs<>, rl::makes<prompt, answer>>;
using judging_stage = rl::stage<rl::needs<prompt, answer>, rl::makes<reward>>;
using comparing_stage = rl::stage<rl::needs<reward>, rl::makes<advantage>, 8>;
using update_stage = rl::stage<rl::needs<prompt, answer, advantage>, rl::makes<>>;
using answers_table = rl::sample_table<rl::columns_of<rollout_stage, judging_stage, comparing_stage, update_stage>>;

std::vector<std::vector<std::string>> fields(const std::string& line) {
  std::vector<std::vector<std::string>> all(1);
  std::istringstream words(line);
  for (std::string w; words >> w;)
    if (w == "|")
      all.emplace_back();
    else
      all.back().push_back(w);
  return all;
}
std::vector<std::size_t> numbers(const std::vector<std::string>& words, std::size_t from = 0) {
  std::vector<std::size_t> all;
  for (std::size_t i = from; i < words.size(); ++i) all.push_back(std::stoul(words[i]));
  return all;
}

}  // namespace

TEST_CASE("bits and samplers equal those of TransferQueue", "[rl][table]") {
  std::ifstream file(HEDDLE_SOURCE_DIR "/tests/golden/transfer_queue_golden.txt");
  REQUIRE(file);
  std::unique_ptr<rl::row_board> board;
  std::map<std::size_t, std::size_t> batches;
  int checked = 0, cut = 0;
  for (std::string line; std::getline(file, line);) {
    CAPTURE(line);
    const auto all = fields(line);
    const std::string& word = all[0][0];
    const std::vector<std::size_t> head = numbers(all[0], 1);
    ++checked;
    if (word == "table") {
      board = std::make_unique<rl::row_board>(head[0], head[1]);
      batches.clear();
    } else if (word == "need") {
      board->add_task(head, 1, 0, 1);
    } else if (word == "put") {
      board->mark(std::span(head.data(), 1), head[1], std::vector<std::int64_t>{1});
    } else if (word == "ready") {
      REQUIRE(board->ready(head[0]) == numbers(all[1]));
    } else if (word == "take") {
      REQUIRE(board->take(head[0], head[1], 0, batches[head[0]]++).value() == numbers(all[1]));
    } else if (word == "taken") {
      std::vector<std::size_t> taken;
      for (std::size_t r = 0; r < board->rows(); ++r)
        if (board->is_taken(head[0], r)) taken.push_back(r);
      REQUIRE(taken == numbers(all[1]));
    } else if (word == "group") {
      const auto ready = numbers(all[1]), aligned = numbers(all[2]);
      rl::row_board one(head[0] * 20, 1);
      const std::size_t task = one.add_task({0}, head[0], 0, 1);
      one.mark(ready, 0, std::vector<std::int64_t>(ready.size(), 1));
      if (aligned.empty()) {  // there is no batch of this size; without further rows it is the end, or a smaller one
        one.close();
        const auto rest = one.take(task, head[1], 0, 0);
        REQUIRE((!rest || rest->size() < head[1]));
      } else {
        REQUIRE(one.take(task, head[1], 0, 0).value() == aligned);
      }
      if (aligned != numbers(all[3])) ++cut;
    } else {
      REQUIRE(word == "balanced");
      const auto tokens = numbers(all[1]);
      rl::row_board one(tokens.size(), 1);
      const std::size_t task = one.add_task({0}, head[0], head[1], 1);
      std::vector<std::size_t> rows(tokens.size());
      std::iota(rows.begin(), rows.end(), std::size_t{0});
      one.mark(rows, 0, std::vector<std::int64_t>(tokens.begin(), tokens.end()));
      for (std::size_t r = head[1]; r-- > 0;) REQUIRE(one.take(task, head[2], r, 0).value() == numbers(all[2 + r]));
    }
  }
  CHECK(checked > 2000);
  CHECK(cut > 50);  // groups of TransferQueue that are cut out of two
}

TEST_CASE("each task gets each row once and none early", "[rl][table]") {
#if defined(HEDDLE_TEST_SANITIZED)
  constexpr std::size_t rows = 4000;
#else
  constexpr std::size_t rows = 100'000;
#endif
  constexpr std::size_t producers = 8, units = 5, replicas = 2, ranks = 2;
  const std::uint64_t seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  CAPTURE(seed);
  answers_table table(rows, units);
  const auto judging = table.add_stage<judging_stage>(rl::sequential{});
  const auto comparing = table.add_stage<comparing_stage>(rl::group<8>{});
  const auto update = table.add_stage<update_stage>(rl::balanced<8, replicas>{}, ranks);
  const auto logging = table.add_task<rl::needs<answer, reward>>(rl::sequential{});

  std::atomic<std::int64_t> wrong{0};
  std::vector<std::vector<std::size_t>> seen(4 + replicas * ranks);
  std::vector<std::jthread> threads;
  for (std::size_t p = 0; p < producers; ++p)
    threads.emplace_back([&, p] {
      // Rows in an order of their own, prompts and answers apart.
      std::vector<std::size_t> mine;
      for (std::size_t r = p; r < rows; r += producers) mine.push_back(r);
      const heddle::counter_random draw(seed, p);
      for (std::size_t i = mine.size(); i > 1; --i) std::swap(mine[i - 1], mine[draw.integer(i) % i]);
      for (std::size_t at = 0; at < mine.size(); at += 16) {
        const auto some = std::span(mine).subspan(at, std::min<std::size_t>(16, mine.size() - at));
        std::vector<std::vector<std::int32_t>> prompts, answers;
        for (const std::size_t r : some) {
          prompts.push_back({static_cast<std::int32_t>(r)});
          answers.emplace_back(1 + r % 7, static_cast<std::int32_t>(r));
        }
        table.put<prompt>(some, prompts);
        if (draw.integer(1'000'000 + at) % 8 == 0) std::this_thread::yield();
        table.put<answer>(some, answers);
      }
    });
  threads.emplace_back([&] {
    auto batches = judging->batches(32);
    while (const auto b = batches.next()) {
      std::vector<double> rewards;
      for (std::size_t i = 0; i < b->rows.size(); ++i) {
        const std::size_t r = b->rows[i];
        if (b->get<prompt>()[i].at(0) != static_cast<std::int32_t>(r) || b->get<answer>()[i].size() != 1 + r % 7)
          ++wrong;
        rewards.push_back(static_cast<double>(r) / 2);
        seen[0].push_back(r);
      }
      table.put<reward>(b->rows, rewards);
    }
  });
  threads.emplace_back([&] {
    auto batches = comparing->batches(64);
    while (const auto b = batches.next()) {
      std::vector<float> advantages;
      for (std::size_t i = 0; i < b->rows.size(); ++i) {
        if (b->get<reward>()[i] != static_cast<double>(b->rows[i]) / 2 || b->rows[i] % 8 != i % 8) ++wrong;
        advantages.push_back(static_cast<float>(b->rows[i]));
        seen[1].push_back(b->rows[i]);
      }
      table.put<advantage>(b->rows, advantages);
    }
  });
  threads.emplace_back([&] {
    auto batches = logging->batches(10);
    while (const auto b = batches.next())
      for (std::size_t i = 0; i < b->rows.size(); ++i) {
        if (b->get<reward>()[i] != static_cast<double>(b->rows[i]) / 2) ++wrong;
        seen[2].push_back(b->rows[i]);
      }
  });
  for (std::size_t replica = 0; replica < replicas; ++replica)
    for (std::size_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, replica, rank] {
        auto batches = update->batches(40, replica);
        while (const auto b = batches.next())
          for (std::size_t i = 0; i < b->rows.size(); ++i) {
            if (b->get<advantage>()[i] != static_cast<float>(b->rows[i])) ++wrong;
            seen[4 + replica * ranks + rank].push_back(b->rows[i]);
          }
      });
  threads.clear();  // joins

  CHECK(wrong == 0);
  const auto all_once = [](std::vector<std::size_t> some) {
    std::sort(some.begin(), some.end());
    for (std::size_t i = 0; i < some.size(); ++i)
      if (some[i] != i) return false;
    return some.size() == rows;
  };
  for (int t = 0; t < 3; ++t) CHECK(all_once(seen[static_cast<std::size_t>(t)]));
  CHECK(seen[4] == seen[5]);  // the ranks of a replica
  CHECK(seen[6] == seen[7]);
  CHECK(seen[4].size() == seen[6].size());
  seen[4].insert(seen[4].end(), seen[6].begin(), seen[6].end());
  CHECK(all_once(seen[4]));
}

TEST_CASE("messages and bytes of a table are those of its rows, units and columns", "[rl][table]") {
  for (const std::size_t units : {1u, 3u, 16u})
    for (const std::size_t n : {1u, 2u, 8u, 24u}) {
      CAPTURE(units, n);
      answers_table table(24, units);
      const auto task = table.add_task<rl::needs<answer>>(rl::group<1>{}, 2);
      std::vector<std::size_t> rows(n);
      std::iota(rows.begin(), rows.end(), std::size_t{0});
      const std::vector<std::vector<std::int32_t>> prompts(n, {1, 2}), answers(n, {3, 4, 5});
      table.put<prompt, answer>(rows, prompts, answers);
      const auto touched = static_cast<std::int64_t>((std::min)(n, units)), count = static_cast<std::int64_t>(n);
      CHECK(table.traffic() == rl::table_traffic{touched, 1, 0, 0, count * 20, 0});
      const auto first = task->take(n, 0, 0), second = task->take(n, 0, 0);  // the two ranks of a replica
      CHECK(first == second);
      CHECK(first->rows == rows);
      CHECK(table.traffic() == rl::table_traffic{touched, 1, 2, touched, count * 20, count * 12});
    }
}

TEST_CASE("closing a table wakes those that wait", "[rl][table]") {
  answers_table table(64, 2);
  const auto groups = table.add_task<rl::needs<answer>, 8>(rl::group<8>{});
  const auto both = table.add_task<rl::needs<prompt, reward>>(rl::sequential{});
  std::vector<std::size_t> rows(20);
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  table.put<answer>(rows, std::vector<std::vector<std::int32_t>>(20));
  std::vector<std::size_t> taken;
  bool woken = false;
  {
    std::jthread a([&] {
      auto batches = groups->batches(24);
      while (const auto b = batches.next()) taken.insert(taken.end(), b->rows.begin(), b->rows.end());
    });
    std::jthread b([&] { woken = both->take(1, 0, 0) == nullptr; });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    table.close();
  }
  CHECK(taken == std::vector<std::size_t>(rows.begin(), rows.begin() + 16));  // the third group has four rows
  CHECK(woken);
  CHECK_THROWS_WITH(table.put<answer>(30, {}), Contains("closed"));
  table.clear();
  table.put<answer>(0, {7});
  CHECK(table.board().is_there(0, 1));
  CHECK(!table.board().is_there(0, 0));
  CHECK(table.board().ready(0) == std::vector<std::size_t>{0});
}

TEST_CASE("tables refuse rows, batches and groups that do not fit", "[rl][table]") {
  answers_table table(12, 2);
  const auto task = table.add_task<rl::needs<answer>>(rl::group<4>{});
  table.put<answer>(3, {1});
  CHECK_THROWS_WITH(table.put<answer>(3, {1}), Contains("row 3 is there already"));
  CHECK_THROWS_WITH(table.put<answer>(12, {1}), Contains("row 12 is not in a table of 12"));
  const std::vector<std::size_t> rows{1, 2};
  CHECK_THROWS_WITH((table.put<reward>(rows, std::vector<double>{1})), Contains("2 rows") && Contains("1 values"));
  CHECK_THROWS_WITH(task->take(6, 0, 0), Contains("6 rows") && Contains("whole groups of 4"));
  CHECK_THROWS_WITH(table.add_task<rl::needs<answer>>(rl::group<5>{}), Contains("12 rows") && Contains("groups of 5"));
  const auto shared = table.add_task<rl::needs<reward>>(rl::balanced<2, 3>{});
  CHECK_THROWS_WITH(shared->take(2, 3, 0), Contains("replica 3") && Contains("one of 3 replicas"));
  CHECK_THROWS_WITH(table.add_task<rl::needs<answer>>(rl::balanced<4, 2>{}), Contains("each of 2 replicas"));
  CHECK_THROWS_WITH(answers_table(0), Contains("at least one row"));
  CHECK_THROWS_WITH(answers_table(1, 0), Contains("at least one unit"));
  rl::row_board board(4, 1);
  const std::size_t t = board.add_task({0}, 2, 0, 1);
  const std::vector<std::size_t> twice{0, 1, 0};
  CHECK_THROWS_WITH(board.mark(twice, 0, std::vector<std::int64_t>(3)), Contains("row 0 is there already"));
  CHECK(board.ready(t).empty());  // nothing of it stays
  CHECK_THROWS_WITH(rl::equal_parts(std::vector<std::int64_t>{1, 2, 3}, 2), Contains("3 weights do not fill 2 parts"));
}
