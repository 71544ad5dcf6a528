// Serves a model of Hugging Face over HTTP with OpenAI's interface, on a mesh of pp x tp ranks. The test of tests/examples runs it.
// cuda
#include <heddle/infer/serve/httplib/server.hpp>
#include <heddle/infer/serve/run_engine.hpp>
#include <heddle/io/tokenizer/load.hpp>

#include "model_ranks.hpp"

#include <CLI/CLI.hpp>

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
  std::string name;
  std::int64_t cache_mib = 256, running = 32, waiting = 256;
  std::size_t set_mib = 64, table_mib = 64;
  model_ranks::options ranks{};
  model_ranks::speculation speculation{};
  inf::server_options http;
};

// The tokens that end an answer: those of the model's files, and what ends a turn of a conversation.
std::vector<std::int32_t> end_tokens(const settings& s, const hd::io::tokenizer& t) {
  std::vector<std::int32_t> ends = inf::usual_end_tokens(t);
  for (const std::int32_t id : model_ranks::end_tokens(s.model)) ends.push_back(id);
  return ends;
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
  model_ranks::with_model(s.ranks, [&](const model_ranks::loaded& model) {
    model_ranks::with_speculation(s.speculation, s.ranks, model, [&](auto decoding) {
      model_ranks::runner steps = model.steps;
      inf::engine<model_ranks::runner, inf::prefix_shared, decltype(decoding)> e(steps, options, std::move(decoding));
      const inf::step_limits limits = steps.limits();
      std::printf("%s on %s: context %lld, cache of %lld tokens\n", model.family.c_str(), model.mesh.c_str(),
                  static_cast<long long>(e.context()), static_cast<long long>(limits.blocks * limits.block_rows));
      std::fflush(stdout);
      inf::run_engine(e, limits.vocabulary, queue, 1);
    });
  });
}

int run(settings s) {
  sigset_t stop;  // of all threads: they inherit it
  sigemptyset(&stop);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);

  s.ranks = model_ranks::options_for(s.speculation, s.ranks);
  if (s.tokenizer.empty()) s.tokenizer = s.model;
  s.http.model = s.name.empty() ? fs::canonical(s.model).filename().string() : s.name;
  if (!s.keys.empty()) s.http.keys = read_keys(s.keys);
  s.ranks.model = s.model.string();
  s.ranks.cache_bytes = s.cache_mib << 20;
  s.http.masks.set_bytes = s.set_mib << 20;
  s.http.masks.table_bytes = s.table_mib << 20;
  const hd::io::tokenizer tokenizer = hd::io::load_tokenizer(s.tokenizer);
  const inf::engine_options engine{.max_running = s.running, .end_tokens = end_tokens(s, tokenizer)};

  inf::request_queue queue(s.waiting);
  inf::server server(queue, tokenizer, s.http);
  std::printf("listening on http://%s:%d\n", s.http.host.c_str(), server.port());
  std::fflush(stdout);
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
  CLI::App app{"Serves a model of Hugging Face with OpenAI's interface"};
  app.add_option("--model", s.model, "folder with config.json and safetensors")->required();
  app.add_option("--tokenizer", s.tokenizer, "tokenizer.json or its folder; the model's by default");
  app.add_option("--name", s.name, "the model's name in calls; its folder's by default");
  app.add_option("--mesh", s.ranks.mesh, "ranks, such as tp=2 or pp=2,tp=2");
  app.add_option("--host", s.http.host, "address to listen on");
  app.add_option("--port", s.http.port, "0: one that is free")->check(CLI::Range(0, 65535));
  app.add_option("--api-key-file", s.keys, "keys, one a line, any of which calls need");
  app.add_option("--context", s.ranks.context, "most tokens of a request; the model's by default");
  app.add_option("--answer", s.http.most_answer_tokens,
                 "most tokens of an answer, also where a call asks for more; what the context has room for by default")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--cache-mib", s.cache_mib, "memory of each rank for keys and values")->check(CLI::Range(0, 1 << 30));
  app.add_option("--block", s.ranks.block_rows, "tokens of a block of the cache");
  app.add_option("--rows", s.ranks.rows, "most rows of a step");
  app.add_option("--running", s.running, "most requests that run at once");
  app.add_option("--waiting", s.waiting, "most requests that wait, before 429");
  app.add_option("--mask-mib", s.set_mib,
                 "memory for the tokens that constrained answers may go on with; 64 by default")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--grammar-mib", s.table_mib, "memory for compiled schemas and expressions, before 429; 64 by default")
      ->check(CLI::Range(9, 1 << 30));
  app.add_option("--compiling", s.http.masks.most_compiling, "most schemas and expressions that compile at once")
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--threads", s.ranks.threads, "of each rank");
  model_ranks::add_options(app, s.speculation, s.ranks);
  CLI11_PARSE(app, argc, argv);
  try {
    session.begin(hd::parse_mesh<model_ranks::mesh_type>(s.ranks.mesh).size());
    return run(std::move(s));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
