// Mesh, schedule and strategy as types: what cannot work does not compile.
// run:
// mpi: 8
// varies: [0-9]+ tok/s.*
// prints: loss
// prints: trained on dp=2 x pp=2 x tp=2
#include <heddle/heddle.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train.hpp>

#include <cstdio>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;

using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
using when = hd::schedule::one_f_one_b<hd::microbatches<4>>;
using strategy = hd::strategy<mesh, when, hd::zero<1>>;
using model = hd::model::gpt2<float>;

static_assert(hd::schedule::valid<when, mesh> && hd::schedule::deadlock_free<when, mesh>);

int main(int argc, char** argv) {
  const hd::io::corpus corpus(HEDDLE_SOURCE_DIR "/include");
  const hd::io::dataset data(corpus.tokens(), {.context = 32, .batch = 8, .seed = 1});

  hd::train::options<model::config> options;
  options.model = {.layers = 4, .heads = 4, .width = 32, .context = 32, .vocabulary = corpus.vocabulary()};
  options.batch = data.batch();
  options.steps = 20;
  options.learning_rate = {.peak = 3e-3, .warmup_steps = 2, .total_steps = options.steps};

  return hd::launch<hd::threads, mesh>(argc, argv, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(model{}, world, options);
    trainer.run(data, [&](const hd::train::step_report& r) {
      if (world.rank() == 0) std::printf("%s\n", hd::train::to_string(r).c_str());
    });
    if (world.rank() == 0) std::printf("trained on %s\n", hd::to_string(world.mesh()).c_str());
  });
}
