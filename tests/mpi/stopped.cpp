// Trains a small model on eight processes, saves after every third step and prints the last loss and norm, bit for bit:
//   stopped              under mpirun -n 8
//   stopped SAVES [R]    goes on from the newest save there; rank R stops inside of the forward of step 5
#include <heddle/comm/mpi.hpp>
#include <heddle/heddle.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/testing/faults.hpp>
#include <heddle/train.hpp>
#include <heddle/train/save.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::pp, 2>, hd::axis<hd::tp, 2>>;
using model = hd::model::gpt2<float>;

int main(int argc, char** argv) try {
  const std::string saves = argc > 1 ? argv[1] : "";
  const int culprit = argc > 2 ? std::atoi(argv[2]) : mesh::size();
  hd::testing::faults stops{
      {.rank = culprit, .kind = hd::activity::forward, .from_step = 5, .delay = std::chrono::minutes(10)}};

  std::string squares;
  for (long k = 0; k < 500; ++k) squares += std::to_string(k * k) + ' ';
  const hd::io::corpus corpus("squares", {squares.begin(), squares.end()});
  const hd::io::dataset data(corpus.tokens(), {.context = 8, .batch = 8, .seed = 1});
  hd::train::options<model::config> options{.batch = 8, .steps = 8};
  options.model = {.layers = 2, .heads = 2, .width = 8, .context = 8, .vocabulary = 256};

  using strategy = hd::strategy<mesh, hd::schedule::one_f_one_b<hd::microbatches<2>>, decltype(stops)>;
  return hd::launch<hd::mpi, mesh>(argc, argv, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(model{}, world, options, stops);
    if (!saves.empty()) hd::train::resume(trainer, saves);
    if (world.rank() == 0) std::printf("begins at step %d\n", static_cast<int>(trainer.steps_done()));
    double loss = 0, norm = 0;
    trainer.run(
        data,
        [&](const hd::train::step_report& r) {
          loss = r.loss;
          norm = r.gradient_norm;
        },
        hd::train::every(3, [&](auto& t) {
          if (!saves.empty()) hd::train::save(t, saves);
        }));
    if (world.rank() == 0) std::printf("ends with loss %a, norm %a\n", loss, norm);
  });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
