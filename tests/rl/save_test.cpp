// tests/rl/save_test.cpp: a run that goes on from a save ends with the bits of an undisturbed one, on any kill; no group is
// lost and none comes twice; saves that do not fit are refused by name.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/rl/run.hpp>
#include <heddle/rl/save.hpp>
#include <heddle/rl/with_critic.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace fs = std::filesystem;
namespace hd = heddle;
namespace io = heddle::io;
namespace rl = heddle::rl;
using hd::dp, hd::pp, hd::tp;

namespace {

using save_train_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using save_generate_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>, hd::axis<rl::replica>>;
using save_policy = rl::policy<hd::model::gpt2<double>, rl::any_objective>;

struct save_folder {
  fs::path path;
  explicit save_folder(const std::string& name)
      : path(fs::temp_directory_path() / ("heddle-rl-" + name + "-" + std::to_string(::getpid()))) {
    fs::remove_all(path);
  }
  save_folder(const save_folder&) = delete;
  save_folder& operator=(const save_folder&) = delete;
  ~save_folder() { fs::remove_all(path); }
};

struct save_case {
  rl::flow how{};
  std::string train = "dp=2", generate = "dp=2";
  rl::settings s = small();
  rl::saves saves{};
  rl::any_objective objective = rl::aipo{};
  std::int64_t stops_at = -1;  // the batch in which a stop is asked for
  bool critic = false;         // advantages are by one

  static rl::settings small() {
    rl::settings s{.prompts = 4, .answers = 2, .steps = 6, .most_tokens = 5};
    s.end_tokens = {6};
    s.seed = 3;
    s.sequences = 8;
    return s;
  }
};

struct save_outcome {
  rl::run_result result{};
  std::map<std::int64_t, double> rewards{}, losses{}, critics{};  // of each batch; the last: losses of a critic
  std::vector<double> weights{};                                  // of the first rank that trains, at the end
  std::vector<std::string> notes{};
};

rl::task save_task() {
  const auto reward = [](const rl::question& q) {
    double n = 0;
    for (const std::int32_t t : q.answer) n += t == 7 ? 1 : t == 6 ? 0.5 : 0;
    return n / static_cast<double>(q.answer.size());
  };
  return {.prompt =
              [](std::int64_t group) {
                const auto g = static_cast<std::int32_t>(group);
                return std::vector<std::int32_t>(static_cast<std::size_t>(1 + g % 3), g % 5);
              },
          .reward = [reward](std::span<const rl::question> all) { return rl::judge_all(reward, all); }};
}

save_outcome run_saved(const save_case& c) {
  const rl::meshes<save_train_mesh, save_generate_mesh> where{hd::parse_mesh<save_train_mesh>(c.train),
                                                              hd::parse_mesh<save_generate_mesh>(c.generate)};
  hd::train::options<save_policy::config> o;
  static_cast<hd::model::gpt2_config&>(o.model) = {
      .layers = 2, .heads = 2, .width = 8, .context = 8, .vocabulary = 8, .initial_deviation = .3};
  o.model.objective = c.objective;
  std::atomic<bool> stop{false};
  o.stop = &stop;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-2, .warmup_steps = 0};
  o.threads_per_rank = 1;
  save_outcome all;
  std::mutex mutex;
  const rl::task task = save_task();
  rl::saves saves = c.saves;
  saves.note = [&](const std::string& text) { all.notes.push_back(text); };
  const int ranks = c.how.apart ? where.train.size() + where.generate.size() : where.train.size();
  rl::with_critic<hd::model::gpt2<double>> critic;
  critic.options.learning_rate = o.learning_rate;
  rl::settings s = c.s;
  if (c.critic) s.advantage = rl::advantage_of::reward;
  hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>{ranks}, [&](auto& world) {
    const auto report = [&](const rl::run_report& r, auto& trainer) {
      if (world.rank() != 0) return;
      if (r.batch == c.stops_at) stop = true;
      const auto weights = trainer.stage(0).weights();
      const std::lock_guard lock(mutex);
      all.rewards[r.batch] = r.reward, all.losses[r.batch] = r.training.loss, all.critics[r.batch] = r.critic.loss;
      all.weights.assign(weights.begin(), weights.end());
    };
    using strategy = hd::strategy<save_train_mesh, hd::zero<1>>;
    const rl::run_result result =
        c.critic ? rl::run<strategy>(world, c.how, where, save_policy{}, o, s, task, report, saves,
                                     rl::seeded_weights{}, critic)
                 : rl::run<strategy>(world, c.how, where, save_policy{}, o, s, task, report, saves);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) all.result = result;
  });
  return all;
}

