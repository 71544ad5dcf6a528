// Trains heads of Medusa, or a drafter of Falcon, for a model of Hugging Face on the model's own answers, and writes them with a tree, for generate and serve.
// run: --model @SOURCE_DIR@/tests/golden/models/bytes --text @SOURCE_DIR@/README.md --bytes --out heads --mesh dp=2,tp=2 --heads 2 --steps 20 --lr 0.01 --prompts 8 --answer 32 --context 24 --nodes 6
// prints: head 2: loss
// prints: wrote 2 heads and a tree of 6 nodes to 'heads'
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/cached_stage.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/falcon_calibration.hpp>
#include <heddle/infer/falcon_folder.hpp>
#include <heddle/infer/families.hpp>
#include <heddle/infer/head_accuracies.hpp>
#include <heddle/infer/medusa_folder.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/save_folder.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/falcon_drafter.hpp>
#include <heddle/model/feature_text.hpp>
#include <heddle/model/hugging_face/weights.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/model/with_medusa_head.hpp>
#include <heddle/model/with_model.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/further_targets.hpp>
#include <heddle/train/glancing_distillation.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include "model_folder.hpp"
#include "text_tokens.hpp"
#include "tool.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
namespace md = heddle::model;
namespace inf = heddle::infer;
using hd::ep, hd::pp, hd::tp;
using world_type = hd::world<hd::threads, tool_mesh>;
using backend = hd::compute::host<HEDDLE_GEMM>;
using heads_type = inf::medusa_heads<float, backend>;
using drafter_type = md::falcon_drafter<float, backend>;
using texts = std::vector<std::vector<std::int32_t>>;

