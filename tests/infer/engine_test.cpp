#include <heddle/infer/draft_speculation.hpp>
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

// What a test of an engine varies.
struct setting {
  inf::step_limits limits = fake::small_limits;
  fake::language language{};
  std::int64_t max_running = 64;
  int requests = 40;
  bool interrupt = false;  // requests are cancelled and finished at random
  bool changes = false;    // weights are said to change at random
};

// Requests arrive at random; each answer must be that of the request alone, token by token and with the bits of its log-probabilities. The
// oldest must get a row in each step, so that it ends after at most as many steps as it has tokens.
template <class... Policies, class... Decode>
inf::engine_counts check_random_requests(const setting& in, unsigned seed, const Decode&... decode) {
  CAPTURE(seed, in.limits.blocks, in.limits.block_rows, in.limits.max_rows, in.max_running);
  std::mt19937 random(seed);
  fake::runner runner(in.limits, in.language);
  inf::engine<fake::runner, Policies...> engine(runner, {.max_running = in.max_running, .end_tokens = {12}}, decode...);
  const std::int64_t longest = (std::min)(engine.context() - 1, std::int64_t{30});
  std::map<inf::request_id, inf::request> asked;
  std::set<inf::request_id> live, interrupted;
  collector got;
  inf::request_id oldest = 0;
  std::int64_t steps_of_oldest = 0;
  for (int left = in.requests; left > 0 || !engine.idle();) {
    for (std::int64_t n = left > 0 ? fake::between(random, 0, 3) : 0; n > 0 && left > 0; --n, --left) {
      inf::request r = fake::any_request(random, longest);
      r.ignore_end_tokens = fake::between(random, 0, 1) == 1;
      const inf::request_id id = engine.submit(r);
      asked.emplace(id, std::move(r));
      live.insert(id);
    }
    if (in.interrupt && !live.empty() && fake::between(random, 0, 5) == 0) {
      const inf::request_id id = *std::next(live.begin(), fake::between(random, 0, std::ssize(live) - 1));
      CHECK(((id % 2 == 0) ? engine.cancel(id) : engine.finish(id)));
      CHECK_FALSE(engine.cancel(id));
      interrupted.insert(id);
      live.erase(id);
    }
    if (!live.empty() && *live.begin() != oldest) {
      oldest = *live.begin();
      steps_of_oldest = 0;
    }
    if (in.changes && fake::between(random, 0, 3) == 0) {
      const bool keep = fake::between(random, 0, 1) == 0;
      const std::int64_t running = engine.counts().running;
      engine.weights_changed(keep ? inf::kv::keep : inf::kv::recompute);
      CHECK(engine.counts().running == (keep ? running : 0));
      CHECK(engine.counts().cache.kept == 0);
      if (!keep) CHECK(engine.counts().cache.used == 0);
      steps_of_oldest = 0;
    }
    const std::span<const inf::event> events = engine.step();
    got.add(events);
    for (const inf::event& e : events)
      if (e.finish != inf::finish_reason::none) live.erase(e.id);
    if (live.contains(oldest)) {
      ++steps_of_oldest;
      CHECK(steps_of_oldest <= std::ssize(asked.at(oldest).prompt) + asked.at(oldest).max_tokens);
    }
    const inf::engine_counts c = engine.counts();
    CHECK(c.running <= in.max_running);
    CHECK(c.cache.used + c.cache.kept <= in.limits.blocks);
    REQUIRE(runner.steps <= 10000);
  }
  for (const auto& [id, r] : asked) {
    CAPTURE(id);
    const fake::answer& a = got.answers.at(id);
    fake::answer expected = fake::alone(r, in.language, engine.context(), {12});
    if (interrupted.contains(id)) {
      CHECK(a.finish == (id % 2 == 0 ? inf::finish_reason::cancelled : inf::finish_reason::stop));
      REQUIRE(a.tokens.size() <= expected.tokens.size());
      expected.tokens.resize(a.tokens.size());
      expected.log_probabilities.resize(a.log_probabilities.size());
      expected.finish = a.finish;
    }
    CHECK(a.tokens == expected.tokens);
    CHECK(a.log_probabilities == expected.log_probabilities);
    CHECK(a.finish == expected.finish);
  }
  const inf::engine_counts c = engine.counts();
  CHECK(c.cache.used == 0);
  CHECK(c.submitted == in.requests);
  CHECK(c.ended == in.requests);
  CHECK(runner.most_rows <= in.limits.max_rows);
  if constexpr (requires { engine.decoder().blocks_used(); }) CHECK(engine.decoder().blocks_used() == 0);
  return c;
}

// Whatever the sizes of blocks, steps and cache: the last ones hold little more than one request.
template <class... Policies>
inf::engine_counts check_all_sizes(setting in, unsigned seed) {
  inf::engine_counts sum;
  const std::int64_t context = in.limits.context;
  for (const std::int64_t block_rows : {std::int64_t{1}, std::int64_t{4}, std::int64_t{5}, context})
    for (const std::int64_t max_rows : {1, 6, 24})
      for (const std::int64_t contexts : {1, 2, 9}) {
        const std::int64_t per_context = (context + block_rows - 1) / block_rows;
        in.limits.block_rows = block_rows;
        in.limits.max_rows = max_rows;
        in.limits.blocks = contexts * per_context + (block_rows < context ? 1 : 0);
        in.max_running = contexts == 2 ? 3 : 8;
        const inf::engine_counts c = check_random_requests<Policies...>(in, ++seed);
        sum.preemptions += c.preemptions;
        sum.slot_moves += c.slot_moves;
        sum.cache.found += c.cache.found;
        sum.proposed_tokens += c.proposed_tokens;
        sum.accepted_tokens += c.accepted_tokens;
      }
  return sum;
}

