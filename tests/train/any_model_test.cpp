// tests/train/any_model_test.cpp: a trainer of a model whose family is known at run time has the bits, and the saves, of one of the model's own type.
#include "catch.hpp"
#include "folder.hpp"
#include "random_tokens.hpp"
#include "tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/any_model.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/model/with_lora.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/activations/file_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/offload_if_told.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace sc = heddle::schedule;
using hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<hd::ep>, hd::axis<tp>>;
using backend = hd::compute::host<HEDDLE_GEMM>;
using tokens = train_test::random_tokens<7, 61, 3>;

constexpr md::gpt2_config gpt2{.layers = 3, .heads = 6, .width = 24, .context = 7, .vocabulary = 61};
// The head is the embedding, and along tp norms and matrices of adapters are shared.
constexpr md::llama_config shape{
    .layers = 3, .heads = 6, .kv_heads = 2, .width = 24, .ffn = 29, .context = 7, .vocabulary = 61};

struct outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> weights;  // what is trained, by name and rank
  friend bool operator==(const outcome&, const outcome&) = default;
};

template <class Model, class Zero = hd::zero<1>, class Activations = hd::activations::keep, class Config>
outcome train(const Config& config, const std::string& mesh_text, const std::string& schedule, int microbatches,
              const std::string& resumed_from = "", const std::string& saved_to = "",
              const std::vector<std::string>& offloaded_to = {}, std::int64_t* offloaded = nullptr) {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  const sc::tabled when(train_test::table_named(schedule, mesh.template extent<pp>(), microbatches));
  hd::train::options<Config> options;
  options.model = config;
  options.batch = 6;
  options.steps = 4;
  options.clip_norm = 0.02;
  options.learning_rate = {.peak = 1e-2, .minimum = 1e-2, .warmup_steps = 0, .total_steps = 4};
  options.threads_per_rank = 1;
  options.offload.store.directories = offloaded_to;
  options.offload.verify = true;
  outcome all;
  std::mutex mutex;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    hd::train::trainer<Model, hd::strategy<mesh_type, sc::tabled, Zero, backend, Activations>, world_type> trainer(
        world, options, when);
    if (!resumed_from.empty()) hd::train::resume(trainer, resumed_from);
    std::vector<double> losses, norms;
    while (trainer.steps_done() < options.steps) {
      const auto report = trainer.step(tokens{});
      losses.push_back(report.loss);
      norms.push_back(report.gradient_norm);
      if (!saved_to.empty() && trainer.steps_done() == 2) hd::train::save(trainer, saved_to);
    }
    losses.push_back(trainer.validate(tokens{}));
    std::map<std::string, std::vector<float>> weights;
    trainer.parameter_memory().with_weights([&] {
      for (int k = 0; k < trainer.stages(); ++k)
        for (const md::parameter& p : trainer.stage(k).parameters()) {
          const auto at =
              trainer.stage(k).weights().subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
          weights[p.name + " " + std::to_string(world.rank())].assign(at.begin(), at.end());
        }
    });
    const std::lock_guard lock(mutex);
    if constexpr (!std::is_same_v<Activations, hd::activations::keep>)
      for (int k = 0; offloaded != nullptr && k < trainer.stages(); ++k)
        *offloaded += trainer.stage(k).saved_layers().report().tensors.stored;
    all.losses = losses;
    all.norms = norms;
    all.weights.merge(weights);
  });
  return all;
}

md::any_config any(const auto& config, int rank = 0, double alpha = 0, bool tied = true) {
  md::hugging_face_model about;
  about.config = config;
  about.tied = tied;
  return md::any_config(about, 0, rank, alpha);
}

}  // namespace

