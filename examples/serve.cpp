// Serves a model of Hugging Face over HTTP with OpenAI's interface, on a mesh of pp x ep x tp ranks or on two. The test of tests/examples runs it.
// cuda
#include <heddle/infer/any_engine.hpp>
#include <heddle/infer/generation_config.hpp>
#include <heddle/infer/serve/http/server.hpp>
#include <heddle/infer/serve/run_engine.hpp>
#include <heddle/infer/serve/watch.hpp>
#include <heddle/io/tokenizer/folder.hpp>

#include "model_ranks.hpp"
#include "tool.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;
namespace fs = std::filesystem;

namespace {

struct settings {
  fs::path model, tokenizer, keys;
  std::string name, chat_template;
  bool bytes = false, watch = false;
  std::int64_t cache_mib = 256, running = 32, waiting = 256;
  std::size_t set_mib = 64, table_mib = 64;
  model_ranks::options ranks{};
  model_ranks::speculation speculation{};
  inf::server_options http;
};

// The tokens that end an answer: those of the model's files; where they name none, what usually ends a turn or a text.
inf::end_token_list end_tokens(const settings& s, const hd::io::tokenizer& t) {
  inf::end_token_list ends = inf::read_end_tokens(s.model);
  if (ends.ids.empty()) ends = {inf::usual_end_tokens(t), "tokenizer"};
  return ends;
}

// What the folder's files decide about answers.
void say(const inf::server_options& http, const inf::end_token_list& ends, const std::string& sampling) {
  std::string ids;
  for (const std::int32_t id : ends.ids) ids += " " + std::to_string(id);
  std::printf("answers end at %s\n", ids.empty() ? "no token" : ("tokens" + ids + " (" + ends.file + ")").c_str());
  std::printf("sampling by default: %s\n", sampling.empty()
                                               ? "temperature 1, as no generation_config.json says otherwise"
                                               : (sampling + " (generation_config.json)").c_str());
  std::printf("/v1/chat/completions %s: %s\n", http.chat.renders() ? "renders by" : "answers 400",
              http.chat.about.c_str());
}

std::vector<std::string> read_keys(const fs::path& path) {
  std::vector<std::string> keys;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) keys.push_back(line);
  }
  if (keys.empty()) throw hd::config_error("heddle: --api-key-file '" + path.string() + "' has no key, one a line");
  return keys;
}

// Loads the model on all ranks, and answers the queue's requests until it drains.
void answer(const settings& s, const inf::engine_options& options, inf::request_queue& queue) {
  model_ranks::with_engine(s.speculation, s.ranks, options, [&](inf::any_engine& e, const model_ranks::loaded& model) {
    std::printf("%s on %s: context %lld, cache of %lld tokens\n", model.family.c_str(), model.mesh.c_str(),
                static_cast<long long>(e.context()),
                static_cast<long long>(model.limits.blocks * model.limits.block_rows));
    std::fflush(stdout);
    inf::run_engine(e, model.limits.vocabulary, queue, 1);
  });
}