// Each group that has begun is in one place, counted anew: those that came, those with generators, and no others.
void require_each_once(const rl::run_state& s) {
  std::multiset<std::int64_t> places, begun;
  const auto n = static_cast<std::int64_t>(s.generators.size());
  for (std::int64_t g = 0; g < n; ++g) {
    const rl::generator_state& own = s.generators[static_cast<std::size_t>(g)];
    for (std::int64_t group = g; group < own.next; group += n) begun.insert(group);
    for (const auto& answers : own.answers.groups) places.insert(answers.front().group);
    for (const auto& p : own.answers.prompts) places.insert(p.group);
  }
  for (std::size_t i = 0; i < s.buffer.seen.size(); ++i)
    if (s.buffer.seen[i]) places.insert(static_cast<std::int64_t>(i));
  REQUIRE(places == begun);
  REQUIRE(s.buffer.used == s.result.batches * 4);
  std::int64_t here = 0;
  for (const auto& answers : s.buffer.here) here += answers.empty() ? 0 : 1;
  REQUIRE(s.buffer.came == s.buffer.used + s.buffer.given_up + here);
}

rl::run_state newest_state(const fs::path& folder) {
  const auto found = io::latest(folder);
  REQUIRE(found.save);
  return rl::state_in_save(found.save->path);
}

rl::flow side_by_side(rl::flow f) {
  f.apart = true;
  return f;
}
const rl::flow save_sync = rl::hybridflow::flow;

}  // namespace

TEST_CASE("a run cut by a save ends with the bits of an undisturbed one", "[rl][save][ranks]") {
  struct cut {
    rl::flow how;
    const char *train, *generate;
    bool critic = false;
  };
  for (const cut& x :
       {cut{save_sync, "dp=2", "dp=2"}, cut{save_sync, "pp=2", "tp=2"}, cut{save_sync, "dp=2", "dp=2", true},
        cut{side_by_side(save_sync), "pp=2", "dp=1", true}, cut{side_by_side(save_sync), "dp=2", "dp=2"},
        cut{side_by_side(save_sync), "dp=1", "dp=1"}, cut{rl::april::flow, "dp=2", "dp=2"}}) {
    INFO(to_string(x.how) << ", train " << x.train << ", generate " << x.generate << ", critic " << x.critic);
    const save_folder saves("cut");
    save_case c{.how = x.how, .train = x.train, .generate = x.generate, .critic = x.critic};
    c.saves.folder = saves.path;
    const save_outcome whole = run_saved(c);
    fs::remove_all(saves.path);
    save_case first = c;
    first.s.steps = 2;
    run_saved(first);
    require_each_once(newest_state(saves.path));
    c.saves.resume = true;
    c.saves.every = 3;
    const save_outcome resumed = run_saved(c);
    for (const std::string& n : resumed.notes) UNSCOPED_INFO(n);
    REQUIRE(resumed.notes.size() == 1);
    CHECK(resumed.notes.front().find("after 2 batches") != std::string::npos);
    CHECK(resumed.rewards.begin()->first == 2);
    REQUIRE(resumed.rewards.size() == 4);
    for (const auto& [batch, reward] : resumed.rewards) {
      CHECK(reward == whole.rewards.at(batch));
      CHECK(resumed.losses.at(batch) == whole.losses.at(batch));
      CHECK(resumed.critics.at(batch) == whole.critics.at(batch));
      if (x.critic) CHECK(resumed.critics.at(batch) > 0);
    }
    CHECK(resumed.weights == whole.weights);
    CHECK(resumed.result.batches == whole.result.batches);
    CHECK(resumed.result.tokens == whole.result.tokens);
    CHECK(resumed.result.lags == whole.result.lags);
    require_each_once(newest_state(saves.path));
  }
}

