// Mixtures of experts, latent attention and convolutions train on the CUDA backend over the stand-ins as on the host, on one rank and on several.
#include <heddle/comm/threads.hpp>
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/layers/convolution.hpp>
#include <heddle/model/layers/readouts.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/network.hpp>
#include <heddle/model/pair_batch.hpp>
#include <heddle/nccl/nccl.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/trainer.hpp>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "../cuda/emulated_launcher.hpp"
#include "../train/random_tokens.hpp"
#include "catch.hpp"
#include "double.hpp"
#include "small_mixtral.hpp"

namespace {

namespace hd = heddle;
namespace md = heddle::model;
using hd::dp, hd::ep, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<ep>, hd::axis<pp>, hd::axis<tp>>;
constexpr int context = 6, words = 20, steps = 3;
using emulated = hd::compute::basic_cuda<cuda_double::emulated_launcher<1>>;
using host = hd::compute::host<>;

struct outcome {
  std::vector<double> numbers;  // loss and norm of each step, then the loss on held-out samples
  std::string error;
};

template <class Model, class Transport, class Backend, class Data>
outcome train(const typename Model::config& config, const std::string& text, const Data& data) {
  hd::train::options<typename Model::config> o;
  o.model = config;
  o.batch = 7;
  o.microbatches = 2;
  o.schedule = "1f1b";
  o.steps = steps;
  o.clip_norm = 0.5;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  hd::launch_options launch;
  launch.timeout = std::chrono::milliseconds(20'000);
  outcome all;
  try {
    hd::launch<Transport>(hd::parse_mesh<mesh_type>(text), launch, [&](auto& world) {
      using strategy = hd::strategy<mesh_type, hd::zero<1>, hd::schedule::named, Backend>;
      hd::train::trainer<Model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
      const auto note = [&](double x) {
        if (world.rank() == 0) all.numbers.push_back(x);
      };
      trainer.run(data, [&](const hd::train::step_report& report) {
        note(report.loss);
        note(report.gradient_norm);
      });
      note(trainer.validate(data));
      const auto predicted = hd::train::predicted_memory(trainer);
      const std::int64_t held =
          trainer.parameter_memory().bytes().total() + trainer.activation_bytes().total() + trainer.boundary_bytes();
      if (!predicted || predicted->total() != held)
        throw hd::error("rank " + std::to_string(world.rank()) + " holds " + std::to_string(held) +
                        " bytes, predicted " + std::to_string(predicted ? predicted->total() : -1));
    });
  } catch (const std::exception& e) {
    all.error = e.what();
  }
  return all;
}

// On the CUDA backend by `Transport`, and on the host by threads, on the same mesh or on another.
template <class Model, class Transport, class Data>
void check_as_on_host(const typename Model::config& config, const std::string& mesh, const Data& data,
                      const std::string& mesh_of_host) {
  CAPTURE(mesh);
  const outcome expected = train<Model, hd::threads, host>(config, mesh_of_host, data);
  const outcome got = train<Model, Transport, emulated>(config, mesh, data);
  CHECK(expected.error == "");
  CHECK(got.error == "");
  REQUIRE(expected.numbers.size() == 2 * steps + 1);
  REQUIRE(got.numbers.size() == 2 * steps + 1);
  CHECK(expected.numbers[0] > 0.5);
  for (std::size_t i = 0; i < got.numbers.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got.numbers[i] - expected.numbers[i]) <= 1e-10 * std::abs(expected.numbers[i]));
  }
}
template <class Model, class Transport, class Data>
void check_as_on_host(const typename Model::config& config, const std::string& mesh, const Data& data) {
  check_as_on_host<Model, Transport>(config, mesh, data, mesh);
}
using samples = train_test::random_tokens<context, words, 5>;

constexpr md::mixtral_config small_mixtral = nccl_test::small_mixtral(2, context, words);

// Blocks as those of examples/image_classifier.cpp: a norm, a convolution of 3 x 3 and one of 1 x 1, then the mean of all pixels and a softmax.
constexpr int side = 4;
struct classifier : md::described<classifier, double, md::pair_batch<double, std::int32_t>, md::network_config> {
  static auto describe(const config& c) {
    using namespace md::layers;
    namespace dim = hd::dim;
    using md::dims, md::by_inputs;
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

}  // namespace

TEST_CASE("a Mixtral trains on the CUDA backend over the stand-ins as on the host, with experts over ranks",
          "[nccl][cuda][train][experts]") {
  for (const char* mesh : {"", "dp=2,ep=2", "ep=3,tp=2", "dp=2,pp=2"}) {
    nccl_double::reset();
    check_as_on_host<md::mixtral<double>, hd::nccl>(small_mixtral, mesh, samples{});
    CHECK(nccl_double::open_communicators() == 0);
  }
  nccl_double::reset();
}

TEST_CASE("a Mixtral whose rows travel to their experts trains on the CUDA backend as one rank on the host",
          "[nccl][cuda][threads][train][experts]") {
  namespace dim = hd::dim;
  // Seven samples in two microbatches over up to six ranks: some have none. Six ranks have five experts.
  using sent = md::mixtral<double, md::expert_parallel<>>;
  for (const char* mesh : {"ep=2", "dp=2,ep=2", "ep=6", "ep=3,tp=2"}) {
    nccl_double::reset();
    check_as_on_host<sent, hd::nccl>(small_mixtral, mesh, samples{}, "");
    CHECK(nccl_double::open_communicators() == 0);
  }
  nccl_double::reset();
  // Each rank along dp has other samples and a part of each expert, and along ep other experts.
  using parts = md::mixtral<double, hd::sharding<dim::split<dim::samples, dp>, dim::split<dim::samples, ep>,
                                                 dim::split<dim::experts, ep>, dim::split<dim::ffn, dp>>>;
  for (const char* mesh : {"dp=2", "dp=2,ep=3"})
    check_as_on_host<parts, hd::threads>(small_mixtral, mesh, samples{}, "");
}

TEST_CASE("a DeepSeek-V3 trains on the CUDA backend, its ranks threads that share a device, as on the host",
          "[cuda][threads][train][experts]") {
  auto config = md::deepseek_tiny();
  config.context = context;
  config.vocabulary = words;
  config.initial_deviation = 0.3;
  config.dense = 1;
  for (const char* mesh : {"", "dp=2,ep=3", "ep=2,pp=2,tp=3"})
    check_as_on_host<md::deepseek<double>, hd::threads>(config, mesh, samples{});
}

TEST_CASE("a classifier of images trains on the CUDA backend as on the host", "[cuda][threads][train]") {
  std::vector<double> pixels;
  std::vector<std::int32_t> classes;
  const hd::counter_random random(1, 0);
  for (int image = 0; image < 60; ++image) {
    classes.push_back(image % 3);
    for (int p = 0; p < side * side; ++p) pixels.push_back(random.normal(pixels.size()));
  }
  const hd::io::pairs data(pixels, classes, {.inputs = side * side, .targets = 1, .validation = 0.1});
  const md::network_config config{.outputs = 3, .width = 6, .hidden = 5, .context = side * side};
  for (const char* mesh : {"", "dp=2,pp=2", "tp=2"}) check_as_on_host<classifier, hd::threads>(config, mesh, data);
}
