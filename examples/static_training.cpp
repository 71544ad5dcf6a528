// Mesh, layouts, schedule and strategy as types: what cannot work does not compile.
// run:
// mpi: 8
// varies: [0-9]+ tok/s.*
// prints: loss
// prints: trained on dp=2 x pp=2 x tp=2
#include <heddle/heddle.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/make_trainer.hpp>

#include <concepts>
#include <cstdint>
#include <cstdio>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;

using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
using when = hd::schedule::one_f_one_b<hd::microbatches<4>>;
using strategy = hd::strategy<mesh, when, hd::zero<1>>;
using model = hd::model::gpt2<float>;

static_assert(hd::schedule::valid<when, mesh> && hd::schedule::deadlock_free<when, mesh>);
struct stage_bytes {  // of a forward's activations, on any stage
  constexpr std::int64_t activation_bytes(int /*stage*/) const { return 1 << 20; }
};
static_assert(hd::schedule::fits<when, mesh, stage_bytes, 2 << 20>);  // 1F1B holds two microbatches on two ranks, of four
static_assert(!hd::schedule::fits<hd::schedule::gpipe<hd::microbatches<4>>, mesh, stage_bytes, 2 << 20>);

// Two products split as the model splits its layers: columns, then rows, whose sum over tp is left to one all_reduce.
using input = hd::layout<mesh, hd::shard<0, dp>>;
using hidden = hd::propagate<"bi,io->bo", input, hd::layout<mesh, hd::shard<1, tp>>>;
using out = hd::propagate<"bi,io->bo", hidden, hd::layout<mesh, hd::shard<0, tp>>>;
static_assert(std::same_as<out, hd::layout<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>>);
constexpr auto plan = hd::redistribution<out, input>;
static_assert(plan.bytes_sent_per_rank(hd::shape{8, 64}, sizeof(float)) == 1024);

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
