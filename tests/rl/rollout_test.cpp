// tests/rl/rollout_test.cpp: answers of a rollout are those of a plain engine, whatever is cancelled, updated and restored; their log-probabilities
// are those of the weights that drew them; nothing is lost, and nothing is there twice.
#include "catch.hpp"
#include "infer/cached_generation.hpp"
#include "infer/fake_runner.hpp"

#include <heddle/infer/engine.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/language_stage.hpp>
#include <heddle/rl/experience.hpp>
#include <heddle/rl/objective.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/rl/rollout.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;
namespace rl = heddle::rl;
using Catch::Matchers::Contains;

namespace {

using infer_test::backend, infer_test::mesh_type, infer_test::world_type;
using base = md::gpt2<double>;
using runner_type = inf::model_runner<base, world_type, backend>;
using engine_type = inf::engine<runner_type, inf::prefix_shared>;
using policy = rl::policy<base, rl::any_objective>;
using policy_stage = md::language_stage<policy, world_type, backend>;

constexpr md::gpt2_config small{
    .layers = 2, .heads = 2, .width = 8, .context = 14, .vocabulary = 13, .initial_deviation = .6};
constexpr std::int32_t end_token = 12;

rl::rollout_prompt prompt(std::int64_t group) {
  rl::rollout_prompt p{.group = group};
  for (std::int64_t i = 0; i < 2 + group % 4; ++i)
    p.tokens.push_back(static_cast<std::int32_t>((group % 3 * 5 + i * i) % 12));
  return p;
}
rl::rollout_options options(double temperature = 1) {
  return {.groups = 2,
          .answers = 3,
          .max_tokens = 9,
          .sampling = {.temperature = temperature, .seed = 77},
          .stop_tokens = {3, 7}};
}

// What a plain engine says to each answer of so many groups, by id.
std::map<std::int64_t, rl::sample> plain_answers(runner_type& runner, std::int64_t groups,
                                                 const rl::rollout_options& o) {
  inf::engine<runner_type, inf::prefix_shared> engine(runner, {.end_tokens = {end_token}});
  std::map<std::int64_t, rl::sample> all;
  std::map<inf::request_id, std::int64_t> of;
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t i = 0; i < o.answers; ++i) {
      const std::int64_t id = g * o.answers + i;
      all[id] = {.prompt = prompt(g).tokens, .id = id, .group = g};
      inf::request r{.prompt = all[id].prompt, .max_tokens = o.max_tokens, .sampling = o.sampling};
      r.log_probabilities = 0;
      r.log_probabilities_of = inf::log_probability_of::drawn;
      r.stop_tokens = o.stop_tokens;
      r.sampling.seed = rl::seed_of_sample(*o.sampling.seed, id);
      of[engine.submit(r)] = id;
    }
  while (!engine.idle())
    for (const inf::event& e : engine.step()) {
      rl::sample& s = all[of[e.id]];
      s.tokens.push_back(e.token.value());
      s.log_probabilities.push_back(e.log_probability.value());
      s.finish = e.finish;
    }
  return all;
}

// Runs f(runner) with the weights of a seed on one rank.
void on_one_rank(const std::function<void(runner_type&)>& f) {
  hd::launch<hd::threads>(mesh_type{1, 1}, [&](world_type& world) {
    backend kernels{1};
    runner_type runner(small, world, kernels, {48, 4}, 24);
    runner.stage().initialize(1);
    f(runner);
  });
}

// Rounds until nothing is left; `between(step)` after each step.
std::vector<rl::sample> all_rounds(rl::rollout& r, const std::function<void(int)>& between = {}) {
  std::vector<rl::sample> all;
  int steps = 0;
  for (;;) {
    r.start();
    while (r.step())
      if (++steps; between) between(steps);
    const std::vector<rl::sample> taken = r.take_finished();
    if (taken.empty()) return all;
    r.consumed(std::ssize(taken) / r.options().answers);
    all.insert(all.end(), taken.begin(), taken.end());
  }
}

