#include <heddle/infer/draft_speculation.hpp>
#include <heddle/infer/engine.hpp>

#include "catch.hpp"
#include "fake_runner.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;
using Catch::Matchers::Contains;
using std::int64_t;

namespace {

inf::request asking(int64_t prompt, int64_t tokens) {
  inf::request r{.max_tokens = tokens, .sampling = {.temperature = 0}};
  for (int64_t i = 0; i < prompt; ++i) r.prompt.push_back(static_cast<std::int32_t>(i * 5 % 13));
  return r;
}

std::vector<int64_t> rows_of(const inf::step& s) {
  std::vector<int64_t> rows;
  for (const inf::sequence_rows& q : s.sequences) rows.push_back(q.rows);
  return rows;
}
using rows = std::vector<int64_t>;

template <class Engine>
std::vector<inf::event> all_events(Engine& engine) {
  std::vector<inf::event> all;
  while (!engine.idle())
    for (const inf::event& e : engine.step()) all.push_back(e);
  return all;
}

}  // namespace

TEST_CASE("rows that decode come first, and chunks of prompts fill the budget", "[infer][engine][batching]") {
  fake::runner runner;
  inf::engine<fake::runner, inf::chunked_prefill<8>> engine(runner);
  engine.submit(asking(2, 10));
  engine.step();
  CHECK(rows_of(runner.last) == rows{2});
  engine.submit(asking(18, 3));
  engine.submit(asking(3, 3));
  const std::vector<rows> expected = {{1, 7}, {1, 7}, {1, 4, 3}, {1, 1, 1}};
  for (const rows& r : expected) {
    CHECK(engine.step().front().id == 1);  // a token in each step, whatever prompts come
    CHECK(rows_of(runner.last) == r);
  }
}

TEST_CASE("continuous batching begins with whole prompts, and cuts those that no step can hold",
          "[infer][engine][batching]") {
  fake::runner runner({.vocabulary = 13, .context = 48, .block_rows = 4, .blocks = 60, .max_rows = 10});
  inf::engine<fake::runner, inf::continuous_batching> engine(runner);
  engine.submit(asking(4, 20));
  engine.submit(asking(8, 20));  // does not fit behind the first
  engine.step();
  CHECK(rows_of(runner.last) == rows{4});
  engine.step();
  CHECK(rows_of(runner.last) == rows{1, 8});
  engine.submit(asking(30, 20));
  for (const rows& r : {rows{1, 1, 8}, rows{1, 1, 8}, rows{1, 1, 8}, rows{1, 1, 6}, rows{1, 1, 1}}) {
    engine.step();
    CHECK(rows_of(runner.last) == r);
  }
}

TEST_CASE("a static batch begins and ends before the next one", "[infer][engine][batching]") {
  fake::runner runner;
  inf::engine<fake::runner, inf::static_batching<2>> engine(runner);
  for (int64_t i = 0; i < 3; ++i) engine.submit(asking(3, 2 + i));
  for (const rows& r : {rows{3, 3}, rows{1, 1}, rows{1}, rows{3}}) {
    engine.step();
    CHECK(rows_of(runner.last) == r);
  }
  CHECK(engine.counts().running == 1);
}

