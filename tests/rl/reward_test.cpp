// tests/rl/reward_test.cpp: a reward that fails, hangs or is no number ends one answer, never the step.
#include "catch.hpp"

#include <heddle/rl/reward.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace rl = heddle::rl;
using Catch::Matchers::Contains;

namespace {
std::vector<rl::question> answers_of_lengths(const std::vector<int>& lengths) {
  std::vector<rl::question> all;
  for (const int n : lengths) all.push_back({{1}, std::vector<std::int32_t>(static_cast<std::size_t>(n), 7), "", ""});
  return all;
}
double length_of(const rl::question& q) {
  return static_cast<double>(q.answer.size());
}
}  // namespace

TEST_CASE("a reward that throws or is no number is missing, with the reason", "[rl][reward]") {
  auto reward = [](const rl::question& q) {
    switch (q.answer.size()) {
      case 1:
        throw std::runtime_error("no such answer");
      case 2:
        throw 3;
      case 3:
        return std::nan("");
      case 4:
        return HUGE_VAL;
      default:
        return length_of(q);
    }
  };
  const auto all = rl::judge_all(reward, answers_of_lengths({0, 1, 2, 3, 4, 5}));
  REQUIRE(all.size() == 6);
  CHECK(all[0].ok());
  CHECK(all[0].reward == 0);
  CHECK(all[5].ok());
  CHECK(all[5].reward == 5);
  CHECK(all[1].missing == "the reward threw: no such answer");
  CHECK_THAT(all[2].missing, Contains("no std::exception"));
  CHECK_THAT(all[3].missing, Contains("nan"));
  CHECK_THAT(all[4].missing, Contains("inf"));
  CHECK(rl::judge_all(reward, answers_of_lengths({})).empty());
  CHECK_THROWS_WITH(rl::judge_all(reward, answers_of_lengths({1, 3})),
                    Contains("the rewards of all 2 answers are missing") && Contains("no such answer"));
  auto too_few = [](std::span<const rl::question>) { return std::vector<rl::judgement>(1); };
  CHECK_THROWS_WITH(rl::judge_all(too_few, answers_of_lengths({1, 3})), Contains("2 answers") && Contains("got 1"));
}

TEST_CASE("a reward that hangs is left alone and the others go on", "[rl][reward]") {
  const auto open = std::make_shared<std::atomic<bool>>(false);  // lets those that hang go
  const auto ended = std::make_shared<std::atomic<int>>(0);
  {
    rl::timed reward(
        std::chrono::milliseconds(300),
        [open, ended](const rl::question& q) {
          if (q.answer.size() % 3 == 0) {
            while (!*open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            ++*ended;
          }
          if (q.answer.size() == 4) throw std::runtime_error("four");
          return length_of(q);
        },
        2, 4);
    for (int step = 0; step < 2; ++step) {
      const auto all = rl::judge_all(reward, answers_of_lengths({1, 3, 2, 4, 6, 5}));
      CHECK(reward.left() == 2 * (step + 1));
      CHECK(all[0].reward == 1);
      CHECK(all[2].reward == 2);
      CHECK(all[5].reward == 5);
      CHECK_THAT(all[1].missing, Contains("more than 300 ms"));
      CHECK_THAT(all[4].missing, Contains("more than 300 ms"));
      CHECK_THAT(all[3].missing, Contains("four"));
    }
    CHECK_THROWS_WITH(rl::judge_all(reward, answers_of_lengths({3, 3, 1})),
                      Contains("hang in threads of rl::timed, more than 4"));
    *open = true;
    while (reward.left() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(rl::judge_all(reward, answers_of_lengths({1, 2}))[1].reward == 2);
  }
  CHECK(*ended >= 5);
  // Nobody waits for one that hangs; one that looks at its token ends when it is told.
  const auto stopped = std::make_shared<std::atomic<bool>>(false);
  {
    rl::timed reward(std::chrono::milliseconds(300),
                     rl::timed::function([stopped](const rl::question& q, const std::stop_token& stop) {
                       while (q.answer.size() == 9 && !stop.stop_requested()) std::this_thread::yield();
                       if (q.answer.size() == 9) *stopped = true;
                       return 1.0;
                     }));
    CHECK(rl::judge_all(reward, answers_of_lengths({9, 1}))[1].ok());
  }
  while (!*stopped) std::this_thread::yield();
  CHECK_THROWS_WITH(rl::timed(std::chrono::milliseconds(0), length_of), Contains("got 0 ms"));
}
