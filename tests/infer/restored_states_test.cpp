// States that are restored: proposals over states are taken back, and prompts begin with snapshots, with the tokens of plain decoding.
#include "catch.hpp"
#include "fake_runner.hpp"

#include <heddle/core/error.hpp>

#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <vector>

namespace {

namespace inf = heddle::infer;
using Catch::Matchers::Contains;

// A runner whose layers keep a state: a hash of the tokens that it has seen. It must be that of the tokens in the sequence's blocks before a step's rows.
class restored_runner : public fake::runner {
 public:
  using capabilities = inf::capabilities<inf::next_token, inf::copy_states>;
  restored_runner(inf::step_limits l, fake::language of)
      : fake::runner(l, of), states_(static_cast<std::size_t>(l.states)) {}

  void run(const inf::step& s, std::span<double> logits) {
    inf::require_step(s, limits());
    for (const inf::block_copy& c : s.state_copies)
      states_[static_cast<std::size_t>(c.to)] = states_[static_cast<std::size_t>(c.from)];
    state_copies += std::ssize(s.state_copies);
    std::vector<std::int32_t> before = cached();
    const std::int64_t rows = limits().block_rows;
    for (const inf::block_copy& c : s.copies) {
      for (std::int64_t i = 0; i < rows; ++i)
        before[static_cast<std::size_t>(c.to * rows + i)] = before[static_cast<std::size_t>(c.from * rows + i)];
    }
    for (const inf::sequence_rows& q : s.sequences) {
      std::uint64_t& state = states_[static_cast<std::size_t>(q.state)];
      if (q.position == 0) state = 0;
      std::uint64_t seen = 0;
      for (std::int64_t t = 0; t < q.position; ++t) {
        const std::int64_t block = s.blocks[static_cast<std::size_t>(q.first_block + t / rows)];
        seen = next(seen, before[static_cast<std::size_t>(block * rows + t % rows)]);
      }
      if (seen != state) throw heddle::error("a state is not that of its sequence's tokens");
      for (std::int64_t i = 0; i < q.rows; ++i)
        state = next(state, s.tokens[static_cast<std::size_t>(q.first_row + i)]);
    }
    fake::runner::run(s, logits);
  }

  std::int64_t state_copies = 0;

 private:
  static std::uint64_t next(std::uint64_t state, std::int32_t token) {
    return fake::mixed(state * 31 + static_cast<std::uint64_t>(token) + 1);
  }
  std::vector<std::uint64_t> states_;
};

using restored_engine = inf::engine<restored_runner, inf::prefix_shared, inf::ngram_speculation<>, inf::restore>;

struct restored_counts {
  std::int64_t accepted = 0, rejected = 0, found = 0, preempted = 0, copies = 0;
};

// Some requests in any order, with cancellations and weights that are said to change.
void restored_round(std::mt19937& random, restored_counts& counts) {
  const fake::language of{.habit = fake::between(random, 0, 3) == 0 ? 0.0 : 2.5};
  inf::step_limits l = fake::small_limits;
  l.block_rows = fake::between(random, 1, 6);
  l.blocks = (l.context + l.block_rows - 1) / l.block_rows + fake::between(random, 0, 20);
  l.max_rows = fake::between(random, 3, 20);
  l.states = fake::between(random, 2, 12);
  l.trees = false;
  restored_runner runner(l, of);
  restored_engine engine(runner, {.max_running = fake::between(random, 1, 5), .end_tokens = {3}});
  std::map<inf::request_id, inf::request> asked;
  std::map<inf::request_id, fake::answer> got;
  const std::int64_t requests = fake::between(random, 1, 10);
  for (std::int64_t steps = 0; std::ssize(asked) < requests || !engine.idle(); ++steps) {
    if (steps > 3000) throw heddle::error("the engine does not come to an end");
    while (std::ssize(asked) < requests && fake::between(random, 0, 2) > 0) {
      const inf::request r = fake::any_request(random, 28);
      asked[engine.submit(r)] = r;
    }
    if (!asked.empty() && fake::between(random, 0, 15) == 0)
      engine.cancel(static_cast<inf::request_id>(fake::between(random, 1, std::ssize(asked))));
    if (fake::between(random, 0, 40) == 0)
      engine.weights_changed(fake::between(random, 0, 1) == 0 ? inf::kv::keep : inf::kv::recompute);
    for (const inf::event& x : engine.step()) {
      fake::answer& a = got[x.id];
      if (x.token) a.tokens.push_back(*x.token);
      if (x.log_probability) a.log_probabilities.push_back(*x.log_probability);
      a.finish = x.finish;
    }
  }
  for (const auto& [id, r] : asked) {
    const fake::answer whole = fake::alone(r, of, l.context, {3});
    const fake::answer& a = got[id];
    CAPTURE(id, a.tokens, whole.tokens);
    if (a.finish == inf::finish_reason::cancelled) {
      REQUIRE(a.tokens.size() <= whole.tokens.size());
      CHECK(std::equal(a.tokens.begin(), a.tokens.end(), whole.tokens.begin()));
    } else {
      CHECK(a == whole);
    }
  }
  const inf::engine_counts c = engine.counts();
  CHECK(c.cache.used == 0);
  counts.accepted += c.accepted_tokens;
  counts.rejected += c.proposed_tokens - c.accepted_tokens;
  counts.found += c.cache.found;
  counts.preempted += c.preemptions;
  counts.copies += runner.state_copies;
}

inf::request restored_request(std::int64_t alike, std::int64_t own, std::int64_t tokens) {
  inf::request r{.max_tokens = tokens, .sampling = {.temperature = 0}, .ignore_end_tokens = true};
  for (std::int64_t i = 0; i < alike; ++i) r.prompt.push_back(static_cast<std::int32_t>(i * 5 % 13));
  for (std::int64_t i = 0; i < 5; ++i) r.prompt.push_back(static_cast<std::int32_t>((i * 7 + own) % 13));
  return r;
}

void restored_answer(restored_engine& e, const inf::request& r, const fake::language& of) {
  e.submit(r);
  std::vector<std::int32_t> tokens;
  while (!e.idle())
    for (const inf::event& x : e.step())
      if (x.token) tokens.push_back(*x.token);
  CHECK(tokens == fake::alone(r, of, fake::small_limits.context).tokens);
}

}  // namespace

