// tests/rl/run_test.cpp: runs of all pipelines on many meshes: degenerate ones are the synchronous one bit for bit, tokens
// are as old as pipelines and simulations say, each answer is used once, a reference is the run's begin, and rewards
// that fail cost their answer only.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/rl/advantage.hpp>
#include <heddle/rl/experience.hpp>
#include <heddle/rl/run.hpp>
#include <heddle/rl/scorer.hpp>
#include <heddle/rl/simulated.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace rl = heddle::rl;
namespace sim = heddle::sim;
using hd::dp, hd::pp, hd::tp;

namespace {

using run_train_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using run_generate_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>, hd::axis<rl::replica>>;
using run_policy = rl::policy<hd::model::gpt2<double>, rl::any_objective>;

struct run_case {
  rl::flow how{};
  std::string train = "dp=2", generate = "dp=2";
  rl::settings s = small();
  rl::any_objective objective = rl::aipo{};
  double rate = 1e-2;
  std::chrono::milliseconds trains{0};  // each batch takes so much longer to train on

  static rl::settings small() {
    rl::settings s{.prompts = 4, .answers = 3, .steps = 5, .most_tokens = 5};
    s.end_tokens = {6};
    s.seed = 3;
    s.sequences = 8;
    return s;
  }
};

struct run_outcome {
  rl::run_result result{};
  std::vector<rl::run_report> reports{};
  std::vector<double> weights{};  // of the first rank that trains, at the end
  std::vector<double> trained{};  // when each batch was, by run_clock, on rank 0
};

double run_clock() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The share of sevens, and more for an end: rewards differ within groups.
double run_reward(const rl::question& q) {
  double n = 0;
  for (const std::int32_t t : q.answer) n += t == 7 ? 1 : t == 6 ? 0.5 : 0;
  return n / static_cast<double>(q.answer.size());
}
rl::task run_task(std::function<double(const rl::question&)> reward = run_reward) {
  return {.prompt =
              [](std::int64_t group) {
                const auto g = static_cast<std::int32_t>(group);
                return std::vector<std::int32_t>(static_cast<std::size_t>(1 + g % 3), g % 5);
              },
          .reward =
              [reward = std::move(reward)](std::span<const rl::question> all) mutable {
                return rl::judge_each(reward, all);
              }};
}

using run_strategy = hd::strategy<run_train_mesh, hd::zero<1>>;
hd::train::options<run_policy::config> run_options(const run_case& c) {
  hd::train::options<run_policy::config> o;
  static_cast<hd::model::gpt2_config&>(o.model) = {
      .layers = 2, .heads = 2, .width = 8, .context = 8, .vocabulary = 8, .initial_deviation = .3};
  o.model.objective = c.objective;
  o.learning_rate = {.peak = c.rate, .minimum = c.rate, .warmup_steps = 0};
  o.threads_per_rank = 1;
  return o;
}

template <class Fill = rl::seeded_weights>
run_outcome run_on_ranks(const run_case& c, const rl::task& task = run_task(), const Fill& fill = {}) {
  const rl::meshes<run_train_mesh, run_generate_mesh> where{hd::parse_mesh<run_train_mesh>(c.train),
                                                            hd::parse_mesh<run_generate_mesh>(c.generate)};
  const auto o = run_options(c);
  run_outcome all;
  std::mutex mutex;
  const int ranks = c.how.apart ? where.train.size() + where.generate.size() : where.train.size();
  hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>{ranks}, [&](auto& world) {
    std::vector<rl::run_report> mine;
    const auto report = [&](const rl::run_report& r, auto& trainer) {
      mine.push_back(r);
      if (c.trains.count() > 0) {
        std::this_thread::sleep_for(c.trains);
        const std::lock_guard lock(mutex);
        if (world.rank() == 0) all.trained.push_back(run_clock());
      }
      if (world.rank() != 0 || r.batch + 1 < c.s.steps) return;
      const auto weights = trainer.stage(0).weights();
      const std::lock_guard lock(mutex);
      all.weights.assign(weights.begin(), weights.end());
    };
    const rl::run_result result =
        c.how == rl::hybridflow::flow
            ? rl::run<rl::hybridflow, run_strategy>(world, where, run_policy{}, o, c.s, task, report, rl::no_saves{},
                                                    fill)
            : rl::run<run_strategy>(world, c.how, where, run_policy{}, o, c.s, task, report, rl::no_saves{}, fill);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) all.reports = mine, all.result = result;
  });
  return all;
}

