// tests/infer/families_golden_test.cpp: families without their types train and generate on every mesh as transformers do.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include "../model/golden_file.hpp"
#include "../train/tables.hpp"
#include "greedy_tokens.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/families.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/any_model.hpp>
#include <heddle/model/hugging_face/config.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

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
namespace md = heddle::model;
namespace inf = heddle::infer;
namespace sc = heddle::schedule;
using model_test::golden_file;
using model_test::relative_error;

using golden_mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::ep>, hd::axis<hd::tp>>;
using golden_world = hd::world<hd::threads, golden_mesh>;
using golden_backend = hd::compute::host<HEDDLE_GEMM>;

constexpr const char* golden_families[] = {"qwen3_moe", "smollm3", "granite", "phi3",    "llama_yarn",
                                           "olmo2",     "gemma3",  "gemma2",  "gpt_oss", "gpt2_untied"};

// Some meshes, and for families with experts those of an ep axis.
std::vector<std::string> golden_meshes(const std::string& family, std::vector<std::string> meshes) {
  if (family.starts_with("qwen3_moe") || family.starts_with("mixtral") || family.starts_with("deepseek") ||
      family.starts_with("gpt_oss"))
    meshes.insert(meshes.end(), {"ep=2", "ep=2,tp=2", "pp=2,ep=3"});
  return meshes;
}

golden_file family_golden(const std::string& family) {
  return golden_file(HEDDLE_SOURCE_DIR "/tests/golden/" + family + "_golden.bin");
}
md::any_config golden_config(const golden_file& golden) {
  const auto text = golden.ids("config.json");
  return md::any_config(md::from_config(nlohmann::json::parse(text.begin(), text.end())));
}

// The samples of a golden file's steps.
struct golden_samples {
  const golden_file* golden;
  std::int64_t length;
  std::int64_t context() const { return length; }
  std::int64_t validation_samples() const { return 0; }
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    const std::string at = "step" + std::to_string(block.first / 4 + 1);
    const auto first = static_cast<std::ptrdiff_t>(block.first % 4 * length);
    const auto all_tokens = golden->ids(at + ".tokens"), all_targets = golden->ids(at + ".targets");
    std::copy_n(all_tokens.begin() + first, tokens.size(), tokens.begin());
    std::copy_n(all_targets.begin() + first, targets.size(), targets.begin());
  }
  void fill_validation(hd::io::sample_block, std::span<std::int32_t>, std::span<std::int32_t>) const {}
};

// This rank's part of a whole tensor, and back.
template <class F>
void each_golden_place(const md::parameter& p, F&& f) {
  md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i)
      f(static_cast<std::size_t>(global + i), static_cast<std::size_t>(p.offset + local + i));
  });
}
template <class Stage>
void load_family_golden(Stage& stage, const golden_file& golden) {
  for (const md::parameter& p : stage.parameters()) {
    const auto& values = golden.at("initial." + p.name).values;
    each_golden_place(
        p, [&](std::size_t whole, std::size_t own) { stage.weights()[own] = static_cast<float>(values[whole]); });
  }
}

// The greatest difference of this rank's numbers from those of a whole tensor, relative to the tensor's greatest.
double error_of_part(const md::parameter& p, std::span<const float> own, const std::vector<double>& whole) {
  double worst = 0, greatest = 1e-300;
  for (const double x : whole) greatest = (std::max)(greatest, std::abs(x));
  each_golden_place(p, [&](std::size_t at, std::size_t mine) {
    const double error = std::abs(static_cast<double>(own[mine]) - whole[at]);
    if (!(error <= worst)) worst = error;  // a NaN stays
  });
  return worst / greatest;
}

}  // namespace

TEST_CASE("families without their types: logits, loss and gradients are those of transformers to 1e-5",
          "[infer][families][golden]") {
  for (const std::string family : golden_families) {
    CAPTURE(family);
    const golden_file golden = family_golden(family);
    const md::any_config config = golden_config(golden);
    std::vector<std::pair<std::string, double>> errors;
    double loss = 0, evaluated = 0;
    std::vector<float> logits(static_cast<std::size_t>(4 * config.vocabulary));
    hd::launch<hd::threads>(hd::parse_mesh<golden_mesh>(""), [&](golden_world& world) {
      golden_backend kernels(1);
      const auto stage = md::make_stage<float>(config, world, kernels, md::split_layers(config.layers, 0, 1), 1, 4);
      load_family_golden(*stage, golden);
      stage->weights_written();
      const auto tokens = golden.ids("step1.tokens"), targets = golden.ids("step1.targets");
      const md::batch<float> batch{tokens, targets, 4, 1.0f / static_cast<float>(targets.size())};
      stage->last_logits(batch, {}, {}, logits);
      stage->zero_gradients();
      stage->forward(0, batch, {}, {});
      loss = stage->loss_sum(0) / static_cast<double>(targets.size());
      evaluated = stage->forward_only(batch, {}, {}) / static_cast<double>(targets.size());
      stage->backward(0, batch, {}, {});
      for (const md::parameter& p : stage->parameters())
        errors.emplace_back(p.name,
                            error_of_part(p, stage->gradients(), golden.values("f32.step1.gradient." + p.name)));
    });
    CHECK(relative_error(logits, golden.values("f32.step1.last_logits")) < 1e-5);
    CHECK(loss == Approx(golden.values("f32.step1.loss")[0]).epsilon(1e-5));
    CHECK(evaluated == Approx(golden.values("f32.step1.loss")[0]).epsilon(1e-5));
    for (const auto& [name, error] : errors) {
      CAPTURE(name);
      CHECK(error < 1e-5);
    }
  }
}

