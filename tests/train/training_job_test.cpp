// tests/train/training_job_test.cpp: runs that bid for windows are trained there, and equal the run that nobody cut.
#include "folder.hpp"

#include "catch.hpp"
#include "transport.hpp"

#include <heddle/core/random.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/plan/atomization/broker.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/trainer.hpp>
#include <heddle/train/training_job.hpp>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace sja = heddle::plan::sja;
using hd::dp, hd::pp, hd::tp;
using train_test::folder;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using model = hd::model::gpt2<double>;
using strategy = hd::strategy<mesh_type, hd::schedule::named, hd::zero<1>>;

struct drawn_data {
  std::int64_t context() const { return 4; }
  std::int64_t validation_samples() const { return 0; }
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    const hd::counter_random random(5, 1);
    for (std::int64_t i = 0; i < block.count * 4; ++i) {
      const auto at = static_cast<std::uint64_t>(block.first * 4 + i);
      tokens[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(random.integer(at) % 17);
      targets[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(random.integer(at + 1) % 17);
    }
  }
  void fill_validation(hd::io::sample_block, std::span<std::int32_t>, std::span<std::int32_t>) const {}
};

struct run {
  std::string schedule = "1f1b";
  std::uint64_t seed = 1;
  double clip = 0.5;
  std::int64_t steps = 24;
  std::vector<double> losses{};
  const std::atomic<bool>* stop = nullptr;
};

template <class Work>
void on_mesh(const std::string& mesh, const run& r, Work&& work) {
  hd::train::options<model::config> o;
  o.model = {.layers = 4, .heads = 2, .width = 8, .context = 4, .vocabulary = 17};
  o.batch = 4;
  o.microbatches = 2;
  o.schedule = r.schedule;
  o.steps = r.steps;
  o.seed = r.seed;
  o.clip_norm = r.clip;
  o.stop = r.stop;
  o.threads_per_rank = 1;
  transport_test::launch(hd::parse_mesh<mesh_type>(mesh), [&](auto& world) {
    hd::train::trainer<model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
    work(trainer, world.rank() == 0);
  });
}

// A piece of the run on a mesh, from and to the folder.
hd::train::piece_report piece_on(const std::string& mesh, run& r, const folder& saves,
                                 const hd::train::piece_limits& limits) {
  hd::train::piece_report report;
  std::mutex guard;
  on_mesh(mesh, r, [&](auto& trainer, bool first) {
    const auto mine =
        hd::train::run_piece(trainer, drawn_data{}, limits, saves.path, {}, [&](const hd::train::step_report& s) {
          if (first) r.losses.push_back(s.loss);
        });
    const std::lock_guard lock(guard);
    if (first) report = mine;
  });
  transport_test::tell(report, 0);
  transport_test::tell(r.losses, 0);
  return report;
}

std::vector<double> losses_of_the_whole(const std::string& mesh, run r) {
  r.losses.clear();
  on_mesh(mesh, r, [&](auto& trainer, bool first) {
    trainer.run(drawn_data{}, [&](const hd::train::step_report& s) {
      if (first) r.losses.push_back(s.loss);
    });
  });
  transport_test::tell(r.losses, 0);
  return r.losses;
}

sja::resource_profile profile_on(const std::string& mesh, const run& r) {
  double bytes = 0;
  on_mesh(mesh, r, [&](auto& trainer, bool first) {
    const auto p = hd::train::resource_profile_of(trainer, {.step = 1});
    if (first) bytes = p.phases.at(0).bytes;
  });
  transport_test::tell(bytes, 0);
  sja::resource_profile p;
  p.phases = {{0, r.steps, bytes, 0}};
  return p;
}

}  // namespace

TEST_CASE("a piece that is asked to stop ends after its step, with its save", "[train][sja][stop][ranks]") {
  const std::string mesh = transport_test::most_ranks() < 2 ? "" : "pp=2";
  const folder saves("asked");
  run r;
  const std::atomic<bool> asked{true};
  r.stop = &asked;
  const auto first = piece_on(mesh, r, saves, {.steps = 5});
  CHECK(first.steps == 1);
  CHECK((first.stopped && first.asked_to_stop));
  r.stop = nullptr;
  const auto rest = piece_on(mesh, r, saves, {.steps = 5});
  CHECK(rest.first == 1);
  CHECK(rest.steps == 5);
  CHECK_FALSE(rest.asked_to_stop);
}