// An objective that weighs nothing by what drew it.
struct run_blind {
  rl::term operator()(double lp, const rl::token& t) const { return {-t.advantage * lp, -t.advantage}; }
  friend std::string to_string(const run_blind&) { return "blind"; }
};

// The steps of a run on answers that are there, group by group, by a trainer and a scorer.
run_outcome run_by_hand(const run_case& c, const std::map<std::int64_t, std::vector<rl::question>>& answers,
                        std::uint64_t weights) {
  const auto mesh = hd::parse_mesh<run_train_mesh>(c.train);
  run_outcome all;
  hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>{mesh.size()}, [&](auto& world) {
    std::vector<int> ranks(static_cast<std::size_t>(mesh.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    auto training = world.on(mesh, ranks);
    // Scorers do not split samples: beside a trainer that does, each rank has one of its own.
    const bool splits = mesh.template extent<dp>() > 1;
    auto scoring = world.on(mesh, ranks);
    for (int r = 0; splits && r < mesh.size(); ++r)
      if (auto own = world.on(hd::parse_mesh<run_train_mesh>(""), std::span(&r, 1))) scoring.emplace(std::move(*own));
    using world_type = typename decltype(training)::value_type;
    auto o = run_options(c);
    o.batch = c.s.prompts * c.s.answers;
    o.steps = c.s.steps;
    hd::train::trainer<run_policy, run_strategy, world_type> trainer(*training, o);
    trainer.stage(0).initialize(weights);
    rl::scorer<run_policy, world_type, run_strategy::backend> reference(o.model, *scoring, trainer.backend(), 5);
    reference.stage().initialize(weights);
    for (std::int64_t step = 0; step < c.s.steps; ++step) {
      std::vector<rl::sample> samples;
      for (std::int64_t g = step * c.s.prompts; g < (step + 1) * c.s.prompts; ++g) {
        std::vector<double> rewards;
        for (const rl::question& q : answers.at(g)) rewards.push_back(run_reward(q));
        const auto advantages = rl::group_normalised(rewards, rewards.size());
        for (std::size_t i = 0; i < rewards.size(); ++i) {
          const rl::question& q = answers.at(g)[i];
          samples.push_back({.prompt = q.prompt, .tokens = q.answer, .advantage = advantages[i]});
        }
      }
      reference.score(samples);
      const auto report = trainer.step(rl::experience(samples, o.model.context, trainer.samples_consumed()));
      if (world.rank() == 0) all.reports.emplace_back().training = report;
    }
    if (world.rank() != 0) return;
    const auto now = trainer.stage(0).weights();
    all.weights.assign(now.begin(), now.end());
  });
  return all;
}

rl::flow apart(rl::flow f) {
  f.apart = true;
  return f;
}

}  // namespace

