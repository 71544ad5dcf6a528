// The tiny GPT-2 of tests/golden against PyTorch: loss, every gradient, clipping and AdamW over two steps.
#include "catch.hpp"
#include "support.hpp"

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

template <class T>
using stage = md::gpt2_stage<T, alone_world, backend>;

template <class T>
std::span<T> part(std::span<T> all, const md::parameter& p) {
  return all.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
}

template <class T>
void load_initial(stage<T>& s) {
  for (const md::parameter& p : s.parameters()) {
    const auto& record = golden().at("initial." + p.name);
    REQUIRE(record.shape == p.shape);
    const auto w = part(s.weights(), p);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<T>(record.values[i]);
  }
}

// A step's data; samples [first, first + count) of it.
template <class T>
struct golden_batch {
  explicit golden_batch(int step)
      : tokens(golden().ids("step" + std::to_string(step) + ".tokens")),
        targets(golden().ids("step" + std::to_string(step) + ".targets")) {
    for (const std::int32_t t : targets) valid += t >= 0;
  }
  md::batch<T> samples(int first, int count) const {
    const auto context = static_cast<std::size_t>(golden_config().context);
    const auto begin = static_cast<std::size_t>(first) * context, n = static_cast<std::size_t>(count) * context;
    return {std::span(tokens).subspan(begin, n), std::span(targets).subspan(begin, n), count,
            static_cast<T>(1.0 / valid)};
  }
  std::vector<std::int32_t> tokens, targets;
  int valid = 0;
};

// The greatest error over all gradients, relative to the greatest element of each tensor. The key biases' gradient is
// zero but for rounding; it is compared with the whole bias.
template <class T>
double gradient_error(stage<T>& s, const std::string& prefix) {
  double worst = 0;
  for (const md::parameter& p : s.parameters()) {
    const double error = relative_error(part(s.gradients(), p), golden().values(prefix + "gradient." + p.name));
    if (std::isnan(error) || error > worst) worst = error;  // a NaN stays
  }
  return worst;
}

template <class T>
struct adam_state {
  explicit adam_state(std::size_t n) : m(n), v(n) {}
  std::vector<T> m, v;
};

// Clips by the global norm and steps; returns the norm before clipping.
template <class T>
double clip_and_step(backend& b, stage<T>& s, adam_state<T>& state, int step) {
  const auto& o = golden().values("optimizer");
  const double norm = std::sqrt(b.sum_of_squares(s.gradients()));
  for (const md::parameter& p : s.parameters()) {
    const hd::compute::adamw_step how{.lr = o[0],
                                      .beta1 = o[1],
                                      .beta2 = o[2],
                                      .eps = o[3],
                                      .weight_decay = p.decay ? o[4] : 0.0,
                                      .step = step,
                                      .grad_scale = (std::min)(1.0, o[5] / (norm + 1e-6))};
    b.adamw(part(s.weights(), p), part(s.gradients(), p), part(std::span(state.m), p), part(std::span(state.v), p), how);
  }
  return norm;
}

}  // namespace

TEST_CASE("two steps in float equal PyTorch's to 1e-5", "[model][golden]") {
  backend b{1};
  alone_world world;
  stage<float> s(golden_config(), world, b, md::split_layers(2, 0, 1), 1, 4);
  load_initial(s);
  adam_state<float> state(s.weights().size());
  for (int step = 1; step <= 2; ++step) {
    CAPTURE(step);
    const std::string at = "f32.step" + std::to_string(step) + ".";
    const golden_batch<float> data(step);
    const auto batch = data.samples(0, 4);
    if (step == 1) {
      std::vector<float> logits(4 * 61);
      s.last_logits(batch, {}, {}, logits);
      CHECK(relative_error(logits, golden().values(at + "last_logits")) < 1e-5);
    }
    s.zero_gradients();
    s.forward(0, batch, {}, {});
    CHECK(s.loss_sum(0) / data.valid == Approx(golden().values(at + "loss")[0]).epsilon(1e-5));
    CHECK(s.forward_only(batch, {}, {}) / data.valid == Approx(golden().values(at + "loss")[0]).epsilon(1e-5));
    s.backward(0, batch, {}, {});
    CHECK(gradient_error(s, at) < 1e-5);
    const double norm = clip_and_step(b, s, state, step);
    CHECK(norm == Approx(golden().values(at + "gradient_norm")[0]).epsilon(1e-5));
    // Weights whose gradient is rounding noise move by noise of the size of lr (see the README); all others agree.
    for (const md::parameter& p : s.parameters()) {
      CAPTURE(p.name);
      const auto w = part(s.weights(), p);
      const auto& expected = golden().values(at + "weight." + p.name);
      std::int64_t off = 0;
      for (std::size_t i = 0; i < w.size(); ++i) off += std::abs(w[i] - static_cast<float>(expected[i])) > 1e-5;
      const bool noise = p.name.find("c_attn.bias") != std::string::npos;
      CHECK(off <= (noise ? static_cast<std::int64_t>(w.size()) / 3 : 0));
    }
  }
}