TEST_CASE("a fused step has a row for each slot of its window, and holes are closed or kept",
          "[infer][engine][batching]") {
  const auto steps = [](auto batching) {
    fake::runner runner({.vocabulary = 13, .context = 48, .block_rows = 48, .blocks = 5, .max_rows = 24});
    inf::engine<fake::runner, decltype(batching)> engine(runner);
    for (const int64_t tokens : {2, 9, 2, 5, 1}) engine.submit(asking(2, tokens));  // one more than slots: it waits
    std::vector<std::vector<int64_t>> slots_of_steps;
    for (int i = 0; !engine.idle(); ++i) {
      REQUIRE(i < 100);
      engine.step();
      std::vector<int64_t> slots;
      for (const inf::sequence_rows& q : runner.last.sequences)
        slots.push_back(runner.last.blocks[static_cast<std::size_t>(q.first_block)]);
      slots_of_steps.push_back(slots);
    }
    CHECK(engine.counts().cache.blocks == 4);
    CHECK(runner.copies == engine.counts().slot_moves);  // of one block each
    return std::pair(slots_of_steps, engine.counts().slot_moves);
  };
  using slots = std::vector<int64_t>;
  const auto closed = steps(inf::temporal_fusion<4>{});
  // After two steps slots 0 and 2 are free; the last request takes slot 2 for a step, and then slot 3 is moved to slot 0.
  CHECK(closed.first == std::vector<slots>{{0, 1, 2, 3}, {0, 1, 2, 3}, {1, 2, 3}, {0, 1}, {0, 1}, {1}, {1}, {1}, {1}});
  CHECK(closed.second == 1);
  const auto kept = steps(inf::temporal_fusion<4, inf::keep_holes>{});
  CHECK(kept.first ==
        std::vector<slots>{{0, 1, 2, 3}, {0, 1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {1}, {1}, {1}, {1}});
  CHECK(kept.second == 0);
}

TEST_CASE("no more requests run than may", "[infer][engine]") {
  fake::runner runner;
  inf::engine engine(runner, {.max_running = 2});
  for (int i = 0; i < 5; ++i) engine.submit(asking(3, 4));
  engine.step();
  CHECK(engine.counts().running == 2);
  CHECK(engine.counts().waiting == 3);
  CHECK(rows_of(runner.last) == rows{3, 3});
}

TEST_CASE("a full cache sends the youngest back, and its answer goes on", "[infer][engine][memory]") {
  fake::runner runner({.vocabulary = 13, .context = 24, .block_rows = 4, .blocks = 6, .max_rows = 24});
  inf::engine engine(runner);
  const inf::request r = asking(7, 17);
  for (int i = 0; i < 2; ++i) engine.submit(r);
  const std::vector<inf::event> events = all_events(engine);
  CHECK(events.size() == 34);
  CHECK(engine.counts().preemptions > 0);
  std::vector<std::vector<std::int32_t>> answers(3);
  for (const inf::event& e : events) answers[e.id].push_back(*e.token);
  CHECK(answers[1] == fake::alone(r, {}, 24).tokens);
  CHECK(answers[2] == answers[1]);
  CHECK(events.back().id == 2);  // the older one ended first
}

TEST_CASE("a prompt that was computed before costs one row, and the rest of its last block is a copy",
          "[infer][engine][memory]") {
  fake::runner runner;
  inf::engine<fake::runner, inf::prefix_shared> engine(runner);
  const inf::request r = asking(16, 4);
  engine.submit(r);
  const std::vector<inf::event> first = all_events(engine);
  CHECK(first[0].cached_prompt_tokens == 0);
  engine.submit(r);
  const std::vector<inf::event> second = all_events(engine);
  CHECK(second[0].cached_prompt_tokens == 15);
  CHECK(runner.copies == 1);
  REQUIRE(second.size() == first.size());
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(second[i].token == first[i].token);
  const inf::engine_counts c = engine.counts();
  CHECK(c.rows == 16 + 3 + 1 + 3);
  CHECK(c.cache.found == 15);
  CHECK(c.cache.looked_up == 32);
  inf::request longer = r;  // the next turn of a conversation: the answer is in the cache, too
  for (const inf::event& e : first) longer.prompt.push_back(*e.token);
  longer.prompt.push_back(3);
  engine.submit(longer);
  CHECK(all_events(engine)[0].cached_prompt_tokens == 16);
}

TEST_CASE("speculation on a text that repeats itself takes fewer steps", "[infer][engine][speculation]") {
  const fake::language repeating{.habit = 50};
  fake::runner plain(fake::small_limits, repeating), guessed(fake::small_limits, repeating);
  inf::engine one(plain);
  inf::engine<fake::runner, inf::ngram_speculation<4>> several(guessed);
  const inf::request r = asking(3, 40);
  one.submit(r);
  several.submit(r);
  const std::vector<inf::event> a = all_events(one), b = all_events(several);
  CHECK(a == b);
  CHECK(plain.steps == 40);
  CHECK(guessed.steps < 20);
  CHECK(several.counts().accepted_tokens == 40 - guessed.steps);
}

TEST_CASE("blocks of rejected proposals are given back", "[infer][engine][speculation][memory]") {
  const fake::language repeating{.habit = 2};
  fake::runner runner({.vocabulary = 13, .context = 48, .block_rows = 2, .blocks = 60, .max_rows = 24}, repeating);
  inf::engine<fake::runner, inf::ngram_speculation<8>> engine(runner);
  engine.submit(asking(3, 40));
  int64_t tokens = 3;
  while (true) {
    tokens += std::ssize(engine.step());
    if (engine.idle()) break;
    CHECK(engine.counts().cache.used == tokens / 2);  // of the tokens but the last
  }
  const inf::engine_counts c = engine.counts();
  CHECK(c.proposed_tokens > c.accepted_tokens + 50);
}

TEST_CASE("what comes behind the last tokens, where they stood before, is proposed", "[infer][speculation]") {
  using tokens = std::vector<std::int32_t>;
  const auto proposed = [](const tokens& text, int64_t most) {
    std::vector<inf::proposal> p(1);
    p[0].text = text;
    p[0].most = most;
    inf::ngram_speculation<4, 3>::propose(p);
    return p[0].tokens;
  };
  CHECK(proposed({1, 2, 3}, 4).empty());
  CHECK(proposed({1, 2, 3, 4, 5, 6, 2, 3}, 4) == tokens{4, 5, 6, 2});
  CHECK(proposed({1, 2, 3, 4, 5, 6, 2, 3}, 2) == tokens{4, 5});
  CHECK(proposed({1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}, 2) == tokens{4, 9});  // three tokens agree, not the later two
  CHECK(proposed({7, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}, 2) == tokens{5, 1});  // of two that agree alike the later
  CHECK(proposed({1, 8, 8}, 4) == tokens{8, 8, 8, 8});                    // goes on where the text ends
  CHECK(proposed({1, 5, 6, 5, 6}, 4) == tokens{5, 6, 5, 6});
}

TEST_CASE("a draft model's proposals are kept as far as they are what is drawn", "[infer][engine][speculation]") {
  const fake::language of{.habit = 3};
  const auto greedy_behind = [](const fake::language& l, const std::vector<std::int32_t>& text) {
    std::vector<double> logits(13);
    l.logits(std::ssize(text), [&](int64_t t) { return text[static_cast<std::size_t>(t)]; }, logits);
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  };
  int64_t most_steps = 0;
  for (std::int32_t odd = -1; odd < 13; ++odd) {  // -1: the draft is the model itself
    const fake::language other{.habit = 3, .odd_after = odd};
    fake::runner target(fake::small_limits, of), draft(fake::small_limits, other);
    using policy = inf::draft_speculation<fake::runner, 4>;
    inf::engine<fake::runner, policy> engine(target, {}, policy(draft));
    const inf::request r = asking(3, 40);
    engine.submit(r);
    std::vector<std::int32_t> answer;
    for (const inf::event& e : all_events(engine)) answer.push_back(*e.token);
    CHECK(answer == fake::alone(r, of, 48).tokens);
    // The steps, from the definition: the first token, then what the draft has right and one more.
    int64_t steps = 1, accepted = 0;
    for (std::size_t have = 1; have < answer.size(); ++steps) {
      std::vector<std::int32_t> text = r.prompt;
      text.insert(text.end(), answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(have));
      std::size_t right = 0;
      for (; right < 4 && have + right + 1 < answer.size(); ++right) {
        text.push_back(greedy_behind(other, text));
        if (text.back() != answer[have + right]) break;
      }
      accepted += static_cast<int64_t>(right);
      have += right + 1;
    }
    CAPTURE(odd);
    CHECK(target.steps == steps);
    CHECK(engine.counts().accepted_tokens == accepted);
    CHECK((odd >= 0 || steps == 9));
    CHECK(engine.decoder().blocks_used() == 0);
    most_steps = (std::max)(most_steps, steps);
  }
  CHECK(most_steps > 9);
}

TEST_CASE("a draft that is the model itself is right about samples, too", "[infer][engine][speculation]") {
  fake::runner target, draft;
  using policy = inf::draft_speculation<fake::runner, 4>;
  inf::engine<fake::runner, policy> engine(target, {}, policy(draft));
  inf::request r = asking(3, 41);
  r.sampling = {.temperature = 1.3, .top_p = 0.9, .seed = 5};
  engine.submit(r);
  all_events(engine);
  CHECK(target.steps == 1 + 40 / 5);
  CHECK(engine.counts().accepted_tokens == engine.counts().proposed_tokens);
}

TEST_CASE("a token that ends an answer ends it within what was proposed, too", "[infer][engine][speculation]") {
  const fake::language repeating{.habit = 50};
  fake::runner runner(fake::small_limits, repeating);
  inf::engine<fake::runner, inf::ngram_speculation<6>> engine(runner);
  inf::request r = asking(1, 40);
  const std::vector<std::int32_t> answer = fake::alone(r, repeating, 48).tokens;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    const bool earlier = std::find(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(i), answer[i]) !=
                         answer.begin() + static_cast<std::ptrdiff_t>(i);
    r.stop_tokens = {answer[i]};
    r.max_tokens = static_cast<int64_t>(i) + 1;
    engine.submit(r);
    const std::vector<inf::event> events = all_events(engine);
    CHECK(events.back().finish == inf::finish_reason::stop);
    if (!earlier) CHECK(events.size() == i + 1);
  }
  CHECK(engine.counts().cache.used == 0);
}

