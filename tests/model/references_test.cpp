// The serial references of Llama and GPT-2 against PyTorch and central differences; Llama's configurations and angles.
#include "catch.hpp"
#include "golden_file.hpp"
#include "gpt2_reference.hpp"
#include "llama_reference.hpp"

#include <heddle/compute/rotary_table.hpp>
#include <heddle/model/gpt2_config.hpp>
#include <heddle/model/llama_config.hpp>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
using namespace model_test;

namespace {

std::vector<std::int32_t> ids(std::size_t n, int vocabulary, std::uint64_t stream) {
  const hd::counter_random random(11, stream);
  std::vector<std::int32_t> v;
  for (std::size_t i = 0; i < n; ++i)
    v.push_back(static_cast<std::int32_t>(random.integer(i) % static_cast<std::uint64_t>(vocabulary)));
  return v;
}

// Two steps of a golden file's float64 run; gradients of the float32 run are compared besides, to float's precision.
template <class Config, class Model>
void check_golden(const golden_file& file, const Config& config, const std::vector<serial::named_shape>& shapes,
                  Model&& model) {
  serial::tensors weights;
  for (const auto& s : shapes) {
    const auto& initial = file.at("initial." + s.name);
    REQUIRE(std::vector<std::size_t>(initial.shape.begin(), initial.shape.end()) == s.shape);
    weights[s.name] = initial.values;
  }
  const auto& o = file.values("optimizer");
  serial::adamw optimizer{o[0], o[1], o[2], o[3], o[4], o[5]};
  const int samples = static_cast<int>(file.values("config").back());
  for (int step = 1; step <= 2; ++step) {
    CAPTURE(step);
    const std::string name = "step" + std::to_string(step) + ".", at = "f64." + name;
    const auto tokens = file.ids(name + "tokens"), targets = file.ids(name + "targets");
    const auto valid =
        static_cast<double>(std::count_if(targets.begin(), targets.end(), [](auto t) { return t >= 0; }));
    const serial::outcome r = model(config, weights, tokens, targets, samples, 1 / valid);
    CHECK(r.loss_sum / valid == Approx(file.values(at + "loss")[0]).epsilon(1e-13));
    if (step == 1) {
      const auto v = static_cast<std::size_t>(config.vocabulary), rows = tokens.size() / 4;
      std::vector<double> last;
      for (std::size_t b = 1; b <= 4; ++b)
        last.insert(last.end(), r.logits.begin() + static_cast<std::ptrdiff_t>((b * rows - 1) * v),
                    r.logits.begin() + static_cast<std::ptrdiff_t>(b * rows * v));
      CHECK(relative_error(last, file.values(at + "last_logits")) < 1e-12);
    }
    for (const auto& s : shapes) {
      CAPTURE(s.name);
      CHECK(relative_error(r.gradients.at(s.name), file.values(at + "gradient." + s.name)) < 1e-10);
      CHECK(relative_error(r.gradients.at(s.name), file.values("f32." + name + "gradient." + s.name)) < 1e-5);
    }
    const double norm = optimizer.step(shapes, weights, r.gradients);
    CHECK(norm > o[5]);
    CHECK(norm == Approx(file.values(at + "gradient_norm")[0]).epsilon(1e-12));
    for (const auto& s : shapes) {
      CAPTURE(s.name);
      CHECK(relative_error(weights.at(s.name), file.values(at + "weight." + s.name)) < 1e-11);
    }
  }
}

// The slope of the loss along a random direction in each tensor, by central differences, against the gradient.
template <class Config, class Model>
void check_slopes(const Config& config, const std::vector<serial::named_shape>& shapes, Model&& model) {
  auto weights = serial::random_weights(shapes, 5, 0.5);
  const int samples = 2;
  const auto rows = static_cast<std::size_t>(config.context - 1);  // shorter than the context
  const auto tokens = ids(2 * rows, config.vocabulary, 1);
  auto targets = ids(2 * rows, config.vocabulary, 2);
  targets[1] = -100;
  const auto loss = [&] { return 0.3 * model(config, weights, tokens, targets, samples, 0.3).loss_sum; };
  const serial::tensors gradients = model(config, weights, tokens, targets, samples, 0.3).gradients;
  const auto directions = serial::random_weights(shapes, 6, 1.0);
  for (const auto& s : shapes) {
    CAPTURE(to_string(config), s.name);
    auto& w = weights.at(s.name);
    const auto kept = w;
    const auto move = [&](double by) {
      for (std::size_t i = 0; i < w.size(); ++i) w[i] = kept[i] + by * directions.at(s.name)[i];
      const double value = loss();
      w = kept;
      return value;
    };
    double slope = 0;
    for (std::size_t i = 0; i < w.size(); ++i) slope += gradients.at(s.name)[i] * directions.at(s.name)[i];
    const double step = 1e-4, coarse = (move(2 * step) - move(-2 * step)) / (4 * step);
    const double fine = (move(step) - move(-step)) / (2 * step);
    CHECK(fine + (fine - coarse) / 3 == Approx(slope).epsilon(1e-8).margin(1e-9));
  }
}

}  // namespace