namespace {

struct settings {
  std::string model, text, out, mesh = "dp=1";
  std::vector<std::string> ignored_keys;
  std::int64_t heads = 4, steps = 200, batch = 8, prompts = 64, answer = 128, nodes = 16, ranks = 8;
  std::int64_t block = 2, passes = 3;  // of a drafter
  int context = 64;
  double lr = 1e-3, dropout = 0.1;
  bool falcon = false, bytes = false;
  std::uint64_t seed = 1;
};

// Positions that a drafter has tables for.
constexpr std::int64_t longest_of_drafter = 4096;

// Sizes of a drafter for a model: as many heads, or fewer where its width has no even number of elements for each; a context of at most `longest_of_drafter`.
template <class Config>
md::falcon_shape drafter_shape(const settings& s, const Config& config) {
  md::falcon_shape shape{.width = config.width,
                         .heads = config.heads,
                         .ffn = config.ffn,
                         .vocabulary = config.vocabulary,
                         .block = s.block,
                         .context = (std::min)(std::int64_t{config.context}, longest_of_drafter),
                         .epsilon = config.epsilon};
  while (shape.heads > 1 && shape.width % (2 * shape.heads) != 0) --shape.heads;
  return shape;
}

// Trains on pieces of texts of one length, as many steps as a head has, on this rank.
void distill(const settings& s, const std::vector<md::feature_text<float>>& whole, drafter_type& drafter,
             backend& kernels) {
  const std::int64_t k = s.block, width = drafter.shape().width;
  std::vector<md::feature_text<float>> pieces;
  const std::int64_t said = std::ssize(whole[0].tokens);
  const std::int64_t rows = (std::min)(std::int64_t{s.context}, said - k - 1) / k * k, length = rows + k + 1;
  if (rows < k)
    throw hd::config_error("heddle: a drafter of blocks of " + std::to_string(k) + " learns from samples of at least " +
                           std::to_string(k) + " tokens and texts of at least " + std::to_string(2 * k + 1) +
                           "; got --context " + std::to_string(s.context) + " and texts of " + std::to_string(said));
  for (const auto& t : whole)
    for (std::int64_t at = 0; at + length <= std::ssize(t.tokens); at += rows)
      pieces.push_back({{t.tokens.begin() + at, t.tokens.begin() + at + length},
                        {t.features.begin() + at * width, t.features.begin() + (at + length) * width}});
  const std::int64_t per_epoch = (std::ssize(pieces) + s.batch - 1) / s.batch,
                     epochs = (s.steps + per_epoch - 1) / per_epoch, steps = epochs * per_epoch;
  drafter.initialize(s.seed, 0.05);
  hd::train::glancing_distillation train(
      drafter, kernels,
      {.epochs = epochs,
       .batch = s.batch,
       .learning_rate = {.peak = s.lr, .minimum = s.lr / 10, .warmup_steps = steps / 20, .total_steps = steps},
       .dropout = s.dropout,
       .seed = s.seed});
  hd::train::distillation_epoch first, last;
  for (std::int64_t e = 1; e <= epochs; ++e) {
    last = train.run_epoch(pieces, e);
    if (e == 1) first = last;
  }
  std::printf("drafter: loss %.4f to %.4f in %lld epochs of %zu samples, wrong %.3f of the time\n", first.loss,
              last.loss, static_cast<long long>(epochs), pieces.size(),
              static_cast<double>(last.wrong) / static_cast<double>(last.rows));
}

// What a drafter is made for: sizes of a model of any family.
struct model_sizes {
  int width = 0, heads = 0, ffn = 0, vocabulary = 0, context = 0;
  double epsilon = 0;
};
// Errors: `config_error` for families whose last norm is not x / rms(x) times a weight, which is the norm that a drafter has.
model_sizes sizes_for_drafter(const md::hugging_face_model& about) {
  return std::visit(
      [&]<class Config>(const Config& c) -> model_sizes {
        if constexpr (hd::contains<Config, md::gpt2_config, md::gemma2_config, md::gemma3_config, md::granite_config>)
          throw hd::config_error(
              "heddle: a drafter has the last norm of its model, x / rms(x) times a weight; that of "
              "a " +
              std::string(about.family()) + " is another");
        else
          return {c.width, c.heads, static_cast<int>(c.ffn), c.vocabulary, c.context, c.epsilon};
      },
      about.config);
}

// `Model`: that whose heads are trained; void, if a drafter is.
template <class Model, class Config>
void train(const settings& s, const md::hugging_face_model& about, const Config& config) {
  using runner_type = inf::any_model_runner<float>;
  const md::any_config family(about);
  const auto [folder, names] = md::open_weights<io::safetensors_folder>(s.model, about, md::outlines_of<float>(family));
  const tool_mesh mesh = mesh_for(s.mesh, family);
  const auto text = text_tokens(s.model, s.text, config.vocabulary, s.bytes);
  constexpr std::int64_t prompt = 8, block = 16;
  const std::int64_t longest =
      s.falcon ? (std::min)(std::int64_t{config.context}, longest_of_drafter) : std::int64_t{config.context};
  const std::int64_t answer = (std::min)(s.answer, longest - prompt);
  // A drafter's tree is measured behind a block of rows, in prompt and answer.
  const std::int64_t ahead_of = s.falcon ? (std::max)(s.passes * s.block, (s.passes + 1) * s.block - prompt) : s.heads;
  if (std::ssize(text) < prompt || answer <= ahead_of + 1)
    throw hd::config_error("heddle: the text should have at least " + std::to_string(prompt) +
                           " tokens, and an answer more than " + std::to_string(ahead_of + 1) + "; got " +
                           std::to_string(text.size()) + " and " + std::to_string(answer));
  io::probe_folder(s.out);  // what cannot be written is said before anything is trained
  hd::launch_options ranks;
  ranks.timeout =
      std::chrono::milliseconds(0);  // a rank may wait as long as others compute, which is minutes on a slow machine
  // Calls body(runner, kernels) on the rank that leads: on one of the meshes that split samples. `base`: what a drafter has of the model.
  const auto with_runner = [&](const std::function<void(runner_type&, backend&)>& body,
                               md::falcon_base<float>* base = nullptr) {
    hd::launch<hd::threads>(
        tool_mesh{1, mesh.extent<pp>(), mesh.extent<ep>(), mesh.extent<tp>()}, ranks, [&](world_type& world) {
          backend kernels{1};
          const auto runner =
              inf::make_runner<float>(family, world, kernels, {(answer + prompt + block) / block * 8, block}, 128);
          md::read_parameters(runner->stage(), io::safetensors_reader(folder), names);
          if (base != nullptr)
            if (auto gathered = md::gather_falcon_base(runner->stage(), world); runner->leads())
              *base = std::move(gathered);
          if (!runner->leads()) {
            runner->follow();
            return;
          }
          body(*runner, kernels);
          runner->finish();
        });
  };

  texts said;  // what the model goes on with where the text has been cut
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

  backend own{1};
  const std::int64_t ranks_of_node = (std::min)(s.ranks, std::int64_t{config.vocabulary});
  if (s.falcon) {
    drafter_type drafter(own, drafter_shape(s, config));
    md::falcon_base<float> base;
    std::vector<md::feature_text<float>> whole;
    with_runner(
        [&](runner_type& runner, backend&) {
          drafter.take(std::move(base));
          whole = inf::features_of_texts(runner, drafter, said);
        },
        &base);
    distill(s, whole, drafter, own);
    const auto right = inf::draft_accuracies(drafter, whole, s.passes, ranks_of_node, 3);
    const inf::token_tree tree = inf::token_tree::best(right, s.nodes);
    inf::write_falcon_weights(s.out, drafter, tree);
    std::printf("wrote a drafter and a tree of %lld nodes to '%s': %.2f tokens a step are expected\n",
                static_cast<long long>(tree.size()), s.out.c_str(), 1 + tree.expected(right));
    return;
  }

  if constexpr (!std::is_void_v<Model>) {
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
    heads_type heads(own, s.heads, config.width, config.vocabulary, config.epsilon);
    std::mutex mutex;
    for (std::int64_t k = 0; k < s.heads; ++k)
      hd::launch<hd::threads>(mesh, ranks, [&](world_type& world) {
        using strategy = hd::strategy<tool_mesh, hd::schedule::named, hd::zero<1>, backend>;
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
        if (world.rank() == 0)
          std::printf("head %lld: loss %.3f to %.3f\n", static_cast<long long>(k + 1), first, last);
      });
    with_runner([&](runner_type& runner, backend&) {
      const auto right = inf::head_accuracies(runner, heads, said, ranks_of_node);
      const inf::token_tree tree = inf::token_tree::best(right, s.nodes);
      inf::write_medusa_folder(s.out, heads, tree);
      std::printf("wrote %lld heads and a tree of %lld nodes to '%s': %.2f tokens a step are expected\n",
                  static_cast<long long>(s.heads), static_cast<long long>(tree.size()), s.out.c_str(),
                  1 + tree.expected(right));
    });
  }
}

void run(const settings& s) {
  tool::require_model(s.model);
  const auto about = read_model_folder(s.model, s.ignored_keys).about;
  if (s.falcon) return train<void>(s, about, sizes_for_drafter(about));  // of any family
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
      "heddle: heads are trained for llama, and for qwen where HEDDLE_EXAMPLE_ALL_FAMILIES is defined, and drafters "
      "(--falcon) for all families but gpt2, gemma and granite; the model is " +
      std::string(about.family()));
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app(
      "Trains heads of Medusa, or a drafter of Falcon, for a model of Hugging Face on the model's own answers.");
  app.add_option("--model", s.model, "folder with config.json and safetensors")->required();
  app.add_option("--text", s.text, "file, or folder of text files, that answers begin with")->required();
  app.add_flag("--bytes", s.bytes, bytes_help);
  app.add_option("--out", s.out, "folder to write")->required();
  app.add_option("--mesh", s.mesh, "ranks along dp, pp, ep and tp, as in dp=2,tp=2");
  app.add_option("--heads", s.heads, "heads, each of which predicts one token further")->range(1, 64);
  app.add_flag("--falcon", s.falcon, "a drafter of Falcon in place of heads; it is trained on one rank");
  app.add_option("--block", s.block, "tokens that the drafter predicts at once")->range(1, 64);
  app.add_option("--passes", s.passes, "passes of the drafter for a tree: it is at most passes * block deep")
      ->range(1, 64);
  app.add_option("--dropout", s.dropout, "rate between the drafter's LSTM layers")->range(0.0, 0.99);
  app.add_option("--steps", s.steps, "steps of each head, or of the drafter")->more_than(0);
  app.add_option("--lr", s.lr, "the greatest learning rate");
  app.add_option("--batch", s.batch, "samples per step")->more_than(0);
  app.add_option("--context", s.context, "tokens per sample");
  app.add_option("--prompts", s.prompts, "places of the text that the model goes on from")->more_than(0);
  app.add_option("--answer", s.answer, "tokens of the model at each")->more_than(0);
  app.add_option("--nodes", s.nodes, "nodes of the tree")->range(1, 64);
  app.add_option("--seed", s.seed, "seed of the order of samples");
  add_ignored_keys(app, s.ignored_keys);
  return tool::run(app, argc, argv, [&] { run(s); });
}
