// Networks on pairs (x, y), a perceptron and a convolutional classifier: gradients against central differences, and any mesh,
// schedule and policy trains what one rank trains, in double.
#include "catch.hpp"
#include "difference.hpp"
#include "tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/layers/convolution.hpp>
#include <heddle/model/layers/feed_forward.hpp>
#include <heddle/model/layers/norms.hpp>
#include <heddle/model/layers/readouts.hpp>
#include <heddle/model/network.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/predict.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace sc = heddle::schedule;
namespace dim = heddle::dim;
using hd::dp, hd::pp, hd::tp, md::dims;

namespace {

using train_test::relative_difference;
using in_layer = md::layers::linear<dims<dim::features>, dims<dim::width>>;
using down_layer = md::layers::linear<dims<dim::ffn>, dims<dim::width>>;

// Two numbers of each sample, from three.
struct perceptron : md::described<perceptron, double, md::pair_batch<double>, md::network_config> {
  static constexpr config sizes{.inputs = 3, .outputs = 2, .layers = 3, .width = 10, .hidden = 13};
  static auto describe(const config& c) {
    using namespace md::layers;
    using up = linear<dims<dim::width>, dims<dim::ffn>>;
    using out = linear<dims<dim::width>, dims<dim::outputs>>;
    return network(
        in_layer("in", {c.inputs}, {c.width}, 0.5), "block.", c.layers,
        residual(layer_norm<>("norm", c.width, 1e-5),
                 gelu_mlp("mlp", up("up", {c.width}, {c.hidden}, 0.3), down_layer("down", {c.hidden}, {c.width}, 0.3))),
        squared_error(out("out", {c.width}, {c.outputs}, 0.3)));
  }
  static hd::io::pairs<double, double> data() {
    static const auto x = numbers(17 * 3, 1), y = numbers(17 * 2, 2);
    return {x, y, {.inputs = 3, .targets = 2, .validation = 0.2, .seed = 3}};
  }
  static std::vector<double> numbers(std::size_t n, std::uint64_t stream) {
    const hd::counter_random random(11, stream);
    std::vector<double> all;
    for (std::size_t i = 0; i < n; ++i) all.push_back(random.normal(i));
    return all;
  }
};

// One of five classes of each image of 3 x 4 pixels with two channels; every seventh image has none.
struct classifier : md::described<classifier, double, md::pair_batch<double, std::int32_t>, md::network_config> {
  static constexpr config sizes{.inputs = 2, .outputs = 5, .layers = 2, .width = 6, .hidden = 7, .context = 12};
  static auto describe(const config& c) {
    using namespace md::layers;
    using up = linear<dims<dim::taps, dim::width>, dims<dim::ffn>>;
    const gelu_mlp inner("mlp", up("up", {9, c.width}, {c.hidden}, 0.2),
                         down_layer("down", {c.hidden}, {c.width}, 0.3));
    return network(
        in_layer("in", {c.inputs}, {c.width}, 0.5), "block.", c.layers,
        residual(layer_norm<>("norm", c.width, 1e-5), convolution("conv", {3, 4}, c.width, inner)),
        pooled(language_head<layer_norm<>, false>(layer_norm<>("last", c.width, 1e-5), c.outputs, "head.weight", 0.3)));
  }
  static hd::io::pairs<double, std::int32_t> data() {
    static const auto x = perceptron::numbers(17 * 24, 4);
    static const std::vector<std::int32_t> y = [] {
      std::vector<std::int32_t> all;
      for (std::int32_t i = 0; i < 17; ++i) all.push_back(i % 7 == 3 ? -1 : i * 3 % 5);
      return all;
    }();
    return {x, y, {.inputs = 24, .targets = 1, .validation = 0.2, .seed = 3}};
  }
};

// An image of 3 x 4 pixels has two numbers.
struct pooled_numbers : md::described<pooled_numbers, double, md::pair_batch<double>, md::network_config> {
  static constexpr config sizes{.inputs = 2, .outputs = 2, .layers = 2, .width = 6, .hidden = 7, .context = 12};
  static auto describe(const config& c) {
    using namespace md::layers;
    using up = linear<dims<dim::width>, dims<dim::ffn>>;
    using out = linear<dims<dim::width>, dims<dim::outputs>>;
    return network(
        in_layer("in", {c.inputs}, {c.width}, 0.5), "block.", c.layers,
        residual(layer_norm<>("norm", c.width, 1e-5),
                 gelu_mlp("mlp", up("up", {c.width}, {c.hidden}, 0.3), down_layer("down", {c.hidden}, {c.width}, 0.3))),
        pooled(squared_error(out("out", {c.width}, {c.outputs}, 0.3))));
  }
  static hd::io::pairs<double, double> data() {
    static const auto x = perceptron::numbers(17 * 24, 5), y = perceptron::numbers(17 * 2, 6);
    return {x, y, {.inputs = 24, .targets = 2, .validation = 0.2, .seed = 3}};
  }
};

// Three numbers of each pixel of an image of 3 x 4: of an image another, such as one of higher resolution.
struct pixels : md::described<pixels, double, md::pair_batch<double>, md::network_config> {
  static constexpr config sizes{.inputs = 2, .outputs = 3, .layers = 2, .width = 6, .hidden = 7, .context = 12};
  static auto describe(const config& c) {
    using namespace md::layers;
    using up = linear<dims<dim::taps, dim::width>, dims<dim::ffn>>;
    using out = linear<dims<dim::width>, dims<dim::outputs>>;
    const gelu_mlp inner("mlp", up("up", {9, c.width}, {c.hidden}, 0.2),
                         down_layer("down", {c.hidden}, {c.width}, 0.3));
    return network(in_layer("in", {c.inputs}, {c.width}, 0.5), "block.", c.layers,
                   residual(layer_norm<>("norm", c.width, 1e-5), convolution("conv", {3, 4}, c.width, inner)),
                   squared_error(out("out", {c.width}, {c.outputs}, 0.3)));
  }
  static hd::io::pairs<double, double> data() {
    static const auto x = perceptron::numbers(17 * 24, 5), y = perceptron::numbers(17 * 36, 6);
    return {x, y, {.inputs = 24, .targets = 36, .validation = 0.2, .seed = 3}};
  }
};

// One of five classes of each pixel; every seventh pixel has none.
struct segments : md::described<segments, double, md::pair_batch<double, std::int32_t>, md::network_config> {
  static constexpr config sizes{.inputs = 2, .outputs = 5, .layers = 2, .width = 6, .hidden = 7, .context = 12};
  static auto describe(const config& c) {
    using namespace md::layers;
    using up = linear<dims<dim::width>, dims<dim::ffn>>;
    return network(
        in_layer("in", {c.inputs}, {c.width}, 0.5), "block.", c.layers,
        residual(layer_norm<>("norm", c.width, 1e-5),
                 gelu_mlp("mlp", up("up", {c.width}, {c.hidden}, 0.3), down_layer("down", {c.hidden}, {c.width}, 0.3))),
        language_head<layer_norm<>, false>(layer_norm<>("last", c.width, 1e-5), c.outputs, "head.weight", 0.3));
  }
  static hd::io::pairs<double, std::int32_t> data() {
    static const auto x = perceptron::numbers(17 * 24, 4);
    static const std::vector<std::int32_t> y = [] {
      std::vector<std::int32_t> all;
      for (std::int32_t i = 0; i < 17 * 12; ++i) all.push_back(i % 7 == 3 ? -1 : i * 3 % 5);
      return all;
    }();
    return {x, y, {.inputs = 24, .targets = 12, .validation = 0.2, .seed = 3}};
  }
};

// Each pixel by itself, so that the loss and its gradient are known in closed form: f(x) = (x A + a) B + b.
struct plain_pixels : md::described<plain_pixels, double, md::pair_batch<double>, md::network_config> {
  static constexpr config sizes{.inputs = 2, .outputs = 3, .layers = 0, .width = 4, .context = 12};
  static auto describe(const config& c) {
    using namespace md::layers;
    using up = linear<dims<dim::width>, dims<dim::ffn>>;
    using out = linear<dims<dim::width>, dims<dim::outputs>>;
    return network(
        in_layer("in", {c.inputs}, {c.width}, 0.5), "block.", c.layers,
        residual(layer_norm<>("norm", c.width, 1e-5),
                 gelu_mlp("mlp", up("up", {c.width}, {c.hidden}, 0.3), down_layer("down", {c.hidden}, {c.width}, 0.3))),
        squared_error(out("out", {c.width}, {c.outputs}, 0.3)));
  }
};

// Tokens of 61 words, each of one of 40 classes: embedding and head are split differently.
struct words_config : md::network_config {
  int vocabulary = 61;
};
struct tagger : md::described<tagger, double, md::batch<double>, words_config> {
  static constexpr config sizes{{.layers = 2, .width = 6, .hidden = 7, .context = 5}};
  static auto describe(const config& c) {
    using namespace md::layers;
    using up = linear<dims<dim::width>, dims<dim::ffn>>;
    return language_model{
        embedding<false>{"", "words", "", c.vocabulary, c.width, c.context, 0.5}, "block.", c.layers,
        residual(layer_norm<>("norm", c.width, 1e-5),
                 gelu_mlp("mlp", up("up", {c.width}, {c.hidden}, 0.3), down_layer("down", {c.hidden}, {c.width}, 0.3))),
        language_head<layer_norm<>, false>(layer_norm<>("last", c.width, 1e-5), 40, "head", 0.3)};
  }
  // Whose inputs reach beyond the classes.
  struct tokens {
    std::int64_t context() const { return 5; }
    std::int64_t validation_samples() const { return 3; }
    void fill_train(hd::io::sample_block b, std::span<std::int32_t> in, std::span<std::int32_t> out) const {
      for (std::int64_t i = 0; i < b.count * 5; ++i) {
        const std::int64_t at = b.first * 5 + i;
        in[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(at * 17 % 61);
        out[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(at * 11 % 40);
      }
    }
    void fill_validation(hd::io::sample_block b, std::span<std::int32_t> in, std::span<std::int32_t> out) const {
      fill_train(b, in, out);
    }
  };
  static tokens data() { return {}; }
};

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
template <class Model, int Zero, class World>
using trainer_of =
    hd::train::trainer<Model, hd::strategy<mesh_type, sc::tabled, hd::zero<Zero>, hd::activations::recompute<>>, World>;

// The samples of training from `first` on.
template <class Data>
auto samples_of(const Data& data, std::int64_t first, std::int64_t count) {
  std::vector<double> x(static_cast<std::size_t>(count * data.inputs()));
  std::vector<double> y(static_cast<std::size_t>(count * data.targets()));
  data.fill_train({first, count}, std::span(x), std::span(y));
  return std::pair(x, y);
}

template <class Model>
hd::train::options<typename Model::config> options_of() {
  hd::train::options<typename Model::config> o;
  o.model = Model::sizes;
  o.batch = 7;
  o.steps = 3;
  o.clip_norm = 0.5;
  o.threads_per_rank = 1;
  return o;
}

struct outcome {
  std::vector<double> losses, norms;
  std::vector<double> predictions;
  std::map<std::string, std::vector<double>> weights;
};

// What a model says of five samples, more than go through at once on some meshes.
template <class Model>
auto asked() {
  std::vector<typename md::batch_contents<typename Model::batch>::input> x;
  const auto n = static_cast<std::size_t>(5 * md::batch_contents<typename Model::batch>::extents(Model::sizes).inputs);
  const std::vector<double> numbers = perceptron::numbers(n, 9);
  for (const double v : numbers)
    x.push_back(static_cast<typename decltype(x)::value_type>(
        std::is_integral_v<typename decltype(x)::value_type> ? std::abs(v) * 10 : v));
  return x;
}

template <class Model, int Zero = 3>
outcome train(const std::string& mesh_text, const std::string& schedule, int microbatches,
              const std::string& again = "") {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  auto o = options_of<Model>();
  o.recompute = again;
  const sc::tabled when(train_test::table_named(schedule, mesh.template extent<pp>(), microbatches));
  outcome all;
  std::mutex mutex;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    trainer_of<Model, Zero, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
    std::vector<double> losses, norms;
    for (int step = 0; step < 3; ++step) {
      const auto report = trainer.step(Model::data());
      losses.push_back(report.loss);
      norms.push_back(report.gradient_norm);
    }
    losses.push_back(trainer.validate(Model::data()));
    const auto x = asked<Model>();
    const auto predictions = hd::train::predict(trainer, std::span(x));
    const std::lock_guard lock(mutex);
    if (!all.predictions.empty()) CHECK(all.predictions == predictions);  // the same on every rank
    all.predictions = predictions;
    all.losses = losses;
    all.norms = norms;
    for (int k = 0; k < trainer.stages(); ++k) {
      auto& state = trainer.optimizer_state(k);
      const auto kept = state.weights_of(trainer.stage(k));
      for (const md::parameter& p : trainer.stage(k).parameters()) {
        auto& whole = all.weights[p.name];
        whole.resize(static_cast<std::size_t>(p.global_count()), 0.0);
        md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
          for (std::int64_t i = 0; i < length; ++i) {
            const std::int64_t at = p.offset + local + i - state.weights_begin();
            if (at >= 0 && at < static_cast<std::int64_t>(kept.size()))
              whole[static_cast<std::size_t>(global + i)] = kept[static_cast<std::size_t>(at)];
          }
        });
      }
    }
  });
  return all;
}

