// Trains a model of Hugging Face on a text across a mesh of dp x pp x tp ranks, whole or by low-rank adapters, and writes it back.
// run: --model @SOURCE_DIR@/tests/golden/models/bytes --text @SOURCE_DIR@/README.md --bytes --out out --mesh dp=2,tp=2 --steps 40 --lr 0.02 --lora-rank 4 --context 32
// prints: llama  2 layers of width 12, adapters of rank 4: 1464 of 6972 parameters are trained
// prints: after   validation loss
// prints: merged into 'out', adapters in 'out/adapter'
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/json/safetensors.hpp>
#include <heddle/io/tokenizer/load.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/json/hugging_face_weights.hpp>
#include <heddle/model/with_lora.hpp>
#include <heddle/train/json/lora_adapter.hpp>
#include <heddle/train/make_trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include "text_tokens.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
namespace md = heddle::model;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using strategy = hd::strategy<mesh_type, hd::schedule::named, hd::zero<1>, hd::compute::host<HEDDLE_GEMM>>;

namespace {

struct settings {
  std::string model, text, out, mesh = "dp=1";
  std::int64_t steps = 100, batch = 8, most_bytes = 5000000000;
  int microbatches = 1, rank = 0, context = 128, print_every = 10;
  double lr = 1e-4, alpha = 0;
  std::uint64_t seed = 1;
  bool bytes = false;
};

template <class Model, class Config>
void finetune(const settings& s, const md::hugging_face_model& about, const Config& config, const std::string& dtype) {
  constexpr bool adapts = requires { config.adapter_rank; };
  const auto described = Model::describe(config);
  const auto kept = adapts ? md::which_parameters::frozen : md::which_parameters::all;  // of the model itself
  const auto [folder, names] = md::open_weights<io::safetensors_folder>(s.model, about, described);
  std::vector<md::parameter_outline> outlines;
  std::int64_t all = 0, trained = 0;
  for (md::parameter_outline& p : md::parameter_outlines(described)) {
    const bool adapter = p.name.find(".lora_") != std::string::npos;
    std::int64_t n = 1;
    for (const std::int64_t e : p.shape) n *= e;
    all += n;
    if (adapter || !adapts) trained += n;
    if (!adapter) outlines.push_back(std::move(p));
  }
  const auto plan = hd::train::hugging_face_plan(outlines, names, dtype, s.most_bytes);
  std::printf("%s  %d layers of width %d, %s: %lld of %lld parameters are trained\n",
              std::string(about.family()).c_str(), config.layers, config.width,
              adapts ? ("adapters of rank " + std::to_string(s.rank)).c_str() : "whole",
              static_cast<long long>(trained), static_cast<long long>(all));
  const auto tokens = text_tokens(s.model, s.text, config.vocabulary, s.bytes);
  const io::basic_dataset<std::int32_t> data(tokens, {.context = config.context, .batch = s.batch, .seed = s.seed});

  hd::train::options<Config> options;
  options.model = config;
  options.batch = s.batch;
  options.microbatches = s.microbatches;
  options.steps = s.steps;
  options.learning_rate = {.peak = s.lr,
                           .minimum = s.lr / 10,
                           .warmup_steps = s.steps / 20,
                           .total_steps = (std::max)(s.steps, std::int64_t{1})};
  options.seed = s.seed;
  hd::train::copy_model_files(s.model, s.out);
  hd::launch_options ranks;
  ranks.timeout =
      std::chrono::milliseconds(0);  // a rank may wait as long as others compute, which is minutes on a slow machine
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(s.mesh), ranks, [&](auto& world) {
    const bool speaks = world.rank() == 0;
    auto trainer = hd::train::make_trainer<strategy>(Model{}, world, options);
    const io::safetensors_reader weights(folder);
    const auto each_stage = [&](auto&& work) {
      for (int k = 0; k < trainer.stages(); ++k) work(trainer.stage(k));
    };
    each_stage([&](auto& stage) { md::read_parameters(stage, weights, names, kept); });
    const auto validate = [&](const char* when) {
      const double loss = trainer.validate(data);
      if (speaks) std::printf("%s validation loss %.6f\n", when, loss);
    };
    validate("before ");
    trainer.run(data, [&](const hd::train::step_report& r) {
      if (speaks && (r.step == 0 || r.step + 1 == r.steps || (r.step + 1) % s.print_every == 0))
        std::printf("%s\n", hd::train::to_string(r).c_str()), std::fflush(stdout);
    });
    validate("after  ");
    const auto write = [&](auto& sink, const auto& named, md::which_parameters which) {
      each_stage([&](auto& stage) { md::write_parameters(stage, world, sink, named, which); });
    };
    if constexpr (adapts) {
      hd::train::write_adapter(
          world, std::filesystem::path(s.out) / "adapter", described, config, s.model, names, about.family() == "gpt2",
          [&](auto& sink, const auto& named) { write(sink, named, md::which_parameters::trained); });
      each_stage([](auto& stage) { stage.merge_adapters(); });
    }
    hd::train::write_together(world, s.out, plan, [&](auto& sink) { write(sink, names, kept); });
  });
  std::printf("%s '%s'%s\n", adapts ? "merged into" : "wrote", s.out.c_str(),
              adapts ? (", adapters in '" + s.out + "/adapter'").c_str() : "");
}

