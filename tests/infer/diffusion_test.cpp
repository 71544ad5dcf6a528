// Diffusion in the engine on a runner that hashes its cache: caches, companions, events, refusals.
#include "catch.hpp"
#include "diffusion_any_rule.hpp"
#include "fake_runner.hpp"

#include <heddle/infer/diffusion.hpp>
#include <heddle/infer/engine.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace {
namespace inf = heddle::infer;
namespace md = heddle::model;
using diffusion_test::any_rule;

constexpr inf::step_limits diffusion_limits{
    .vocabulary = 11, .context = 96, .block_rows = 4, .blocks = 200, .max_rows = 200};
constexpr std::int32_t diffusion_mask = 10;

// Logits of a row: a hash of its position and of all tokens that it sees, as the cache has them. `sure`: what is added
// to one of them.
void diffusion_logits(std::span<const std::int32_t> seen, std::int64_t position, std::span<double> to) {
  std::uint64_t hash = fake::mixed(static_cast<std::uint64_t>(position) + 1);
  for (const std::int32_t t : seen) hash = fake::mixed(hash * 31 + static_cast<std::uint64_t>(t) + 1);
  for (std::size_t v = 0; v < to.size(); ++v) to[v] = static_cast<double>(fake::mixed(hash + v) % 1024) / 128;
}

// A masked model with one layer of attention: a row depends on the tokens of the rows that it sees.
template <class Reach>
class diffusion_runner {
 public:
  using scalar = double;
  using capabilities = inf::capabilities<inf::window_rows, inf::rows_see<Reach>>;
  explicit diffusion_runner(inf::step_limits l = diffusion_limits)
      : limits_(l), cache_(static_cast<std::size_t>(l.blocks * l.block_rows), -7) {}
  inf::step_limits limits() const { return limits_; }
  void run(const inf::step& s, std::span<double> logits) {
    inf::require_step(s, limits_);
    if (!s.everywhere) throw std::runtime_error("a masked model was asked for causal rows");
    if (fail_next) {
      fail_next = false;
      throw std::runtime_error("the runner failed");
    }
    const auto row = [&](const inf::sequence_rows& q, std::int64_t t) -> std::int32_t& {
      const std::int32_t block = s.blocks[static_cast<std::size_t>(q.first_block + t / limits_.block_rows)];
      return cache_[static_cast<std::size_t>(block * limits_.block_rows + t % limits_.block_rows)];
    };
    for (const inf::sequence_rows& q : s.sequences)
      for (std::int64_t i = 0; i < q.rows; ++i)
        row(q, q.position + i) = s.tokens[static_cast<std::size_t>(q.first_row + i)];
    std::size_t wanted = 0;
    const auto width = static_cast<std::size_t>(limits_.vocabulary);
    std::vector<std::int32_t> seen;
    for (const inf::sequence_rows& q : s.sequences) {
      seen.clear();
      for (std::int64_t t = 0; t < q.reach(); ++t) seen.push_back(row(q, t));
      for (; wanted < s.wanted.size() && s.wanted[wanted] < q.first_row + q.rows; ++wanted) {
        const auto to = logits.subspan(wanted * width, width);
        diffusion_logits(seen, q.position + s.wanted[wanted] - q.first_row, to);
        if (nan_if_seen >= 0 && std::count(seen.begin(), seen.end(), nan_if_seen) > 0)
          to[2] = std::numeric_limits<double>::quiet_NaN();
      }
    }
    most_rows = (std::max)(most_rows, s.rows());
  }
  bool fail_next = false;
  std::int32_t nan_if_seen = -1;
  std::int64_t most_rows = 0;

 private:
  inf::step_limits limits_;
  std::vector<std::int32_t> cache_;
};

const std::vector<any_rule> diffusion_rules = {
    {inf::threshold{0.6}}, {inf::one_per_run{0.7, 0.2}}, {inf::credit{.tau = 0.6}}, {inf::fixed_steps{3}}};

