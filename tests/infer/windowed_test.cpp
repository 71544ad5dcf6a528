// A cache of windows: answers are those of a paged one, and blocks in use do not grow with the text.
#include "catch.hpp"
#include "fake_runner.hpp"

#include <heddle/infer/decoding.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/windowed.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <vector>

namespace inf = heddle::infer;

namespace {

struct windowed_fake : fake::runner {
  using capabilities = inf::capabilities<inf::truncate, inf::causal_rows, inf::next_token, inf::bounded_reach>;
  using fake::runner::runner;
};

inf::step_limits windowed_limits(std::int64_t window, std::int64_t block_rows, std::int64_t blocks) {
  inf::step_limits l = fake::small_limits;
  l.window = window;
  l.block_rows = block_rows;
  l.blocks = blocks;
  l.max_rows = 9;
  return l;
}

template <class... Policies>
std::map<inf::request_id, fake::answer> windowed_answers(inf::step_limits limits, std::vector<inf::request> requests,
                                                         std::mt19937& random, std::int64_t& most_used,
                                                         std::int64_t& preempted) {
  windowed_fake runner(limits, {.habit = 3});
  inf::engine<windowed_fake, Policies...> e(runner, {.max_running = 5});
  std::map<inf::request_id, fake::answer> all;
  std::size_t next = 0;
  while (next < requests.size() || !e.idle()) {
    while (next < requests.size() && fake::between(random, 0, 2) > 0) {
      const inf::request_id id = e.submit(requests[next++]);
      if (fake::between(random, 0, 9) == 0) e.cancel(id);
    }
    for (const inf::event& x : e.step()) {
      fake::answer& a = all[x.id];
      if (x.token) a.tokens.push_back(*x.token);
      if (x.log_probability) a.log_probabilities.push_back(*x.log_probability);
      a.finish = x.finish;
    }
    most_used = (std::max)(most_used, e.counts().cache.used);
  }
  CHECK(e.counts().cache.used == 0);
  preempted = e.counts().preemptions;
  return all;
}

}  // namespace

TEST_CASE("answers from a cache of windows are those of the text alone", "[infer]") {
  const std::uint32_t seed = 4411;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::int64_t preempted = 0;
  for (int round = 0; round < 12; ++round) {
    const std::int64_t window = fake::between(random, 1, 20), block_rows = fake::between(random, 1, 5);
    inf::step_limits limits = windowed_limits(window, block_rows, 0);
    const std::int64_t whole = (limits.context + block_rows - 1) / block_rows;
    limits.blocks = (std::min)(inf::windowed_blocks::most_held(limits), whole) + fake::between(random, 0, 6);
    CAPTURE(round, window, block_rows, limits.blocks);
    std::vector<inf::request> requests;
    for (int i = 0; i < 30; ++i) requests.push_back(fake::any_request(random, 28));
    const fake::language of{.habit = 3, .window = window};
    std::int64_t used = 0, n = 0;
    const auto plain = windowed_answers<inf::windowed>(limits, requests, random, used, n);
    preempted += n;
    const auto proposed = windowed_answers<inf::windowed, inf::ngram_speculation<3>>(limits, requests, random, used, n);
    CHECK(used <= limits.blocks);
    for (const auto* found : {&plain, &proposed})
      for (const auto& [id, a] : *found) {
        if (a.finish == inf::finish_reason::cancelled) continue;
        CHECK(a == fake::alone(requests[static_cast<std::size_t>(id - 1)], of, limits.context));
      }
  }
  CHECK(preempted > 0);
}

TEST_CASE("blocks in use stay those of the window from one to fifty times its length", "[infer]") {
  for (const std::int64_t block_rows : {1, 3, 4}) {
    constexpr std::int64_t window = 8;
    inf::step_limits limits = windowed_limits(window, block_rows, 64);
    limits.context = 50 * window + 40;
    for (const std::int64_t prompt : {window, 50 * window}) {  // answers, and prompts in chunks
      CAPTURE(block_rows, prompt);
      windowed_fake runner(limits, {});
      inf::engine<windowed_fake, inf::windowed> e(runner);
      inf::request r;
      r.prompt.assign(static_cast<std::size_t>(prompt), 1);
      r.max_tokens = prompt == window ? 49 * window : 20;
      r.ignore_end_tokens = true;
      r.sampling.seed = 3;
      e.submit(r);
      std::int64_t in_prompt = 0, low = 64, high = 0;
      while (!e.idle()) {
        const bool answers = !e.step().empty();
        const std::int64_t used = e.counts().cache.used;
        if (e.idle()) break;
        if (!answers) in_prompt = (std::max)(in_prompt, used);
        if (answers) low = (std::min)(low, used), high = (std::max)(high, used);
      }
      CHECK(in_prompt <= inf::windowed_blocks::most_held(limits));
      CHECK(high - low <= 1);
      CHECK(high <= (window + block_rows - 1) / block_rows + 1);
    }
  }
}

TEST_CASE("a window of none is refused, and a cache that has no room for one", "[infer][error]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(inf::windowed_blocks(windowed_limits(0, 4, 60)), Contains("at least one token, got 0"));
  CHECK_THROWS_WITH(inf::windowed_blocks(windowed_limits(20, 4, 7)), Contains("at least 8 blocks"));
  CHECK_NOTHROW(inf::windowed_blocks(windowed_limits(20, 4, 8)));
}
