// tests/train/llama_test.cpp: the trainer on further families: any mesh, schedule and policy trains the Llama of one rank, and the
// Qwen-3, whose norms of heads are a bucket of their own.
#include "catch.hpp"
#include "random_tokens.hpp"
#include "tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace sc = heddle::schedule;
using hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
// Two key-value heads of three query heads each; 29 hidden units and 61 words divide by nothing.
constexpr md::llama_config settings{
    .layers = 3, .heads = 6, .kv_heads = 2, .width = 24, .ffn = 29, .context = 7, .vocabulary = 61};
using tokens = train_test::random_tokens<settings.context, settings.vocabulary, 3>;
using recompute = hd::activations::recompute<>;
template <class World, class Model = md::llama<double>>
using trainer_of = hd::train::trainer<Model, hd::strategy<mesh_type, sc::tabled, hd::zero<3>, recompute>, World>;

struct outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights;
};

template <class Model = md::llama<double>>
outcome train(const std::string& mesh_text, const std::string& schedule, int microbatches,
              const std::string& again = "") {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  hd::train::options<typename Model::config> o;
  o.model = settings;
  o.batch = 7;
  o.steps = 3;
  o.clip_norm = 0.05;
  o.threads_per_rank = 1;
  o.recompute = again;
  const sc::tabled when(train_test::table_named(schedule, mesh.template extent<pp>(), microbatches));
  outcome all;
  std::mutex mutex;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    trainer_of<std::remove_reference_t<decltype(world)>, Model> trainer(world, o, when);
    std::vector<double> losses, norms;
    for (int step = 0; step < 3; ++step) {
      const auto report = trainer.step(tokens{});
      losses.push_back(report.loss);
      norms.push_back(report.gradient_norm);
    }
    losses.push_back(trainer.validate(tokens{}));
    const std::lock_guard lock(mutex);
    all.losses = losses;
    all.norms = norms;
    for (int k = 0; k < trainer.stages(); ++k)
      hd::train::detail::for_each_bucket(
          trainer.stage(k), trainer.optimizer_state(k), [&](auto& part, auto& state, auto) {
            const auto share = state.weights_of(part);
            for (const md::parameter& p : part.parameters()) {
              auto& whole = all.weights[p.name];
              whole.resize(static_cast<std::size_t>(p.global_count()), 0.0);
              md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
                for (std::int64_t i = 0; i < length; ++i)
                  if (const std::int64_t at = p.offset + local + i; at >= state.owned_begin() && at < state.owned_end())
                    whole[static_cast<std::size_t>(global + i)] =
                        share[static_cast<std::size_t>(at - state.owned_begin())];
              });
            }
          });
  });
  return all;
}

struct shape {
  static constexpr md::llama_config config = settings;
  static constexpr int stages = 2, tp = 2;
  static constexpr std::int64_t samples = 3;
};

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return 1e300;
  double worst = 0, greatest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (std::isnan(d) || d > worst) worst = d;  // a NaN stays
    greatest = (std::max)(greatest, std::abs(b[i]));
  }
  return worst / greatest;
}

void check_same(const outcome& got, const outcome& serial) {
  CHECK(difference(got.losses, serial.losses) <= 1e-10);
  CHECK(difference(got.norms, serial.norms) <= 1e-10);
  REQUIRE(got.weights.size() == serial.weights.size());
  double worst = 0;
  for (const auto& [name, values] : serial.weights) {
    const double d = difference(got.weights.at(name), values);
    if (std::isnan(d) || d > worst) worst = d;
  }
  CHECK(worst <= 1e-10);
}

}  // namespace

