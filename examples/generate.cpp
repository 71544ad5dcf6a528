// Continues prompts with a model of Hugging Face on a mesh of pp x ep x tp ranks, and prints the text as it comes.
// run: --model @SOURCE_DIR@/tests/golden/models/llama3 --tokens 6,39,11,47,18,29,34,25,38,9,47,20,26 --tokens 17,48,41,22,23 --mesh pp=2,tp=2 --temperature 0 --max-tokens 8 --speculate ngram
// prints: prompt 0: 17 29 16 43 46 3 29 45  (length)
// prints: prompt 1: 5 5 5 17 45 29 23 41  (length)
// cuda
#include <heddle/infer/any_engine.hpp>
#include <heddle/infer/generation_config.hpp>
#include <heddle/infer/text_output.hpp>

#include "generate/diffusion.hpp"
#include "model_ranks.hpp"
#include "text_tokens.hpp"
#include "token_ids.hpp"
#include "tool.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;

namespace {

struct settings {
  model_ranks::options ranks{};
  model_ranks::speculation speculation{};
  std::vector<std::string> prompts;
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::string> stop;
  inf::request request{};
  std::string decode = "tokens";
  diffusion_engine::settings diffusion{};
  bool bytes = false;
};

// What the leader asks and prints. Text is streamed where there is one prompt; else each line is a finished answer.
void generate(const settings& s, inf::any_engine& engine, const std::optional<hd::io::tokenizer>& tokenizer) {
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
  if (engine.most_proposed() > 0)
    std::fprintf(stderr, "%lld of %lld proposed tokens were right\n", static_cast<long long>(c.accepted_tokens),
                 static_cast<long long>(c.proposed_tokens));
}

void run(const settings& s) {
  namespace fs = std::filesystem;
  if (s.decode != "tokens" && s.decode != "diffusion")
    throw hd::config_error("heddle: --decode should be tokens or diffusion, got '" + s.decode + "'");
  if (s.decode == "diffusion" && s.speculation.by != "none")
    throw hd::config_error("heddle: --decode diffusion proposes no tokens: leave --speculate " + s.speculation.by +
                           " out");
  if (s.decode == "diffusion" && !s.ranks.blocks.empty())
    throw hd::config_error("heddle: --decode diffusion is for all blocks of a model: leave --blocks " + s.ranks.blocks +
                           " out");
  const model_ranks::options ranks = model_ranks::options_for(s.speculation, s.ranks);
  tool::require_model(s.ranks.model);
  std::optional<hd::io::tokenizer> tokenizer;
  if (s.bytes)
    tokenizer = byte_tokenizer();
  else if (!s.prompts.empty() || !s.stop.empty() || fs::exists(fs::path(s.ranks.model) / "tokenizer.json"))
    tokenizer = tokenizer_of(s.ranks.model);
  if (s.prompts.empty() && s.tokens.empty()) throw hd::config_error("heddle: give at least one --prompt or --tokens");
  const inf::engine_options engine{.end_tokens = inf::read_end_tokens(s.ranks.model).ids};
  if (s.decode == "diffusion")
    return diffusion_engine::with_engine(s.diffusion, ranks, engine,
                                         [&](inf::any_engine& e) { generate(s, e, tokenizer); });
  model_ranks::with_engine(s.speculation, ranks, engine,
                           [&](inf::any_engine& e, const model_ranks::loaded&) { generate(s, e, tokenizer); });
}

}  // namespace

int main(int argc, char** argv) {
  computed::session session(argc, argv);
  settings s;
  std::vector<std::string> tokens;
  std::uint64_t seed = 0;
  inf::sampling_options& sampling = s.request.sampling;
  s.request.max_tokens = 128;
  tool::command_line app("Continues prompts with a model of Hugging Face on a mesh of pp x ep x tp ranks.");
  app.add_option("--model", s.ranks.model, "folder with config.json, safetensors and, for text, a tokenizer")
      ->required();
  app.add_option("--prompt", s.prompts, "text to continue")->take_all();
  app.add_option("--tokens", tokens, "ids with commas between them, in place of a text")->take_all();
  app.add_flag("--bytes", s.bytes, "tokens are the bytes of texts, whatever tokenizer the folder has");
  app.add_option("--mesh", s.ranks.mesh, "ranks along pp, ep (of models with experts) and tp, as in pp=2,tp=2");
  app.add_option("--threads", s.ranks.threads, "threads of each rank");
  app.add_option("--decode", s.decode,
                 "tokens: one after the other; diffusion: masks of a block at once, for a folder of LLaDA");
  app.add_option("--block", s.diffusion.block, "masks of a block, for --decode diffusion: 8, 16, 32 or 64");
  app.add_option("--threshold", s.diffusion.threshold,
                 "probability at which --decode diffusion commits a token; at least one in a step");
  app.add_option("--max-tokens", s.request.max_tokens, "most tokens of an answer");
  app.add_option("--temperature", sampling.temperature, "logits are divided by it; 0: always the likeliest token");
  app.add_option("--top-k", sampling.top_k, "draw from so many of the likeliest tokens; 0: from all");
  app.add_option("--top-p", sampling.top_p, "draw from the likeliest tokens that reach this probability together");
  app.add_option("--min-p", sampling.min_p,
                 "draw from tokens with at least this part of the likeliest one's probability");
  app.add_option("--repetition-penalty", sampling.repetition_penalty,
                 "logits of tokens of prompt and answer are divided by it, negative ones multiplied; 1: none");
  app.add_option("--seed", seed, "the same seed gives the same text, whatever the mesh and the other prompts");
  app.add_option("--stop", s.stop, "a string that ends the text")->take_all();
  app.add_option("--cache-tokens", s.ranks.cache_tokens,
                 "tokens that the cache has room for; 0: the context, at most 4096");
  model_ranks::add_options(app, s.speculation, s.ranks);
  return tool::run(app, argc, argv, [&] {
    session.begin(hd::parse_mesh<model_ranks::mesh_type>(s.ranks.mesh).size());
    for (const std::string& one : tokens) s.tokens.push_back(parse_tokens(one));
    sampling.seed = seed;
    run(s);
  });
}