// The log-probabilities of answers by a forward of whole sequences with the weights of a seed.
std::vector<std::vector<double>> by_whole_forward(const std::vector<rl::sample>& samples, std::uint64_t weights,
                                                  double temperature) {
  std::vector<std::vector<double>> all;
  hd::launch<hd::threads>(mesh_type{1, 1}, [&](world_type& world) {
    backend kernels{1};
    policy::config config;
    static_cast<md::gpt2_config&>(config) = small;
    config.temperature = temperature;
    policy_stage stage(config, world, kernels, policy::layers_of(config, 0, 1), 1, 1, 1);
    stage.initialize(weights);
    const auto n = static_cast<std::size_t>(small.context);
    const rl::experience data(samples, small.context, 0);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      std::vector<std::int32_t> x(n), y(n * rl::numbers_of_row);
      data.fill_train({static_cast<std::int64_t>(i), 1}, x, y);
      rl::batch<double> b;
      b.tokens = x, b.targets = y, b.samples = 1;
      std::vector<double> lp(n);
      stage.target_log_probabilities(b, {}, {}, lp);
      const auto begin = lp.begin() + std::ssize(samples[i].prompt) - 1;
      all.emplace_back(begin, begin + std::ssize(samples[i].tokens));
    }
  });
  return all;
}

}  // namespace

TEST_CASE(
    "at the same weights a rollout has the answers of a plain engine, whatever is cancelled and updated at any step",
    "[rl][rollout]") {
  constexpr std::int64_t groups = 7;
  on_one_rank([&](runner_type& runner) {
    for (const double temperature : {1.0, 0.6}) {
      const auto o = options(temperature);
      const auto plain = plain_answers(runner, groups, o);
      std::size_t ends = 0;
      for (const auto& [id, s] : plain) ends += s.finish == inf::finish_reason::stop ? 1 : 0;
      CHECK(ends > 2);
      CHECK(ends < plain.size() - 2);  // answers of all lengths
      const auto check = [&](const rl::completion_rule& how, const std::function<void(rl::rollout&, int)>& between) {
        CAPTURE(to_string(how), temperature);
        engine_type engine(runner, {.end_tokens = {end_token}});
        rl::rollout r(engine, how, o);
        for (std::int64_t g = 0; g < groups; ++g) r.add(prompt(g));
        const auto got = all_rounds(r, [&](int step) {
          if (between) between(r, step);
        });
        CHECK(std::ssize(got) == groups * o.answers);
        for (const rl::sample& s : got) {
          rl::sample expected = plain.at(s.id);
          expected.segments = s.segments;
          CHECK(s == expected);
        }
        return r.counts();
      };
      for (const rl::completion_rule how : {rl::wait_all::rule(), rl::partial<2>::rule(), rl::partial<3>::rule(),
                                            rl::slots<4>::rule(), rl::completion_rule{2, 5}}) {
        const auto alone = check(how, {});
        CHECK((alone.cancelled > 0) == (how.over > 1));
        int steps = 0;
        check(how, [&](rl::rollout&, int step) { steps = step; });
        CHECK(steps > 12);
        for (int at = temperature == 1 ? steps + 1 : 1; at <= steps; ++at) {  // at each step in turn
          const auto c = check(how, [&](rl::rollout& r, int step) {
            if (step == at) r.cancel_rest();
            if (step == at + 1) r.weights_changed(at, at % 2 == 0 ? inf::kv::keep : inf::kv::recompute);
          });
          CHECK(c.cancelled >= alone.cancelled);
        }
        const auto often = check(how, [&](rl::rollout& r, int step) {
          r.weights_changed(step, step % 2 == 0 ? inf::kv::keep : inf::kv::recompute);
          if (step % 3 == 0) r.cancel_rest();
        });
        CHECK(often.cancelled > 30);
        CHECK(often.requests == groups * o.answers + often.cancelled);
      }
    }
  });
}

