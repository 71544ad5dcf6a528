// Two training runs share two slices of a cluster that others have reserved at times. The scheduler announces the gaps; a
// run answers how many steps it can surely do there, its state brought back and saved again included; who is granted the
// gap trains that piece. Memory and time of a step come from the run's own mesh, schedule and stages.
// run:
// prints: job 0: 40 of 40 steps
// prints: job 1: 30 of 30 steps
// prints: the losses of job 0 are those of an uninterrupted run, bit for bit: yes
// prints: the losses of job 1 are those of an uninterrupted run, bit for bit: yes
#include <heddle/heddle.hpp>
#include <heddle/io.hpp>
#include <heddle/model.hpp>
#include <heddle/plan.hpp>
#include <heddle/sim.hpp>
#include <heddle/train.hpp>
#include <heddle/train/atomized.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace sja = hd::plan::sja;

using mesh = hd::mesh<hd::axis<hd::pp>>;
using model = hd::model::gpt2<float>;
using strategy = hd::strategy<mesh, hd::schedule::one_f_one_b<hd::microbatches<>>>;

// What a step takes when it runs: less than the profile says, as the reports tell.
constexpr double seconds_on_cluster = 0.7;

struct training {
  hd::train::options<model::config> options;
  std::string folder;
  std::vector<double> losses;
};

// Makes a trainer on so many ranks and calls `work(trainer)` on each of them.
template <class Work>
void on_ranks(int ranks, const training& run, Work&& work) {
  hd::launch<hd::threads>(mesh{ranks}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(model{}, world, run.options);
    work(trainer, world.rank() == 0);
  });
}
hd::train::piece_report train(training& run, const hd::io::dataset& data, int ranks, std::int64_t steps) {
  hd::train::piece_report report;
  on_ranks(ranks, run, [&](auto& trainer, bool first) {
    const auto mine =
        hd::train::run_piece(trainer, data, {.steps = steps}, run.folder, {}, [&](const hd::train::step_report& r) {
          if (first) run.losses.push_back(r.loss);
        });
    if (first) report = mine;
  });
  return report;
}

int main() {
  const std::filesystem::path saves = "atomized-saves";
  std::filesystem::remove_all(saves);
  const hd::io::corpus corpus(HEDDLE_SOURCE_DIR "/include");
  const hd::io::dataset data(corpus.tokens(), {.context = 16, .batch = 8, .seed = 1});
  std::array<training, 2> runs;
  std::vector<sja::profiled_job<>> jobs;
  for (int j = 0; j < 2; ++j) {
    training& run = runs[static_cast<std::size_t>(j)];
    run.folder = (saves / ("job-" + std::to_string(j))).string();
    run.options.model = {.layers = 4, .heads = 2, .width = 16, .context = 16, .vocabulary = corpus.vocabulary()};
    run.options.batch = data.batch();
    run.options.microbatches = 4;
    run.options.steps = j == 0 ? 40 : 30;
    run.options.seed = static_cast<std::uint64_t>(j + 1);
    run.options.clip_norm = std::numeric_limits<double>::infinity();  // the rounding of a norm depends on the mesh
    sja::resource_profile profile;
    on_ranks(2, run, [&](auto& trainer, bool first) {
      const double step = hd::train::seconds_of_schedule(trainer, hd::sim::stage_times{0.05, 0.05, 0.05});
      const auto p =
          hd::train::resource_profile_of(trainer, {.step = step, .step_sd = 0.02 * step, .set_up = 2, .finish = 1});
      if (first) profile = p;
    });
    std::printf("job %d: %.2f s and %.1f MB per step\n", j, profile.unit, profile.phases[0].bytes / 1e6);
    jobs.emplace_back(j, profile, sja::job_terms{.units = run.options.steps, .least_efficiency = 0.5});
  }

  // Slice 0 has two ranks, slice 1 has four. Gaps between reservations, in the order they begin.
  const int ranks[] = {2, 4};
  std::vector<sja::window> gaps{{-1, {0}, 0, 12, 1e9, 0},  {-1, {1}, 3, 14, 1e9, 0},  {-1, {0}, 20, 32, 1e9, 0},
                                {-1, {1}, 21, 40, 1e9, 0}, {-1, {0}, 45, 90, 1e9, 0}, {-1, {1}, 46, 90, 1e9, 0}};
  sja::broker broker{sja::weighted{1, 1, 0, 0}};
  struct running {
    sja::subjob piece;
    hd::train::piece_report did;
  };
  std::vector<running> pieces;
  while (!gaps.empty() || !pieces.empty()) {
    const auto next = std::min_element(pieces.begin(), pieces.end(),
                                       [](const running& a, const running& b) { return a.piece.end < b.piece.end; });
    if (next != pieces.end() && (gaps.empty() || next->piece.end <= gaps.front().start)) {
      sja::usage used = next->did.usage(next->piece.window, next->piece.job);
      used.seconds = static_cast<double>(used.units) * seconds_on_cluster;
      broker.close(jobs[static_cast<std::size_t>(used.job)], used, next->piece.end);
      pieces.erase(next);
      continue;
    }
    const sja::window gap = gaps.front();
    gaps.erase(gaps.begin());
    for (sja::subjob& s : broker.open(std::span<const sja::window>(&gap, 1), jobs, gap.start)) {
      s.end = s.start + 3 + static_cast<double>(s.units) * seconds_on_cluster;
      std::printf("slice %d, %4.1f to %4.1f s: job %d, steps %lld to %lld\n", s.slices[0], s.start, s.end, s.job,
                  static_cast<long long>(s.first), static_cast<long long>(s.first + s.units));
      pieces.push_back({s, train(runs[static_cast<std::size_t>(s.job)], data, ranks[s.slices[0]], s.units)});
      gaps.push_back({-1, gap.slices, s.end, gap.end, gap.bytes, 0});  // what is left is announced again
    }
    std::sort(gaps.begin(), gaps.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  }

  for (const auto& job : jobs) {
    training whole = runs[static_cast<std::size_t>(job.id())];
    std::printf("job %d: %lld of %lld steps\n", job.id(), static_cast<long long>(job.done()),
                static_cast<long long>(job.terms().units));
    const std::vector<double> cut = std::exchange(whole.losses, {});
    whole.folder += "-whole";
    train(whole, data, 2, whole.options.steps);
    std::printf("the losses of job %d are those of an uninterrupted run, bit for bit: %s\n", job.id(),
                cut == whole.losses ? "yes" : "no");
  }
}