std::vector<inf::request> diffusion_requests(std::uint64_t seed, std::size_t count) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
  std::vector<inf::request> all(count);
  for (inf::request& r : all) {
    for (std::int64_t i = fake::between(random, 1, 20); i > 0; --i)
      r.prompt.push_back(static_cast<std::int32_t>(fake::between(random, 0, 9)));
    r.max_tokens = fake::between(random, 1, 30);
    r.sampling.temperature = fake::between(random, 0, 1) == 0 ? 0 : 0.8;
    r.sampling.seed = random();
    if (fake::between(random, 0, 2) == 0) r.sampling.top_k = 3;
    if (fake::between(random, 0, 2) == 0) r.stop_tokens = {static_cast<std::int32_t>(fake::between(random, 0, 9))};
    r.log_probabilities = 0;
  }
  return all;
}

// Of each request its tokens, the sum of their log-probabilities and how it ended. `disturb(engine, step)` is called
// before each step.
struct diffusion_answer {
  std::vector<std::int32_t> tokens{};
  double log_probability = 0;
  inf::finish_reason finish = inf::finish_reason::none;
  friend bool operator==(const diffusion_answer&, const diffusion_answer&) = default;
};
template <class Engine, class Disturb>
std::vector<diffusion_answer> diffusion_run(Engine& engine, const std::vector<inf::request>& requests,
                                            Disturb&& disturb) {
  std::map<inf::request_id, diffusion_answer> found;
  for (const inf::request& r : requests) found[engine.submit(r)];
  for (std::int64_t step = 0; !engine.idle(); ++step) {
    disturb(engine, step);
    for (const inf::event& e : engine.step()) {
      diffusion_answer& a = found[e.id];
      CHECK(e.index == std::ssize(a.tokens));
      if (e.token) {
        CHECK(*e.token != diffusion_mask);
        a.tokens.push_back(*e.token);
        a.log_probability += e.log_probability.value_or(-1e9);
      }
      CHECK(a.finish == inf::finish_reason::none);
      a.finish = e.finish;
    }
    REQUIRE(step < 4000);
  }
  CHECK(engine.counts().cache.used == 0);
  std::vector<diffusion_answer> all;
  for (const auto& [id, a] : found) all.push_back(a);
  return all;
}
template <class Engine>
std::vector<diffusion_answer> diffusion_run(Engine& engine, const std::vector<inf::request>& requests) {
  return diffusion_run(engine, requests, [](Engine&, std::int64_t) {});
}

template <class Cache, class Reach = md::everything>
std::vector<diffusion_answer> diffusion_with(const any_rule& rule, const std::vector<inf::request>& requests,
                                             bool shifted, std::int64_t refresh_every = 0,
                                             inf::diffusion_counts* counts = nullptr) {
  using runner_type = diffusion_runner<Reach>;
  using decoding = inf::diffusion<8, any_rule, Cache, Reach>;
  runner_type runner;
  inf::engine<runner_type, decoding> engine(runner, {}, decoding(rule, diffusion_mask, shifted, refresh_every));
  auto found = diffusion_run(engine, requests);
  if (counts != nullptr) *counts = engine.decoder().counts();
  return found;
}

using diffusion_engine =
    inf::engine<diffusion_runner<md::everything>, inf::diffusion<8, any_rule, inf::dual, md::everything>>;
using diffusion_exact_engine =
    inf::engine<diffusion_runner<md::blocks<8>>, inf::diffusion<8, any_rule, inf::exact, md::blocks<8>>>;
template <class Engine>
Engine make_diffusion_engine(any_rule rule, auto& runner, bool shifted = false, inf::engine_options options = {}) {
  return Engine(runner, options, typename Engine::decoding(rule, diffusion_mask, shifted));
}

}  // namespace