TEST_CASE("log-probabilities after a change of weights are those of a whole forward, where the cache is computed again",
          "[rl][rollout]") {
  for (const double temperature : {1.0, 0.6})
    for (const bool keep : {false, true}) {
      CAPTURE(temperature, keep);
      std::vector<rl::sample> got;
      std::size_t versions = 0;
      on_one_rank([&](runner_type& runner) {
        engine_type engine(runner, {.end_tokens = {end_token}});
        rl::rollout r(engine, rl::slots<5>{}, options(temperature));
        for (std::int64_t g = 0; g < 8; ++g) r.add(prompt(g));
        got = all_rounds(r, [&](int step) {
          if (step % 3 != 0) return;
          const std::int64_t version = r.version() + 1;
          runner.stage().initialize(1 + static_cast<std::uint64_t>(version));
          runner.stage().weights_written();
          r.weights_changed(version, keep ? inf::kv::keep : inf::kv::recompute);
        });
        versions = static_cast<std::size_t>(r.version()) + 1;
      });
      CHECK(got.size() == 24);
      std::size_t most_segments = 0;
      double off = 0, off_by_version = 0;
      for (std::size_t v = 0; v < versions; ++v) {
        const auto fresh = by_whole_forward(got, 1 + v, temperature);
        for (std::size_t i = 0; i < got.size(); ++i)
          for (std::size_t t = 0; t < got[i].tokens.size(); ++t) {
            const double d = std::abs(fresh[i][t] - got[i].log_probabilities[t]);
            const bool drew = rl::version_of(got[i], t) == static_cast<std::int64_t>(v);
            if (drew && !(keep && got[i].segments.front().version != static_cast<std::int64_t>(v)))
              off = (std::max)(off, d);
            if (drew && keep) off_by_version = (std::max)(off_by_version, d);
          }
      }
      for (const rl::sample& s : got) most_segments = (std::max)(most_segments, s.segments.size());
      CHECK(most_segments >= 3);
      CHECK(off <= 1e-12);
      if (keep)
        CHECK(off_by_version >
              1e-3);  // keys and values of older weights: no weights alone have these log-probabilities
    }
}

TEST_CASE("a trainer's log-probabilities at lag 0 are those that a rollout drew with, at any temperature",
          "[rl][rollout]") {
  for (const double temperature : {1.0, 0.6, 1.7}) {
    CAPTURE(temperature);
    std::vector<rl::sample> got;
    on_one_rank([&](runner_type& runner) {
      engine_type engine(runner, {.end_tokens = {end_token}});
      rl::rollout r(engine, rl::wait_all{}, options(temperature));
      for (std::int64_t g = 0; g < 6; ++g) r.add(prompt(g));
      got = all_rounds(r);
    });
    const auto distance = [&](double of) {
      const auto whole = by_whole_forward(got, 1, of);
      double most = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        for (std::size_t t = 0; t < got[i].tokens.size(); ++t)
          most = (std::max)(most, std::abs(whole[i][t] - got[i].log_probabilities[t]));
      return most;
    };
    CHECK(distance(temperature) <= 1e-12);
    CHECK(distance(temperature + .1) > 1e-3);
  }
}

TEST_CASE("a round of one times its groups, and as many slots as answers, are rounds that wait for all",
          "[rl][rollout]") {
  using round = std::pair<std::vector<rl::sample>, std::int64_t>;  // and steps until then
  const auto rounds = [&](const auto& how, std::int64_t window) {
    std::vector<round> all;
    on_one_rank([&](runner_type& runner) {
      engine_type engine(runner, {.end_tokens = {end_token}});
      auto o = options();
      o.window = window;
      rl::rollout r(engine, how, o);
      for (std::int64_t g = 0; g < 8; ++g) r.add(prompt(g));
      for (int i = 0; i < 4; ++i) {
        r.start();
        while (r.step()) {
        }
        const auto steps = engine.counts().steps;
        all.emplace_back(r.take_finished(), steps);
        r.consumed(2);
        runner.stage().initialize(2 + static_cast<std::uint64_t>(i));  // other weights for the next round
        r.weights_changed(i + 1, inf::kv::recompute);
      }
    });
    return all;
  };
  const auto expected = rounds(rl::wait_all{}, 0);
  REQUIRE(expected[3].first.size() == 6);
  for (std::int64_t i = 0; i < 4; ++i)
    for (const rl::sample& s : expected[static_cast<std::size_t>(i)].first)
      CHECK(s.segments == std::vector<rl::segment>{{i, 0}});
  CHECK(rounds(rl::partial<1>{}, 0) == expected);
  CHECK(rounds(rl::partial<1>{}, 2) == expected);
  CHECK(rounds(rl::slots<6>{}, 2) == expected);
  CHECK_FALSE(rounds(rl::slots<6>{}, 4) == expected);
  CHECK_FALSE(rounds(rl::partial<2>{}, 0) == expected);
}