TEST_CASE("a Llama trained on any mesh is that of one rank, in double", "[train][llama][ranks]") {
  const outcome serial = train("", "1f1b", 1);
  REQUIRE(serial.weights.size() == 1 + 3 * 9 + 2);
  REQUIRE(serial.weights.at("lm_head.weight").size() == 61 * 24);
  REQUIRE(serial.norms[0] > 0.05);  // so that clipping is part of what is compared
  REQUIRE(std::abs(serial.losses[2] - serial.losses[0]) > 1e-6);
  struct run {
    const char* mesh;
    const char* schedule;
    int microbatches;
    const char* again;
  };
  // tp=3 leaves a rank without heads.
  for (const run& r :
       {run{"dp=2", "1f1b", 2, ""}, run{"tp=2", "1f1b", 1, "mlp.hidden,attn.qkv"}, run{"tp=3", "gpipe", 2, ""},
        run{"pp=2", "zb-h1", 4, ""}, run{"pp=3", "zb-h1", 3, "every 2,mlp.activated"},
        run{"dp=2,tp=2", "gpipe", 2, "full"}, run{"pp=2,tp=2", "zb-h1", 2, "ln_1.out,mid,head.logits"},
        run{"dp=3,pp=2", "1f1b", 2, ""}, run{"dp=2,pp=2,tp=2", "zb-h1", 2, "full"}}) {
    INFO("mesh '" << r.mesh << "', " << r.schedule << ", " << r.microbatches << " microbatches, again '" << r.again
                  << "'");
    check_same(train(r.mesh, r.schedule, r.microbatches, r.again), serial);
  }
}

TEST_CASE("a Qwen-3 trained on any mesh is that of one rank, in double", "[train][qwen][ranks]") {
  using model = md::qwen3<double>;
  const outcome serial = train<model>("", "1f1b", 1);
  REQUIRE(serial.weights.size() == 1 + 3 * 11 + 2);
  REQUIRE(serial.weights.at("model.layers.1.self_attn.k_norm.weight").size() == 4);
  REQUIRE(serial.norms[0] > 0.05);
  check_same(train<model>("dp=2", "1f1b", 2), serial);
  check_same(train<model>("tp=3", "gpipe", 1, "attn.qkv"), serial);  // leaves a rank without heads
  check_same(train<model>("pp=2,tp=2", "zb-h1", 2, "full"), serial);
  check_same(train<model>("dp=2,pp=2,tp=2", "zb-h1", 2), serial);
}

namespace {
struct sharing_shape {
  static constexpr md::qwen3_config config = settings;
  static constexpr int stages = 2, tp = 2, dp = 3;
  static constexpr std::int64_t samples = 3;
};
}  // namespace

TEST_CASE("each bucket of a Qwen-3 has its own ranks in the formula of memory", "[train][qwen]") {
  using formula = hd::train::language_with_state<md::qwen3<double>, sharing_shape, hd::zero<3>>;
  hd::train::options<md::qwen3_config> o;
  o.model = settings;
  o.batch = 6;
  o.threads_per_rank = 1;
  const sc::tabled when(train_test::table_named("1f1b", 2, 2));
  std::mutex mutex;
  std::map<int, std::int64_t> moments;
  hd::launch<hd::threads>(mesh_type(3, 2, 2), [&](auto& world) {
    trainer_of<std::remove_reference_t<decltype(world)>, md::qwen3<double>> trainer(world, o, when);
    if (world.template coordinate<tp>() + world.template coordinate<dp>() != 0) return;
    const std::lock_guard lock(mutex);
    moments[trainer.held().index] = trainer.optimizer_state().state_bytes();
  });
  CHECK(moments == std::map<int, std::int64_t>{{0, formula::moment_bytes(0)}, {1, formula::moment_bytes(1)}});
}

TEST_CASE("the memory of a Llama's stages is what the formula says", "[train][llama]") {
  using formula = hd::train::language_with_state<md::llama<double>, shape>;
  hd::train::options<md::llama_config> o;
  o.model = settings;
  o.batch = 6;
  o.threads_per_rank = 1;
  const sc::tabled when(train_test::table_named("zb-h1", 2, 2));
  CHECK_NOTHROW(hd::launch<hd::threads>(mesh_type(1, 2, 2), [&](auto& world) {
    trainer_of<std::remove_reference_t<decltype(world)>> trainer(world, o, when);
    if (world.template coordinate<tp>() != 0) return;  // the first rank along tp has the most
    const auto plan = trainer.plan();
    const int rank = trainer.pp_group().rank(), s = trainer.held().index;
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