TEST_CASE("logits that are no numbers end their request alone, with an error", "[infer][engine][error]") {
  fake::runner runner(fake::small_limits, {.broken_after = 9});
  inf::engine<fake::runner, inf::prefix_shared> engine(runner);
  inf::request good = asking(3, 6);
  good.mask = [](std::span<const std::int32_t>, std::span<double> logits) {
    logits[9] = -std::numeric_limits<double>::infinity();
  };
  inf::request bad = good;
  bad.prompt = {1, 9};
  const auto first = engine.submit(good);
  const auto broken = engine.submit(bad);
  const auto last = engine.submit(good);
  std::size_t tokens = 0;
  for (const inf::event& e : all_events(engine)) {
    if (e.id == broken) {
      CHECK(e.finish == inf::finish_reason::error);
      CHECK_FALSE(e.token.has_value());
      CHECK(e.message ==
            "heddle: request 2, token 0 of the answer: the logit of token 1 should be a number below infinity, "
            "got nan");
    } else {
      CHECK((e.id == first || e.id == last));
      ++tokens;
    }
  }
  CHECK(tokens == 12);
  CHECK(engine.counts().cache.used == 0);
}

TEST_CASE("a mask that leaves no token, or throws, ends its request alone", "[infer][engine][error]") {
  fake::runner runner;
  inf::engine engine(runner);
  inf::request r = asking(3, 6);
  engine.submit(r);
  r.mask = [](std::span<const std::int32_t> answer, std::span<double> logits) {
    if (answer.size() == 2) std::fill(logits.begin(), logits.end(), -std::numeric_limits<double>::infinity());
  };
  engine.submit(r);
  r.mask = [](std::span<const std::int32_t>, std::span<double>) { throw std::runtime_error("no grammar"); };
  engine.submit(r);
  std::vector<std::string> messages;
  std::vector<std::size_t> events_of(4);
  for (const inf::event& e : all_events(engine)) {
    ++events_of[e.id];
    if (e.finish == inf::finish_reason::error) messages.push_back(e.message);
  }
  CHECK(events_of == std::vector<std::size_t>{0, 6, 3, 1});
  REQUIRE(messages.size() == 2);
  CHECK_THAT(messages[0], Contains("request 3, token 0 of the answer: no grammar"));
  CHECK_THAT(messages[1], Contains("request 2, token 2 of the answer: every logit is minus infinity"));
}