TEST_CASE("degenerate pipelines are the synchronous one, bit for bit", "[rl][run][ranks]") {
  const auto check = [](const std::string& train, const std::string& generate, std::size_t steps) {
    INFO("train " << train << ", generate " << generate);
    run_case c{.train = train, .generate = generate, .rate = 2e-3};
    c.s.steps = static_cast<std::int64_t>(steps);
    const run_outcome sync = run_on_ranks(c);
    REQUIRE(sync.reports.size() == steps);
    REQUIRE(sync.result.version == c.s.steps);
    for (const rl::run_report& r : sync.reports) {
      CHECK(r.greatest_lag == 0);
      CHECK(r.statistics.tokens > 0);
      CHECK(r.statistics.effective_share() == Approx(1).margin(1e-12));     // what drew a token is what trains on it
      CHECK(std::abs(r.statistics.behaviour_divergence()) < 1e-13);  // the square of what floats round
      CHECK(r.training.gradient_norm > 0);
    }
    CHECK(sync.result.lags == std::vector<std::int64_t>{sync.result.tokens});

    using zero = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<0>>>;
    using in_flight = rl::pipeline<rl::split, rl::in_flight<hd::infer::kv::keep, rl::eta<0>>, rl::slots<12>>;
    using recomputed = rl::pipeline<rl::split, rl::in_flight<hd::infer::kv::recompute, rl::eta<0>>>;
    using all_of_one = rl::pipeline<rl::partial<1>>;
    using delayed = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<0>, 1, rl::load::beside<1>>>;
    for (const rl::flow& how : {zero::flow, delayed::flow, in_flight::flow, recomputed::flow, all_of_one::flow, apart(rl::flow{})}) {
      INFO(to_string(how));
      c.how = how;
      c.s.one_copy = !how.apart;
      const run_outcome got = run_on_ranks(c);
      REQUIRE(got.reports.size() == steps);
      CHECK(got.weights == sync.weights);
      for (std::size_t i = 0; i < steps; ++i) {
        CHECK(got.reports[i].training.loss == sync.reports[i].training.loss);
        CHECK(got.reports[i].reward == sync.reports[i].reward);
        CHECK(got.reports[i].greatest_lag == 0);
      }
    }
  };
  check("dp=1", "dp=1", 5);
  check("dp=2", "dp=2", 20);
  check("tp=2", "pp=2", 20);
}

TEST_CASE("a divergence from the run's begin is that of a loop by hand with a scorer, bit for bit",
          "[rl][run][ranks]") {
  struct meeting_case {
    rl::flow how;
    const char *train, *generate;
  };
  for (const meeting_case& x : {meeting_case{{}, "dp=2", "dp=2"}, meeting_case{{}, "tp=2", "pp=2"},
                                meeting_case{apart({}), "pp=2", "dp=1"}, meeting_case{apart({}), "dp=3", "tp=2"}})
    for (const std::uint64_t weights : {std::uint64_t{0}, std::uint64_t{77}}) {  // by the options' seed, and filled
      INFO(to_string(x.how) << ", train " << x.train << ", generate " << x.generate << ", weights of seed " << weights);
      run_case c{.how = x.how, .train = x.train, .generate = x.generate};
      c.s.steps = 3;
      c.s.one_copy = !x.how.apart;
      c.objective = rl::with_kl<rl::reinforce>{{.cap = 0}, .25};
      std::mutex mutex;
      std::map<std::int64_t, std::vector<rl::question>> answers;
      const rl::task judged = run_task();
      const rl::task recorded{judged.prompt, [&](std::span<const rl::question> all) {
                                const std::lock_guard lock(mutex);
                                answers[all[0].group].assign(all.begin(), all.end());
                                return judged.reward(all);
                              }};
      std::atomic<int> filled = 0, frozen = 0;
      const auto fill = [&](auto& stage, hd::model::which_parameters which) {
        ++(which == hd::model::which_parameters::all ? filled : frozen);
        stage.initialize(weights);
      };
      const std::uint64_t seed = run_options(c).seed;
      const run_outcome got = weights == 0 ? run_on_ranks(c, recorded) : run_on_ranks(c, recorded, fill);
      CHECK(filled == (weights == 0 ? 0 : hd::parse_mesh<run_train_mesh>(c.train).size()));
      CHECK(frozen == 0);  // this model has none
      REQUIRE(got.reports.size() == 3);
      REQUIRE(got.result.skipped == 0);
      const run_outcome wanted = run_by_hand(c, answers, weights == 0 ? seed : weights);
      CHECK(got.weights == wanted.weights);
      for (std::size_t i = 0; i < 3; ++i) {
        CHECK(got.reports[i].training.loss == wanted.reports[i].training.loss);
        CHECK(got.reports[i].training.gradient_norm == wanted.reports[i].training.gradient_norm);
      }
      CHECK(std::abs(got.reports[0].statistics.reference_divergence()) < 1e-13);  // the square of what floats round
      CHECK(got.reports[2].statistics.reference_divergence() > 1e-6);
    }
}