TEST_CASE("other pipelines go on from any save and lose or repeat no group", "[rl][save][ranks]") {
  using off = rl::pipeline<rl::split, rl::one_step_off>;
  using seldom = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<1, 2>, 2>>;
  using rolling = rl::pipeline<rl::split, rl::bounded_stale<rl::eta<2>, 1, rl::load::rolling_by<1>>>;
  using flying = rl::pipeline<rl::split, rl::in_flight<hd::infer::kv::keep, rl::eta<2>>, rl::slots<3>>;
  using aged =
      rl::pipeline<rl::split, rl::in_flight<hd::infer::kv::recompute, rl::eta<3>>, rl::slots<2>, rl::max_age<1>>;
  using over = rl::pipeline<rl::split, rl::partial<3>, rl::ess_below<1, 1>>;
  using here = rl::pipeline<rl::bounded_stale<rl::eta<0>, 2>>;
  using in_a_row = rl::pipeline<rl::bounded_stale<rl::eta<0>, 4>, rl::partial<4>>;  // batches without a meeting between
  std::size_t unfinished = 0;
  for (const rl::flow& how : {off::flow, seldom::flow, rolling::flow, flying::flow, aged::flow, over::flow, here::flow,
                              in_a_row::flow, rl::april::flow, rl::asyncflow::flow}) {
    INFO(to_string(how));
    const save_folder saves("goes-on");
    save_case c{.how = how, .train = "dp=1", .generate = "dp=2"};
    c.saves = {.folder = saves.path, .every = 1, .resume = true, .keep = 1};
    if (how == in_a_row::flow) c.s.sequences = 64, c.s.end_tokens = {};  // all groups end at once
    // Also with another number of generators, and another mesh of the trainer.
    const char* apart[] = {"dp=2", "dp=2", "dp=1", "dp=3", "dp=2"};
    const char* same[] = {"dp=2", "dp=2", "tp=2", "replica=2", "pp=2"};
    for (std::int64_t steps = 1; steps <= 5; ++steps) {
      INFO("up to " << steps << " batches");
      c.s.steps = steps;
      c.generate = (how.apart ? apart : same)[steps - 1];
      c.train = !how.apart || steps == 5 ? "dp=2" : "dp=1";
      const save_outcome got = run_saved(c);
      CHECK(got.rewards.size() == 1);
      CHECK(got.result.batches == steps);
      const rl::run_state s = newest_state(saves.path);
      require_each_once(s);
      for (const rl::generator_state& g : s.generators)
        for (const auto& answers : g.answers.groups)
          for (const rl::sample& x : answers)
            unfinished += !x.tokens.empty() && x.finish == hd::infer::finish_reason::none;
      CHECK(s.result.batches == steps);
      CHECK(s.version == got.result.version);
      CHECK(s.buffer.came <= got.result.groups);
    }
    // The saves of one run, behind each of its batches.
    const save_folder others("each");
    c.saves = {.folder = others.path, .every = 1, .keep = 9};
    const save_outcome got = run_saved(c);
    std::set<std::int64_t> batches, versions;
    for (const auto& entry : fs::directory_iterator(others.path)) {
      if (!entry.is_directory()) continue;
      const rl::run_state s = rl::state_in_save(entry.path());
      require_each_once(s);
      batches.insert(s.result.batches), versions.insert(s.version);
    }
    // One behind another of the same step, as a batch needed none, takes its place.
    CHECK(batches.count(5) == 1);
    CHECK(versions.size() == batches.size());
    if (got.result.skipped == 0) CHECK(batches == std::set<std::int64_t>{1, 2, 3, 4, 5});
  }
  CHECK(unfinished > 0);  // else no answer was cut, and nothing was shown of them
}

