// A server on a free port of this machine, whose engine has the runner of fake_runner.hpp and a tokenizer of tests/golden, and its client.
#pragma once

#include <heddle/infer/engine.hpp>
#include <heddle/infer/serve/http/server.hpp>
#include <heddle/infer/serve/run_engine.hpp>
#include <heddle/io/tokenizer/load.hpp>

#include "fake_runner.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace served {

namespace inf = heddle::infer;
namespace io = heddle::io;
using json = nlohmann::json;

inline io::tokenizer golden_tokenizer(const char* name = "llama3") {
  return io::load_tokenizer(std::string(HEDDLE_SOURCE_DIR "/tests/golden/tokenizer/") + name + ".json");
}

inline constexpr inf::step_limits room{
    .vocabulary = 905, .context = 64, .block_rows = 4, .blocks = 100, .max_rows = 32};

// The fake runner, which can be held up and made to fail from other threads.
class held_runner {
 public:
  using scalar = double;
  explicit held_runner(inf::step_limits l = room) : fake_(l) {}
  inf::step_limits limits() const { return fake_.limits(); }
  void run(const inf::step& s, std::span<double> logits) {
    while (held && !let_go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (failures > 0) {
      --failures;
      throw std::runtime_error("the runner failed");
    }
    if (delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    fake_.run(s, logits);
  }
  std::atomic<bool> held{false}, let_go{false};
  std::atomic<int> failures{0}, delay_ms{0};

 private:
  fake::runner fake_;
};

inline inf::server_options local(inf::server_options o = {}) {
  o.port = 0;
  o.model = "fake";
  o.chat = {io::llama3_chat{}, "golden"};
  return o;
}

class service {
 public:
  explicit service(inf::server_options options = {}, std::int64_t most_waiting = 64,
                   inf::engine_options engine = {.max_running = 16}, bool open = true)
      : queue(most_waiting), server(queue, golden_tokenizer(), local(std::move(options))), engine_(std::move(engine)) {
    if (open) start();
  }
  void start() {
    thread_ = std::thread([this] {
      try {
        inf::engine<held_runner, inf::prefix_shared> e(runner, engine_);
        inf::run_engine(e, room.vocabulary, queue);
        counts = e.counts();
      } catch (const std::exception& e) {
        queue.close(e.what());
        failure = e.what();
      }
    });
    while (queue.state() == inf::queue_state::loading) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~service() { stop(); }
  void stop() {
    runner.let_go = true;
    server.stop();
    if (thread_.joinable()) thread_.join();
  }

  httplib::Client client() const {
    httplib::Client c("127.0.0.1", server.port());
    c.set_read_timeout(20, 0);
    return c;
  }
  // Status and body of a call.
  std::pair<int, json> post(const std::string& path, const json& body, const httplib::Headers& headers = {}) const {
    return post_text(path, body.dump(), headers);
  }
  std::pair<int, json> post_text(const std::string& path, const std::string& body, const httplib::Headers& headers = {},
                                 const std::string& type = "application/json") const {
    const httplib::Result r = client().Post(path, headers, body, type);
    if (!r) return {-1, httplib::to_string(r.error())};
    return {r->status, json::parse(r->body, nullptr, false)};
  }
  // Waits until what holds, at most some seconds.
  template <class What>
  static bool soon(What&& what) {
    for (int i = 0; i < 10000; ++i) {
      if (what()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  held_runner runner{};
  inf::request_queue queue;
  inf::server server;
  inf::engine_counts counts{};  ///< of the engine when it ended
  std::string failure{};        ///< that ended it

 private:
  inf::engine_options engine_;
  std::thread thread_{};
};

}  // namespace served
