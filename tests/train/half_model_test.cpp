// tests/train/half_model_test.cpp: models whose activations and weights are bf16, with gradients, master weights and moments in float.
#include "folder.hpp"
#include "random_tokens.hpp"

#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/mixed_optimizer.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace hd = heddle;
namespace tr = heddle::train;
using hd::bf16;

using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
constexpr hd::model::gpt2_config settings{.layers = 3, .heads = 2, .width = 12, .context = 6, .vocabulary = 29};
using tokens = train_test::random_tokens<settings.context, settings.vocabulary>;
// Random tokens, each with the one target that belongs to it: a loss that falls.
struct learnable_tokens : tokens {
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> in, std::span<std::int32_t> targets) const {
    tokens::fill_train(block, in, targets);
    for (std::size_t i = 0; i < in.size(); ++i) targets[i] = (7 * in[i] + 3) % settings.vocabulary;
  }
};

using half_strategy = hd::strategy<mesh_type, hd::zero<1>, hd::precision<hd::masters_in<float>, hd::moments_in<float>>>;
template <class T, class Strategy>
using trainer_of = tr::trainer<hd::model::gpt2<T>, Strategy, hd::world<hd::threads, mesh_type>>;

// Gradients are float without being asked for, and so are masters and moments.
using half_optimizer = trainer_of<bf16, half_strategy>::optimizer_type;
static_assert(std::is_same_v<half_optimizer::gradient_type, float> && half_optimizer::keeps_masters);
static_assert(std::is_same_v<tr::detail::optimizer_under<bf16, hd::strategy<mesh_type>>::master_type, float>);
static_assert(std::is_same_v<tr::detail::optimizer_under<bf16, hd::strategy<mesh_type>>::moment_type, float>);
static_assert(std::is_same_v<decltype(std::declval<trainer_of<bf16, half_strategy>::stage_type&>().gradients()),
                             std::span<float>>);

struct outcome {
  std::vector<double> losses;
  std::int64_t predicted = 0, held = 0;  // bytes of all ranks together
};

template <class T, class Strategy>
outcome train(const std::string& mesh, std::int64_t steps, const std::string& save_to = "",
              const std::string& resume_from = "") {
  tr::options<hd::model::gpt2_config> o;
  o.model = settings;
  o.batch = 6;
  o.microbatches = 2;
  o.steps = 50;
  o.clip_norm = 0.7;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 50};
  o.threads_per_rank = 1;
  outcome all;
  std::mutex guard;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh), [&](auto& world) {
    trainer_of<T, Strategy> trainer(world, o);
    if (!resume_from.empty()) static_cast<void>(tr::resume(trainer, resume_from));
    while (trainer.steps_done() < steps) {
      const tr::step_report r = trainer.step(learnable_tokens{});
      if (world.rank() == 0) all.losses.push_back(r.loss);
    }
    if (!save_to.empty()) tr::save(trainer, save_to);
    const auto predicted = tr::predicted_memory(trainer);
    const std::lock_guard lock(guard);
    all.predicted += predicted ? predicted->total() : -1;
    all.held +=
        trainer.parameter_memory().bytes().total() + trainer.activation_bytes().total() + trainer.boundary_bytes();
  });
  return all;
}

}  // namespace

TEST_CASE("a GPT-2 in bf16 learns as one in float on every mesh", "[train][bf16]") {
  const std::vector<double> expected = train<float, hd::strategy<mesh_type>>("", 50).losses;
  REQUIRE(expected.size() == 50);
  REQUIRE(expected.back() < 0.7 * expected.front());
  for (const char* mesh : {"", "dp=2", "pp=2", "tp=2", "dp=3,pp=2,tp=2"}) {
    CAPTURE(mesh);
    const outcome got = train<bf16, half_strategy>(mesh, 50);
    REQUIRE(got.losses.size() == expected.size());
    double worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
      worst = (std::max)(worst, std::abs(got.losses[i] - expected[i]) / expected[i]);
    CHECK(worst < 2e-2);
    CHECK(got.held == got.predicted);
  }
}

TEST_CASE("a GPT-2 in bf16 goes on from its save as if it had not stopped, on another mesh", "[train][bf16][save]") {
  const train_test::folder folder("half-model");
  const std::string path = folder.path.string();
  const std::vector<double> whole = train<bf16, half_strategy>("dp=2", 8, "", "").losses;
  static_cast<void>(train<bf16, half_strategy>("dp=2", 5, path));
  const std::vector<double> rest = train<bf16, half_strategy>("dp=2", 8, "", path).losses;
  REQUIRE(rest.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(rest[i] == whole[5 + i]);
  const std::vector<double> split = train<bf16, half_strategy>("pp=2,tp=2", 8, "", path).losses;
  for (std::size_t i = 0; i < 3; ++i) CHECK(std::abs(split[i] - whole[5 + i]) < 2e-2 * whole[5 + i]);
}
