// Runs a pipeline schedule on four ranks whose stages sleep, and draws the step as it was beside what was predicted:
// measured_schedule [schedule [microbatches [picture.svg]]]
// run: dual-pipe-v 8 measured.svg
// prints: measured;
// prints: predicted;
// prints: at most 4.5, 4.5, 4.5, 4.5 microbatches alive
// prints: wrote measured.svg
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/train/measured_schedule.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace hd = heddle;
using pipeline = hd::mesh<hd::axis<hd::pp, 4>>;

namespace {

struct batch {
  int samples = 1;
};
// Forward, gradient of the input and gradient of the weights each take 3 ms.
struct sleeping_stage {
  using scalar = float;
  static void sleep(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
  std::int64_t boundary_elements(int samples) const { return samples; }
  bool runs_beside(const sleeping_stage& other) const { return &other != this; }  // so that pairs overlap
  void forward(int, const batch&, std::span<const float>, std::span<float>) { sleep(3); }
  void backward(int, const batch&, std::span<const float>, std::span<float>) { sleep(6); }
  void backward_input(int, const batch&, std::span<const float>, std::span<float>) { sleep(3); }
  void backward_weight(int, const batch&) { sleep(3); }
};
struct no_hooks {
  void forward_done(int, int, int) {}
  void reduce_gradient(int) {}
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc > 1 && argv[1][0] == '-') {
    std::printf("usage: measured_schedule [schedule [microbatches [picture.svg]]]\n");
    return 0;
  }
  const std::string name = argc > 1 ? argv[1] : "1f1b";
  const int microbatches = argc > 2 ? std::atoi(argv[2]) : 8;
  const hd::schedule::plan plan =
      hd::schedule::make_plan(hd::schedule::make_table(hd::schedule::named(name, microbatches), pipeline::size()));
  hd::observe::recorder recorder(pipeline::size());

  hd::launch<hd::threads, pipeline>([&](auto& world) {
    auto& line = world.template along<hd::pp>();
    std::vector<sleeping_stage> stages(static_cast<std::size_t>(plan.table.view().stages()));
    std::vector<sleeping_stage*> held;
    for (sleeping_stage& s : stages) held.push_back(&s);
    hd::model::executor<sleeping_stage, std::remove_reference_t<decltype(line)>, hd::observe::recorder> run(
        plan, held, line, 1, recorder);
    const std::vector<batch> batches(static_cast<std::size_t>(microbatches));
    for (int step = 0; step < 3; ++step) run.run(std::span<const batch>(batches), step, no_hooks{});
  });

  const auto both = hd::train::compare_with_simulation(recorder.events(), plan.table, 2);
  std::printf("%s", to_string(both).c_str());
  if (argc > 3) {
    hd::observe::write_text_file(argv[3], both.svg({.title = name, .subtitle = "stages that sleep"}));
    std::printf("wrote %s\n", argv[3]);
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