constexpr fake::language repeating{.habit = 5};

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

TEST_CASE("answers do not depend on batch, slots, blocks or rows of a step", "[infer][engine][law]") {
  const unsigned seed = 2026;
  const setting in{.requests = 12};
  SECTION("contiguous, continuous") {
    CHECK(check_all_sizes<inf::contiguous, inf::continuous_batching>(in, seed).preemptions == 0);
  }
  SECTION("paged, chunks of prompts") {
    CHECK(check_all_sizes<inf::chunked_prefill<7>, inf::paged>(in, seed).preemptions > 0);
  }
  SECTION("paged, static batches") {
    CHECK(check_all_sizes<inf::static_batching<3>>(in, seed).cache.found == 0);
  }
  SECTION("slots, fused steps, holes closed and kept") {
    const inf::engine_counts closed = check_all_sizes<inf::temporal_fusion<5>>(in, seed);
    CHECK(closed.preemptions == 0);
    CHECK(closed.slot_moves > 20);
    CHECK(check_all_sizes<inf::temporal_fusion<5, inf::keep_holes>, inf::slotted>(in, seed).slot_moves == 0);
  }
}

TEST_CASE("answers do not depend on what is in a shared cache", "[infer][engine][law]") {
  const inf::engine_counts c = check_all_sizes<inf::prefix_shared>({.requests = 16}, 77);
  CHECK(c.preemptions > 0);
  CHECK(c.cache.found > 0);
}

TEST_CASE("speculation changes no answer, greedy or sampled", "[infer][engine][law]") {
  const setting in{.language = repeating, .requests = 14};
  SECTION("paged") {
    const inf::engine_counts c = check_all_sizes<inf::ngram_speculation<5>, inf::paged>(in, 5);
    CHECK(c.accepted_tokens > 0);
    CHECK(c.accepted_tokens < c.proposed_tokens);
  }
  SECTION("prefix_shared") {
    const inf::engine_counts c =
        check_all_sizes<inf::ngram_speculation<5>, inf::prefix_shared, inf::chunked_prefill<11>>(in, 6);
    CHECK(c.accepted_tokens > 0);
    CHECK(c.cache.found > 0);
  }
}

TEST_CASE("thousands of requests, some ended from outside, leave no block behind", "[infer][engine][law]") {
  setting in{.language = repeating, .max_running = 9, .requests = 2000, .interrupt = true};
  in.limits.blocks = 14;
  SECTION("prefix_shared and speculation") {
    const inf::engine_counts c = check_random_requests<inf::prefix_shared, inf::ngram_speculation<>>(in, 11);
    CHECK(c.preemptions > 20);
    CHECK(c.cache.found > 1000);
  }
  SECTION("paged") {
    CHECK(check_random_requests<>(in, 12).preemptions > 20);
  }
  SECTION("slots and fused steps") {
    in.limits.blocks = 9 * 12;
    CHECK(check_random_requests<inf::temporal_fusion<9>>(in, 13).slot_moves > 100);
  }
}

TEST_CASE("answers go on where weights are said to change, whatever becomes of the cache", "[infer][engine][law]") {
  setting in{.language = repeating, .max_running = 9, .requests = 300, .interrupt = true, .changes = true};
  in.limits.blocks = 14;
  CHECK(check_random_requests<inf::paged>(in, 41).preemptions > 100);
  const inf::engine_counts c = check_random_requests<inf::prefix_shared, inf::ngram_speculation<>>(in, 42);
  CHECK(c.preemptions > 100);
  CHECK(c.cache.found > 100);
  in.limits.blocks = 9 * 12;
  CHECK(check_random_requests<inf::temporal_fusion<9>>(in, 43).slot_moves > 20);
  CHECK(check_random_requests<inf::temporal_fusion<9, inf::keep_holes>, inf::slotted>(in, 44).preemptions > 100);
  fake::runner draft({.vocabulary = 13, .context = 44, .block_rows = 5, .blocks = 40, .max_rows = 9}, repeating);
  CHECK(check_random_requests<inf::draft_speculation<fake::runner, 3>>(in, 45,
                                                                       inf::draft_speculation<fake::runner, 3>(draft))
            .accepted_tokens > 100);
}

TEST_CASE("a draft model changes no answer, whatever it proposes", "[infer][engine][law]") {
  const fake::language habits{.habit = 5, .odd_after = 3};  // another one than the engine's
  const setting in{.language = repeating, .max_running = 6, .requests = 60, .interrupt = true};
  for (const std::int64_t blocks : {100, 13}) {  // too few for all
    CAPTURE(blocks);
    fake::runner draft({.vocabulary = 13, .context = 44, .block_rows = 5, .blocks = blocks, .max_rows = 9}, habits);
    const inf::engine_counts c = check_random_requests<inf::draft_speculation<fake::runner, 3>, inf::prefix_shared>(
        in, 21, inf::draft_speculation<fake::runner, 3>(draft));
    CHECK(c.accepted_tokens > 100);
    CHECK(c.accepted_tokens < c.proposed_tokens);
    CHECK(draft.most_rows == 9);
  }
}
