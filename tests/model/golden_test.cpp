// The tiny GPT-2 of tests/golden against PyTorch: loss, every gradient, clipping and AdamW over two steps.
#include "golden_training.hpp"

#include <heddle/compute/host/host.hpp>
#include HEDDLE_GEMM_HEADER

using namespace model_test;

namespace {

using backend = hd::compute::host<HEDDLE_GEMM>;

const golden_file& golden() {
  static const golden_file file(HEDDLE_SOURCE_DIR "/tests/golden/gpt2_golden.bin");
  return file;
}

md::gpt2_config golden_config() {
  const auto& c = golden().values("config");
  return {.layers = static_cast<int>(c[0]),
          .heads = static_cast<int>(c[1]),
          .width = static_cast<int>(c[2]),
          .context = static_cast<int>(c[3]),
          .vocabulary = static_cast<int>(c[4])};
}

}  // namespace

TEST_CASE("two steps in float equal PyTorch's to 1e-5", "[model][golden]") {
  two_steps_in_float<md::gpt2<float>, backend>(golden(), golden_config());
}

TEST_CASE("AdamW on PyTorch's own float gradients equals PyTorch's step to 1e-6", "[model][golden]") {
  backend b{1};
  alone_world world;
  md::gpt2_stage<float, alone_world, backend> s(golden_config(), world, b, md::split_layers(2, 0, 1), 1, 4);
  load_initial(s, golden());
  adam_state<float> state(s.weights().size());
  for (int step = 1; step <= 2; ++step) {
    CAPTURE(step);
    const std::string at = "f32.step" + std::to_string(step) + ".";
    for (const md::parameter& p : s.parameters()) {
      const auto g = part(s.gradients(), p);
      const auto& values = golden().values(at + "gradient." + p.name);
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = static_cast<float>(values[i]);
    }
    const double norm = clip_and_step(b, s, golden(), state, step);
    CHECK(norm == Approx(golden().values(at + "gradient_norm")[0]).epsilon(1e-6));
    for (const md::parameter& p : s.parameters()) {
      CAPTURE(p.name);
      CHECK(relative_error(part(s.weights(), p), golden().values(at + "weight." + p.name)) < 1e-6);
    }
  }
}

TEST_CASE("two steps in double equal PyTorch's float64 run to 1e-10, in unequal microbatches too", "[model][golden]") {
  const int microbatches = GENERATE(1, 3);
  const bool apart = GENERATE(false, true);
  two_steps_in_double<md::gpt2<double>, backend>(golden(), golden_config(), microbatches, apart);
}

TEST_CASE("gradients of the whole model equal central differences", "[model][gradient]") {
  backend b{1};
  alone_world world;
  const md::gpt2_config config{
      .layers = 2, .heads = 2, .width = 8, .context = 4, .vocabulary = 11, .initial_deviation = 0.3};
  md::gpt2_stage<double, alone_world, backend> s(config, world, b, md::split_layers(2, 0, 1), 1, 2);
  s.initialize(5);
  // Biases away from zero and norms' weights away from one, so that no term vanishes.
  for (const md::parameter& p : s.parameters())
    if (p.shape.size() == 1) {
      const auto noise = random_vector(p.count, static_cast<std::uint64_t>(100 + p.id), 0.2);
      const auto w = part(s.weights(), p);
      for (std::size_t i = 0; i < w.size(); ++i) w[i] += noise[i];
    }
  const auto tokens = random_ids(8, 11, 90);
  auto targets = random_ids(8, 11, 91);
  targets[5] = -1;
  const md::batch<double> batch{tokens, targets, 2, 1.0 / 7};
  const auto loss = [&] { return s.forward_only(batch, {}, {}) / 7; };
  s.forward(0, batch, {}, {});
  s.backward(0, batch, {}, {});
  for (const md::parameter& p : s.parameters()) {
    CAPTURE(p.name);
    CHECK(difference_error(part(s.weights(), p), part(s.gradients(), p), loss) < 1e-6);
  }
}