TEST_CASE("tokens are as old as a pipeline says, and each answer is used once", "[rl][run][ranks]") {
  struct expectation {
    rl::flow how;
    std::int64_t greatest;  // lag that is reached; -1: whatever
  };
  using one_off = rl::pipeline<rl::split, rl::one_step_off>;
  using half = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<1, 2>>>;
  using seldom = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<0>, 2>>;
  using rolling = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<2>, 1, rl::load::rolling_by<1>>>;
  using beside = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<1>, 1, rl::load::beside<>>>;
  using beside_far = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<3>, 2, rl::load::beside<1>>, rl::max_age<4>>;
  using flying = rl::pipeline<rl::split, rl::in_flight<hd::infer::kv::keep, rl::eta<2>>, rl::slots<3>>;
  using aged = rl::pipeline<rl::split, rl::in_flight<hd::infer::kv::recompute, rl::eta<3>>, rl::slots<2>, rl::max_age<1>>;
  using over = rl::pipeline<rl::partial<2>>;
  using over_apart = rl::pipeline<rl::split, rl::partial<3>>;
  run_case c;
  c.s.steps = 6;
  for (const char* generate : {"dp=2", "tp=2", "dp=2,replica=2"})
    for (const expectation& e :
         {expectation{one_off::flow, 1}, expectation{half::flow, 1}, expectation{seldom::flow, 1},
          expectation{rolling::flow, -1}, expectation{beside::flow, 1}, expectation{beside_far::flow, -1},
          expectation{flying::flow, -1}, expectation{aged::flow, -1},
          expectation{over::flow, -1}, expectation{over_apart::flow, -1}}) {
      c.how = e.how;
      c.generate = generate;
      c.train = e.how.apart ? "pp=2" : c.generate == "dp=2,replica=2" ? "dp=2,tp=2" : "dp=2";
      INFO(to_string(e.how) << ", train " << c.train << ", generate " << generate);
      // Each answer of each group is judged once; prompts say which group it is.
      std::mutex judged_mutex;
      std::int64_t judged = 0, judged_tokens = 0;
      const run_outcome got = run_on_ranks(c, run_task([&](const rl::question& q) {
        const std::lock_guard lock(judged_mutex);
        ++judged;
        judged_tokens += std::ssize(q.answer);
        return run_reward(q);
      }));
      REQUIRE(got.result.batches == 6);
      CHECK(got.result.version == 6);
      CHECK(judged >= got.result.groups * c.s.answers);  // what the last meeting did not take was judged, too
      CHECK(judged <= e.how.may_begin(got.result.groups, c.s.prompts) * c.s.answers);
      CHECK(judged_tokens >= got.result.tokens);
      std::int64_t inherited = 0;
      for (const rl::run_report& r : got.reports) inherited += r.inherited;
      if (e.how.over > 1 && !e.how.apart) CHECK(inherited > 0);  // answers that were gone on with by newer weights
      if (!e.how.overtakes()) CHECK(inherited == 0);
      std::int64_t tokens = 0, greatest = 0;
      for (const rl::run_report& r : got.reports) {
        tokens += r.tokens;
        greatest = std::max(greatest, r.greatest_lag);
      }
      CHECK(tokens == got.result.tokens);
      CHECK(std::accumulate(got.result.lags.begin(), got.result.lags.end(), std::int64_t{0}) == tokens);
      CHECK(got.result.groups >= 6 * c.s.prompts + got.result.given_up);
      // What had begun when the last batch was taken.
      CHECK(got.result.groups <= e.how.may_begin(6 * c.s.prompts + got.result.given_up, c.s.prompts));
      if (e.how.greatest_lag() >= 0) CHECK(greatest <= e.how.greatest_lag());
      if (e.greatest >= 0) CHECK(greatest == e.greatest);
    }
}