int run(settings s) {
  sigset_t stop;  // of all threads: they inherit it
  sigemptyset(&stop);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);

  s.ranks = model_ranks::options_for(s.speculation, s.ranks);
  tool::require_model(s.model);
  if (s.tokenizer.empty()) s.tokenizer = s.model;
  s.http.model = s.name.empty() ? fs::canonical(s.model).filename().string() : s.name;
  if (!s.keys.empty()) s.http.keys = read_keys(s.keys);
  s.ranks.model = s.model.string();
  s.ranks.cache_bytes = s.cache_mib << 20;
  s.http.masks.set_bytes = s.set_mib << 20;
  s.http.masks.table_bytes = s.table_mib << 20;
  const hd::io::tokenizer tokenizer = s.bytes ? hd::io::byte_tokenizer() : hd::io::load_model_tokenizer(s.tokenizer);
  const inf::end_token_list ends = end_tokens(s, tokenizer);
  const inf::engine_options engine{.max_running = s.running, .end_tokens = ends.ids};
  const fs::path files = fs::is_directory(s.tokenizer) ? s.tokenizer : s.tokenizer.parent_path();
  s.http.chat = inf::choose_chat_format(files, tokenizer, s.chat_template);
  const inf::sampling_defaults sampling = inf::read_sampling_defaults(s.model);
  s.http.sampling = sampling.options;

  inf::request_queue queue(s.waiting);
  inf::server server(queue, tokenizer, s.http);
  std::printf("listening on http://%s:%d\n", s.http.host.c_str(), server.port());
  say(s.http, ends, sampling.about);
  std::fflush(stdout);
  inf::serve_watch watch(queue, {.most_running = s.running});
  if (s.watch) watch.start();
  std::string failure;
  std::atomic<bool> ended{false};
  std::thread ranks([&] {
    try {
      answer(s, engine, queue);
    } catch (const std::exception& e) {
      failure = e.what();
      queue.close(failure);
    }
    ended = true;
  });
  const timespec often{.tv_sec = 0, .tv_nsec = 100'000'000};
  while (!ended && ::sigtimedwait(&stop, nullptr, &often) < 0) {
  }
  server.stop();
  ranks.join();
  if (failure.empty()) failure = server.failure();
  if (!failure.empty()) throw hd::error(failure);
  std::printf("stopped\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  computed::session session(argc, argv);
  settings s;
  tool::command_line app("Serves a model of Hugging Face with OpenAI's interface, on a mesh of pp x ep x tp ranks.");
  app.add_option("--model", s.model, "folder with config.json and safetensors")->required();
  app.add_option("--tokenizer", s.tokenizer, "tokenizer.json, or its folder")->otherwise("the model's");
  app.add_flag("--bytes", s.bytes, "tokens are the bytes of texts, whatever tokenizer the folder has");
  app.add_flag("--watch", s.watch, "conditions of the runbook on stderr and in /metrics");
  app.add_option("--chat-template", s.chat_template, "how conversations are rendered: " + inf::chat_format_names())
      ->otherwise("the folder's template");
  app.add_option("--name", s.name, "the model's name in calls")->otherwise("its folder's");
  app.add_option("--mesh", s.ranks.mesh, "ranks along pp, ep (of models with experts) and tp, as in pp=2,tp=2");
  app.add_option("--prefill", s.ranks.prefill, "ranks that compute prompts, as in tp=1, while those of --decode answer")
      ->otherwise("those of --mesh do both");
  app.add_option("--decode", s.ranks.decode, "ranks that compute answers, as in tp=2");
  app.add_option("--host", s.http.host, "address to listen on");
  app.add_option("--port", s.http.port, "port to listen on; 0: one that is free")->range(0, 65535);
  app.add_option("--api-key-file", s.keys, "file of keys, one a line, any of which calls need")
      ->otherwise("none are needed");
  app.add_option("--context", s.ranks.context, "most tokens of a request, prompt and answer")
      ->otherwise("the model's context");
  app.add_option("--answer", s.http.most_answer_tokens, "most tokens of an answer, also where a call asks for more")
      ->range(1, 1 << 30)
      ->otherwise("what the context has room for");
  app.add_option("--cache-mib", s.cache_mib, "MiB of memory of each rank for keys and values")->range(0, 1 << 30);
  app.add_option("--block", s.ranks.block_rows, "tokens of a block of the cache");
  app.add_option("--rows", s.ranks.rows, "most rows of a step: tokens of prompts and answers together");
  app.add_option("--running", s.running, "most requests that run at once");
  app.add_option("--waiting", s.waiting, "most requests that wait; further ones are answered with 429");
  app.add_option("--mask-mib", s.set_mib, "MiB of memory for the tokens that constrained answers may go on with")
      ->range(0, 1 << 30);
  app.add_option("--grammar-mib", s.table_mib,
                 "MiB of memory for compiled schemas and expressions, beyond which calls get 429")
      ->range(9, 1 << 30);
  app.add_option("--compiling", s.http.masks.most_compiling, "most schemas and expressions that compile at once")
      ->range(1, 1 << 16);
  app.add_option("--threads", s.ranks.threads, "threads of each rank");
  model_ranks::add_options(app, s.speculation, s.ranks);
  return tool::run(app, argc, argv, [&] {
    session.begin(model_ranks::ranks_of(s.ranks));
    return run(std::move(s));
  });
}
