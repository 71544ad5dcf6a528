// Continues texts of growing length by a hybrid of linear attention and windows (SpikingBrain's shape): what its cache holds stays the same.
// run: --window 64
// prints: tokens in the text   cached keys and values   states   of a model that sees all
// prints:               4096                 40 KiB    4 KiB                   4112 KiB
// prints: the cache of windows gave the tokens of a cache of everything
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/core/error.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/windowed.hpp>
#include <heddle/model/spiking_brain.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

namespace hd = heddle;
namespace infer = heddle::infer;
namespace md = heddle::model;

namespace {
constexpr std::int64_t answer_tokens = 16, block_rows = 16, step_rows = 64;

struct answered {
  std::vector<std::int32_t> tokens{};
  std::int64_t blocks = 0;  // in use while it answers
};
template <class Cache, class Runner>
answered answer(Runner& runner, std::int64_t length) {
  infer::engine<Runner, Cache> engine(runner);
  infer::request r;
  for (std::int64_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<std::int32_t>(i * i % 251));
  r.max_tokens = answer_tokens;
  r.sampling.temperature = 0;
  engine.submit(std::move(r));
  answered a;
  while (!engine.idle()) {
    for (const infer::event& e : engine.step())
      if (e.token) a.tokens.push_back(*e.token);
    if (!a.tokens.empty()) a.blocks = std::max(a.blocks, engine.counts().cache.used);
  }
  return a;
}
}  // namespace

int main(int argc, char** argv) try {
  const bool asks = argc == 3 && std::strcmp(argv[1], "--window") == 0;
  if (argc > 1 && !asks) return std::printf("usage: long_context [--window TOKENS]\n"), argc == 2 ? 0 : 2;
  // Four layers with drawn weights: linear attention, a window, linear attention, a window.
  const md::spiking_brain_config config(
      {.layers = 4, .heads = 4, .kv_heads = 2, .width = 64, .ffn = 96, .context = 4200, .vocabulary = 256},
      asks ? std::atoi(argv[2]) : 64, 8);
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::tp, 1>>{}, {}, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    hd::compute::host<> kernels{1};
    infer::model_runner<md::spiking_brain<float>, world_type, hd::compute::host<>> runner(
        config, world, kernels, {.blocks = 300, .block_rows = block_rows, .states = 1}, step_rows);
    runner.stage().initialize(1);
    const std::int64_t block = runner.stage().cache_bytes() / 300, state = runner.stage().state_bytes();
    std::printf("tokens in the text   cached keys and values   states   of a model that sees all\n");
    bool same = true;
    for (const std::int64_t length : {64, 512, 4096}) {
      const answered windowed = answer<infer::windowed>(runner, length), paged = answer<infer::paged>(runner, length);
      same = same && windowed.tokens == paged.tokens;
      // Keys and values of all layers: those that have states here would have them, too.
      std::printf("%18lld %18lld KiB %4lld KiB %22lld KiB\n", static_cast<long long>(length),
                  static_cast<long long>(windowed.blocks * block / 1024), static_cast<long long>(state / 1024),
                  static_cast<long long>(2 * paged.blocks * block / 1024));
    }
    std::printf(same ? "the cache of windows gave the tokens of a cache of everything\n" : "the caches differ\n");
  });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