TEST_CASE("tokens of a run are as old as its simulation says", "[rl][run][ranks]") {
  using off = rl::pipeline<rl::split, rl::one_step_off>;
  using half = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<1, 2>>>;
  using far = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<4>>>;
  using seldom = rl::pipeline<rl::bounded_stale<rl::eta<0>, 3>>;
  using both = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<1>, 2>>;
  using over = rl::pipeline<rl::partial<2>>;
  // Answers have equal lengths, and a step takes far longer than a batch of them.
  sim::rl_times times{.step = 1, .train = 10000};
  times.length = [](std::int64_t, int) { return 5; };
  run_case c;
  c.s.steps = 8;
  c.s.end_tokens = {};
  c.s.sequences = 32;
  for (const char* generate : {"dp=1", "dp=2"})
    for (const rl::flow& how :
         {rl::flow{}, apart(rl::flow{}), off::flow, half::flow, far::flow, seldom::flow, both::flow, over::flow}) {
      INFO(to_string(how) << ", generate " << generate);
      c.how = how;
      c.train = how.apart ? "dp=1" : generate;
      c.generate = generate;
      const run_outcome got = run_on_ranks(c);
      const int generators = generate == std::string("dp=1") ? 1 : 2;
      CHECK(got.result.lags == sim::simulate(rl::simulated(how, c.s, generators), times, 8).tokens_of_lag);
    }
  CHECK_THROWS_WITH(rl::simulated(rl::pipeline<rl::split, rl::one_step_off, rl::partial<2>>::flow, c.s, 1),
                    Catch::Contains("interrupted answers are simulated with synchronous weights after each step, got "
                                    "apart, ahead by 1/1 batch, interrupted, 2 batches begun"));
}

TEST_CASE("a simulation that is told what stages take foretells the seconds of a step within a tenth",
          "[rl][run][ranks]") {
  // Stages sleep, and what they took is measured: on a machine with other work that hardly differs.
  using std::chrono::milliseconds;
  using off = rl::pipeline<rl::split, rl::one_step_off>;
  using beside = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<1>, 1, rl::load::beside<>>>;
  struct stages {
    rl::flow how;
    milliseconds judges, trains;  // a group, a batch
  };
  for (const stages& x : {stages{{}, milliseconds(20), milliseconds(80)}, stages{off::flow, milliseconds(15), milliseconds(160)},
                          stages{off::flow, milliseconds(40), milliseconds(60)},
                          stages{beside::flow, milliseconds(15), milliseconds(160)}}) {
    INFO(to_string(x.how) << ", " << x.judges.count() << " ms a group, " << x.trains.count() << " ms a batch");
    run_case c{.how = x.how, .train = "dp=1", .generate = "dp=1", .trains = x.trains};
    c.s.steps = 6, c.s.end_tokens = {}, c.s.sequences = 32;
    std::mutex mutex;
    struct answered {
      double first_prompt = 0, last_reward = 0;
    };
    std::map<std::int64_t, answered> batches;
    rl::task task = run_task();
    const rl::task judged = task;
    task.prompt = [&](std::int64_t group) {
      const std::lock_guard lock(mutex);
      batches.try_emplace(group / c.s.prompts, run_clock(), 0);
      return judged.prompt(group);
    };
    task.reward = [&](std::span<const rl::question> all) {
      std::this_thread::sleep_for(x.judges);
      const std::lock_guard lock(mutex);
      batches.at(all[0].group / c.s.prompts).last_reward = run_clock();
      return judged.reward(all);
    };
    const run_outcome got = run_on_ranks(c, task);
    double wrote = 0, trained = 0, met = 0, took = 0, n = 0;
    const std::int64_t ahead = x.how.apart ? 1 : 0;  // the batch that is written while one is trained on
    for (std::int64_t b = 1; b + 1 + ahead < c.s.steps; ++b, ++n) {
      const double end = got.trained.at(static_cast<std::size_t>(b));
      const answered &now = batches.at(b + ahead), &next = batches.at(b + ahead + 1);
      wrote += now.last_reward - now.first_prompt;
      trained += end - (x.how.apart ? now.first_prompt : now.last_reward);
      met += next.first_prompt - (std::max)(end, now.last_reward);
      took += next.first_prompt - now.first_prompt;
    }
    REQUIRE(n >= 3);
    sim::rl_times times{.step = 0, .train = trained / n, .publish = met / n};
    times.step_per_answer = wrote / n / static_cast<double>(c.s.most_tokens * c.s.prompts * c.s.answers);
    times.length = [&](std::int64_t, int) { return static_cast<int>(c.s.most_tokens); };
    const double foretold = sim::simulate(rl::simulated(x.how, c.s, 1), times, 6, 2).seconds_per_step(2);
    CAPTURE(wrote / n, times.train, times.publish);
    CHECK(took / n == Approx(foretold).epsilon(.1));
  }
}

