// Trains on four ranks and says which of them is slow: watched_training [--slow RANK FACTOR] [--svg FILE]
// run: --slow 2 8 --svg watched.svg
// prints: rank 2 (dp=2) computes
// prints: longer than its peers since step
// prints: wrote watched.svg
#include <heddle/core/observers.hpp>
#include <heddle/heddle.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/observe/heat_map.hpp>
#include <heddle/observe/text_file.hpp>
#include <heddle/testing/faults.hpp>
#include <heddle/train.hpp>
#include <heddle/train/same_copies.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 4>>;
using model = hd::model::gpt2<float>;

int main(int argc, char** argv) try {
  hd::testing::fault drill{.rank = mesh::size()};  // a rank that is not there: no fault
  std::string picture;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--slow" && i + 2 < argc) {
      drill.rank = std::atoi(argv[++i]);
      drill.stretch = std::atof(argv[++i]);
    } else if (word == "--svg" && i + 1 < argc) {
      picture = argv[++i];
    } else {
      std::fprintf(stderr, "usage: watched_training [--slow RANK FACTOR] [--svg FILE]\n");
      return 2;
    }
  }
  drill.kind = hd::activity::forward;
  drill.from_step = 5;

  std::string squares;
  for (long k = 0; k < 2000; ++k) squares += std::to_string(k * k) + ' ';
  const hd::io::corpus corpus("squares", {squares.begin(), squares.end()});
  const hd::io::dataset data(corpus.tokens(), {.context = 32, .batch = 8, .seed = 1});
  hd::train::options<model::config> options{.batch = 8, .steps = 40};
  options.model = {.layers = 2, .heads = 2, .width = 32, .context = 32, .vocabulary = 256};

  hd::observe::step_times times(mesh::size());
  hd::testing::faults faults{drill};
  hd::observers watch(times, faults);
  using strategy = hd::strategy<mesh, decltype(watch)>;
  hd::launch<hd::threads, mesh>([&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(model{}, world, options, watch);
    trainer.run(data, hd::train::quiet{}, hd::train::every(20, [&](auto& t) {
                  hd::train::require_same_copies(t);
                  const hd::observe::heat_map map(times, world.control());
                  if (world.rank() != 0) return;
                  std::printf("after %d steps\n", static_cast<int>(t.steps_done()));
                  for (const auto& slow : map.slow(world.mesh())) std::printf("  %s\n", to_string(slow).c_str());
                  if (!picture.empty()) hd::observe::write_text_file(picture, map.to_svg());
                }));
  });
  if (!picture.empty()) std::printf("wrote %s\n", picture.c_str());
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