namespace {

// A rollout over a runner whose logits follow from the text alone.
struct fake_rollout {
  fake::runner runner;
  inf::engine<fake::runner, inf::prefix_shared> engine;
  rl::rollout rollout;
  fake_rollout(const inf::step_limits& limits, std::int64_t running, const rl::completion_rule& how,
               const rl::rollout_options& o)
      : runner(limits), engine(runner, {.max_running = running, .end_tokens = {end_token}}), rollout(engine, how, o) {}
};

// One schedule of steps, rounds, cancellations, updates, consumption and restarts, drawn at random.
void check_schedule(unsigned seed) {
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto between = [&](std::int64_t low, std::int64_t high) { return fake::between(random, low, high); };
  rl::rollout_options o{.groups = between(1, 4), .answers = between(1, 4), .max_tokens = between(1, 12)};
  o.compared = o.answers > 1;
  o.sampling = {.temperature = between(0, 1) == 0 ? 1 : 0.7, .seed = seed};
  if (between(0, 1) == 0) o.window = o.groups + between(0, 6);
  const rl::completion_rule how{between(0, 3), between(0, 2) == 0 ? between(1, 9) : 0};
  inf::step_limits limits = fake::small_limits;
  limits.context = between(8, 24);
  limits.blocks = between(6, 40);
  const std::int64_t groups = between(1, 12), running = between(1, 12);
  auto now = std::make_unique<fake_rollout>(limits, running, how, o);
  std::int64_t added = 0, drawn_before = 0, ended_for_nothing = 0;
  std::map<std::int64_t, rl::sample> got;
  for (std::int64_t actions = 0; std::ssize(got) < groups * o.answers; ++actions) {
    REQUIRE(actions < 20000);
    rl::rollout& r = now->rollout;
    for (std::int64_t n = between(0, 2); n > 0 && added < groups; --n) r.add(prompt(added++));
    switch (between(0, 11)) {
      case 0:
        r.cancel_rest();
        CHECK(r.in_flight() == 0);
        break;
      case 1:
      case 2:
        r.weights_changed(r.version() + between(0, 2), between(0, 1) == 0 ? inf::kv::keep : inf::kv::recompute);
        break;
      case 3:
        if (between(0, 3) > 0) break;
        {
          const rl::rollout_state state = r.state();
          drawn_before += now->engine.counts().answer_tokens;
          now = std::make_unique<fake_rollout>(limits, running, how, o);
          now->rollout.restore(state);
          CHECK(now->rollout.state() == state);
        }
        break;
      case 4:
        r.start(between(0, o.groups));
        break;
      default: {
        const std::int64_t finished = r.finished();
        r.step();
        ended_for_nothing = r.in_flight() == 0 && r.finished() == finished ? ended_for_nothing + 1 : 0;
        if (ended_for_nothing > 4) r.start();  // no round, or one that is complete
        break;
      }
    }
    rl::rollout& here = now->rollout;
    if (between(0, 3) == 0 || ended_for_nothing > 4) {
      const auto taken = here.take_finished(between(0, 1) == 0 ? 1 : 0);
      REQUIRE(std::ssize(taken) % o.answers == 0);
      for (std::size_t i = 0; i < taken.size(); ++i) {
        const rl::sample& s = taken[i];
        CHECK(s.group == taken[i / static_cast<std::size_t>(o.answers) * static_cast<std::size_t>(o.answers)].group);
        CHECK(s.id == s.group * o.answers + static_cast<std::int64_t>(i) % o.answers);
        CHECK(got.emplace(s.id, s).second);
      }
    }
    const rl::rollout_counts& c = here.counts();
    if (between(0, 2) == 0) here.consumed(c.taken - c.consumed);
    CHECK(c.generated == c.delivered + here.buffered_tokens());
    CHECK(c.generated == drawn_before + now->engine.counts().answer_tokens);
    if (o.window > 0) CHECK(c.started - c.consumed <= o.window);
    if (how.slots > 0) CHECK(here.in_flight() <= how.slots);
    CHECK(here.in_flight() <= running);
  }
  std::int64_t last = 0;
  for (const auto& [id, s] : got) {
    const inf::request asked{.prompt = prompt(s.group).tokens,
                             .max_tokens = o.max_tokens,
                             .sampling = {.temperature = o.sampling.temperature, .seed = rl::seed_of_sample(seed, id)},
                             .log_probabilities = 0,
                             .log_probabilities_of = inf::log_probability_of::drawn};
    const fake::answer alone = fake::alone(asked, {}, now->engine.context(), {end_token});
    CHECK(s.prompt == asked.prompt);
    CHECK(s.tokens == alone.tokens);
    CHECK(s.log_probabilities == alone.log_probabilities);
    CHECK(s.finish == alone.finish);
    REQUIRE(!s.segments.empty());
    CHECK(s.segments.front().first == 0);
    for (std::size_t i = 1; i < s.segments.size(); ++i) {
      CHECK(s.segments[i].version > s.segments[i - 1].version);
      CHECK(s.segments[i].first > s.segments[i - 1].first);
    }
    CHECK(s.segments.back().first < std::ssize(s.tokens));
    CHECK(s.segments.back().version <= now->rollout.version());
    last = (std::max)(last, id);
  }
  CHECK(last == groups * o.answers - 1);
  CHECK(now->rollout.buffered_tokens() == 0);
  CHECK(now->rollout.counts().taken == groups);
}

}  // namespace