TEST_CASE("Llama's sizes are the published ones", "[model][llama]") {
  STATIC_REQUIRE(md::llama2_7b().parameters() == 6738415616);
  STATIC_REQUIRE(md::llama2_13b().parameters() == 13015864320);
  STATIC_REQUIRE(md::llama2_70b().parameters() == 68976648192);
  STATIC_REQUIRE(md::llama3_8b().parameters() == 8030261248);
  STATIC_REQUIRE(md::llama3_70b().parameters() == 70553706496);
  STATIC_REQUIRE(md::llama3_1(md::llama3_8b()).parameters() == 8030261248);
  STATIC_REQUIRE(md::llama3_8b().head_dim() == 128);
  STATIC_REQUIRE(md::llama3_8b().kv_width() == 1024);
  STATIC_REQUIRE(md::llama3_8b().theta == 500000);
  STATIC_REQUIRE(md::llama3_1(md::llama3_70b()).context == 131072);
  STATIC_REQUIRE(md::llama3_1(md::llama3_70b()) != md::llama3_70b());
  // Without look-ups and norms: 8030261248 - 128256 * 4096 - 65 * 4096.
  STATIC_REQUIRE(md::llama3_8b().matmul_parameters() == 7504658432);
  // 6 * 7504658432 + 6 * 32 * 4096 * 8193, and 6 * 6607077376 + 6 * 32 * 4096 * 4097.
  STATIC_REQUIRE(md::llama3_8b().flops_per_token() == 51471187968.0);
  STATIC_REQUIRE(md::llama2_7b().flops_per_token() == 42864476160.0);
  STATIC_REQUIRE(md::llama2_7b().flops_per_token(1) == 6.0 * 6607077376 + 12.0 * 32 * 4096);
  // The sums of the tensors by name.
  for (const md::llama_config& c : {md::llama_tiny(), md::llama2_7b(), md::llama3_70b()}) {
    std::size_t sum = 0;
    for (const auto& s : serial::llama_shapes(c)) sum += s.count();
    CHECK(static_cast<std::int64_t>(sum) == c.parameters());
  }
  for (const md::llama_config& c : {md::llama_tiny(), md::llama2_7b(), md::llama2_13b(), md::llama2_70b(),
                                    md::llama3_8b(), md::llama3_70b(), md::llama3_1(md::llama3_8b())})
    CHECK_NOTHROW(c.validate());
  CHECK(to_string(md::llama3_8b()) ==
        "llama layers=32 heads=32 kv_heads=8 width=4096 ffn=14336 context=8192 vocabulary=128256 theta=500000");
  auto other = md::llama3_1(md::llama_tiny());
  other.epsilon = 1e-6;
  CHECK(to_string(other) ==
        "llama layers=2 heads=6 kv_heads=2 width=24 ffn=29 context=131072 vocabulary=61 "
        "theta=10000 scaling=8,1,4,8192 epsilon=1e-06");
}