void check_same(const outcome& got, const outcome& serial) {
  CHECK(relative_difference(got.losses, serial.losses) <= 1e-10);
  CHECK(relative_difference(got.norms, serial.norms) <= 1e-10);
  CHECK(relative_difference(got.predictions, serial.predictions) <= 1e-10);
  CHECK(relative_difference(got.weights, serial.weights) <= 1e-10);
}

// Of the mean loss, every weight moved on its own.
template <class Model>
void check_gradients() {
  hd::launch<hd::threads>(mesh_type(1, 1, 1), [](auto& world) {
    trainer_of<Model, 0, std::remove_reference_t<decltype(world)>> trainer(
        world, options_of<Model>(), sc::tabled(train_test::table_named("1f1b", 1, 2)));
    const auto data = Model::data();
    const auto weights = trainer.stage().weights();
    const hd::counter_random random(7, 7);  // biases away from zero
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += 0.1 * random.normal(i);
    const auto result = trainer.compute_gradients(data);
    std::vector<double> gradients(trainer.stage().gradients().begin(), trainer.stage().gradients().end());
    double worst = 0, greatest = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double at = weights[i], h = 1e-5;
      weights[i] = at + h;
      const double above = trainer.compute_gradients_again(data).loss;
      weights[i] = at - h;
      const double below = trainer.compute_gradients_again(data).loss;
      weights[i] = at;
      const double expected = (above - below) / (2 * h);
      worst = (std::max)(worst, std::abs(gradients[i] * result.gradient_scale - expected));
      greatest = (std::max)(greatest, std::abs(expected));
    }
    CHECK(greatest > 1e-2);
    CHECK(worst < 1e-8);
  });
}

}  // namespace

