// tests/rl/reward_process_test.cpp: judges in processes: what they print, and every way in which they fail.
#if __has_include(<nlohmann/json.hpp>)
#include "catch.hpp"

#include <heddle/rl/line_process.hpp>
#include <heddle/rl/reward.hpp>
#include <heddle/rl/subprocess.hpp>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace rl = heddle::rl;
using Catch::Matchers::Contains;

namespace {
rl::process_limits python_judge() {
  rl::process_limits l;
  l.command = {"python3", HEDDLE_SOURCE_DIR "/tests/rl/judges/judge.py"};
  l.cpu_seconds = 1;
  l.wall_seconds = 30;
  l.output_bytes = 4096;
  l.at_once = 4;
  return l;
}
rl::question saying(std::string words) {
  return {{1, 2}, {3, 4, 5}, "prompt", std::move(words)};
}
std::vector<rl::judgement> judged(const rl::process_limits& l, const std::vector<std::string>& answers) {
  rl::subprocess judge(l);
  std::vector<rl::question> all;
  for (const std::string& a : answers) all.push_back(saying(a));
  return rl::judge_all(judge, all);
}
}  // namespace

TEST_CASE("a judge that fails in any way ends its answer alone", "[rl][reward]") {
  const std::vector<std::string> answers{
      "good",   "nan",  "huge", "words", "text",    "throws",  "silent",
      "floods", "eats", "dies", "spins", "unended", "lingers", "good \xff \"and\" \n more"};
  const auto all = judged(python_judge(), answers);
  REQUIRE(all.size() == answers.size());
  const auto why = [&](const std::string& answer) {
    for (std::size_t i = 0; i < answers.size(); ++i)
      if (answers[i] == answer) return all[i].missing;
    return std::string("there is none");
  };
  CHECK(all[0].missing == "");
  CHECK(all[0].reward == 203);
  CHECK_THAT(why("nan"), Contains("no JSON"));
  CHECK_THAT(why("huge"), Contains("no JSON"));
  CHECK_THAT(why("words"), Contains("no JSON"));
  CHECK_THAT(why("text"), Contains("an object with a number \"reward\", got {\"reward\": \"1\"}"));
  CHECK_THAT(why("throws"), Contains("status 1") && Contains("ValueError: no such answer"));
  CHECK_THAT(why("silent"), Contains("status 0 and printed no line"));
  CHECK_THAT(why("floods"), Contains("more than 4096 bytes"));
  CHECK_THAT(why("eats"), Contains("status 1") && Contains("MemoryError"));
  CHECK_THAT(why("dies"), Contains("signal 11"));
  CHECK_THAT(why("spins"), Contains("limit of 1 s of CPU"));
  CHECK(all[11].reward == 4);
  CHECK(all[12].reward == 3);
  CHECK(all[13].reward == 203);
}

TEST_CASE("a judge reads what is known of a prompt", "[rl][reward]") {
  rl::process_limits l;
  l.command = {"sed", "s/.*\"facts\":{\"right\":\\([0-9.]*\\)}.*/{\"reward\": \\1}/"};
  rl::subprocess judge(l);
  std::vector<rl::question> all(2, saying("words"));
  all[0].facts = "{\"right\": 0.25}";
  const auto said = judge(all);
  CHECK(said[0].reward == 0.25);
  CHECK(said[0].ok());
  CHECK_THAT(said[1].missing, Contains("an object with a number \"reward\""));  // nothing is known, nothing is said
  all[1].facts = "{\"right\"";
  CHECK_THROWS_WITH(judge(all), Contains("rl::question.facts"));
}

TEST_CASE("a judge that hangs is ended, with what it has started", "[rl][reward]") {
  rl::process_limits l = python_judge();
  l.wall_seconds = 2.5;
  const auto file = std::filesystem::temp_directory_path() / ("heddle_judge_" + std::to_string(::getpid()));
  const auto all = judged(l, {"hangs", "closes", "shouts", "forks " + file.string(), "good"});
  CHECK_THAT(all[0].missing, Contains("more than 2.5 s"));
  CHECK_THAT(all[1].missing, Contains("more than 2.5 s"));
  CHECK(!all[2].ok());  // by time or by CPU, whichever is first
  CHECK_THAT(all[3].missing, Contains("more than 2.5 s"));
  CHECK(all[4].reward == 203);
  std::ifstream in(file);
  int child = 0;
  REQUIRE(in >> child);
  std::filesystem::remove(file);
  // The child has the signal; who inherits it takes it off the list.
  const auto runs = [&] {
    std::ifstream status("/proc/" + std::to_string(child) + "/stat");
    std::string number, name, state;
    return static_cast<bool>(status >> number >> name >> state) && name == "(sleep)" && state != "Z";
  };
  for (int i = 0; i < 2000 && runs(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(!runs());
}

TEST_CASE("a judge that does not listen, or does not exist, is no danger to the program", "[rl][reward]") {
  rl::process_limits l = python_judge();
  l.command.push_back("deaf");
  CHECK(judged(l, {std::string(1 << 22, 'x')})[0].reward == 0.5);
  rl::process_limits none = python_judge();
  none.command = {"/nonexistent/judge"};
  CHECK_THROWS_WITH(judged(none, {"a", "b"}),
                    Contains("the rewards of all 2 answers are missing") && Contains("status 127"));
  none.command.clear();
  CHECK_THROWS_WITH(rl::subprocess(none), Contains("got no words"));
  none = python_judge();
  none.wall_seconds = 0;
  CHECK_THROWS_WITH(rl::subprocess(none), Contains("1 s of CPU") && Contains(", 0 s,"));
}

TEST_CASE("lines of many runs come back in their order", "[rl][reward]") {
  rl::process_limits l;
  l.command = {"cat"};
  l.at_once = 8;
  std::vector<std::string> lines;
  for (int i = 0; i < 100; ++i) lines.push_back("line " + std::to_string(i));
  const auto all = rl::run_lines(l, lines);
  REQUIRE(all.size() == lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    CHECK(all[i].failure == "");
    CHECK(all[i].text == lines[i]);
  }
}
#endif