TEST_CASE("a Llama that cannot be is refused with what would be accepted", "[model][llama]") {
  const auto refused = [](auto change) {
    auto c = md::llama_tiny();
    change(c);
    try {
      c.validate();
    } catch (const hd::config_error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const std::string at = "heddle: llama_config.";
  CHECK(refused([](auto& c) { c.layers = -1; }) == at + "layers must be 0 to 65536, got -1");
  CHECK(refused([](auto& c) { c.heads = 0; }) == at + "heads must be 1 to 1048576, got 0");
  CHECK(refused([](auto& c) { c.kv_heads = 0; }) == at + "kv_heads must be 1 to 1048576, got 0");
  CHECK(refused([](auto& c) { c.ffn = 0; }) == at + "ffn must be 1 to 1048576, got 0");
  CHECK(refused([](auto& c) { c.context = 16777217; }) == at + "context must be 1 to 16777216, got 16777217");
  CHECK(refused([](auto& c) { c.vocabulary = 0; }) == at + "vocabulary must be 1 to 16777216, got 0");
  CHECK(refused([](auto& c) { c.width = 25; }) ==
        at + "width = 25 is not a multiple of heads = 6; every head has width / heads elements, or head_elements");
  CHECK(refused([](auto& c) { c.kv_heads = 4; }) ==
        at + "heads = 6 is not a multiple of kv_heads = 4; every key-value head serves heads / kv_heads query heads");
  CHECK(refused([](auto& c) { c.kv_heads = 12; }) ==
        at + "heads = 6 is not a multiple of kv_heads = 12; every key-value head serves heads / kv_heads query heads");
  CHECK(refused([](auto& c) { c.width = 30; }) ==
        at + "width / heads = 5 must be even; rotary positions turn pairs of a head's elements");
  CHECK(refused([](auto& c) { c.theta = 0; }) == at + "theta must be positive and finite, got 0");
  CHECK(refused([](auto& c) { c.theta = std::nan(""); }) == at + "theta must be positive and finite, got nan");
  CHECK(refused([](auto& c) { c.scaling.factor = -8; }) ==
        at + "scaling.factor must be positive and finite, got -8");
  CHECK(refused([](auto& c) { c.scaling.low = 4; }) ==
        at +
            "scaling.low = 4 must be less than scaling.high = 4; wavelengths between original / high and "
            "original / low are blended");
  CHECK(refused([](auto& c) { c.epsilon = 0; }) == at + "epsilon must be positive and finite, got 0");
  CHECK(refused([](auto& c) { c.initial_deviation = -1; }) ==
        at + "initial_deviation must be a finite number >= 0, got -1");
}

TEST_CASE("rotary tables hold the powers of complex rotations", "[model][llama]") {
  const hd::compute::rotary_table<double> table(40, hd::compute::rotary_frequencies(6, 1e4));
  const hd::compute::rotary_table<float> floats(40, hd::compute::rotary_frequencies(6, 1e4));
  REQUIRE(table.pairs == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::complex<double> turn = std::exp(std::complex<double>(0, std::exp(-std::log(1e4) * 2.0 * double(i) / 6)));
    std::complex<double> all = 1;  // turn to the power p, by products
    for (std::size_t p = 0; p < 40; ++p, all *= turn) {
      CHECK(std::abs(std::complex(table.cos[p * 3 + i], table.sin[p * 3 + i]) - all) < 1e-13);
      CHECK(floats.cos[p * 3 + i] == static_cast<float>(table.cos[p * 3 + i]));
      CHECK(floats.sin[p * 3 + i] == static_cast<float>(table.sin[p * 3 + i]));
    }
  }
  // Scaled as Llama 3.1: against the reference's rule by wavelengths.
  auto c = md::llama3_1(md::llama3_8b());
  const auto scaled = hd::compute::rotary_frequencies(c.head_dim(), c.theta, c.scaling);
  for (std::size_t i = 0; i < 64; ++i) CHECK(scaled[i] == Approx(serial::rotary_angle(c, i)).epsilon(1e-14));
  CHECK(scaled[31] == Approx(.00085675141291).epsilon(1e-9));
}

TEST_CASE("the serial Llama equals PyTorch to 1e-10 over two steps", "[model][golden][llama]") {
  const golden_file file(HEDDLE_SOURCE_DIR "/tests/golden/llama_golden.bin");
  const auto& c = file.values("config");
  const auto of = [&](std::size_t i) { return static_cast<int>(c[i]); };
  const md::llama_config config{.layers = of(0),
                                .heads = of(1),
                                .kv_heads = of(2),
                                .width = of(3),
                                .ffn = of(4),
                                .context = of(5),
                                .vocabulary = of(6),
                                .theta = file.values("rotary")[0],
                                .epsilon = file.values("rotary")[1]};
  CHECK(config == md::llama_tiny());
  check_golden(file, config, serial::llama_shapes(config), serial::llama);
}

TEST_CASE("the serial GPT-2 equals PyTorch to 1e-10 over two steps", "[model][golden]") {
  const golden_file file(HEDDLE_SOURCE_DIR "/tests/golden/gpt2_golden.bin");
  const auto& c = file.values("config");
  const auto of = [&](std::size_t i) { return static_cast<int>(c[i]); };
  const md::gpt2_config config{.layers = of(0), .heads = of(1), .width = of(2), .context = of(3), .vocabulary = of(4)};
  check_golden(file, config, serial::gpt2_shapes(config), serial::gpt2);
}

TEST_CASE("gradients of the serial references equal central differences", "[model][gradient][llama]") {
  // Key-value heads one, some and all; scaled frequencies that are kept, blended and divided; no layer.
  md::llama_config c{.layers = 1, .heads = 4, .kv_heads = 1, .width = 16, .ffn = 5, .context = 4, .vocabulary = 7};
  check_slopes(c, serial::llama_shapes(c), serial::llama);
  c.kv_heads = 2;
  c.width = 24;
  c.scaling = {.factor = 8, .low = 1, .high = 4, .original = 32};
  c.theta = 50;
  check_slopes(c, serial::llama_shapes(c), serial::llama);
  c.kv_heads = 4;
  c.layers = 2;
  check_slopes(c, serial::llama_shapes(c), serial::llama);
  c.layers = 0;
  check_slopes(c, serial::llama_shapes(c), serial::llama);
  const md::gpt2_config g{.layers = 2, .heads = 3, .width = 6, .context = 5, .vocabulary = 7};
  check_slopes(g, serial::gpt2_shapes(g), serial::gpt2);
}

TEST_CASE("a serial reference names the weight that it misses", "[model][llama]") {
  const auto c = md::llama_tiny();
  auto weights = serial::random_weights(serial::llama_shapes(c), 1, 0.1);
  weights.at("model.layers.1.mlp.up_proj.weight").pop_back();
  const std::vector<std::int32_t> one{1};
  CHECK_THROWS_WITH(serial::llama(c, weights, one, one, 1, 1.0),
                    "the reference needs model.layers.1.mlp.up_proj.weight with 696 elements, got 695");
}