TEST_CASE("a guard gives up what older versions wrote, and the run goes on", "[rl][run][ranks]") {
  using guarded = rl::pipeline<rl::split, rl::one_step_off, rl::ess_below<1, 1>>;
  run_case c{.how = guarded::flow, .train = "dp=1", .generate = "dp=1"};
  c.s.steps = 6;
  const run_outcome got = run_on_ranks(c);
  CHECK(got.result.batches == 6);
  CHECK(got.result.given_up > 0);  // at lag 1 the share is below 1
  // Behind a step below it, the next one is of the newest version only.
  for (std::size_t i = 0; i + 1 < got.reports.size(); ++i)
    if (got.reports[i].statistics.effective_share() < 1) CHECK(got.reports[i + 1].greatest_lag == 0);
}

TEST_CASE("weights in flight are replaced inside answers", "[rl][run][ranks]") {
  // One answer at a time, and a window that is not reached in six steps: hardly a meeting is between two answers.
  using flying = rl::pipeline<rl::split, rl::in_flight<hd::infer::kv::keep, rl::eta<16>>, rl::slots<1>>;
  run_case c{.how = flying::flow, .train = "dp=1", .generate = "dp=1"};
  c.s.steps = 12;
  c.s.prompts = 2;
  c.s.end_tokens = {};
  const run_outcome got = run_on_ranks(c);
  std::int64_t inherited = 0;
  for (const rl::run_report& r : got.reports) inherited += r.inherited;
  CHECK(inherited > 0);
}

TEST_CASE("weights are sent early where a guard would give up all that older ones write", "[rl][run][ranks]") {
  using none = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<0>, 2>, rl::max_age<0>>;
  using one = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<0>, 3>, rl::max_age<1>>;
  using fresh = rl::pipeline<rl::bounded_stale<rl::eta<0>, 3>, rl::ess_below<1, 1>>;
  for (const rl::flow& how : {none::flow, one::flow, fresh::flow}) {
    INFO(to_string(how));
    run_case c{.how = how, .train = "dp=1", .generate = "dp=1"};
    c.s.steps = 7;
    const run_outcome got = run_on_ranks(c);
    CHECK(got.result.batches == 7);
    if (how.most_age >= 0)
      for (const rl::run_report& r : got.reports) CHECK(r.greatest_lag <= how.most_age);
  }
}

TEST_CASE("a run of no batch asks for no answer", "[rl][run][ranks]") {
  std::atomic<int> asked = 0;
  for (const rl::flow& how : {rl::flow{}, apart(rl::flow{}), rl::pipelinerl::flow}) {
    run_case c{.how = how, .train = "dp=1", .generate = "dp=1"};
    c.s.steps = 0;
    const run_outcome got = run_on_ranks(c, run_task([&](const rl::question& q) {
      ++asked;
      return run_reward(q);
    }));
    CHECK(got.result.batches == 0);
  }
  CHECK(asked == 0);
}

TEST_CASE("a reward that fails costs its answer, and equal rewards no step", "[rl][run][ranks]") {
  run_case c{.train = "dp=2", .generate = "dp=2"};
  SECTION("some fail") {
    const run_outcome got = run_on_ranks(c, run_task([](const rl::question& q) {
      if (q.answer.front() == 1) throw std::runtime_error("no verdict");
      return run_reward(q);
    }));
    std::int64_t missing = 0;
    for (const rl::run_report& r : got.reports) {
      missing += r.missing;
      CHECK((r.missing == 0 || r.why_missing.find("no verdict") != std::string::npos));
    }
    CHECK(missing > 0);
    CHECK(missing == got.result.missing);
    CHECK(got.result.batches == 5);
  }
  SECTION("all fail") {
    const auto run = [&] {
      run_on_ranks(c, run_task([](const rl::question&) -> double { throw std::runtime_error("no verdict"); }));
    };
    CHECK_THROWS_WITH(run(), Catch::Contains("rewards of all 12 answers of batch 1 are missing; the first: ") &&
                                 Catch::Contains("no verdict"));
  }
  SECTION("all are equal") {
    c.s.one_copy = true;  // which comes back for no step
    const run_outcome got = run_on_ranks(c, run_task([](const rl::question&) { return 0.25; }));
    CHECK(got.result.batches == 5);
    CHECK(got.result.skipped == 5);
    CHECK(got.result.version == 0);
    CHECK(got.reports.back().reward == 0.25);
    CHECK(got.reports.back().training.steps == 0);
  }
}

