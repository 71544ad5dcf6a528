// A small convolutional classifier of one's own: images of bars, trained on dp x pp x tp with ZeRO.
// run:
// prints: dp=2 x pp=2 x tp=2: bars told apart in all of 102 held-out images: yes
#include <heddle/heddle.hpp>
#include <heddle/io.hpp>
#include <heddle/model.hpp>
#include <heddle/train.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp, hd::model::dims, hd::model::by_inputs;
namespace dim = hd::dim;
constexpr int side = 8;
using batch = hd::model::pair_batch<float, std::int32_t>;  // pixels and a class for each image

// Blocks x + conv(gelu(conv(norm(x)))): 3 x 3, then 1 x 1; the channels between them are split over tp. Then the mean of all
// pixels, a norm, and a softmax over the classes, which are split over tp, too.
struct classifier : hd::model::described<classifier, float, batch, hd::model::network_config> {
  static auto describe(const config& c) {
    using namespace hd::model::layers;
    using in = linear<dims<dim::features>, dims<dim::width>>;
    using up = linear<dims<dim::taps, dim::width>, dims<dim::ffn>>;
    using down = linear<dims<dim::ffn>, dims<dim::width>>;
    const gelu_mlp channels("conv", up("up", {9, c.width}, {c.hidden}, by_inputs(9 * c.width)),
                            down("down", {c.hidden}, {c.width}, by_inputs(c.hidden)));
    return network(in("in", {c.inputs}, {c.width}, by_inputs(c.inputs)), "block.", c.layers,
                   residual(layer_norm<>("norm", c.width, 1e-5), convolution("", {side, side}, c.width, channels)),
                   pooled(language_head<layer_norm<>, false>(layer_norm<>("last_norm", c.width, 1e-5), c.outputs,
                                                             "classes.weight", by_inputs(c.width))));
  }
};

int main() {
  std::vector<float> pixels;
  std::vector<std::int32_t> classes;  // 0: noise, 1: a bar lies, 2: a bar stands
  const hd::counter_random random(1, 0);
  for (int image = 0; image < 1024; ++image) {
    classes.push_back(image % 3);
    for (int p = 0; p < side * side; ++p) {
      const bool on = classes.back() > 0 && (classes.back() == 1 ? p / side : p % side) == image / 3 % side;
      pixels.push_back(static_cast<float>(random.normal(pixels.size())) * 0.3F + (on ? 1.0F : 0.0F));
    }
  }
  const hd::io::pairs data(pixels, classes, {.inputs = side * side, .targets = 1, .validation = 0.1});
  hd::train::options<classifier::config> options{
      .model = {.outputs = 3, .width = 16, .hidden = 32, .context = side * side}, .batch = 32, .steps = 90};
  options.learning_rate = {.peak = 1e-2, .warmup_steps = 5};
  using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
  using strategy = hd::strategy<mesh, hd::schedule::one_f_one_b<hd::microbatches<2>>, hd::zero<1>>;
  return hd::launch<hd::threads, mesh>([&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(classifier{}, world, options);
    trainer.run(data);
    const double loss = trainer.validate(data);  // below log 2 / 102 no image of them can be on the wrong side
    if (world.rank() == 0)
      std::printf("%s: bars told apart in all of %d held-out images: %s\n", hd::to_string(mesh{}).c_str(),
                  static_cast<int>(data.validation_samples()), loss < std::log(2) / 102 ? "yes" : "no");
  });
}