TEST_CASE("two runs that bid for windows of a broker are trained as if nobody had cut them", "[train][sja][ranks]") {
  // Slice 0 has two ranks. Steps are declared to take a second, so that windows of a few seconds cut the runs.
  const std::string mesh = "pp=2";
  if (transport_test::most_ranks() < 2) return;
  run runs[2];
  runs[1].seed = 7;
  runs[1].steps = 15;
  const folder saves[2] = {folder("job-0"), folder("job-1")};
  const auto work = [&](const sja::subjob& s, const hd::train::piece_limits& limits) {
    return piece_on(mesh, runs[s.job], saves[s.job], limits);
  };
  using job = hd::train::training_job<decltype(work)>;
  static_assert(sja::atomizable_job<job>);
  std::vector<job> jobs;
  for (int j = 0; j < 2; ++j) {
    auto p = profile_on(mesh, runs[j]);
    p.set_up = p.finish = 0.1;
    jobs.emplace_back(j, p, sja::job_terms{.units = runs[j].steps, .least_efficiency = 0.1}, work);
  }
  const double bytes = jobs[0].planned().profile().peak_mean(0, 1);
  CHECK(bytes > 0);
  sja::broker broker{sja::weighted{0, 1, 0, 0}};  // whoever waits longest
  // A slice with too little memory is nobody's.
  const sja::window small{-1, {1}, 0, 100, bytes / 2, 0};
  CHECK(broker.open(std::span<const sja::window>(&small, 1), jobs, 0).empty());
  int pieces = 0;
  double now = 0;
  for (int k = 0; !(jobs[0].finished() && jobs[1].finished()); ++k) {
    REQUIRE(k < 200);
    const sja::window w{-1, {0}, now, now + (k < 4 ? 6 : 30), 2 * bytes, 0};
    for (const sja::subjob& s : broker.open(std::span<const sja::window>(&w, 1), jobs, now)) {
      job& winner = jobs[static_cast<std::size_t>(s.job)];
      const auto did = winner.run(s);
      CHECK(did.steps <= s.units);  // fewer where time ran out
      CHECK((did.steps == s.units || did.stopped));
      CHECK(did.first == s.first);
      broker.close(winner, did.usage(s.window, s.job), s.end);
      ++pieces;
    }
    now = w.end;
  }
  CHECK(pieces >= 4);
  for (int j = 0; j < 2; ++j) {
    CHECK(runs[j].losses == losses_of_the_whole(mesh, runs[j]));
    CHECK(jobs[static_cast<std::size_t>(j)].planned().calibrated().reports() >= 2);
    CHECK(jobs[static_cast<std::size_t>(j)].planned().profile().unit < 1);  // it has learnt
  }
  CHECK(sja::broken_rule(broker.log()) == "");
}

TEST_CASE("a window is offered to a run until it is used up", "[train][sja][ranks]") {
  if (transport_test::most_ranks() < 4) return;
  run r;
  r.clip = 1e300;  // the order in which a norm is added up depends on the stages
  const folder saves("job-window");
  // Other stages and another schedule in every piece: neither changes a sum.
  int pieces = 0;
  const auto work = [&](const sja::subjob&, const hd::train::piece_limits& limits) {
    const bool even = pieces++ % 2 == 0;
    r.schedule = even ? "1f1b" : "zb-h1";
    return piece_on(even ? "pp=2" : "pp=4", r, saves, limits);
  };
  auto p = profile_on("pp=2", r);
  p.unit = 1;
  hd::train::training_job job(3, p, sja::job_terms{.units = r.steps, .least_efficiency = 0}, work);
  sja::broker<> broker;
  std::vector<std::int64_t> steps;
  const auto told = [&](const sja::subjob& s, const hd::train::piece_report& did) {
    CHECK(s.job == 3);
    steps.push_back(did.steps);
  };
  // Declared for 10 steps of 24; what is left of the window goes to the same run, which is then known to be fast.
  hd::train::train_in_window(broker, job, {-1, {0}, 0, 10.5, 1e9, 0}, told);
  REQUIRE(!steps.empty());
  CHECK(steps[0] == 10);
  for (double start = 20; !job.finished() && start < 20000; start += 100)
    hd::train::train_in_window(broker, job, {-1, {0}, start, start + 90, 1e9, 0}, told);
  REQUIRE(job.finished());
  r.schedule = "1f1b";
  CHECK(r.losses == losses_of_the_whole("pp=2", r));
  // A job whose saves are gone is told so.
  hd::train::training_job again(4, p, sja::job_terms{.units = 2, .least_efficiency = 0}, work);
  CHECK_THROWS_WITH(hd::train::train_in_window(broker, again, {-1, {0}, 0, 90, 1e9, 0}, told),
                    Catch::Matchers::Contains("was to go on after step 0, but its run has done 24"));
}

TEST_CASE("a run's own steps and saves tell how long they take", "[train][sja][ranks]") {
  if (transport_test::most_ranks() < 2) return;
  const folder scratch("job-measure");
  run r;
  std::vector<hd::train::step_times> times(2);
  const std::int64_t began = hd::now_ns();
  on_mesh("pp=2", r, [&](auto& trainer, bool) {
    times[static_cast<std::size_t>(trainer.ranks().rank())] =
        hd::train::measure_step_times(trainer, drawn_data{}, 4, scratch.path, began);
  });
  transport_test::share(times);
  CHECK(times[0].step > 0);
  CHECK(times[0].step_sd > 0);
  CHECK(times[0].set_up > 0);
  CHECK(times[0].finish > 0);
  CHECK(times[0].step == times[1].step);
  CHECK(times[0].finish == times[1].finish);
}