TEST_CASE("a trainer of any model has the bits of one of the model's type", "[train][any_model][ranks]") {
  for (const auto& [mesh, schedule, microbatches] : std::vector<std::tuple<std::string, std::string, int>>{
           {"", "1f1b", 1}, {"dp=2,tp=2", "1f1b", 1}, {"pp=3,tp=3", "zb-h1", 4}, {"dp=4,pp=2", "1f1b", 1}}) {
    CAPTURE(mesh, schedule);
    const outcome typed = train<md::gpt2<float>>(gpt2, mesh, schedule, microbatches);
    REQUIRE(typed.norms[0] > 0.02);
    CHECK((train<md::any_model<float>>(any(gpt2), mesh, schedule, microbatches) == typed));
  }
}

TEST_CASE("a trainer of any model with adapters has the bits, and the saves, of one of the model's type",
          "[train][any_model][lora][ranks]") {
  const md::lora_config<md::qwen3_config> settings{shape, 5, 10.0};
  using typed = md::with_lora<md::tied_qwen3<float>>;
  const auto config = any(md::qwen3_config(shape), 5, 10.0);
  CHECK(to_string(config) == to_string(settings));
  train_test::folder saves("any-model-saves"), others("any-model-others");
  const outcome whole = train<typed>(settings, "dp=2,pp=2,tp=2", "1f1b", 2, "", saves.path.string());
  REQUIRE(whole.weights.size() > 100);
  CHECK((train<md::any_model<float>>(config, "dp=2,pp=2,tp=2", "1f1b", 2, "", others.path.string()) == whole));
  // Each goes on from the other's save.
  const outcome from_typed = train<md::any_model<float>>(config, "dp=2,pp=2,tp=2", "1f1b", 2, saves.path.string());
  const outcome from_any = train<typed>(settings, "dp=2,pp=2,tp=2", "1f1b", 2, others.path.string());
  CHECK((from_typed == from_any));
  CHECK(from_typed.weights == whole.weights);
}

TEST_CASE("a head that is tied at run time has the bits, and the saves, of one that is tied by its type",
          "[train][any_model][ranks]") {
  using typed = md::tied_qwen3<float>;
  const md::qwen3_config config(shape);
  for (const auto& [mesh, schedule, microbatches] : std::vector<std::tuple<std::string, std::string, int>>{
           {"", "1f1b", 1}, {"pp=3,tp=3", "zb-h1", 4}, {"dp=2,pp=2", "zb-v", 2}}) {
    CAPTURE(mesh, schedule);
    const outcome tied = train<typed>(config, mesh, schedule, microbatches);
    CHECK((train<md::any_model<float>>(any(config), mesh, schedule, microbatches) == tied));
  }
  train_test::folder saves("any-model-tied"), others("any-model-tied-others");
  const outcome tied = train<typed>(config, "dp=2,pp=2,tp=2", "1f1b", 2, "", saves.path.string());
  CHECK((train<md::any_model<float>>(any(config), "dp=2,pp=2,tp=2", "1f1b", 2, "", others.path.string()) == tied));
  const outcome from_typed = train<md::any_model<float>>(any(config), "dp=2,pp=2", "1f1b", 2, saves.path.string());
  const outcome from_any = train<typed>(config, "dp=2,pp=2", "1f1b", 2, others.path.string());
  CHECK((from_typed == from_any));
  // A head of its own is another tensor.
  const outcome own = train<md::any_model<float>>(any(config, 0, 0, false), "dp=2,pp=2,tp=2", "1f1b", 2);
  CHECK(own.weights.size() == tied.weights.size());  // the head's rank had a copy of the embedding
  CHECK(own.weights.count("lm_head.weight 7") == 1);
  CHECK((own == train<md::qwen3<float>>(config, "dp=2,pp=2,tp=2", "1f1b", 2)));
  CHECK(tied.weights.count("lm_head.weight 7") == 0);
}

TEST_CASE("a trainer of any model lends weights and gradients", "[train][any_model][zero][ranks]") {
  const outcome kept = train<md::any_model<float>>(any(gpt2), "dp=3,pp=2", "1f1b", 2);
  CHECK((train<md::any_model<float>, hd::zero<3>>(any(gpt2), "dp=3,pp=2", "1f1b", 2) == kept));
}