namespace {

// Of each kind of run: up to so many kills in a run of so many batches.
void check_kills(std::int64_t most, std::int64_t steps) {
  using flying = rl::pipeline<rl::split, rl::in_flight<>, rl::slots<3>>;
  const std::uint64_t seed = 20261129;
  CAPTURE(seed);
  const hd::counter_random random(seed, 0);
  std::uint64_t at = 0;
  struct killed {
    rl::flow how;
    bool critic = false;
  };
  for (const auto& [how, critic] :
       {killed{save_sync}, killed{side_by_side(save_sync)}, killed{flying::flow}, killed{save_sync, true}}) {
    INFO(to_string(how) << ", critic " << critic);
    const save_folder saves("kill");
    save_case c{.how = how, .train = how.apart ? "dp=1" : "dp=2", .generate = "dp=2", .critic = critic};
    c.s.steps = steps;
    const auto start = std::chrono::steady_clock::now();
    c.saves.folder = saves.path;
    c.saves.every = 1;
    const save_outcome whole = run_saved(c);
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
    fs::remove_all(saves.path);
    c.saves.resume = true;
    std::int64_t kills = 0, last = 0, advances = 0;
    for (; kills < most && last < c.s.steps; ++kills) {
      const ::pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        try {
          run_saved(c);
        } catch (const std::exception&) {
          ::_exit(2);
        }
        ::_exit(0);
      }
      std::this_thread::sleep_for(
          std::chrono::microseconds(random.integer(at++) % static_cast<std::uint64_t>(took.count() * 6 / most)));
      ::kill(child, SIGKILL);
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      CAPTURE(kills, last, status);
      REQUIRE((WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0)));
      if (!io::latest(saves.path).save) {
        REQUIRE(last == 0);
        continue;
      }
      const rl::run_state s = newest_state(saves.path);
      require_each_once(s);
      REQUIRE(s.result.batches >= last);
      advances += s.result.batches > last;
      last = s.result.batches;
    }
    CAPTURE(kills, last);
    CHECK(advances > 0);  // else nothing was gone on with
    c.s.steps = steps + 2;
    if (!how.in_flight) {
      save_case more = c;
      const save_folder other("kill-whole");
      more.saves = {.folder = other.path};
      const save_outcome resumed = run_saved(c), undisturbed = run_saved(more);
      CHECK(resumed.weights == undisturbed.weights);
      CHECK(resumed.critics.at(steps + 1) == undisturbed.critics.at(steps + 1));
    } else {
      CHECK(run_saved(c).result.batches == steps + 2);
    }
    require_each_once(newest_state(saves.path));
    CHECK(whole.result.batches == steps);
  }
}

}  // namespace

TEST_CASE("a run killed at any moment goes on from its last complete save", "[rl][save][kill]") {
  check_kills(12, 12);
}
TEST_CASE("a run killed at 40 moments goes on from its last complete save", "[rl][save][kill][slow]") {
  check_kills(40, 60);
}

TEST_CASE("a run that is asked to stop ends with its batch, is saved, and goes on to the same bits",
          "[rl][save][ranks]") {
  using flying = rl::pipeline<rl::split, rl::in_flight<>, rl::slots<3>>;
  for (const rl::flow& how : {save_sync, side_by_side(save_sync), flying::flow}) {
    INFO(to_string(how));
    const save_folder saves("stop");
    save_case c{.how = how, .train = "dp=2", .generate = "dp=2"};
    const save_outcome whole = run_saved(c);
    c.saves.folder = saves.path;
    c.stops_at = 2;
    CHECK(run_saved(c).result.batches == 4);  // the step behind the one that was asked in has heard of it
    REQUIRE(newest_state(saves.path).result.batches == 4);
    c.stops_at = -1;
    c.saves.resume = true;
    const save_outcome rest = run_saved(c);
    CHECK(rest.result.batches == 6);
    CHECK(rest.losses.size() == 2);
    if (!how.in_flight) CHECK(rest.weights == whole.weights);
  }
}