TEST_CASE(
    "tokens are conserved and each answer is delivered once under random steps, cancellations, updates and restarts",
    "[rl][rollout][law][exhaustive]") {
  for (unsigned seed = 1; seed <= 1000; ++seed) check_schedule(seed);
}
TEST_CASE("so are they under ten times as many", "[rl][rollout][law][exhaustive][slow]") {
  for (unsigned seed = 1001; seed <= 10000; ++seed) check_schedule(seed);
}

namespace {

constexpr md::gpt2_config deeper{
    .layers = 3, .heads = 2, .width = 8, .context = 14, .vocabulary = 13, .initial_deviation = .6};

struct run_on_ranks {
  std::vector<rl::sample> samples;
  std::int64_t interrupts = 0, version = 0;
};
// A random schedule of rounds in which all ranks meet between steps, some with other weights; what each rank counted.
std::vector<run_on_ranks> run_with_meetings(const mesh_type& mesh, unsigned seed) {
  std::vector<run_on_ranks> all(static_cast<std::size_t>(mesh.size()));
  hd::launch<hd::threads>(mesh, [&](world_type& world) {
    backend kernels{1};
    runner_type runner(deeper, world, kernels, {20, 4}, 24);
    runner.stage().initialize(1);
    run_on_ranks& mine = all[static_cast<std::size_t>(world.rank())];
    const auto meet = [&](std::int64_t version) {
      world.control().broadcast(std::span<std::int64_t>(&version, 1), 0);
      if (version != mine.version) {
        runner.stage().initialize(1 + static_cast<std::uint64_t>(version));
        runner.stage().weights_written();
      }
      mine.version = version;
      ++mine.interrupts;
    };
    if (!runner.leads()) {
      while (runner.follow() == inf::followed::interrupted) meet(0);
      return;
    }
    std::mt19937 random(seed);
    const auto chance = [&](std::int64_t of) { return fake::between(random, 1, of) == 1; };
    const rl::completion_rule rules[] = {rl::wait_all::rule(), rl::partial<2>::rule(), rl::slots<5>::rule()};
    engine_type engine(runner, {.end_tokens = {end_token}});
    rl::rollout r(engine, rules[seed % 3], options(seed % 2 == 0 ? 1 : .7));
    for (std::int64_t g = 0; g < 5; ++g) r.add(prompt(g));
    mine.samples = all_rounds(r, [&](int) {
      while (chance(3)) {
        runner.interrupt();
        const std::int64_t version = r.version() + (chance(2) ? 1 : 0);
        meet(version);
        r.weights_changed(version, chance(2) ? inf::kv::keep : inf::kv::recompute);
      }
      if (chance(6)) r.cancel_rest();
    });
    runner.finish();
  });
  return all;
}

}  // namespace

TEST_CASE("ranks of a model meet between steps of a rollout and follow again, with the answers of one rank",
          "[rl][rollout][ranks]") {
  for (const auto& [stages, parts] : {std::pair(2, 1), std::pair(1, 2), std::pair(3, 1)}) {
    std::int64_t interrupts = 0;
    for (unsigned seed = 1; seed <= 12; ++seed) {
      CAPTURE(stages, parts, seed);
      const auto one = run_with_meetings(mesh_type{1, 1}, seed),
                 several = run_with_meetings(mesh_type{stages, parts}, seed);
      for (const run_on_ranks& r : several) {
        CHECK(r.interrupts == one[0].interrupts);
        CHECK(r.version == one[0].version);
      }
      interrupts += one[0].interrupts;
      REQUIRE(several[0].samples.size() == 15);
      for (std::size_t i = 0; i < 15; ++i) {
        rl::sample a = several[0].samples[i];
        const rl::sample& b = one[0].samples[i];
        REQUIRE(a.tokens == b.tokens);
        for (std::size_t t = 0; t < a.tokens.size(); ++t)
          CHECK(std::abs(a.log_probabilities[t] - b.log_probabilities[t]) <= 1e-11);
        a.log_probabilities = b.log_probabilities;
        CHECK(a == b);
        for (std::size_t x = 1; x < a.segments.size(); ++x) CHECK(a.segments[x].version > a.segments[x - 1].version);
      }
    }
    CHECK(interrupts > 100);
  }
}