TEST_CASE("a step that failed is tried again as if it had not been", "[infer][engine][error]") {
  fake::runner runner;
  inf::engine<fake::runner, inf::prefix_shared, inf::ngram_speculation<>> engine(runner);
  const inf::request r = asking(16, 12);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 2; ++i) {
    tokens.clear();
    engine.submit(r);
    for (int calls = 0; !engine.idle(); ++calls) {
      runner.fail_next = calls % 2 == 0;
      if (runner.fail_next)
        CHECK_THROWS_WITH(engine.step(), "the runner failed");
      else
        for (const inf::event& e : engine.step()) tokens.push_back(*e.token);
    }
    CHECK(tokens == fake::alone(r, {}, 48).tokens);
  }
  CHECK(runner.copies == 1);
  CHECK(engine.counts().cache.used == 0);
}

TEST_CASE("a request is answered after all were cancelled whose slots a failed step would have moved",
          "[infer][engine][error]") {
  fake::runner runner;
  inf::engine<fake::runner, inf::temporal_fusion<5>> engine(runner, {.max_running = 5});
  std::vector<inf::request_id> ids;
  for (const int tokens : {20, 2, 2, 20, 20}) ids.push_back(engine.submit(asking(2, tokens)));
  bool failed = false;
  for (int i = 0; i < 10 && !failed; ++i) {
    runner.fail_next = engine.counts().running == 3;
    try {
      engine.step();
    } catch (const std::runtime_error&) {
      failed = true;
    }
  }
  REQUIRE(failed);
  REQUIRE(engine.counts().slot_moves > 0);
  for (const inf::request_id id : ids) engine.cancel(id);
  engine.submit(asking(2, 3));
  int tokens = 0;
  for (int i = 0; i < 20 && !engine.idle(); ++i)
    for (const inf::event& e : engine.step()) tokens += e.token ? 1 : 0;
  CHECK(tokens == 3);
  CHECK(engine.idle());
  CHECK(engine.counts().cache.used == 0);
}

