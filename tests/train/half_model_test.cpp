// tests/train/half_model_test.cpp: models whose activations and weights are bf16, with gradients, master weights and moments in float.
#include "folder.hpp"
#include "random_tokens.hpp"

#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/sharded_optimizer.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

namespace hd = heddle;
namespace tr = heddle::train;
using hd::bf16;

using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::ep>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
constexpr hd::model::gpt2_config settings{.layers = 3, .heads = 2, .width = 12, .context = 6, .vocabulary = 29};
using tokens = train_test::random_tokens<settings.context, settings.vocabulary>;
// Random tokens, each with the one target that belongs to it: a loss that falls.
struct learnable_tokens : tokens {
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> in, std::span<std::int32_t> targets) const {
    tokens::fill_train(block, in, targets);
    for (std::size_t i = 0; i < in.size(); ++i) targets[i] = (7 * in[i] + 3) % settings.vocabulary;
  }
};

using with_masters = hd::precision<hd::masters_in<float>, hd::moments_in<float>>;
using half_strategy = hd::strategy<mesh_type, hd::zero<1>, with_masters>;
template <int Stage>
using half_named = hd::strategy<mesh_type, hd::schedule::named, hd::zero<Stage>, with_masters>;
// Weights that are their own masters, rounded up or down at random, and gradients that are sent in bf16.
using narrow_strategy = hd::strategy<mesh_type, hd::zero<1>,
                                     hd::precision<hd::weights_in<bf16, hd::rounding::stochastic>, hd::masters_in<bf16>,
                                                   hd::gradients_in<bf16>, hd::moments_in<float>>>;
template <class Model, class Strategy>
using trainer_of = tr::trainer<Model, Strategy, hd::world<hd::threads, mesh_type>>;
template <class T>
using gpt2 = hd::model::gpt2<T>;
template <class T>
using llama = hd::model::llama<T>;
// Rows travel to the ranks of their experts.
template <class T>
using mixtral = hd::model::mixtral<T, hd::model::expert_parallel<>>;

// Gradients are float without being asked for, and so are masters and moments.
using half_optimizer = trainer_of<gpt2<bf16>, half_strategy>::optimizer_type;
static_assert(std::is_same_v<half_optimizer::gradient_type, float> && half_optimizer::keeps_masters);
static_assert(std::is_same_v<tr::detail::optimizer_under<bf16, hd::strategy<mesh_type>>::master_type, float>);
static_assert(std::is_same_v<tr::detail::optimizer_under<bf16, hd::strategy<mesh_type>>::moment_type, float>);
static_assert(std::is_same_v<decltype(std::declval<trainer_of<gpt2<bf16>, half_strategy>::stage_type&>().gradients()),
                             std::span<float>>);

struct outcome {
  std::vector<double> losses;
  std::int64_t predicted = 0, held = 0;       // bytes of all ranks together
  std::int64_t peak = 0, predicted_peak = 0;  // of weights, gradients and state
};

// Of the same sizes where the model is a Llama.
hd::model::gpt2_config config_of(std::type_identity<hd::model::gpt2_config>) {
  return settings;
}
hd::model::llama_config config_of(std::type_identity<hd::model::llama_config>) {
  return {.layers = 3, .heads = 2, .kv_heads = 2, .width = 12, .ffn = 20, .context = 6, .vocabulary = 29};
}
hd::model::mixtral_config config_of(std::type_identity<hd::model::mixtral_config>) {
  hd::model::mixtral_config c{config_of(std::type_identity<hd::model::llama_config>{}), 4, 2};
  c.balance = 0.01;
  return c;
}

template <class Model, class Strategy>
outcome train(const std::string& mesh, std::int64_t steps, const std::string& save_to = "",
              const std::string& resume_from = "", const std::string& schedule = "") {
  tr::options<typename Model::config> o;
  o.model = config_of(std::type_identity<typename Model::config>{});
  o.batch = 6;
  o.microbatches = 2;
  if (!schedule.empty()) o.schedule = schedule;
  o.steps = 50;
  o.clip_norm = 0.7;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 50};
  o.threads_per_rank = 1;
  outcome all;
  std::mutex guard;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh), [&](auto& world) {
    trainer_of<Model, Strategy> trainer(world, o);
    if (!resume_from.empty()) static_cast<void>(tr::resume(trainer, resume_from));
    while (trainer.steps_done() < steps) {
      const tr::step_report r = trainer.step(learnable_tokens{});
      if (world.rank() == 0) all.losses.push_back(r.loss);
    }
    if (!save_to.empty()) tr::save(trainer, save_to);
    const auto predicted = tr::predicted_memory(trainer);
    auto& memory = trainer.parameter_memory();
    const std::lock_guard lock(guard);
    all.peak += memory.peak_bytes();
    all.predicted_peak += memory.predicted_peak_bytes();
    all.predicted += predicted ? predicted->total() : -1;
    all.held += memory.bytes().total() + trainer.activation_bytes().total() + trainer.boundary_bytes();
  });
  return all;
}

// The largest difference, relative to what is expected, of as many losses.
double furthest(const std::vector<double>& got, const std::vector<double>& expected) {
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    worst = (std::max)(worst, std::abs(got[i] - expected[i]) / expected[i]);
  return worst;
}

}  // namespace

