// Trains heads of Medusa for a model of Hugging Face on the model's own answers, and writes them with a tree, for generate and serve.
// run: --model @SOURCE_DIR@/tests/golden/models/bytes --text @SOURCE_DIR@/README.md --out heads --mesh dp=2,tp=2 --heads 2 --steps 20 --lr 0.01 --prompts 8 --answer 32 --context 24 --nodes 6
// prints: head 2: loss
// prints: wrote 2 heads and a tree of 6 nodes to 'heads'
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/head_accuracies.hpp>
#include <heddle/infer/json/medusa_folder.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/json/safetensors.hpp>
#include <heddle/io/tokenizer/load.hpp>  // of text_tokens.hpp
#include <heddle/mesh/parse.hpp>
#include <heddle/model/json/hugging_face_weights.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/model/with_medusa_head.hpp>
#include <heddle/train/further_targets.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include "text_tokens.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
namespace md = heddle::model;
namespace inf = heddle::infer;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using world_type = hd::world<hd::threads, mesh_type>;
using backend = hd::compute::host<HEDDLE_GEMM>;
using heads_type = inf::medusa_heads<float, backend>;

namespace {

struct settings {
  std::string model, text, out, mesh = "dp=1";
  std::int64_t heads = 4, steps = 200, batch = 8, prompts = 64, answer = 128, nodes = 16, ranks = 8;
  int context = 64;
  double lr = 1e-3;
  std::uint64_t seed = 1;
};

template <class Model, class Config>
void train(const settings& s, const md::hugging_face_model& about, const Config& config) {
  using runner_type = inf::model_runner<Model, world_type, backend>;
  const auto [folder, names] = md::open_weights<io::safetensors_folder>(s.model, about, Model::describe(config));
  const mesh_type mesh = hd::parse_mesh<mesh_type>(s.mesh);
  const auto text = text_tokens(s.model, s.text, config.vocabulary);
  constexpr std::int64_t prompt = 8, block = 16;
  const std::int64_t answer = (std::min)(s.answer, std::int64_t{config.context} - prompt);
  if (std::ssize(text) < prompt || answer <= s.heads + 1)
    throw hd::config_error("heddle: the text should have at least " + std::to_string(prompt) +
                           " tokens, and an answer more than " + std::to_string(s.heads + 1) + "; got " +
                           std::to_string(text.size()) + " and " + std::to_string(answer));
  hd::launch_options ranks;
  ranks.timeout =
      std::chrono::milliseconds(0);  // a rank may wait as long as others compute, which is minutes on a slow machine
  // Calls body(runner, kernels) on the rank that leads: on one of the meshes that split samples.
  const auto with_runner = [&](const std::function<void(runner_type&, backend&)>& body) {
    hd::launch<hd::threads>(mesh_type{1, mesh.extent<pp>(), mesh.extent<tp>()}, ranks, [&](world_type& world) {
      backend kernels{1};
      runner_type runner(config, world, kernels, {(answer + prompt + block) / block * 8, block}, 128);
      md::read_parameters(runner.stage(), io::safetensors_reader(folder), names);
      if (!runner.leads()) return runner.follow();
      body(runner, kernels);
      runner.finish();
    });
  };

  std::vector<std::vector<std::int32_t>> said;  // what the model goes on with where the text has been cut
  with_runner([&](runner_type& runner, backend&) {
    inf::engine<runner_type> engine(runner, {.max_running = 8});
    for (std::int64_t i = 0; i < s.prompts; ++i) {
      const auto from = text.begin() + i * (std::ssize(text) - prompt) / s.prompts;
      said.emplace_back(from, from + prompt);
      engine.submit({.prompt = said.back(), .max_tokens = answer, .sampling = {.temperature = 0}});
    }
    while (!engine.idle())
      for (const inf::event& e : engine.step())
        if (e.token) said[e.id - 1].push_back(*e.token);
  });
  std::vector<std::int32_t> tokens;
  for (const auto& t : said) tokens.insert(tokens.end(), t.begin(), t.end());
  std::printf("the model said %zu tokens\n", tokens.size());

  hd::train::options<Config> options;
  options.model = config;
  options.model.context = (std::min)(config.context, s.context);
  options.batch = s.batch;
  options.steps = s.steps;
  options.seed = s.seed;
  options.clip_norm = 1;
  options.learning_rate = {.peak = s.lr, .minimum = s.lr / 10, .warmup_steps = s.steps / 20, .total_steps = s.steps};
  const io::basic_dataset<std::int32_t> data(tokens,
                                             {.context = options.model.context, .batch = s.batch, .seed = s.seed});
  backend own{1};
  heads_type heads(own, s.heads, config.width, config.vocabulary, config.epsilon);
  std::mutex mutex;
  for (std::int64_t k = 0; k < s.heads; ++k)
    hd::launch<hd::threads>(mesh, ranks, [&](world_type& world) {
      using strategy = hd::strategy<mesh_type, hd::schedule::named, hd::zero<1>, backend>;
      hd::train::trainer<md::with_medusa_head<Model>, strategy, world_type> trainer(world, options);
      backend kernels{1};
      for (int i = 0; i < trainer.stages(); ++i) {
        inf::cached_stage<Model, world_type, backend> base(options.model, world, kernels, trainer.stage(i).layers(),
                                                           {1, 4}, 4);
        md::read_parameters(base, io::safetensors_reader(folder), names);
        md::begin_medusa_head(trainer.stage(i), base);
      }
      const hd::train::further_targets<io::basic_dataset<std::int32_t>> ahead{&data, k + 1};
      double first = 0, last = 0;
      for (std::int64_t i = 0; i < s.steps; ++i) {
        last = trainer.step(ahead).loss;
        if (i == 0) first = last;
      }
      const std::lock_guard lock(mutex);
      for (int i = 0; i < trainer.stages(); ++i) heads.take(k, trainer.stage(i));
      if (world.rank() == 0) std::printf("head %lld: loss %.3f to %.3f\n", static_cast<long long>(k + 1), first, last);
    });
  with_runner([&](runner_type& runner, backend&) {
    const auto right = inf::head_accuracies(runner, heads, said, (std::min)(s.ranks, std::int64_t{config.vocabulary}));
    const inf::token_tree tree = inf::token_tree::best(right, s.nodes);
    inf::write_medusa_folder(s.out, heads, tree);
    std::printf("wrote %lld heads and a tree of %lld nodes to '%s': %.2f tokens a step are expected\n",
                static_cast<long long>(s.heads), static_cast<long long>(tree.size()), s.out.c_str(),
                1 + tree.expected(right));
  });
}

void run(const settings& s) {
  const auto path = std::filesystem::path(s.model) / "config.json";
  const auto about = md::from_config(io::read_json(path), "'" + path.string() + "'");
  // Each family is a trainer that takes a compiler ten seconds and more: further ones on demand.
  const auto* const llama = std::get_if<md::llama_config>(&about.config);
  if (llama != nullptr && about.tied) return train<md::tied_llama<float>>(s, about, *llama);
  if (llama != nullptr) return train<md::llama<float>>(s, about, *llama);
#if defined(HEDDLE_EXAMPLE_ALL_FAMILIES)
  if (const auto* const c = std::get_if<md::qwen2_config>(&about.config))
    return about.tied ? train<md::tied_qwen2<float>>(s, about, *c) : train<md::qwen2<float>>(s, about, *c);
  if (const auto* const c = std::get_if<md::qwen3_config>(&about.config))
    return about.tied ? train<md::tied_qwen3<float>>(s, about, *c) : train<md::qwen3<float>>(s, about, *c);
#endif
  throw hd::config_error(
      "heddle: heads are trained for llama, and for qwen where HEDDLE_EXAMPLE_ALL_FAMILIES is "
      "defined; the model is " +
      std::string(about.family()));
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  CLI::App app("Trains heads of Medusa for a model of Hugging Face on the model's own answers.");
  app.add_option("--model", s.model, "folder with config.json and safetensors")->required();
  app.add_option("--text", s.text, "file, or folder of text files, that answers begin with")->required();
  app.add_option("--out", s.out, "folder to write")->required();
  app.add_option("--mesh", s.mesh, "ranks along dp, pp and tp, as in dp=2,tp=2")->capture_default_str();
  app.add_option("--heads", s.heads, "each predicts one token further")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--steps", s.steps, "of each head")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--lr", s.lr, "the greatest learning rate")->capture_default_str();
  app.add_option("--batch", s.batch, "samples per step")->capture_default_str();
  app.add_option("--context", s.context, "tokens per sample")->capture_default_str();
  app.add_option("--prompts", s.prompts, "places of the text")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--answer", s.answer, "tokens of the model at each")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--nodes", s.nodes, "of the tree")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--seed", s.seed, "of the order of samples")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(s);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