TEST_CASE("gradients of networks on pairs are those of central differences", "[train][pairs]") {
  check_gradients<perceptron>();
  check_gradients<classifier>();
  check_gradients<pooled_numbers>();
  check_gradients<pixels>();
  check_gradients<segments>();
  check_gradients<tagger>();
}

TEMPLATE_TEST_CASE("a network on pairs trained on any mesh is that of one rank, in double", "[train][pairs][ranks]",
                   perceptron, classifier, pooled_numbers, pixels, segments, tagger) {
  const outcome serial = train<TestType>("", "1f1b", 1);
  REQUIRE(serial.weights.size() >= 2 + 2 * 6);
  const auto rows = static_cast<std::size_t>(md::extents_of_model<TestType>(TestType::sizes).target_rows);
  REQUIRE(rows == (std::is_same_v<TestType, pixels> || std::is_same_v<TestType, segments> ? 12 : 1));
  REQUIRE(serial.predictions.size() ==
          5 * rows * static_cast<std::size_t>(TestType::describe(TestType::sizes).out.outputs()));
  REQUIRE(std::abs(serial.losses[2] - serial.losses[0]) > 1e-6);
  struct run {
    const char* mesh;
    const char* schedule;
    int microbatches;
    const char* again;
  };
  for (const run& r : {run{"dp=2", "1f1b", 2, ""}, run{"tp=2", "1f1b", 1, "mlp.hidden"}, run{"tp=3", "gpipe", 2, ""},
                       run{"pp=2", "zb-h1", 4, "full"}, run{"dp=2,tp=2", "gpipe", 2, "mlp.activated"},
                       run{"dp=3,pp=2", "1f1b", 2, ""}, run{"dp=2,pp=2,tp=2", "zb-h1", 2, "every 2"}}) {
    INFO("mesh '" << r.mesh << "', " << r.schedule << ", " << r.microbatches << " microbatches, again '" << r.again
                  << "'");
    check_same(train<TestType>(r.mesh, r.schedule, r.microbatches, r.again), serial);
  }
  check_same(train<TestType, 0>("dp=2,pp=2", "1f1b", 2), serial);
}