TEST_CASE("AdamW on PyTorch's own float gradients equals PyTorch's step to 1e-6", "[model][golden]") {
  backend b{1};
  alone_world world;
  stage<float> s(golden_config(), world, b, md::split_layers(2, 0, 1), 1, 4);
  load_initial(s);
  adam_state<float> state(s.weights().size());
  for (int step = 1; step <= 2; ++step) {
    CAPTURE(step);
    const std::string at = "f32.step" + std::to_string(step) + ".";
    for (const md::parameter& p : s.parameters()) {
      const auto g = part(s.gradients(), p);
      const auto& values = golden().values(at + "gradient." + p.name);
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = static_cast<float>(values[i]);
    }
    const double norm = clip_and_step(b, s, state, step);
    CHECK(norm == Approx(golden().values(at + "gradient_norm")[0]).epsilon(1e-6));
    for (const md::parameter& p : s.parameters()) {
      CAPTURE(p.name);
      CHECK(relative_error(part(s.weights(), p), golden().values(at + "weight." + p.name)) < 1e-6);
    }
  }
}

TEST_CASE("two steps in double equal PyTorch's float64 run to 1e-10, in unequal microbatches too", "[model][golden]") {
  const int microbatches = GENERATE(1, 3);
  const bool apart = GENERATE(false, true);  // backward_input and backward_weight apart, in another order
  CAPTURE(microbatches, apart);
  backend b{2};
  alone_world world;
  stage<double> s(golden_config(), world, b, md::split_layers(2, 0, 1), 3, 4, 3);
  load_initial(s);
  adam_state<double> state(s.weights().size());
  const std::vector<std::array<int, 2>> cuts =
      microbatches == 1 ? std::vector<std::array<int, 2>>{{0, 4}} : std::vector<std::array<int, 2>>{{0, 3}, {3, 0}, {3, 1}};
  for (int step = 1; step <= 2; ++step) {
    CAPTURE(step);
    const std::string at = "f64.step" + std::to_string(step) + ".";
    const golden_batch<double> data(step);
    s.zero_gradients();
    double loss = 0;
    for (int k = 0; k < microbatches; ++k) {
      const auto& cut = cuts[static_cast<std::size_t>(k)];
      s.forward(k, data.samples(cut[0], cut[1]), {}, {});
      loss += s.loss_sum(k);
    }
    for (int k = 0; k < microbatches; ++k) {
      const auto batch = data.samples(cuts[static_cast<std::size_t>(k)][0], cuts[static_cast<std::size_t>(k)][1]);
      if (apart)
        s.backward_input(k, batch, {}, {});
      else
        s.backward(k, batch, {}, {});
    }
    if (apart)
      for (int k = microbatches; k-- > 0;)
        s.backward_weight(k, data.samples(cuts[static_cast<std::size_t>(k)][0], cuts[static_cast<std::size_t>(k)][1]));
    CHECK(loss / data.valid == Approx(golden().values(at + "loss")[0]).epsilon(1e-12));
    CHECK(gradient_error(s, at) < 1e-10);
    const double norm = clip_and_step(b, s, state, step);
    CHECK(norm == Approx(golden().values(at + "gradient_norm")[0]).epsilon(1e-10));
    for (const md::parameter& p : s.parameters()) {
      CAPTURE(p.name);
      CHECK(relative_error(part(s.weights(), p), golden().values(at + "weight." + p.name)) < 1e-10);
    }
  }
}

TEST_CASE("gradients of the whole model equal central differences", "[model][gradient]") {
  backend b{1};
  alone_world world;
  const md::gpt2_config config{.layers = 2, .heads = 2, .width = 8, .context = 4, .vocabulary = 11,
                               .initial_deviation = 0.3};
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
