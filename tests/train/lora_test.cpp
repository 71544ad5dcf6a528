// tests/train/lora_test.cpp: adapters trained on any mesh are those of one rank, what is frozen stays as it was, bit by bit, and the
// formula of memory counts neither gradients nor moments of it.
#include "catch.hpp"
#include "difference.hpp"
#include "folder.hpp"
#include "random_tokens.hpp"
#include "tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/model/with_lora.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>
#include <heddle/train/weights.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace sc = heddle::schedule;
using hd::dp, hd::pp, hd::tp;

namespace {

using train_test::relative_difference;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
// The head is the embedding, heads are normed: along tp norms are shared, along pp the embedding is on two ranks. Both are frozen.
constexpr md::lora_config<md::qwen3_config> settings{
    md::llama_config{.layers = 3, .heads = 6, .kv_heads = 2, .width = 24, .ffn = 29, .context = 7, .vocabulary = 61}, 5,
    10.0};
using model_type = md::with_lora<md::tied_qwen3<double>>;
using tokens = train_test::random_tokens<7, 61, 3>;
template <class World>
using trainer_of = hd::train::trainer<model_type, hd::strategy<mesh_type, sc::tabled, hd::zero<1>>, World>;

struct outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> adapters;
  int changed = 0;  // frozen elements that are not what they were
  std::int64_t frozen = 0;
};

void gather(std::map<std::string, std::vector<double>>& all, const std::vector<md::parameter>& table,
            std::span<const double> weights) {
  for (const md::parameter& p : table) {
    auto& whole = all[p.name];
    whole.resize(static_cast<std::size_t>(p.global_count()), 0.0);
    md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
      for (std::int64_t i = 0; i < length; ++i)
        whole[static_cast<std::size_t>(global + i)] = weights[static_cast<std::size_t>(p.offset + local + i)];
    });
  }
}

hd::train::options<md::lora_config<md::qwen3_config>> options() {
  hd::train::options<md::lora_config<md::qwen3_config>> o;
  o.model = settings;
  o.batch = 6;
  o.steps = 3;
  o.clip_norm = 0.02;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-2, .warmup_steps = 0, .total_steps = 3};
  o.threads_per_rank = 1;
  return o;
}

outcome train(const std::string& mesh_text, const std::string& schedule, int microbatches,
              const std::string& resumed_from = "", const std::string& saved_to = "") {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  const sc::tabled when(train_test::table_named(schedule, mesh.template extent<pp>(), microbatches));
  outcome all;
  std::mutex mutex;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    trainer_of<std::remove_reference_t<decltype(world)>> trainer(world, options(), when);
    std::vector<std::vector<double>> before;
    for (int k = 0; k < trainer.stages(); ++k) {
      const auto frozen = trainer.stage(k).frozen_weights();
      before.emplace_back(frozen.begin(), frozen.end());
    }
    if (!resumed_from.empty()) hd::train::resume(trainer, resumed_from);
    std::vector<double> losses, norms;
    while (trainer.steps_done() < 3) {
      const auto report = trainer.step(tokens{});
      losses.push_back(report.loss);
      norms.push_back(report.gradient_norm);
      if (!saved_to.empty() && trainer.steps_done() == 2) hd::train::save(trainer, saved_to);
    }
    losses.push_back(trainer.validate(tokens{}));
    const std::lock_guard lock(mutex);
    all.losses = losses;
    all.norms = norms;
    for (int k = 0; k < trainer.stages(); ++k) {
      gather(all.adapters, trainer.stage(k).parameters(), trainer.stage(k).weights());
      const auto frozen = trainer.stage(k).frozen_weights();
      for (std::size_t i = 0; i < frozen.size(); ++i)
        all.changed += !(frozen[i] == before[static_cast<std::size_t>(k)][i]);
      all.frozen += static_cast<std::int64_t>(frozen.size());
    }
  });
  return all;
}

void check_same(const outcome& got, const outcome& serial) {
  CHECK(relative_difference(got.losses, serial.losses) <= 1e-10);
  CHECK(relative_difference(got.norms, serial.norms) <= 1e-10);
  CHECK(got.changed == 0);
  CHECK(relative_difference(got.adapters, serial.adapters) <= 1e-10);
}

struct shape {
  static constexpr md::lora_config<md::qwen3_config> config = settings;
  static constexpr int stages = 2, tp = 2, dp = 2;
  static constexpr std::int64_t samples = 2;
};
struct shape_of_base : shape {
  static constexpr md::qwen3_config config = settings;
};

}  // namespace