// Targets of rows and updates of one's own: steps of gradients with momentum, on any mesh, against the same computed here row by row.
namespace {
struct plain_reference {
  static constexpr int in = 2, width = 4, out = 3;
  std::vector<double> a, bias, b, last;  // in.weight [in, width] and so on
  std::vector<double> losses;
  std::vector<double> va, vbias, vb, vlast;

  double step(const std::vector<double>& x, const std::vector<double>& y, double rate) {
    std::vector<double> ga(a.size()), gbias(bias.size()), gb(b.size()), glast(last.size());
    const std::size_t all = x.size() / in;
    const double scale = 1.0 / static_cast<double>(all * out);
    double loss = 0;
    for (std::size_t r = 0; r < all; ++r) {
      double h[width], dh[width] = {};
      for (std::size_t w = 0; w < width; ++w) {
        h[w] = bias[w];
        for (std::size_t i = 0; i < in; ++i) h[w] += x[r * in + i] * a[i * width + w];
      }
      for (std::size_t o = 0; o < out; ++o) {
        double f = last[o];
        for (std::size_t w = 0; w < width; ++w) f += h[w] * b[w * out + o];
        const double error = f - y[r * out + o], d = 2 * error * scale;
        loss += error * error * scale;
        glast[o] += d;
        for (std::size_t w = 0; w < width; ++w) gb[w * out + o] += h[w] * d, dh[w] += b[w * out + o] * d;
      }
      for (std::size_t w = 0; w < width; ++w) {
        gbias[w] += dh[w];
        for (std::size_t i = 0; i < in; ++i) ga[i * width + w] += x[r * in + i] * dh[w];
      }
    }
    const auto move = [&](std::vector<double>& p, std::vector<double>& v, const std::vector<double>& g) {
      v.resize(p.size(), 0.0);
      for (std::size_t i = 0; i < p.size(); ++i) v[i] = 0.5 * v[i] + g[i], p[i] -= rate * v[i];
    };
    move(a, va, ga), move(bias, vbias, gbias), move(b, vb, gb), move(last, vlast, glast);
    return loss;
  }
};

template <int Zero>
outcome train_plainly(const std::string& mesh_text, const std::string& schedule, int microbatches) {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  const sc::tabled when(train_test::table_named(schedule, mesh.template extent<pp>(), microbatches));
  static const auto x = perceptron::numbers(17 * 24, 5), y = perceptron::numbers(17 * 36, 6);
  const hd::io::pairs<double, double> data(x, y, {.inputs = 24, .targets = 36, .seed = 3});
  outcome all;
  std::mutex mutex;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    trainer_of<plain_pixels, Zero, std::remove_reference_t<decltype(world)>> trainer(world, options_of<plain_pixels>(),
                                                                                     when);
    std::vector<double> losses;
    for (int step = 0; step < 6; ++step) {
      const auto result = trainer.compute_gradients(data);
      losses.push_back(result.loss);
      trainer.apply_gradients(result, [](const auto& owned) {
        for (std::size_t i = 0; i < owned.weights.size(); ++i) {
          owned.first_moment[i] = 0.5 * owned.first_moment[i] + owned.gradient_scale * owned.gradients[i];
          owned.weights[i] -= 0.05 * owned.first_moment[i];
        }
      });
    }
    trainer.parameter_memory().with_weights([&] {
      const std::lock_guard lock(mutex);
      all.losses = losses;
      for (int k = 0; k < trainer.stages(); ++k)
        for (const md::parameter& p : trainer.stage(k).parameters()) {
          auto& whole = all.weights[p.name];
          whole.resize(static_cast<std::size_t>(p.global_count()), 0.0);
          md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
            for (std::int64_t i = 0; i < length; ++i)
              whole[static_cast<std::size_t>(global + i)] =
                  trainer.stage(k).weights()[static_cast<std::size_t>(p.offset + local + i)];
          });
        }
    });
  });
  return all;
}
}  // namespace