TEST_CASE("where no row is stale, every cache of diffusion decoding gives the answers of none", "[infer][law]") {
  const std::uint64_t seed = 1729;
  CAPTURE(seed);
  const auto requests = diffusion_requests(seed, 12);
  for (const bool shifted : {false, true})
    for (const any_rule& rule : diffusion_rules) {
      CAPTURE(shifted, rule.rule.index());
      inf::diffusion_counts of_none, of_dual;
      const auto none = diffusion_with<inf::none>(rule, requests, shifted, 0, &of_none);
      CHECK(diffusion_with<inf::prefix>(rule, requests, shifted) == none);
      CHECK(diffusion_with<inf::dual>(rule, requests, shifted, 0, &of_dual) == none);
      CHECK(diffusion_with<inf::dual>(rule, requests, shifted, 1) == none);
      CHECK(diffusion_with<inf::vicinity<1000, 1000, 0>>(rule, requests, shifted) == none);
      CHECK(of_none.forwards == of_dual.forwards);
      CHECK(of_none.committed == of_dual.committed);
      CHECK(of_none.refreshes == 0);
      CHECK(of_dual.rows < of_none.rows);
      // A block of 8 takes at most 8 forwards, and every forward commits a token.
      CHECK(of_none.forwards <= of_none.committed);
      CHECK(of_dual.refreshes <= of_dual.forwards);
      if (rule.rule.index() != 3) continue;
      std::int64_t steps = 0;  // at most 3 of each block, fewer where a stop token ends the answer
      for (const inf::request& r : requests) steps += (r.max_tokens + 7) / 8 * 3;
      CHECK(of_none.forwards <= steps);
    }
}

TEST_CASE("a model whose tokens see blocks gives the same answers with and without stored blocks", "[infer][law]") {
  const std::uint64_t seed = 4104;
  CAPTURE(seed);
  const auto requests = diffusion_requests(seed, 12);
  for (const bool shifted : {false, true})
    for (const any_rule& rule : diffusion_rules) {
      CAPTURE(shifted, rule.rule.index());
      inf::diffusion_counts uncached, cached;
      CHECK(diffusion_with<inf::exact, md::blocks<8>>(rule, requests, shifted, 0, &cached) ==
            diffusion_with<inf::none, md::blocks<8>>(rule, requests, shifted, 0, &uncached));
      CHECK(cached.forwards == uncached.forwards);
      CHECK(cached.rows < uncached.rows);
      CHECK(cached.stored > 0);
      CHECK(uncached.stored == 0);
    }
}

TEST_CASE("answers of diffusion decoding do not depend on companions, room, order, retries or new weights",
          "[infer][law]") {
  const std::uint64_t seed = 13832;
  CAPTURE(seed);
  const auto requests = diffusion_requests(seed, 8);
  for (const any_rule& rule : diffusion_rules) {
    CAPTURE(rule.rule.index());
    std::vector<diffusion_answer> alone, exact_alone;
    for (const inf::request& r : requests) {
      diffusion_runner<md::everything> runner;
      auto engine = make_diffusion_engine<diffusion_engine>(rule, runner);
      alone.push_back(diffusion_run(engine, {r})[0]);
      diffusion_runner<md::blocks<8>> of_blocks;
      auto exact = make_diffusion_engine<diffusion_exact_engine>(rule, of_blocks);
      exact_alone.push_back(diffusion_run(exact, {r})[0]);
    }
    for (const std::int64_t max_rows : {52, 64, 200})
      for (const std::int64_t blocks : {24, 60, 200}) {  // 24: the longest request alone and little else
        CAPTURE(max_rows, blocks);
        inf::step_limits limits = diffusion_limits;
        limits.max_rows = max_rows;
        limits.blocks = blocks;
        diffusion_runner<md::everything> runner(limits);
        auto engine = make_diffusion_engine<diffusion_engine>(rule, runner);
        const auto disturb = [&](auto& e, std::int64_t step) {
          if (step % 5 == 3) e.weights_changed(step % 2 == 0 ? inf::kv::recompute : inf::kv::keep);
          if (step % 4 == 1) {
            runner.fail_next = true;
            CHECK_THROWS_AS(e.step(), std::runtime_error);
            runner.fail_next = false;
          }
        };
        CHECK(diffusion_run(engine, requests, disturb) == alone);
        CHECK(runner.most_rows <= max_rows);
        diffusion_runner<md::blocks<8>> of_blocks(limits);
        auto exact = make_diffusion_engine<diffusion_exact_engine>(rule, of_blocks);
        CHECK(diffusion_run(exact, requests, [&](auto& e, std::int64_t step) {
                if (step % 5 == 3) e.weights_changed(inf::kv::recompute);
              }) == exact_alone);
      }
  }
}

