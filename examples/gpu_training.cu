// A GPT-2 on dp=2 x tp=2: four ranks that are threads and share a GPU. Compiled by nvcc; where there is no GPU it says so and ends with 77.
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/heddle.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using strategy = hd::strategy<mesh, hd::zero<1>, hd::compute::cuda>;  // without compute::cuda: on the host
using model = hd::model::gpt2<float>;

int main() {
  std::vector<std::uint8_t> tokens(10000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint8_t>(i % 17 * 3);
  const hd::io::dataset data(tokens, {.context = 32, .batch = 8, .seed = 1});
  hd::train::options<model::config> options;
  options.model = {.layers = 2, .heads = 4, .width = 32, .context = 32, .vocabulary = 256};
  options.batch = 8;
  options.steps = 50;
  options.learning_rate = {.peak = 1e-2, .warmup_steps = 2, .total_steps = 50};
  double last = 0;
  try {
    hd::launch<hd::threads>(mesh{}, [&](auto& world) {
      auto trainer = hd::train::make_trainer<strategy>(model{}, world, options);
      trainer.run(data, [&](const hd::train::step_report& r) {
        if (world.rank() != 0) return;
        std::printf("%s\n", hd::train::to_string(r).c_str());
        last = r.loss;
      });
    });
  } catch (const hd::config_error& e) {
    std::printf("%s\n", e.what());
    return 77;
  }
  std::printf("the text repeats itself, and the model knows: %s\n", last < 1 ? "yes" : "no");
  return last < 1 ? 0 : 1;
}
