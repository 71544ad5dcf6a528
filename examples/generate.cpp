// Continues prompts with a model of Hugging Face on a mesh of pp x tp ranks, and prints the text as it comes.
// run: --model @SOURCE_DIR@/tests/golden/models/llama3 --tokens 6,39,11,47,18,29,34,25,38,9,47,20,26 --tokens 17,48,41,22,23 --mesh pp=2,tp=2 --temperature 0 --max-tokens 8 --speculate
// prints: prompt 0: 17 29 16 43 46 3 29 45  (length)
// prints: prompt 1: 5 5 5 17 45 29 23 41  (length)
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/serve/tokenizer/chat_format.hpp>
#include <heddle/infer/tokenizer/text_output.hpp>
#include <heddle/io/json/safetensors.hpp>
#include <heddle/io/tokenizer/load.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/json/hugging_face.hpp>
#include <heddle/model/json/hugging_face_weights.hpp>
#include <heddle/model/read_parameters.hpp>
#include HEDDLE_GEMM_HEADER

#include "token_ids.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;
using mesh_type = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp>>;
using backend = hd::compute::host<HEDDLE_GEMM>;

namespace {

struct settings {
  std::string model, mesh = "pp=1";
  std::vector<std::string> prompts;
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::string> stop;
  inf::request request{};
  std::int64_t cache_tokens = 0, block_rows = 16, step_rows = 256;
  int threads = 1;
  bool speculate = false;
};

// What the leader asks and prints. Text is streamed where there is one prompt; else each line is a finished answer.
template <class... Policies>
void generate(const settings& s, inf::any_runner<float> runner, const std::optional<hd::io::tokenizer>& tokenizer) {
  inf::engine_options options;
  if (tokenizer) options.end_tokens = inf::usual_end_tokens(*tokenizer);
  inf::engine<inf::any_runner<float>, Policies...> engine(runner, options);
  struct answer {
    std::optional<inf::text_output> output;
    std::string text;
  };
  std::vector<answer> answers;
  const auto ask = [&](std::vector<std::int32_t> prompt) {
    inf::request r = s.request;
    r.prompt = std::move(prompt);
    engine.submit(std::move(r));
    answers.emplace_back();
    if (tokenizer) answers.back().output.emplace(*tokenizer, s.stop);
  };
  for (const auto& ids : s.tokens) ask(ids);
  for (const std::string& text : s.prompts) ask(tokenizer->encode(text));
  const bool streams = answers.size() == 1 && tokenizer;
  const auto begin = std::chrono::steady_clock::now();
  while (!engine.idle())
    for (const inf::event& e : engine.step()) {
      const auto at = static_cast<std::size_t>(e.id - 1);  // ids count from 1
      answer& a = answers[at];
      inf::text_part part{.finish = e.finish};
      if (a.output)
        part = a.output->push(e, engine);
      else if (e.token)
        part.text = std::to_string(*e.token) + " ";
      if (e.finish == inf::finish_reason::error) throw hd::error(e.message);
      if (streams)
        std::printf("%s%s", part.text.c_str(), part.finish == inf::finish_reason::none ? "" : "\n"),
            std::fflush(stdout);
      a.text += part.text;
      if (!streams && part.finish != inf::finish_reason::none)
        std::printf("prompt %zu: %s (%s)\n", at, a.text.c_str(), std::string(inf::to_string(part.finish)).c_str());
    }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const inf::engine_counts c = engine.counts();
  std::fprintf(stderr, "%lld tokens of prompts and %lld of answers in %lld steps, %.1f tokens/s\n",
               static_cast<long long>(c.prompt_tokens), static_cast<long long>(c.answer_tokens),
               static_cast<long long>(c.steps), static_cast<double>(c.answer_tokens) / seconds);
  if (s.speculate)
    std::fprintf(stderr, "%lld of %lld proposed tokens were right\n", static_cast<long long>(c.accepted_tokens),
                 static_cast<long long>(c.proposed_tokens));
}

template <class Model, class Config>
void run_model(const settings& s, const md::hugging_face_model& about, const Config& config,
               const std::optional<hd::io::tokenizer>& tokenizer) {
  const auto [folder, names] = md::open_weights<hd::io::safetensors_folder>(s.model, about, Model::describe(config));
  const std::int64_t context = config.context,
                     wanted = s.cache_tokens > 0 ? s.cache_tokens : (std::min)(context, std::int64_t{4096});
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(s.mesh), [&](auto& world) {
    const hd::io::safetensors_reader weights(folder);
    backend kernels{s.threads};
    inf::model_runner<Model, std::remove_cvref_t<decltype(world)>, backend> runner(
        config, world, kernels, {.blocks = (wanted + s.block_rows - 1) / s.block_rows, .block_rows = s.block_rows},
        s.step_rows);
    md::read_parameters(runner.stage(), weights, names);
    if (!runner.leads()) return runner.follow();
    if (s.speculate)
      generate<inf::prefix_shared, inf::ngram_speculation<>>(s, inf::any_runner(runner), tokenizer);
    else
      generate<inf::prefix_shared>(s, inf::any_runner(runner), tokenizer);
    runner.finish();
  });
}

