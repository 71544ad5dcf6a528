// Computes prompts on one mesh and answers on another: the cache goes along, and the answers are those of one engine.
// run: 1 2
// prints: prompts on tp=1, answers on tp=2
// prints: 5 requests, 310 rows handed over, 310 KiB sent
// prints: the answers are those of one engine
// prints: blocks in use afterwards: 0
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/move_cache.hpp>
#include <heddle/infer/pools.hpp>
#include <heddle/model/llama.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

namespace hd = heddle;
namespace infer = heddle::infer;

namespace {
using pool_mesh = hd::mesh<hd::axis<hd::tp>>;
using pool_world = hd::world<hd::threads, pool_mesh>;
using runner_type = infer::model_runner<hd::model::llama<double>, pool_world, hd::compute::host<>>;
using answers = std::map<infer::request_id, std::vector<std::int32_t>>;

constexpr hd::model::llama_config config{
    .layers = 4, .heads = 8, .kv_heads = 4, .width = 64, .ffn = 96, .context = 256, .vocabulary = 256};

template <class Engine>
answers answer(Engine& engine) {  // an engine, or pools
  for (const std::int64_t length : {200, 5, 40, 1, 64}) {
    infer::request r{.max_tokens = 12, .sampling = {.temperature = 0.8}};
    for (std::int64_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<std::int32_t>((i + length) * i % 251));
    engine.submit(std::move(r));
  }
  answers all;
  while (!engine.idle())
    for (const infer::event& e : engine.step())
      if (e.token) all[e.id].push_back(*e.token);
  return all;
}
}  // namespace

int main(int argc, char** argv) try {
  const int prompts = argc == 3 ? std::atoi(argv[1]) : 1, tp = argc == 3 ? std::atoi(argv[2]) : 2;
  if ((argc != 1 && argc != 3) || prompts < 1 || tp < 1)
    return std::printf("usage: prefill_decode [RANKS_OF_PROMPTS RANKS_OF_ANSWERS]\n"), 2;
  // Rank 0 leads both pools, so that it is in both; the other ranks are in one.
  const int ranks = prompts + tp - 1;
  std::vector<int> first(static_cast<std::size_t>(prompts)), second(static_cast<std::size_t>(tp));
  std::iota(first.begin(), first.end(), 0);
  std::iota(second.begin(), second.end(), prompts - 1);
  second[0] = 0;
  std::vector<std::int64_t> sent(static_cast<std::size_t>(ranks));
  std::size_t requests = 0;
  long long rows = 0, used = 0, same = 0;
  hd::launch<hd::threads>(pool_mesh{ranks}, [&](pool_world& world) {
    hd::compute::host<> kernels{1};
    auto of_prompts = world.on(pool_mesh{prompts}, first), of_answers = world.on(pool_mesh{tp}, second);
    std::optional<runner_type> prefill, decode;
    const infer::cache_extent cache{.blocks = 64, .block_rows = 16};
    if (of_prompts) prefill.emplace(config, *of_prompts, kernels, cache, 128).stage().initialize(1);
    if (of_answers) decode.emplace(config, *of_answers, kernels, cache, 16).stage().initialize(1);
    auto* const from = prefill ? &prefill->stage() : nullptr;
    infer::cache_mover mover(world, kernels, from, decode ? &decode->stage() : nullptr);
    if (world.rank() == 0) {
      infer::engine<runner_type> alone(*prefill), prefill_engine(*prefill), decode_engine(*decode);
      const answers expected = answer(alone);
      infer::mover_link link(*prefill, *decode, mover);
      infer::pools pools(prefill_engine, decode_engine, link);
      same = answer(pools) == expected ? 1 : 0;
      requests = expected.size();
      rows = link.rows();
      used = pools.counts().cache.used;
      prefill->finish(), decode->finish();
    } else {
      while ((prefill ? *prefill : *decode).follow() == infer::followed::interrupted) mover.follow();
    }
    sent[static_cast<std::size_t>(world.rank())] = mover.bytes_sent();
  });
  const long long bytes = std::accumulate(sent.begin(), sent.end(), 0LL);
  std::printf("prompts on tp=%d, answers on tp=%d\n", prompts, tp);
  std::printf("%zu requests, %lld rows handed over, %lld KiB sent\n", requests, rows, bytes / 1024);
  std::printf(same == 1 ? "the answers are those of one engine\n" : "the answers differ\n");
  std::printf("blocks in use afterwards: %lld\n", used);
  return same == 1 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
