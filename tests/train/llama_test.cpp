// tests/train/llama_test.cpp: the trainer on further families: any mesh, schedule and policy trains the Llama of one rank, and the
// Qwen-3, whose norms of heads are a bucket of their own.
#include "language_training.hpp"

#include <heddle/model/llama.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/atomized.hpp>

#include <cmath>

using namespace language_training;

namespace {

// Two key-value heads of three query heads each; 29 hidden units and 61 words divide by nothing.
constexpr md::llama_config settings{
    .layers = 3, .heads = 6, .kv_heads = 2, .width = 24, .ffn = 29, .context = 7, .vocabulary = 61};
using tokens = random_tokens<settings.context, settings.vocabulary, 3>;
template <class Model = md::llama<double>>
outcome train(const std::string& mesh, const std::string& schedule, int microbatches, const std::string& again = "") {
  return language_training::train<Model, tokens>(settings, mesh, schedule, microbatches, again);
}

struct shape {
  static constexpr md::llama_config config = settings;
  static constexpr int stages = 2, tp = 2;
  static constexpr std::int64_t samples = 3;
};

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
  const sc::tabled when(table_named("1f1b", 2, 2));
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
  const sc::tabled when(table_named("zb-h1", 2, 2));
  CHECK_NOTHROW(hd::launch<hd::threads>(mesh_type(1, 2, 2), [&](auto& world) {
    trainer_of<std::remove_reference_t<decltype(world)>, md::llama<double>> trainer(world, o, when);
    if (world.template coordinate<tp>() != 0) return;  // the first rank along tp has the most
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