TEST_CASE("slots that were to be moved in a step that failed are moved when it is tried again",
          "[infer][engine][error]") {
  const inf::step_limits limits{.vocabulary = 13, .context = 48, .block_rows = 4, .blocks = 60, .max_rows = 24};
  int64_t slot_moves = 0;
  for (int64_t failed = 0; failed < 20; ++failed)
    for (const bool late : {false, true}) {  // after the copies were made and rows written
      CAPTURE(failed, late);
      fake::runner runner(limits);
      inf::engine<fake::runner, inf::temporal_fusion<5>> engine(runner);
      std::vector<inf::request> asked;
      std::vector<fake::answer> got(9);
      for (int64_t i = 0; i < 9; ++i) {
        asked.push_back(asking(2 + i % 3, 2 + i * 7 % 5));
        asked.back().prompt[0] = static_cast<std::int32_t>(i);
        engine.submit(asked.back());
      }
      for (int64_t i = 0; !engine.idle(); ++i) {
        REQUIRE(i < 100);
        (late ? runner.fail_late : runner.fail_next) = i == failed || i == failed + 1;  // a request begins in between
        try {
          for (const inf::event& e : engine.step()) {
            got[e.id - 1].tokens.push_back(*e.token);
            got[e.id - 1].finish = e.finish;
          }
        } catch (const std::runtime_error&) {
          engine.cancel(3);  // leaves a slot, perhaps of a copy, before it is tried again
          if (got.size() == 9) {
            asked.push_back(asking(5, 4));
            engine.submit(asked.back());
            got.emplace_back();
          }
        }
      }
      slot_moves += engine.counts().slot_moves;
      for (std::size_t i = 0; i < asked.size(); ++i) {
        CAPTURE(i);
        const fake::answer alone = fake::alone(asked[i], {}, 48);
        if (i != 2) CHECK(got[i].tokens == alone.tokens);
      }
      CHECK(engine.counts().cache.used == 0);
    }
  CHECK(slot_moves > 30);
}

TEST_CASE("requests that wait or run can be ended from outside", "[infer][engine]") {
  fake::runner runner;
  inf::engine engine(runner, {.max_running = 1});
  const auto one = engine.submit(asking(3, 10)), two = engine.submit(asking(3, 10));
  engine.step();
  engine.step();
  CHECK(engine.cancel(two));
  CHECK_FALSE(engine.cancel(two));
  CHECK(engine.finish(one));
  CHECK_FALSE(engine.cancel(17));
  CHECK_FALSE(engine.idle());
  const auto events = engine.step();
  REQUIRE(events.size() == 2);
  CHECK(events[0] == inf::event{.id = two, .index = 0, .finish = inf::finish_reason::cancelled});
  CHECK(events[1] == inf::event{.id = one, .index = 2, .finish = inf::finish_reason::stop});
  CHECK(engine.idle());
  CHECK(engine.counts().cache.used == 0);
}

TEST_CASE("an engine without room for a request, or with a full queue, says so", "[infer][engine][error]") {
  fake::runner small({.vocabulary = 13, .context = 48, .block_rows = 4, .blocks = 5, .max_rows = 24});
  CHECK_THROWS_WITH((inf::engine<fake::runner, inf::contiguous>(small)),
                    Contains("at least 12 blocks of at least one token") && Contains("got 5 blocks of 4 tokens"));
  inf::engine engine(small, {.max_waiting = 1});
  CHECK(engine.context() == 20);
  CHECK_THROWS_WITH(engine.submit(asking(20, 1)),
                    "heddle: a request's prompt: it has 20 tokens, a prompt and its answer have at most 20 together");
  engine.submit(asking(19, 9));
  CHECK_THROWS_AS(engine.submit(asking(1, 1)), inf::queue_full_error);
  CHECK(all_events(engine).back().finish == inf::finish_reason::length);  // the context ended it
  CHECK(engine.counts().answer_tokens == 1);
  CHECK_THROWS_AS(inf::engine<fake::runner>(small, {.max_running = 0}), hd::config_error);
}