TEST_CASE("runs refuse settings and meshes that do not fit, by name", "[rl][run][ranks]") {
  const auto with = [](auto&& change) {
    run_case c{.train = "dp=2", .generate = "dp=2"};
    change(c);
    run_on_ranks(c);
  };
  CHECK_THROWS_WITH(with([](run_case& c) { c.s.answers = 1; }),
                    Catch::Contains("rl::settings.answers must be at least 2, as advantages compare answers of a group, got 1"));
  CHECK_THROWS_WITH(with([](run_case& c) { c.s.temperature = 0; }),
                    Catch::Contains("rl::settings.temperature must be positive, got 0"));
  CHECK_THROWS_WITH(with([](run_case& c) {
                      c.how.apart = c.s.one_copy = true;
                    }),
                    Catch::Contains("rl::settings.one_copy is for pipelines whose ranks train and generate in turn"));
  CHECK_THROWS_WITH(with([](run_case& c) { c.generate = "dp=1"; }),
                    Catch::Contains("meshes of 2 ranks that train and 1 that generate in turn should each have all of "
                                    "the world's 2 ranks"));
  CHECK_THROWS_WITH(with([](run_case& c) { c.s.steps = -1; }),
                    Catch::Contains("rl::settings.steps must be at least 0, got -1"));
  CHECK_THROWS_WITH(with([](run_case& c) { c.objective = rl::with_kl<rl::reinforce>{.beta = -1}; }),
                    Catch::Contains("with_kl.beta must be a finite number >= 0, got -1"));
  CHECK_THROWS_WITH(with([](run_case& c) { c.how.in_flight = true; }),
                    Catch::Contains("rl::flow.in_flight replaces weights while answers are written"));
  CHECK_THROWS_WITH(with([](run_case& c) { c.how.ahead = 1; }),
                    Catch::Contains("rl::flow.ahead: generators on the trainer's own ranks cannot be ahead of it"));
  CHECK_THROWS_WITH(with([](run_case& c) { c.how.rolling = 1; }),
                    Catch::Contains("rl::flow.rolling: generators on the trainer's own ranks take weights together"));
  CHECK_THROWS_WITH(with([](run_case& c) { c.how.delayed = true; }),
                    Catch::Contains("rl::flow.delayed: weights wait until the answers of a window are complete"));
  CHECK_THROWS_WITH(with([](run_case& c) { c.how.of = 0; }),
                    Catch::Contains("rl::flow.ahead / of must be a fraction of at least 0, got 0 / 0"));
  CHECK_THROWS_WITH(rl::detail::require_objective(run_blind{}, rl::april::flow),
                    Catch::Contains("blind does not read what drew a token"));
  CHECK_THROWS_WITH(rl::detail::require_objective(rl::with_kl<run_blind>{}, rl::april::flow),
                    Catch::Contains("does not read what drew a token"));
  CHECK_NOTHROW(rl::detail::require_objective(rl::with_kl<rl::ppo>{}, rl::april::flow));
  CHECK_THROWS_WITH(with([](run_case& c) {
                      c.how = rl::april::flow;
                      c.objective = run_blind{};
                    }),
                    Catch::Contains("several versions of the weights, and blind does not read what drew a token"));
  CHECK_NOTHROW(with([](run_case& c) {
    using as_is = rl::pipeline<rl::partial<2>, rl::keep_as_is>;
    c.how = as_is::flow;
    c.objective = run_blind{};
  }));
}