TEST_CASE("a loop of one's own with targets of rows takes the steps of a serial loop", "[train][pairs][ranks]") {
  plain_reference serial;
  hd::launch<hd::threads>(mesh_type(1, 1, 1), [&](auto& world) {  // the first weights
    trainer_of<plain_pixels, 0, std::remove_reference_t<decltype(world)>> trainer(
        world, options_of<plain_pixels>(), sc::tabled(train_test::table_named("1f1b", 1, 1)));
    const auto of = [&](const char* name) {
      for (const md::parameter& p : trainer.stage().parameters())
        if (p.name == name) {
          const auto all =
              trainer.stage().weights().subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
          return std::vector<double>(all.begin(), all.end());
        }
      throw std::runtime_error(name);
    };
    serial.a = of("in.weight"), serial.bias = of("in.bias"), serial.b = of("out.weight"), serial.last = of("out.bias");
  });
  const auto x = perceptron::numbers(17 * 24, 5), y = perceptron::numbers(17 * 36, 6);
  const hd::io::pairs<double, double> data(x, y, {.inputs = 24, .targets = 36, .seed = 3});
  outcome expected;
  for (int step = 0; step < 6; ++step) {
    const auto [inputs, targets] = samples_of(data, step * 7, 7);
    expected.losses.push_back(serial.step(inputs, targets, 0.05));
  }
  expected.weights = {
      {"in.weight", serial.a}, {"in.bias", serial.bias}, {"out.weight", serial.b}, {"out.bias", serial.last}};
  REQUIRE(expected.losses[0] - expected.losses[5] > 1e-3);
  const auto check = [&](const outcome& got) {
    CHECK(relative_difference(got.losses, expected.losses) <= 1e-10);
    CHECK(relative_difference(got.weights, expected.weights) <= 1e-10);
  };
  check(train_plainly<0>("", "1f1b", 1));
  check(train_plainly<0>("dp=2", "1f1b", 2));
  check(train_plainly<1>("dp=3", "gpipe", 1));
  check(train_plainly<0>("pp=2", "zb-h1", 4));
  check(train_plainly<3>("dp=2,pp=2", "1f1b", 2));
  check(train_plainly<3>("dp=2,tp=2", "1f1b", 1));
}

