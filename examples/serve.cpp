// Serves a model of Hugging Face over HTTP with OpenAI's interface, on a mesh of pp x tp ranks. The test of tests/examples runs it.
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/serve/httplib/server.hpp>
#include <heddle/infer/serve/run_engine.hpp>
#include <heddle/io/json/safetensors.hpp>
#include <heddle/io/tokenizer/load.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/json/hugging_face.hpp>
#include <heddle/model/json/hugging_face_weights.hpp>
#include <heddle/model/read_parameters.hpp>
#include HEDDLE_GEMM_HEADER

#include <CLI/CLI.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;
namespace fs = std::filesystem;
using hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<pp>, hd::axis<tp>>;
using backend = hd::compute::host<HEDDLE_GEMM>;

namespace {

struct settings {
  fs::path model, tokenizer, keys;
  std::string name, mesh = "tp=1";
  std::int64_t cache_mib = 256, block_rows = 16, rows = 256, running = 32, waiting = 256;
  int context = 0, threads = 1;
  inf::server_options http;
};

// The tokens that end an answer: those of the model's files, and what ends a turn of a conversation.
std::vector<std::int32_t> end_tokens(const settings& s, const hd::io::tokenizer& t) {
  std::vector<std::int32_t> ends = inf::usual_end_tokens(t);
  for (const char* file : {"config.json", "generation_config.json"}) {
    if (!fs::exists(s.model / file)) continue;
    const nlohmann::json of = hd::io::read_json(s.model / file).value("eos_token_id", nlohmann::json());
    for (const nlohmann::json& id : of.is_array() ? of : nlohmann::json::array({of}))
      if (id.is_number_integer()) ends.push_back(id.get<std::int32_t>());
  }
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
template <class Model, class Config>
void run_model(const settings& s, const md::hugging_face_model& about, Config config, const inf::engine_options& engine,
               inf::request_queue& queue) {
  if (s.context > 0) config.context = (std::min)(config.context, s.context);
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  const auto [folder, names] = md::open_weights<hd::io::safetensors_folder>(s.model, about, Model::describe(config));
  hd::launch_options ranks;
  ranks.timeout = std::chrono::milliseconds(0);  // those that follow wait for as long as no call comes
  hd::launch<hd::threads>(mesh, ranks, [&](auto& world) {
    using runner_type = inf::model_runner<Model, std::remove_cvref_t<decltype(world)>, backend>;
    backend kernels{s.threads};
    const std::int64_t blocks = runner_type::cache_blocks_for(s.cache_mib << 20, config, world.mesh(), s.block_rows);
    runner_type runner(config, world, kernels, {blocks, s.block_rows}, s.rows);
    md::read_parameters(runner.stage(), hd::io::safetensors_reader(folder), names);
    world.control().barrier();  // a rank that cannot load is to end the others before the queue opens
    if (!runner.leads()) return runner.follow();
    inf::any_runner any(runner);  // so that the engine is compiled once for all models
    inf::engine<inf::any_runner<float>, inf::prefix_shared> e(any, engine);
    std::printf("%s on %s: context %lld, cache of %lld tokens\n", std::string(about.family()).c_str(),
                hd::to_string(mesh).c_str(), static_cast<long long>(e.context()),
                static_cast<long long>(blocks * s.block_rows));
    std::fflush(stdout);
    inf::run_engine(e, any.limits().vocabulary, queue, 1);
    runner.finish();
  });
}

int run(settings s) {
  sigset_t stop;  // of all threads: they inherit it
  sigemptyset(&stop);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);

  if (s.tokenizer.empty()) s.tokenizer = s.model;
  s.http.model = s.name.empty() ? fs::canonical(s.model).filename().string() : s.name;
  if (!s.keys.empty()) s.http.keys = read_keys(s.keys);
  const auto path = std::filesystem::path(s.model) / "config.json";
  const auto about = md::from_config(hd::io::read_json(path), "'" + path.string() + "'");
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
      md::with_model<float>(about, [&]<class Model>(std::type_identity<Model>, const auto& c) {
        run_model<Model>(s, about, c, engine, queue);
      });
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
  settings s;
  CLI::App app{"Serves a model of Hugging Face with OpenAI's interface"};
  app.add_option("--model", s.model, "folder with config.json and safetensors")->required();
  app.add_option("--tokenizer", s.tokenizer, "tokenizer.json or its folder; the model's by default");
  app.add_option("--name", s.name, "the model's name in calls; its folder's by default");
  app.add_option("--mesh", s.mesh, "ranks, such as tp=2 or pp=2,tp=2");
  app.add_option("--host", s.http.host, "address to listen on");
  app.add_option("--port", s.http.port, "0: one that is free");
  app.add_option("--api-key-file", s.keys, "keys, one a line, any of which calls need");
  app.add_option("--context", s.context, "most tokens of a request; the model's by default");
  app.add_option("--cache-mib", s.cache_mib, "memory of each rank for keys and values")->check(CLI::Range(0, 1 << 30));
  app.add_option("--block", s.block_rows, "tokens of a block of the cache");
  app.add_option("--rows", s.rows, "most rows of a step");
  app.add_option("--running", s.running, "most requests that run at once");
  app.add_option("--waiting", s.waiting, "most requests that wait, before 429");
  app.add_option("--threads", s.threads, "of each rank");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(std::move(s));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