TEST_CASE("adapters trained on any mesh are those of one rank, in double", "[train][lora][ranks]") {
  const outcome serial = train("", "1f1b", 1);
  REQUIRE(serial.adapters.size() == 3 * 7 * 2);
  REQUIRE(serial.norms[0] > 0.02);  // so that clipping is part of what is compared
  REQUIRE(std::abs(serial.losses[2] - serial.losses[0]) > 1e-6);
  CHECK(serial.changed == 0);
  CHECK(serial.frozen > 0);
  struct run {
    const char* mesh;
    const char* schedule;
    int microbatches;
  };
  // tp=3 leaves a rank without heads.
  for (const run& r : {run{"dp=2", "1f1b", 2}, run{"tp=2", "1f1b", 1}, run{"tp=3", "gpipe", 2}, run{"pp=2", "zb-h1", 3},
                       run{"dp=2,tp=2", "gpipe", 3}, run{"dp=2,pp=2,tp=2", "zb-h1", 3}}) {
    INFO("mesh '" << r.mesh << "', " << r.schedule << ", " << r.microbatches << " microbatches");
    check_same(train(r.mesh, r.schedule, r.microbatches), serial);
  }
}

TEST_CASE("a save of adapters is theirs alone, and goes on on another mesh", "[train][lora]") {
  const train_test::folder saves("lora");
  const outcome serial = train("", "1f1b", 1);
  train("dp=2,tp=2", "gpipe", 3, "", saves.path.string());
  const outcome resumed = train("pp=2", "1f1b", 2, saves.path.string());
  CHECK(resumed.losses.size() == 2);  // one step, and the validation
  CHECK(std::abs(resumed.losses[1] - serial.losses[3]) <= 1e-10);
  for (const auto& [name, values] : serial.adapters)
    CHECK(relative_difference(resumed.adapters.at(name), values) <= 1e-10);
  const hd::io::checkpoint_reader reader(hd::io::latest(saves.path).save->path);
  CHECK(reader.contains("weight/model.layers.0.mlp.up_proj.lora_A.weight"));
  CHECK_FALSE(reader.contains("weight/model.layers.0.mlp.up_proj.weight"));
  // Without a trainer, on a third mesh: those of step 2, saved once more, are read from both saves.
  const train_test::folder again("lora-again");
  std::map<std::string, std::vector<double>> read, copied;
  std::mutex mutex;
  hd::launch<hd::threads>(mesh_type(2, 1, 3), [&](auto& world) {
    hd::compute::host<> kernels{1};
    typename model_type::stage<std::remove_cvref_t<decltype(world)>, hd::compute::host<>> stage(
        settings, world, kernels, md::split_layers(3, 0, 1), 1, 1, 0);
    hd::train::read_weights(stage, reader);
    {
      const std::lock_guard lock(mutex);
      gather(read, stage.parameters(), stage.weights());
    }
    hd::train::save_weights(stage, world, again.path, {.step = 7});
    std::fill(stage.weights().begin(), stage.weights().end(), 0.0);
    hd::train::read_weights(stage, hd::io::checkpoint_reader(hd::io::latest(again.path).save->path));
    const std::lock_guard lock(mutex);
    gather(copied, stage.parameters(), stage.weights());
  });
  CHECK(read.size() == serial.adapters.size());
  CHECK(read == copied);
  std::vector<double> whole(5 * 24);
  reader.read<double>("weight/model.layers.0.mlp.up_proj.lora_A.weight", whole, {{5, 24}, {0, 0}, {5, 24}});
  CHECK(read.at("model.layers.0.mlp.up_proj.lora_A.weight") == whole);
}

TEST_CASE("the formula of memory shows what freezing saves", "[train][lora]") {
  using formula = hd::train::language_with_state<model_type, shape>;
  using full = hd::train::language_with_state<md::tied_qwen3<double>, shape_of_base>;
  for (const int stage : {0, 1}) {
    CAPTURE(stage);
    CHECK(formula::frozen_bytes(stage) == full::weight_bytes(stage));
    CHECK(full::frozen_bytes(stage) == 0);
    CHECK(formula::moment_bytes(stage) < full::moment_bytes(stage));
    CHECK(formula::state_bytes(stage) < full::state_bytes(stage));
  }
  const sc::tabled when(train_test::table_named("zb-h1", 2, 3));
  CHECK_NOTHROW(hd::launch<hd::threads>(mesh_type(2, 2, 2), [&](auto& world) {
    auto o = options();
    o.batch = 12;
    trainer_of<std::remove_reference_t<decltype(world)>> trainer(world, o, when);
    if (world.template coordinate<tp>() + world.template coordinate<dp>() != 0) return;  // the first has the most
    const auto plan = trainer.plan();
    const int rank = trainer.pipeline_group().rank(), s = trainer.held().index;
    const std::int64_t expected =
        plan.storage.buffers(rank) * formula{}.boundary_bytes() +
        plan.storage.slots(s) * formula{}.activation_bytes(s) + formula{}.resident_bytes(s) +
        hd::train::detail::most_deferred(plan.table.list(rank), s) * formula{}.deferred_bytes(s);
    if (hd::train::bytes_held(trainer) != expected)
      throw hd::error("rank " + std::to_string(world.rank()) + " holds " +
                      std::to_string(hd::train::bytes_held(trainer)) + " bytes, the formula says " +
                      std::to_string(expected));
  }));
}