TEST_CASE("gradients are computed once a step, but on request", "[train][pairs][ranks]") {
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>("dp=2"), [](auto& world) {
    trainer_of<perceptron, 1, std::remove_reference_t<decltype(world)>> trainer(
        world, options_of<perceptron>(), sc::tabled(train_test::table_named("1f1b", 1, 1)));
    const auto data = perceptron::data();
    const auto fails = [&](const std::string& what) {
      try {
        trainer.compute_gradients(data);
      } catch (const hd::config_error& e) {
        if (std::string(e.what()).find(what) == std::string::npos) throw;
        return;
      }
      throw std::runtime_error("computed again without a word");
    };
    const auto same = [](double a, double b) {
      if (a != b) throw std::runtime_error(std::to_string(a) + " and " + std::to_string(b));
    };
    const auto first = trainer.compute_gradients(data);
    fails("the gradients of step 1 have been computed, and the step has not ended");
    same(trainer.compute_gradients_again(data).loss, first.loss);  // the error left the trainer as it was
    fails("of step 1");
    same(trainer.step(data).loss, first.loss);  // whoever has looked can go on
    const auto second = trainer.compute_gradients(data);
    if (second.loss == first.loss) throw std::runtime_error("the same samples");
    trainer.apply_gradients(second);
    trainer.compute_gradients(data);
    trainer.set_position(2, 14);
    trainer.compute_gradients(data);
    trainer.run(data);
    same(static_cast<double>(trainer.steps_done()), 3);
  });
}

