#include <heddle/infer/engine.hpp>

#include "catch.hpp"
#include "fake_runner.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;
using Catch::Matchers::Contains;

namespace {

inf::request short_request(std::vector<std::int32_t> prompt, std::int64_t tokens = 5) {
  return {.prompt = std::move(prompt), .max_tokens = tokens, .sampling = {.seed = 7}, .log_probabilities = 0};
}

// Collects the events of requests, and checks that each request ends once.
struct collector {
  std::map<inf::request_id, fake::answer> answers{};
  std::map<inf::request_id, std::string> messages{};

  void add(std::span<const inf::event> events) {
    for (const inf::event& e : events) {
      fake::answer& a = answers[e.id];
      REQUIRE(a.finish == inf::finish_reason::none);
      CHECK(e.index == std::ssize(a.tokens));
      if (e.token) a.tokens.push_back(*e.token);
      if (e.log_probability) a.log_probabilities.push_back(*e.log_probability);
      a.finish = e.finish;
      if (!e.message.empty()) messages[e.id] = e.message;
    }
  }
};

template <class Engine>
void run_to_end(Engine& engine, collector& to) {
  for (int i = 0; !engine.idle(); ++i) {
    REQUIRE(i < 100000);
    to.add(engine.step());
  }
}

}  // namespace

TEST_CASE("an engine continues a prompt token by token", "[infer][engine]") {
  fake::runner runner;
  inf::engine engine(runner);
  CHECK(engine.idle());
  CHECK(engine.step().empty());
  const inf::request r = short_request({1, 2, 3});
  const inf::request_id id = engine.submit(r);
  CHECK(id == 1);
  CHECK(engine.counts().waiting == 1);
  collector got;
  run_to_end(engine, got);
  CHECK(got.answers.at(id) == fake::alone(r, {}, fake::small_limits.context));
  CHECK(got.answers.at(id).finish == inf::finish_reason::length);
  CHECK(runner.steps == 5);
  const inf::engine_counts c = engine.counts();
  CHECK(c.rows == 7);
  CHECK(c.prompt_tokens == 3);
  CHECK(c.answer_tokens == 5);
  CHECK(c.ended == 1);
  CHECK(c.cache.used == 0);
}