TEMPLATE_TEST_CASE("a model in bf16 learns as one in float on every mesh, in the bytes that were predicted",
                   "[train][bf16]", (std::pair<gpt2<float>, gpt2<bf16>>), (std::pair<llama<float>, llama<bf16>>)) {
  const std::vector<double> expected = train<typename TestType::first_type, hd::strategy<mesh_type>>("", 50).losses;
  REQUIRE(expected.size() == 50);
  REQUIRE(expected.back() < 0.7 * expected.front());
  for (const char* mesh : {"", "dp=2", "pp=2", "tp=2", "dp=3,pp=2,tp=2"}) {
    CAPTURE(mesh);
    const outcome got = train<typename TestType::second_type, half_strategy>(mesh, 50);
    REQUIRE(got.losses.size() == expected.size());
    CHECK(furthest(got.losses, expected) < 2e-2);
    CHECK(got.held == got.predicted);
  }
}

TEST_CASE("a mixture of experts in bf16 learns as one in float, whose rows travel to their experts in bf16",
          "[train][bf16][experts]") {
  const std::vector<double> expected = train<mixtral<float>, hd::strategy<mesh_type>>("", 50).losses;
  REQUIRE(expected.size() == 50);
  REQUIRE(expected.back() < 0.7 * expected.front());
  for (const char* mesh : {"", "ep=2", "pp=2,tp=2", "dp=3,ep=2"}) {
    CAPTURE(mesh);
    const outcome got = train<mixtral<bf16>, half_named<1>>(mesh, 50, "", "", "1f1b");
    REQUIRE(got.losses.size() == expected.size());
    CHECK(furthest(got.losses, expected) < 2e-2);
    CHECK(got.held == got.predicted);
    if (std::string(mesh) != "dp=3,ep=2") continue;
    const outcome shares = train<mixtral<bf16>, half_named<3>>(mesh, 50, "", "", "1f1b");
    CHECK(shares.losses == got.losses);
    CHECK(shares.held == shares.predicted);
  }
}

TEMPLATE_TEST_CASE("models in bf16 that keep shares of gradients and weights have the losses of those that keep all",
                   "[train][bf16][zero]", gpt2<bf16>, llama<bf16>) {
  constexpr std::int64_t steps = 5;
  struct place {
    const char *mesh, *schedule;
  };
  for (const place p :
       {place{"", "1f1b"}, place{"dp=3", "1f1b"}, place{"dp=2,pp=3", "interleaved"}, place{"dp=2,pp=2,tp=2", "zb-v"}}) {
    CAPTURE(p.mesh, p.schedule);
    const outcome expected = train<TestType, half_named<1>>(p.mesh, steps, "", "", p.schedule);
    REQUIRE(expected.losses.size() == steps);
    const auto check = [&](const outcome& got) {
      CHECK(got.losses == expected.losses);
      CHECK(got.held == got.predicted);
      CHECK(got.peak == got.predicted_peak);
    };
    check(train<TestType, half_named<2>>(p.mesh, steps, "", "", p.schedule));
    check(train<TestType, half_named<3>>(p.mesh, steps, "", "", p.schedule));
  }
}

TEST_CASE("a GPT-2 in bf16 without masters learns, its weights rounded stochastically", "[train][bf16]") {
  const std::vector<double> expected = train<gpt2<bf16>, half_strategy>("", 50).losses;
  const outcome got = train<gpt2<bf16>, narrow_strategy>("dp=2", 50);
  REQUIRE(got.losses.size() == 50);
  CHECK(std::abs(got.losses.back() - expected.back()) < 5e-2 * expected.back());
  CHECK(got.held == got.predicted);
}

TEST_CASE("a GPT-2 in bf16 goes on from its save as if it had not stopped, on another mesh", "[train][bf16][save]") {
  const train_test::folder folder("half-model");
  const std::string path = folder.path.string();
  const std::vector<double> whole = train<gpt2<bf16>, half_strategy>("dp=2", 8, "", "").losses;
  static_cast<void>(train<gpt2<bf16>, half_strategy>("dp=2", 5, path));
  const std::vector<double> rest = train<gpt2<bf16>, half_strategy>("dp=2", 8, "", path).losses;
  REQUIRE(rest.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(rest[i] == whole[5 + i]);
  const std::vector<double> split = train<gpt2<bf16>, half_strategy>("pp=2,tp=2", 8, "", path).losses;
  for (std::size_t i = 0; i < 3; ++i) CHECK(std::abs(split[i] - whole[5 + i]) < 2e-2 * whole[5 + i]);
  // And with shares of its weights, whose masters are saved, too.
  const std::vector<double> shares = train<gpt2<bf16>, half_named<3>>("dp=2", 8, path + "/shares", path).losses;
  const std::vector<double> again = train<gpt2<bf16>, half_named<1>>("dp=2", 10, "", path + "/shares").losses;
  const std::vector<double> longer = train<gpt2<bf16>, half_strategy>("dp=2", 10).losses;
  REQUIRE(again.size() == 2);
  for (std::size_t i = 0; i < 3; ++i) CHECK(shares[i] == whole[5 + i]);
  for (std::size_t i = 0; i < 2; ++i) CHECK(again[i] == longer[8 + i]);
}