template <class Model, class Config>
void finetune_either(const settings& s, const md::hugging_face_model& about, Config config, const std::string& dtype) {
  if constexpr (std::is_base_of_v<md::llama_config, Config>) config.context = (std::min)(config.context, s.context);
  if (s.rank > 0)
    finetune<md::with_lora<Model>>(
        s, about, md::lora_config<Config>{config, s.rank, s.alpha > 0 ? s.alpha : 2.0 * s.rank}, dtype);
  else
    finetune<Model>(s, about, config, dtype);
}

void run(const settings& s) {
  const auto path = std::filesystem::path(s.model) / "config.json";
  const nlohmann::json config = io::read_json(path);
  const auto about = md::from_config(config, "'" + path.string() + "'");
  // Each family is a trainer, whole and with adapters, that takes a compiler ten seconds and more: further ones on demand.
  const auto with = [&]<class Model>(std::type_identity<Model>, const auto& c) {
    finetune_either<Model>(s, about, c, hd::train::dtype_in_config(config));
  };
#if defined(HEDDLE_EXAMPLE_ALL_FAMILIES)
  md::with_model<float>(about, with);
#else
  if (const auto* const gpt2 = std::get_if<md::gpt2_config>(&about.config))
    with(std::type_identity<md::gpt2<float>>{}, *gpt2);
  else if (const auto* const llama = std::get_if<md::llama_config>(&about.config); llama != nullptr && about.tied)
    with(std::type_identity<md::tied_llama<float>>{}, *llama);
  else if (llama != nullptr)
    with(std::type_identity<md::llama<float>>{}, *llama);
  else
    throw hd::config_error("heddle: this program was compiled for gpt2 and llama, the model is " +
                           std::string(about.family()) + "; define HEDDLE_EXAMPLE_ALL_FAMILIES to compile it for all");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  CLI::App app("Trains a model of Hugging Face on a text, whole or by low-rank adapters, and writes it back.");
  app.add_option("--model", s.model, "folder with config.json and safetensors")->required();
  app.add_option("--text", s.text, "file, or folder of text files")->required();
  app.add_flag("--bytes", s.bytes, bytes_help);
  app.add_option("--out", s.out, "folder to write")->required();
  app.add_option("--mesh", s.mesh, "ranks along dp, pp and tp, as in pp=2,tp=2")->capture_default_str();
  app.add_option("--steps", s.steps)->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--lr", s.lr, "the greatest learning rate")->capture_default_str();
  app.add_option("--lora-rank", s.rank, "of adapters; 0: all weights are trained")->check(CLI::NonNegativeNumber);
  app.add_option("--lora-alpha", s.alpha, "adapters count alpha / rank times; 0: twice the rank");
  app.add_option("--batch", s.batch, "samples per step")->capture_default_str();
  app.add_option("--microbatches", s.microbatches, "per dp rank")->capture_default_str();
  app.add_option("--context", s.context, "tokens per sample, at most (GPT-2: the model's)")->capture_default_str();
  app.add_option("--seed", s.seed, "of adapters and of the order of samples")->capture_default_str();
  app.add_option("--max-file-bytes", s.most_bytes, "of weights in a safetensors file")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(s);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