TEST_CASE("families without their types: two steps on any mesh are those of transformers",
          "[infer][families][golden][ranks]") {
  for (const std::string family : golden_families) {
    const golden_file golden = family_golden(family);
    for (const std::string& mesh_text : golden_meshes(family, {"", "tp=2", "pp=2", "dp=2,tp=2"})) {
      CAPTURE(family, mesh_text);
      const auto mesh = hd::parse_mesh<golden_mesh>(mesh_text);
      const auto& o = golden.values("optimizer");
      hd::train::options<md::any_config> options;
      options.model = golden_config(golden);
      options.batch = 4;
      options.steps = 2;
      options.learning_rate = {.peak = o[0], .minimum = o[0], .warmup_steps = 0, .total_steps = 2};
      options.adamw = {.beta1 = o[1], .beta2 = o[2], .epsilon = o[3], .weight_decay = o[4], .rates = {}};
      options.clip_norm = o[5];
      options.threads_per_rank = 1;
      const sc::tabled when(train_test::table_named("1f1b", mesh.extent<hd::pp>(), 2));
      std::vector<double> losses, norms;
      double off = 0;
      std::mutex mutex;
      hd::launch<hd::threads>(mesh, [&](auto& world) {
        using world_type = std::remove_reference_t<decltype(world)>;
        hd::train::trainer<md::any_model<float>, hd::strategy<golden_mesh, sc::tabled, hd::zero<1>, golden_backend>,
                           world_type>
            trainer(world, options, when);
        load_family_golden(trainer.stage(0), golden);
        std::vector<double> own_losses, own_norms;
        for (int step = 0; step < 2; ++step) {
          const auto report = trainer.step(golden_samples{&golden, options.model.context});
          own_losses.push_back(report.loss);
          own_norms.push_back(report.gradient_norm);
        }
        double worst = 0;
        for (const md::parameter& p : trainer.stage(0).parameters())
          // Gradients of a GPT-2's key biases are 0 but for rounding, which AdamW divides by its own size.
          if (!p.name.ends_with(".c_attn.bias"))
            worst = (std::max)(
                worst, error_of_part(p, trainer.stage(0).weights(), golden.values("f32.step2.weight." + p.name)));
        const std::lock_guard lock(mutex);
        losses = own_losses;
        norms = own_norms;
        off = (std::max)(off, worst);
      });
      for (int step = 0; step < 2; ++step) {
        const std::string at = "f32.step" + std::to_string(step + 1) + ".";
        CHECK(losses[static_cast<std::size_t>(step)] == Approx(golden.values(at + "loss")[0]).epsilon(1e-5));
        CHECK(norms[static_cast<std::size_t>(step)] == Approx(golden.values(at + "gradient_norm")[0]).epsilon(1e-5));
      }
      CHECK(off < 1e-5);
    }
  }
}

TEST_CASE("families without their types generate greedily what transformers do", "[infer][families][golden][ranks]") {
  for (const std::string name :
       {"mixtral_four", "qwen3_moe", "qwen3_moe_plain", "smollm3", "granite", "granite_tied", "phi3", "phi3_window",
        "llama_yarn", "qwen2_yarn", "qwen3_dynamic", "olmo2", "gemma3", "gemma2", "gpt_oss", "gpt2_untied"}) {
    const std::string folder = HEDDLE_SOURCE_DIR "/tests/golden/models/" + name;
    const md::any_config config(md::from_config(hd::io::read_json(folder + "/config.json")));
    const auto expected = hd::io::read_json(folder + "/expected.json");
    const auto prompts = expected.at("samples").get<infer_test::token_lists>();
    const auto tokens = expected.at("generated").get<infer_test::token_lists>();
    md::any_config longer = config;
    std::visit([](auto& c) { c.context = 80; }, longer.of.config);
    longer.context = 80;
    const hd::io::safetensors_folder files(folder);
    for (const std::string& mesh : golden_meshes(name, {"", "tp=2", "pp=2", "pp=2,tp=2"})) {
      CAPTURE(name, mesh);
      infer_test::token_lists made;
      hd::launch<hd::threads>(hd::parse_mesh<golden_mesh>(mesh), [&](golden_world& world) {
        golden_backend kernels(1);
        const auto runner = inf::make_runner<float>(longer, world, kernels, {64, 5}, 64);
        const hd::io::safetensors_reader weights(files);
        md::read_parameters(runner->stage(), weights, md::names_in(files));
        if (runner->leads()) {
          made = infer_test::greedy_tokens(*runner, prompts, tokens[0].size());
          runner->finish();
        } else {
          runner->follow();
        }
      });
      CHECK(made == tokens);
    }
  }
}
#endif