TEST_CASE("a rollout starts groups as the cache and the window have room", "[rl][rollout]") {
  inf::step_limits limits = fake::small_limits;
  limits.blocks = 12;  // of 4 tokens: four answers to a prompt of 2 with one block each, and one more each
  rl::rollout_options o{.groups = 4, .answers = 2, .max_tokens = 16, .sampling = {.seed = 5}};
  fake_rollout f(limits, 64, rl::partial<3>::rule(), o);
  for (std::int64_t g = 0; g < 12; ++g) f.rollout.add({g, {1, 2}});
  CHECK_FALSE(f.rollout.step());  // no round
  f.rollout.start();
  CHECK(f.rollout.step());
  CHECK(f.rollout.in_flight() == 6);
  CHECK(f.rollout.counts().started == 3);
  while (f.rollout.step()) CHECK(f.rollout.counts().started <= 12);
  CHECK(f.rollout.finished() >= 4);
  const std::int64_t surplus = f.rollout.finished() - 4;
  CHECK(f.rollout.take_finished().size() == 8);
  CHECK(f.rollout.finished() == surplus);

  o.window = 5;
  fake_rollout w(fake::small_limits, 64, rl::slots<64>::rule(), o);
  for (std::int64_t g = 0; g < 12; ++g) w.rollout.add({g, {1, 2}});
  w.rollout.start(5);
  while (w.rollout.step()) {
  }
  CHECK(w.rollout.counts().started == 5);
  CHECK(w.rollout.finished() == 5);
  CHECK(w.rollout.take_finished().size() == 10);
  w.rollout.start();
  CHECK_FALSE(w.rollout.step());  // the window is closed
  w.rollout.consumed(2);
  CHECK(w.rollout.step());
  CHECK(w.rollout.counts().started == 7);
  CHECK_THROWS_WITH(w.rollout.consumed(4),
                    Contains("of 5 groups that were taken, 2 were consumed before: 4 more cannot be"));
  fake_rollout s(fake::small_limits, 64, rl::slots<3>::rule(), o);  // without rounds
  for (std::int64_t g = 0; g < 4; ++g) s.rollout.add({g, {1, 2}});
  while (s.rollout.step()) CHECK(s.rollout.in_flight() <= 3);
  CHECK(s.rollout.finished() == 4);
  CHECK(s.rollout.take_finished().size() == 8);
  CHECK_THROWS_WITH(w.rollout.start(6), Contains("within the window of 5, got 6"));
}

TEST_CASE("an answer without budget where it goes on ends by its length", "[rl][rollout]") {
  const rl::rollout_options o{.groups = 2, .answers = 3, .max_tokens = 8, .sampling = {.seed = 2}};
  fake_rollout before(fake::small_limits, 8, rl::wait_all::rule(), o);
  for (std::int64_t g = 0; g < 2; ++g) before.rollout.add(prompt(g));
  before.rollout.start();
  for (int i = 0; i < 4; ++i) before.rollout.step();
  const rl::rollout_state state = before.rollout.state();
  auto less = o;
  less.max_tokens = 4;
  fake_rollout after(fake::small_limits, 8, rl::wait_all::rule(), less);
  after.rollout.restore(state);
  CHECK_FALSE(after.rollout.step());
  CHECK(after.engine.counts().submitted == 0);
  const auto samples = after.rollout.take_finished();
  REQUIRE(samples.size() == 6);
  std::int64_t by_length = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    const rl::sample& s = state.groups[i / 3][i % 3];
    CHECK(samples[i].tokens == s.tokens);
    by_length += samples[i].finish == inf::finish_reason::length ? 1 : 0;
    CHECK((samples[i].finish == s.finish || s.finish == inf::finish_reason::none));
  }
  CHECK(by_length > 1);
}

