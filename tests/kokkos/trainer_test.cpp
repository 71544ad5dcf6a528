// A GPT-2, a Llama, a Qwen-3, a Mixtral and a DeepSeek-V3 trained on Kokkos against the same training on the host, with more ranks than cores and an instance for each.
#include "catch.hpp"
#include "space.hpp"
#include "../train/random_tokens.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/balance_experts.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/optimizers/adafactor.hpp>
#include <heddle/train/optimizers/lion.hpp>
#include <heddle/train/optimizers/muon.hpp>
#include <heddle/train/optimizers/sgd.hpp>
#include <heddle/train/trainer.hpp>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace hd = heddle;
namespace tr = heddle::train;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using host = hd::compute::host<>;
using tested = hd::compute::kokkos<tested_space>;
constexpr int context = 6, words = 20;
using samples = train_test::random_tokens<context, words, 5>;

struct outcome {
  std::vector<double> numbers;             // loss and norm of each step, then the loss on held-out samples
  std::vector<std::vector<double>> state;  // of each rank: weights and moments
  std::string error;
};

template <class Model, class Backend, class... Policies>
outcome train(const typename Model::config& config, const std::string& text, const std::string& schedule) {
  const auto mesh = hd::parse_mesh<mesh_type>(text);
  tr::options<typename Model::config> o;
  o.model = config;
  o.batch = 7;
  o.microbatches = 2;
  o.schedule = schedule;
  o.steps = 4;
  o.clip_norm = 0.5;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  hd::launch_options launch;
  launch.timeout = std::chrono::milliseconds(60'000);
  outcome all;
  all.state.resize(static_cast<std::size_t>(mesh.size()));
  try {
    hd::launch<hd::threads>(mesh, launch, [&](auto& world) {
      using strategy = hd::strategy<mesh_type, hd::zero<1>, hd::schedule::named, Backend, Policies...>;
      tr::trainer<Model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
      const auto note = [&](double x) {
        if (world.rank() == 0) all.numbers.push_back(x);
      };
      trainer.run(samples{}, [&](const tr::step_report& report) {
        note(report.loss);
        note(report.gradient_norm);
      });
      note(trainer.validate(samples{}));
      auto& queue = hd::compute::queue_of(trainer.backend());
      std::vector<double>& state = all.state[static_cast<std::size_t>(world.rank())];
      const auto add = [&](auto row) {
        std::vector<double> values(static_cast<std::size_t>(row.size()));
        queue.copy(row, values);
        queue.wait();
        state.insert(state.end(), values.begin(), values.end());
      };
      for (int k = 0; k < trainer.stages(); ++k) {
        add(trainer.stage(k).weights());
        if constexpr (std::is_same_v<Model, hd::model::deepseek<double>>) {
          hd::model::balance_experts(trainer.stage(k), world, trainer.backend(), 0.125);
          add(trainer.stage(k).frozen_weights());
        }
        auto& optimizer = trainer.optimizer_state(k);
        if constexpr (requires { optimizer.moment(0); })  // of a model with one bucket of parameters
          for (int m = 0; m < optimizer.moments; ++m) add(optimizer.moment(m));
      }
    });
  } catch (const std::exception& e) {
    all.error = e.what();
  }
  return all;
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return 1e300;
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= 1e300)) return 1e300;
    most = (std::max)(most, std::abs(a[i] - b[i]) / (1 + std::abs(b[i])));
  }
  return most;
}

using gpt2 = hd::model::gpt2<double>;
constexpr hd::model::gpt2_config small_gpt2{
    .layers = 4, .heads = 4, .width = 8, .context = context, .vocabulary = words};
constexpr hd::model::llama_config small_llama{.layers = 2,
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .width = 12,
                                              .ffn = 7,
                                              .context = context,
                                              .vocabulary = words,
                                              .initial_deviation = 0.3,
                                              .head_elements = 4};
// Another family on these meshes: the losses, norms and weights of the host's training on the same mesh.
template <class Model>
void check_family(const typename Model::config& config, const std::vector<const char*>& meshes) {
  for (const char* mesh : meshes) {
    if (!ranks_can_be_threads && std::string(mesh) != "") continue;
    CAPTURE(mesh);
    const outcome expected = train<Model, host>(config, mesh, "1f1b"), got = train<Model, tested>(config, mesh, "1f1b");
    CHECK(expected.error == "");
    CHECK(got.error == "");
    REQUIRE(expected.numbers.size() == 9);
    CHECK(expected.numbers[0] > 1);
    CHECK(difference(got.numbers, expected.numbers) < 1e-10);
    for (std::size_t r = 0; r < expected.state.size(); ++r) CHECK(difference(got.state[r], expected.state[r]) < 1e-10);
  }
}

}  // namespace