// The validation's loss is known already; this one is put together from f(x).
TEST_CASE("predictions of a network are the f(x) of its loss", "[train][pairs]") {
  hd::launch<hd::threads>(mesh_type(1, 1, 1), [](auto& world) {
    trainer_of<perceptron, 0, std::remove_reference_t<decltype(world)>> regression(
        world, options_of<perceptron>(), sc::tabled(train_test::table_named("1f1b", 1, 1)));
    const auto pairs = perceptron::data();
    std::vector<double> x(3 * 3), y(3 * 2);
    pairs.fill_validation({0, 3}, std::span(x), std::span(y));
    const auto f = hd::train::predict(regression, std::span<const double>(x));
    REQUIRE(f.size() == y.size());
    double squares = 0;
    for (std::size_t i = 0; i < y.size(); ++i) squares += (f[i] - y[i]) * (f[i] - y[i]);
    CHECK(squares / 6 == Approx(regression.validate(pairs)).epsilon(1e-12));
    CHECK_THROWS_WITH(hd::train::predict(regression, std::span<const double>(x).first(4)),
                      Catch::Matchers::Contains("predict was given 4 inputs; a sample has 3"));
    CHECK(hd::train::predict(regression, std::span<const double>()).empty());

    trainer_of<pixels, 0, std::remove_reference_t<decltype(world)>> of_rows(
        world, options_of<pixels>(), sc::tabled(train_test::table_named("1f1b", 1, 1)));
    const auto of_pixels = pixels::data();  // 36 targets of a sample: three of each of 12 rows
    std::vector<double> low(3 * 24), high(3 * 36);
    of_pixels.fill_validation({0, 3}, std::span(low), std::span(high));
    const auto made = hd::train::predict(of_rows, std::span<const double>(low));
    REQUIRE(made.size() == high.size());
    squares = 0;
    for (std::size_t i = 0; i < high.size(); ++i) squares += (made[i] - high[i]) * (made[i] - high[i]);
    CHECK(squares / (3 * 36) == Approx(of_rows.validate(of_pixels)).epsilon(1e-12));

    trainer_of<classifier, 0, std::remove_reference_t<decltype(world)>> classes(
        world, options_of<classifier>(), sc::tabled(train_test::table_named("1f1b", 1, 1)));
    const auto images = classifier::data();
    std::vector<double> pixels(3 * 24);
    std::vector<std::int32_t> truth(3);
    images.fill_validation({0, 3}, std::span(pixels), std::span(truth));
    const auto logits = hd::train::predict(classes, std::span<const double>(pixels));
    REQUIRE(logits.size() == 15);
    double loss = 0, counted = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      if (truth[i] < 0) continue;
      double total = 0;
      for (std::size_t c = 0; c < 5; ++c) total += std::exp(logits[i * 5 + c]);
      loss += std::log(total) - logits[i * 5 + static_cast<std::size_t>(truth[i])];
      ++counted;
    }
    REQUIRE(counted > 0);
    CHECK(loss / counted == Approx(classes.validate(images)).epsilon(1e-12));
  });
}