TEST_CASE("saves that do not fit, or are torn, are refused or passed over by name", "[rl][save][ranks]") {
  const save_folder saves("refused");
  save_case c;
  c.s.steps = 2;
  c.saves = {.folder = saves.path, .every = 1, .facts = {{"prompts", "ab"}}};
  const save_outcome whole = run_saved(c);
  const fs::path newest = saves.path / "step-00000002", before = saves.path / "step-00000001";
  REQUIRE(fs::exists(newest));
  REQUIRE(fs::exists(before));
  c.saves.resume = true;
  const auto refused = [&](auto&& change, const std::string& by) {
    save_case other = c;
    change(other);
    CHECK_THROWS_AS(run_saved(other), hd::config_error);
    CHECK_THROWS_WITH(run_saved(other), Catch::Contains(by));
  };
  const std::string save = "'" + newest.string() + "' is a save of a run with ";
  refused([](save_case& o) { o.s.seed = 4; }, save + "settings.seed 3; this run's is 4");
  refused([](save_case& o) { o.s.answers = 3; }, save + "settings.answers 2; this run's is 3");
  refused([](save_case& o) { o.s.end_tokens = {5, 6}; }, save + "settings.end_tokens {6}; this run's is {5 6}");
  refused([](save_case& o) { o.how = rl::april::flow; },
          save + "pipeline colocated, synchronous; this run's is colocated");
  refused([](save_case& o) { o.critic = true; }, save + "settings.advantage group_normalised; this run's is reward");
  refused([](save_case& o) { o.objective = rl::aipo{3}; }, save + "objective aipo rho=4; this run's is aipo rho=3");
  refused([](save_case& o) { o.saves.facts = {{"prompts", "cd"}}; }, save + "prompts ab; this run's is cd");
  refused([](save_case& o) { o.saves.facts = {{"model", "x"}}; }, save + "model unknown; this run's is x");
  refused([](save_case& o) { o.saves.every = -1; }, "rl::saves.every must be at least 0, got -1");
  refused([](save_case& o) { o.saves.folder = ""; }, "rl::saves.folder must name a folder");

  SECTION("a torn one: the one before is taken, and that is said") {
    fs::resize_file(newest / "rank-00000.tensors", fs::file_size(newest / "rank-00000.tensors") - 8);
    const save_outcome again = run_saved(c);
    REQUIRE(again.notes.size() == 2);
    CHECK(again.notes[0].find("step-00000002/rank-00000.tensors' has ") != std::string::npos);
    CHECK(again.notes[1].find("goes on from '" + before.string() + "', after 1 batches") != std::string::npos);
    CHECK(again.weights == whole.weights);
  }
  SECTION("none that can be read") {
    for (const fs::path& s : {newest, before}) fs::resize_file(s / "rank-00000.tensors", 100);
    CHECK_THROWS_AS(run_saved(c), hd::io_error);
    CHECK_THROWS_WITH(run_saved(c), Catch::Contains("none of them can be read"));
  }
  SECTION("one of another training") {
    const auto write = [&](std::span<const std::int64_t> words) {
      io::checkpoint_writer writer(saves.path, 3, 0);
      if (!words.empty()) writer.add("words", words);
      io::manifest m{.step = 3};
      m.files.push_back(writer.finish());
      io::commit(saves.path, m);
    };
    write({});
    CHECK_THROWS_WITH(run_saved(c),
                      Catch::Contains("step-00000003' is a save of a training that is no run of rl::run"));
    const std::vector<std::int64_t> words{1, 2, 3};
    write(words);
    CHECK_THROWS_WITH(run_saved(c), Catch::Contains("step-00000003' has no state of a run that can go on"));
  }
}

TEST_CASE("states in which groups are lost or twice are refused", "[rl][save]") {
  // Two generators: 0, 2, 4 and 1 have begun; 0 was used, 1 waits, 2 is being written, 4 has not started.
  rl::run_state s{.generators = std::vector<rl::generator_state>(2)};
  s.buffer = {
      .next = 1, .came = 2, .used = 1, .seen = {true, true}, .numbers = {1}, .here = {{{.prompt = {1}, .group = 1}}}};
  s.generators[0] = {6, {.prompts = {{4, {1}}}, .groups = {{{.prompt = {1}, .group = 2}}}}};
  s.generators[1] = {3, {}};
  const rl::run_state back = rl::run_state_of(rl::to_words(s));
  CHECK(back.buffer == s.buffer);
  CHECK(back.generators == s.generators);
  const auto refused = [&](auto&& change, const char* why) {
    rl::run_state other = s;
    change(other);
    CHECK_THROWS_WITH(rl::run_state_of(rl::to_words(other)), Catch::Contains(why));
  };
  refused([](auto& o) { o.generators[1].next = 5; }, "5 groups have begun, 2 came");
  refused([](auto& o) { o.generators[1].next = 4; }, "group 4 is the next of another generator");
  refused([](auto& o) { o.generators[1].next = (std::int64_t{1} << 62) + 1; }, "and those before it are nowhere");
  refused([](auto& o) { o.generators[0].answers.prompts[0].group = 1; }, "group 1 is in two places");
  refused([](auto& o) { o.generators[0].answers.prompts[0].group = 6; },
          "group 6 is with a generator that has not begun it");
  refused([](auto& o) { o.buffer.numbers[0] = 3; }, "group 3 is in the buffer and did not come");
  refused([](auto& o) { o.buffer.given_up = 1; }, "1 were used, 1 given up, 1 wait");

  // Dealt to three: group 3 was passed over, and begins first.
  const auto prompt = [](std::int64_t group) { return std::vector<std::int32_t>{static_cast<std::int32_t>(group)}; };
  std::multiset<std::int64_t> all;
  for (std::int64_t own = 0; own < 3; ++own) {
    const rl::generator_state g = rl::dealt_to(s.generators, own, 3, prompt);
    CHECK(g.next == (own == 2 ? 5 : own + 6));
    for (const auto& answers : g.answers.groups) all.insert(answers.front().group);
    for (const auto& p : g.answers.prompts) all.insert(p.group);
  }
  CHECK(all == std::multiset<std::int64_t>{2, 3, 4});
}
