// A multilayer perceptron of one's own on pairs (x, y): trained on dp x pp x tp with ZeRO, saved, and read again by one rank.
// run:
// prints: dp=2 x pp=2 x tp=2: validation error below 0.05: yes
// prints: one rank goes on from the save with the same error: yes
#include <heddle/heddle.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/feed_forward.hpp>
#include <heddle/model/layers/norms.hpp>
#include <heddle/model/layers/readouts.hpp>
#include <heddle/model/network.hpp>
#include <heddle/train.hpp>
#include <heddle/train/save.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp, hd::model::dims, hd::model::by_inputs;
namespace dim = hd::dim;

// Blocks x + mlp(norm(x)) between two linear layers. Hidden units are split over tp, samples over dp, blocks over pp.
struct perceptron : hd::model::described<perceptron, double, hd::model::pair_batch<double>, hd::model::network_config> {
  static auto describe(const config& c) {
    using namespace hd::model::layers;
    using in = linear<dims<dim::features>, dims<dim::width>>;
    using up = linear<dims<dim::width>, dims<dim::ffn>>;
    using down = linear<dims<dim::ffn>, dims<dim::width>>;
    using out = linear<dims<dim::width>, dims<dim::outputs>>;
    return network(in("in", {c.inputs}, {c.width}, by_inputs(c.inputs)), "block.", c.layers,
                   residual(layer_norm<>("norm", c.width, 1e-5),
                            gelu_mlp("mlp", up("up", {c.width}, {c.hidden}, by_inputs(c.width)),
                                     down("down", {c.hidden}, {c.width}, by_inputs(c.hidden)))),
                   squared_error(out("out", {c.width}, {c.outputs}, by_inputs(c.width))));
  }
};

int main() {
  std::vector<double> x, y;  // y = sin(2 a) b, of points (a, b) in a square
  const hd::counter_random random(1, 0);
  for (std::uint64_t i = 0; i < 4096; i += 2) {
    const double a = 2 * random.uniform(i) - 1, b = 2 * random.uniform(i + 1) - 1;
    x.insert(x.end(), {a, b});
    y.push_back(std::sin(2 * a) * b);
  }
  const hd::io::pairs data(x, y, {.inputs = 2, .targets = 1, .validation = 0.1});
  hd::train::options<perceptron::config> options{.model = {.inputs = 2, .outputs = 1}, .batch = 64, .steps = 200};
  options.learning_rate = {.peak = 1e-2, .warmup_steps = 10};

  const auto run = [&]<class Mesh>(Mesh, bool resumes) {
    using strategy = hd::strategy<Mesh, hd::schedule::one_f_one_b<hd::microbatches<4>>, hd::zero<1>>;
    double error = 0;
    hd::launch<hd::threads, Mesh>([&](auto& world) {
      auto trainer = hd::train::make_trainer<strategy>(perceptron{}, world, options);
      if (resumes) hd::train::resume(trainer, "saves");
      trainer.run(data);
      if (!resumes) hd::train::save(trainer, "saves");
      if (const double e = trainer.validate(data); world.rank() == 0) error = e;
    });
    return error;
  };
  using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
  const double error = run(mesh{}, false), again = run(hd::mesh<>{}, true);
  std::printf("%s: validation error below 0.05: %s\n", hd::to_string(mesh{}).c_str(), error < 0.05 ? "yes" : "no");
  std::printf("one rank goes on from the save with the same error: %s\n",
              std::abs(again - error) < 1e-9 ? "yes" : "no");
}