TEST_CASE("long prompts and small steps: blocks are stored a few at a time", "[infer]") {
  inf::step_limits limits = diffusion_limits;
  limits.max_rows = 17;  // two blocks and a row
  inf::request r{.prompt = std::vector<std::int32_t>(50, 3), .max_tokens = 20, .sampling = {.temperature = 0}};
  diffusion_runner<md::blocks<8>> small(limits), large;
  auto few = make_diffusion_engine<diffusion_exact_engine>(diffusion_rules[0], small);
  auto many = make_diffusion_engine<diffusion_exact_engine>(diffusion_rules[0], large);
  CHECK(diffusion_run(few, {r}) == diffusion_run(many, {r}));
  CHECK(small.most_rows <= 17);
}

TEST_CASE("cancelled requests and broken logits end alone, and blocks come back", "[infer]") {
  const auto requests = diffusion_requests(512, 6);
  diffusion_runner<md::everything> runner;
  auto engine = make_diffusion_engine<diffusion_engine>(diffusion_rules[0], runner);
  std::vector<inf::request_id> ids;
  for (const inf::request& r : requests) ids.push_back(engine.submit(r));
  std::map<inf::request_id, inf::finish_reason> ends;
  for (std::int64_t step = 0; !engine.idle(); ++step) {
    if (step == 1) CHECK(engine.cancel(ids[1]));
    for (const inf::event& e : engine.step())
      if (e.finish != inf::finish_reason::none) ends[e.id] = e.finish;
  }
  CHECK(ends.size() == ids.size());
  CHECK(ends[ids[1]] == inf::finish_reason::cancelled);
  CHECK(engine.counts().cache.used == 0);
  runner.nan_if_seen = 7;
  const auto broken = engine.submit({.prompt = {7}, .max_tokens = 4});
  bool said = false;
  while (!engine.idle())
    for (const inf::event& e : engine.step())
      said |= e.id == broken && e.finish == inf::finish_reason::error &&
              e.message.find("should be a number below infinity") != std::string::npos;
  CHECK(said);
  CHECK(engine.counts().cache.used == 0);
}

TEST_CASE("diffusion in blocks of one token over a causal model is decoding token by token", "[infer][law]") {
  using decoding = inf::diffusion<1, inf::threshold, inf::prefix, md::earlier>;
  const std::uint64_t seed = 39312;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int turn = 0; turn < 40; ++turn) {
    std::vector<inf::request> requests;
    for (int i = 0; i < 5; ++i) {
      inf::request r = fake::any_request(random, 20);
      r.sampling.repetition_penalty = 1;
      r.sampling.frequency_penalty = r.sampling.presence_penalty = 0;
      r.mask = {};
      r.log_probabilities = 0;
      requests.push_back(r);
    }
    constexpr std::int32_t unused = 12;  // never drawn by either
    fake::runner plain, in_blocks;
    inf::engine<fake::runner> one(plain);
    inf::engine<fake::runner, decoding> other(in_blocks, {}, decoding({0.9}, unused));
    std::map<inf::request_id, fake::answer> a, b;
    for (inf::request r : requests) {
      other.submit(r);
      r.mask = [](std::span<const std::int32_t>, std::span<double> logits) {
        logits[unused] = -std::numeric_limits<double>::infinity();
      };
      one.submit(r);
    }
    const auto take = [](auto& engine, auto& to) {
      while (!engine.idle())
        for (const inf::event& e : engine.step()) {
          if (e.token) to[e.id].tokens.push_back(*e.token);
          if (e.token) to[e.id].log_probabilities.push_back(e.log_probability.value_or(1));
          to[e.id].finish = e.finish;
        }
    };
    take(one, a);
    take(other, b);
    REQUIRE(a.size() == b.size());
    for (auto& [id, answer] : a) {
      REQUIRE(answer.tokens == b[id].tokens);
      REQUIRE(answer.finish == b[id].finish);
      for (std::size_t i = 0; i < answer.tokens.size(); ++i)
        REQUIRE(std::abs(answer.log_probabilities[i] - b[id].log_probabilities[i]) <= 1e-12);
    }
    CHECK(other.counts().cache.used == 0);
  }
}