TEST_CASE("what layers of a network cost", "[train][pairs]") {
  const auto c = classifier::layer_costs(classifier::sizes);
  CHECK(c.first == 6.0 * 2 * 6);
  CHECK(c.layers == std::vector<double>(2, 6.0 * (9 * 6 * 7 + 7 * 6)));
  CHECK(c.last == Approx(6.0 * 6 * 5 / 12).epsilon(1e-12));  // per row, of which a sample has 12
}

TEST_CASE("networks whose parts do not fit are refused", "[train][pairs]") {
  const auto make = []<class Model>(Model, md::network_config sizes) {
    hd::launch<hd::threads>(mesh_type(1, 1, 1), [&](auto& world) {
      auto o = options_of<Model>();
      o.model = sizes;
      trainer_of<Model, 0, std::remove_reference_t<decltype(world)>> trainer(
          world, o, sc::tabled(train_test::table_named("1f1b", 1, 1)));
      trainer.step(Model::data());
    });
  };
  using Catch::Matchers::Contains;
  auto sizes = perceptron::sizes;
  sizes.context = 2;
  CHECK_THROWS_WITH(make(perceptron{}, sizes),
                    Contains("the data has samples of 3 inputs and 2 targets, the model takes 6 and 4, since each of 2 "
                             "rows has targets; layers::pooled gives a head the mean of a sample's rows"));
  sizes = classifier::sizes;
  sizes.context = 8;
  sizes.inputs = 3;
  CHECK_THROWS_WITH(make(classifier{}, sizes),
                    Contains("the convolution \"conv\" takes images of 3 x 4 pixels, but a sample has 8 rows"));
  sizes.width = 0;
  CHECK_THROWS_WITH(make(classifier{}, sizes), Contains("width must be 1 to 1048576, got 0"));
}

TEST_CASE("pairs that do not fit a network are refused", "[train][pairs]") {
  const auto refused = [](auto data) {
    hd::launch<hd::threads>(mesh_type(1, 1, 1), [&](auto& world) {
      trainer_of<classifier, 0, std::remove_reference_t<decltype(world)>> trainer(
          world, options_of<classifier>(), sc::tabled(train_test::table_named("1f1b", 1, 1)));
      trainer.step(data);
    });
  };
  const std::vector<double> x(48);
  const std::vector<std::int32_t> y{0, 5};
  CHECK_THROWS_WITH(refused(hd::io::pairs(x, y, {.inputs = 24})),
                    Catch::Matchers::Contains("targets hold the class 5, outside the 5 of the model"));
  const std::vector<std::int32_t> more{0, 1, 1, 1};
  CHECK_THROWS_WITH(
      refused(hd::io::pairs(x, more, {.inputs = 12})),
      Catch::Matchers::Contains("the data has samples of 12 inputs and 1 targets, the model takes 24 and 1"));
}