TEST_CASE("experts on meshes with ep are trained by shards of zero<3>, and with adapters, as by whole weights",
          "[train][any_model][zero][lora][experts][ranks]") {
  const md::qwen3_moe_config mixture{md::mixtral_config(shape, 6, 2), true};
  for (const int rank : {0, 3})
    for (const char* mesh : {"ep=2", "dp=2,ep=3", "ep=2,tp=2"}) {
      CAPTURE(rank, mesh);
      const auto config = any(mixture, rank, 6);
      const outcome kept = train<md::any_model<float>>(config, mesh, "1f1b", 2);
      CHECK((train<md::any_model<float>, hd::zero<3>>(config, mesh, "1f1b", 2) == kept));
      const outcome alone = train<md::any_model<float>>(config, "", "1f1b", 2);
      for (std::size_t i = 0; i < alone.losses.size(); ++i)
        CHECK(kept.losses[i] == Approx(alone.losses[i]).epsilon(1e-5));
    }
  CHECK_THROWS_WITH(train<md::any_model<float>>(any(shape), "ep=2", "1f1b", 1),
                    Catch::Contains("ep=2 splits experts, and a llama has none"));
}

TEST_CASE("relatives of Llama are trained by shards of zero<3>, and with adapters, as by whole weights",
          "[train][any_model][zero][lora][ranks]") {
  md::phi3_config half(shape, 4, 2);
  half.longrope = {.count = 1, .original = 4, .table_factor = 1.2, .brief = {1.5}, .extended = {3}};
  const md::gemma3_config mixed(shape, 3, 2, 100, 5);
  const md::gemma2_config capped(shape, 3, 2, 5, 0.5, 1.5);
  const md::gpt_oss_config sinking(md::mixtral_config(shape, 6, 2), 3);
  for (const int rank : {0, 3})
    for (const md::any_config& config : {any(half, rank, 6), any(md::olmo2_config(shape), rank, 6, false),
                                         any(mixed, rank, 6), any(capped, rank, 6), any(sinking, rank, 6, false)})
      for (const char* mesh : {"dp=3,pp=2", "dp=2,tp=3"}) {
        CAPTURE(to_string(config), mesh);
        const outcome kept = train<md::any_model<float>>(config, mesh, "1f1b", 2);
        CHECK((train<md::any_model<float>, hd::zero<3>>(config, mesh, "1f1b", 2) == kept));
        const outcome alone = train<md::any_model<float>>(config, "", "1f1b", 2);
        for (std::size_t i = 0; i < alone.losses.size(); ++i)
          CHECK(kept.losses[i] == Approx(alone.losses[i]).epsilon(1e-5));
      }
}

TEST_CASE("a trainer of any model offloads activations where it is told folders, with the same bits",
          "[train][any_model][offload][ranks]") {
  namespace act = hd::activations;
  using policy =
      act::offload_if_told<act::offload<act::file_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>>>;
  const auto adapted = any(md::qwen3_config(shape), 5, 10.0);
  const std::vector<std::string> folder{std::filesystem::temp_directory_path().string()};
  for (const md::any_config& config : {any(gpt2), adapted}) {
    CAPTURE(to_string(config));
    std::int64_t stored = 0, none = 0;
    const outcome kept = train<md::any_model<float>>(config, "dp=2,pp=3", "1f1b", 3);
    CHECK(
        (train<md::any_model<float>, hd::zero<1>, policy>(config, "dp=2,pp=3", "1f1b", 3, "", "", {}, &none) == kept));
    CHECK(none == 0);
    CHECK((train<md::any_model<float>, hd::zero<1>, policy>(config, "dp=2,pp=3", "1f1b", 3, "", "", folder, &stored) ==
           kept));
    CHECK(stored > 0);
  }
}