TEST_CASE("what diffusion decoding cannot do is refused with what is expected and got", "[infer]") {
  const auto says = [](const std::string& what, const auto& work) {
    try {
      work();
    } catch (const heddle::config_error& problem) {
      if (std::string(problem.what()).find(what) != std::string::npos) return true;
      UNSCOPED_INFO(problem.what());
    }
    return false;
  };
  diffusion_runner<md::everything> runner;
  using decoding = diffusion_engine::decoding;
  for (const std::int32_t mask : {-1, 11, 12})
    CHECK(says("the mask should be a token of the vocabulary of 11, got " + std::to_string(mask),
               [&] { diffusion_engine e(runner, {}, decoding(diffusion_rules[0], mask)); }));
  CHECK(says("the mask should be a token", [&] { diffusion_engine e(runner); }));
  for (const double tau : {0.0, 1.5})
    CHECK(says("tau must be above 0 and at most 1",
               [&] { diffusion_engine e(runner, {}, decoding({inf::threshold{tau}}, diffusion_mask)); }));
  CHECK(says("refresh_every should be at least 0, got -1",
             [&] { diffusion_engine e(runner, {}, decoding(diffusion_rules[0], diffusion_mask, false, -1)); }));
  {
    inf::step_limits limits = diffusion_limits;
    limits.max_rows = 7;
    diffusion_runner<md::blocks<8>> small(limits);
    CHECK(says("a block needs 8 rows of a step, it has 7",
               [&] { make_diffusion_engine<diffusion_exact_engine>(diffusion_rules[0], small); }));
  }
  inf::step_limits limits = diffusion_limits;
  limits.max_rows = 40;
  diffusion_runner<md::everything> short_steps(limits);
  auto engine = make_diffusion_engine<diffusion_engine>(diffusion_rules[0], short_steps);
  const inf::request good{.prompt = {1, 2, 3}, .max_tokens = 37};
  CHECK_NOTHROW(engine.submit(good));
  const auto refused = [&](const std::string& what, auto&& change) {
    inf::request r = good;
    change(r);
    return says(what, [&] { engine.submit(r); });
  };
  CHECK(refused("max_tokens: prompt and answer are computed together in one step of at most 40 rows, got 41 tokens",
                [](inf::request& r) { r.max_tokens = 38; }));
  CHECK(refused("mask: diffusion decoding takes none",
                [](inf::request& r) { r.mask = [](std::span<const std::int32_t>, std::span<double>) {}; }));
  CHECK(refused("diffusion decoding takes no penalties", [](inf::request& r) { r.sampling.presence_penalty = 0.5; }));
  CHECK(refused("those of the tokens themselves: 0, got 2", [](inf::request& r) { r.log_probabilities = 2; }));
  CHECK(refused("diffusion decoding gives those of the model", [](inf::request& r) {
    r.log_probabilities = 0;
    r.log_probabilities_of = inf::log_probability_of::drawn;
  }));
  CHECK(refused("prompt: token 1 is the mask, 10", [](inf::request& r) { r.prompt[1] = diffusion_mask; }));
  CHECK(engine.counts().submitted == 1);
}