TEST_CASE("rules of optimizers step on Kokkos as on the host", "[kokkos][ranks][train][optimizer]") {
  const auto check = [&]<class Rule>(Rule) {
    for (const char* mesh : {"", "dp=2,pp=2"}) {
      if (!ranks_can_be_threads && std::string(mesh) != "") continue;
      const outcome expected = train<gpt2, host, Rule>(small_gpt2, mesh, "1f1b");
      const outcome got = train<gpt2, tested, Rule>(small_gpt2, mesh, "1f1b");
      CHECK(got.error == "");
      REQUIRE(expected.numbers.size() == 9);
      CHECK(difference(got.numbers, expected.numbers) < 1e-10);
      for (std::size_t r = 0; r < expected.state.size(); ++r)
        CHECK(difference(got.state[r], expected.state[r]) < 1e-10);
    }
  };
  check(hd::optimizers::lion{});
  check(hd::optimizers::sgd{});
  check(hd::optimizers::muon{});
  check(hd::optimizers::adafactor{});
}

TEST_CASE("a Llama and a Qwen-3 train on Kokkos to the numbers of the host's", "[kokkos][ranks][train]") {
  check_family<hd::model::llama<double>>(small_llama, {"", "dp=2,pp=2,tp=2"});
  check_family<hd::model::qwen3<double>>(hd::model::qwen3_config(small_llama), {"", "pp=2,tp=2"});
}
TEST_CASE("a Mixtral trains on Kokkos to the numbers of the host's", "[kokkos][ranks][train]") {
  check_family<hd::model::mixtral<double>>({small_llama, 5, 2}, {"", "dp=2,pp=2"});
  // Rows travel along dp to their experts.
  namespace dim = hd::dim;
  using sent = hd::model::mixtral<double, hd::sharding<dim::split<dim::samples, dp>, dim::split<dim::experts, dp>,
                                                       dim::split<dim::heads, tp>, dim::split<dim::ffn, tp>>>;
  check_family<sent>({small_llama, 5, 2}, {"", "dp=3", "dp=2,pp=2"});
}

TEST_CASE("a DeepSeek-V3 trains on Kokkos to the numbers of the host's, and its experts are balanced alike",
          "[kokkos][ranks][train]") {
  auto config = hd::model::deepseek_tiny();
  config.context = context;
  config.vocabulary = words;
  config.initial_deviation = 0.3;
  check_family<hd::model::deepseek<double>>(config, {"", "dp=2,pp=2,tp=3"});
}

TEST_CASE("a GPT-2 trains on Kokkos to the numbers of the host's, on more ranks than cores", "[kokkos][ranks][train]") {
  for (const char* mesh : {"", "dp=3", "tp=2", "pp=2", "dp=2,pp=2,tp=2"}) {
    const std::string schedule = std::string(mesh) == "pp=2" ? "interleaved" : "1f1b";
    CAPTURE(mesh, schedule);
    const outcome expected = train<gpt2, host>(small_gpt2, mesh, schedule),
                  got = train<gpt2, tested>(small_gpt2, mesh, schedule);
    CHECK(expected.error == "");
    if (!ranks_can_be_threads && std::string(mesh) != "") {
      CHECK_THAT(got.error, Catch::Matchers::Contains("works only on the thread that called Kokkos::initialize"));
      continue;
    }
    CHECK(got.error == "");
    REQUIRE(expected.numbers.size() == 9);
    CHECK(expected.numbers[0] > 1);
    CHECK(expected.numbers[1] > 0.5);  // clipped
    CHECK(difference(got.numbers, expected.numbers) <= 1e-10);
    REQUIRE(got.state.size() == expected.state.size());
    for (std::size_t r = 0; r < got.state.size(); ++r) CHECK(difference(got.state[r], expected.state[r]) <= 1e-10);
  }
}

TEST_CASE("a GPT-2 trains by team kernels of Kokkos to the numbers of the host's", "[kokkos][ranks][train]") {
  using by_teams = hd::compute::kokkos<tested_space, hd::compute::teams<>>;
  for (const char* mesh : {"", "dp=2,tp=2"}) {
    if (!ranks_can_be_threads && std::string(mesh) != "") continue;
    CAPTURE(mesh);
    const outcome expected = train<gpt2, host>(small_gpt2, mesh, "1f1b"),
                  got = train<gpt2, by_teams>(small_gpt2, mesh, "1f1b");
    CHECK(got.error == "");
    REQUIRE(expected.numbers.size() == 9);
    CHECK(difference(got.numbers, expected.numbers) <= 1e-10);
    REQUIRE(got.state.size() == expected.state.size());
    for (std::size_t r = 0; r < got.state.size(); ++r) CHECK(difference(got.state[r], expected.state[r]) <= 1e-10);
  }
}