TEST_CASE("an answer that ends by an error is an error, and the others of the step are kept", "[rl][rollout]") {
  fake::runner runner(fake::small_limits, {.broken_after = 4});
  inf::engine<fake::runner, inf::prefix_shared> engine(runner);
  rl::rollout r(engine, rl::wait_all{}, {.groups = 1, .answers = 6, .max_tokens = 30, .sampling = {.seed = 1}});
  r.add({0, {1, 2}});
  r.start();
  std::string text;
  int errors = 0;
  for (bool more = true; more;) {
    try {
      more = r.step();
    } catch (const hd::numeric_error& e) {
      text = e.what(), ++errors;
    }
    CHECK(r.buffered_tokens() == engine.counts().answer_tokens);
  }
  CHECK(errors > 0);
  CHECK_THAT(text, Contains("the logit of token 1 should be a number below infinity"));
  const auto samples = r.take_finished();
  REQUIRE(samples.size() == 6);
  CHECK(std::ranges::count(samples, inf::finish_reason::error, &rl::sample::finish) >= errors);
}

TEST_CASE("a rollout refuses settings that would train on something else, and names them", "[rl][rollout][error]") {
  const auto refused = [&](rl::rollout_options o, const rl::completion_rule& how = rl::wait_all::rule()) {
    try {
      fake_rollout f(fake::small_limits, 8, how, o);
    } catch (const hd::config_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused({}).empty());
  CHECK_THAT(refused({.sampling = {.top_p = .9}}), Contains("a temperature and a seed alone") && Contains("top_p 0.9"));
  CHECK_THAT(refused({.sampling = {.top_k = 3}}), Contains("top_k 3"));
  CHECK_THAT(refused({.sampling = {.presence_penalty = 1}}), Contains("penalties"));
  CHECK_THAT(refused({.sampling = {.temperature = 0}}),
             Contains("sampling.temperature should be a finite number above 0, got 0"));
  CHECK_THAT(refused({.answers = 1}),
             Contains("answers should be at least 2, where advantages compare them") && Contains("got 1"));
  CHECK(refused({.answers = 1, .compared = false}).empty());
  CHECK_THAT(refused({.groups = 4, .window = 3}),
             Contains("window should be at least the 4 groups of a round") && Contains("got 3"));
  CHECK_THAT(refused({.groups = 0}), Contains("groups should be at least 1, got 0"));
  CHECK_THAT(refused({.max_tokens = 0}), Contains("max_tokens should be at least 1, got 0"));
  CHECK_THAT(refused({.stop_tokens = {13}}), Contains("stop_tokens should be below the vocabulary's 13, got 13"));
  CHECK_THAT(refused({}, {-1, 0}), Contains("completion.over should be at least 0, got -1"));

  fake_rollout f(fake::small_limits, 8, rl::wait_all::rule(), {});
  const auto adds = [&](rl::rollout_prompt p) {
    try {
      f.rollout.add(std::move(p));
    } catch (const hd::config_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK_THAT(adds({3, std::vector<std::int32_t>(48, 1)}),
             Contains("the prompt of group 3 has 48 tokens") && Contains("at most 48 together"));
  CHECK_THAT(adds({3, {}}), Contains("the prompt of group 3 has 0 tokens"));
  CHECK_THAT(adds({3, {13}}), Contains("the token 13, which is not in the vocabulary of 13"));
  CHECK(adds({3, {1}}).empty());
  CHECK_THAT(adds({3, {1}}), Contains("groups should ascend: got the prompt of group 3 after 3"));
  f.rollout.weights_changed(4, inf::kv::keep);
  CHECK_THROWS_WITH(f.rollout.weights_changed(3, inf::kv::keep), Contains("at least the last one's 4, got 3"));
  CHECK_THROWS_WITH(f.rollout.restore({}), Contains("has not begun"));
  fake_rollout other(fake::small_limits, 8, rl::wait_all::rule(), {.answers = 4});
  f.rollout.start(1);
  f.rollout.step();
  CHECK_THROWS_WITH(other.rollout.restore(f.rollout.state()),
                    Contains("answers of a group of the state should be 4, got 8"));
  CHECK(to_string(rl::partial<2>::rule()) == "partial<2>");
  CHECK(to_string(rl::slots<64>::rule()) == "slots<64>");
  CHECK(to_string(rl::wait_all::rule()) == "wait_all");
  fake::runner runner;
  inf::engine<fake::runner, inf::prefix_shared> bounded(runner, {.max_waiting = 3});
  CHECK_THROWS_WITH(rl::rollout(bounded, rl::wait_all{}), Contains("the engine's max_waiting should be 0"));
}