void run(const settings& s) {
  namespace fs = std::filesystem;
  std::optional<hd::io::tokenizer> tokenizer;
  if (fs::exists(fs::path(s.model) / "tokenizer.json")) tokenizer = hd::io::load_tokenizer(s.model);
  if (!tokenizer && (!s.prompts.empty() || !s.stop.empty()))
    throw hd::config_error("heddle: '" + s.model +
                           "' has no tokenizer.json: give --tokens in place of --prompt, and no --stop");
  if (s.prompts.empty() && s.tokens.empty()) throw hd::config_error("heddle: give at least one --prompt or --tokens");
  const auto path = std::filesystem::path(s.model) / "config.json";
  const auto about = md::from_config(hd::io::read_json(path), "'" + path.string() + "'");
  md::with_model<float>(about, [&]<class Model>(std::type_identity<Model>, const auto& config) {
    run_model<Model>(s, about, config, tokenizer);
  });
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  std::vector<std::string> tokens;
  std::uint64_t seed = 0;
  inf::sampling_options& sampling = s.request.sampling;
  s.request.max_tokens = 128;
  CLI::App app("Continues prompts with a model of Hugging Face on a mesh of pp x tp ranks.");
  app.add_option("--model", s.model, "folder with config.json, safetensors and, for text, tokenizer.json")->required();
  app.add_option("--prompt", s.prompts, "text to continue; again for another one")->take_all();
  app.add_option("--tokens", tokens, "ids with commas between them, in place of a text")->take_all();
  app.add_option("--mesh", s.mesh, "ranks along pp and tp, as in pp=2,tp=2")->capture_default_str();
  app.add_option("--threads", s.threads, "of each rank")->capture_default_str();
  app.add_option("--max-tokens", s.request.max_tokens, "of an answer")->capture_default_str();
  app.add_option("--temperature", sampling.temperature, "0: the likeliest token")->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "0: all")->capture_default_str();
  app.add_option("--top-p", sampling.top_p)->capture_default_str();
  app.add_option("--min-p", sampling.min_p)->capture_default_str();
  app.add_option("--repetition-penalty", sampling.repetition_penalty)->capture_default_str();
  app.add_option("--seed", seed, "the same seed gives the same text, whatever the mesh and the other prompts")
      ->capture_default_str();
  app.add_option("--stop", s.stop, "a string that ends the text; again for another one")->take_all();
  app.add_option("--cache-tokens", s.cache_tokens, "that the cache has room for; 0: the context, at most 4096")
      ->capture_default_str();
  app.add_flag("--speculate", s.speculate,
               "propose tokens that followed the same words before; the text stays the same");
  CLI11_PARSE(app, argc, argv);
  try {
    for (const std::string& one : tokens) s.tokens.push_back(parse_tokens(one));
    sampling.seed = seed;
    run(s);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