TEST_CASE("a thousand random runs that restore states have the tokens of plain decoding", "[infer][engine][law]") {
  const std::uint32_t seed = 44'200;
  CAPTURE(seed);
  std::mt19937 random(seed);
  restored_counts counts;
  for (int round = 0; round < 1000; ++round) {
    CAPTURE(round);
    restored_round(random, counts);
  }
  CHECK(counts.accepted > 1000);
  CHECK(counts.rejected > 1000);
  CHECK(counts.found > 1000);
  CHECK(counts.preempted > 0);
  CHECK(counts.copies > 1000);
}

TEST_CASE("the beginning that two prompts share has a snapshot for the third", "[infer][cache]") {
  inf::step_limits l = fake::small_limits;
  l.states = 8;
  l.trees = false;
  const fake::language of{};
  restored_runner runner(l, of);
  restored_engine engine(runner);
  restored_answer(engine, restored_request(20, 1, 4), of);
  CHECK(engine.counts().cache.found == 0);
  restored_answer(engine, restored_request(20, 2, 4), of);  // no state is kept where they part
  CHECK(engine.counts().cache.found == 0);
  restored_answer(engine, restored_request(20, 3, 4), of);
  CHECK(engine.counts().cache.found == 20);
  restored_answer(engine, restored_request(20, 1, 4), of);  // 25 tokens: 6 blocks of 4 are full
  CHECK(engine.counts().cache.found == 20 + 24);
  engine.weights_changed(inf::kv::keep);
  restored_answer(engine, restored_request(20, 1, 4), of);
  CHECK(engine.counts().cache.found == 20 + 24);
}

TEST_CASE("proposals that are drawn save steps over states, too", "[infer][speculation]") {
  inf::step_limits l = fake::small_limits;
  l.states = 2;
  l.trees = false;
  const fake::language of{.habit = 4};  // a text that repeats itself
  restored_runner runner(l, of);
  restored_engine engine(runner);
  restored_answer(engine, restored_request(4, 0, 36), of);
  CHECK(engine.counts().accepted_tokens > 15);
  CHECK(runner.steps < 30);
}

TEST_CASE("an engine that restores states needs two for a sequence", "[infer][error]") {
  inf::step_limits l = fake::small_limits;
  l.states = 1;
  restored_runner runner(l, {});
  CHECK_THROWS_WITH(restored_engine(runner),
                    Contains("needs two for a sequence whose tokens are proposed; the runner has 1"));
}
