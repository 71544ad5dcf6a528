// Computes prompts on one mesh and answers on another, at the same time: the cache goes along, and the answers are those of one engine.
// With a third argument it draws when which rank computed what.
// run: 1 2 pools.svg
// prints: prompts on tp=1, answers on tp=2
// prints: 5 requests, 310 rows handed over, 620 KiB sent
// prints: the answers are those of one engine
// prints: blocks in use afterwards: 0
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/engine_lane.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/move_cache.hpp>
#include <heddle/infer/pools.hpp>
#include <heddle/infer/timed_steps.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/sim/served_chart.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace hd = heddle;
namespace infer = heddle::infer;

namespace {
using pool_mesh = hd::mesh<hd::axis<hd::tp>>;
using pool_world = hd::world<hd::threads, pool_mesh>;
using runner_type = infer::model_runner<hd::model::llama<double>, pool_world, hd::compute::host<>>;
using timed_type = infer::timed_steps<runner_type>;
using mover_type = infer::cache_mover<pool_world, hd::compute::host<>, runner_type::stage_type>;
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
  const int prompts = argc >= 3 ? std::atoi(argv[1]) : 1, tp = argc >= 3 ? std::atoi(argv[2]) : 2;
  if (argc == 2 || argc > 4 || prompts < 1 || tp < 1)
    return std::printf("usage: prefill_decode [RANKS_OF_PROMPTS RANKS_OF_ANSWERS [PICTURE.svg]]\n"), 2;
  // Rank 0 leads the pool of answers, the first rank behind them that of prompts.
  std::vector<int> second(static_cast<std::size_t>(prompts + tp));
  std::iota(second.begin(), second.end(), 0);
  const std::vector<int> first(second.begin() + tp, second.end());
  second.resize(static_cast<std::size_t>(tp));
  std::atomic<long long> bytes = 0;
  long long requests = 0, rows = 0, used = 0, same = 0;
  infer::engine_lane lane;
  std::vector<hd::sim::served_span> spans;
  runner_type* leads_prompts = nullptr;
  mover_type* there = nullptr;
  hd::launch<hd::threads>(pool_mesh{prompts + tp}, [&](pool_world& world) {
    hd::compute::host<> kernels{1};
    auto of_prompts = world.on(pool_mesh{prompts}, first), of_answers = world.on(pool_mesh{tp}, second);
    std::optional<runner_type> prefill, decode;
    const infer::cache_extent cache{.blocks = 64, .block_rows = 16};
    if (of_prompts) prefill.emplace(config, *of_prompts, kernels, cache, 128).stage().initialize(1);
    if (of_answers) decode.emplace(config, *of_answers, kernels, cache, 128).stage().initialize(1);
    runner_type& own = prefill ? *prefill : *decode;
    mover_type mover(world, kernels, prefill ? &own.stage() : nullptr, decode ? &own.stage() : nullptr);
    if (world.rank() == tp) leads_prompts = &own, there = &mover;
    world.control().barrier();
    if (world.rank() == 0) {
      const infer::lane_end end(lane);
      infer::engine<runner_type> alone(own);
      const answers expected = answer(alone);
      const auto begin = timed_type::clock::now();
      timed_type of_prompt_steps(*leads_prompts, tp, prompts, begin), of_answer_steps(own, 0, tp, begin);
      infer::engine<timed_type> prefill_engine(of_prompt_steps), decode_engine(of_answer_steps);
      infer::mover_link link(*leads_prompts, own, mover, *there, lane);
      infer::pools pools(prefill_engine, decode_engine, link, lane);
      same = answer(pools) == expected ? 1 : 0;
      requests = std::ssize(expected);
      rows = link.rows();
      used = pools.counts().cache.used;
      for (const timed_type* of : {&of_prompt_steps, &of_answer_steps})
        spans.insert(spans.end(), of->spans().begin(), of->spans().end());
      own.finish();
    } else if (world.rank() == tp) {
      lane.serve();
      own.finish();
    } else {
      while (own.follow() == infer::followed::interrupted) mover.follow();
    }
    bytes += mover.bytes_sent();
  });
  if (argc == 4) {
    std::vector<std::string> names;
    for (int r = 0; r < tp + prompts; ++r)
      names.push_back((r < tp ? "answers " : "prompts ") + std::to_string(r < tp ? r : r - tp));
    const auto chart = hd::sim::served_chart(spans, names, "two pools", 1000);  // milliseconds
    if (!(std::ofstream(argv[3]) << hd::gantt_svg(chart) << std::flush))
      throw hd::io_error(std::string("cannot write ") + argv[3]);
  }
  std::printf("prompts on tp=%d, answers on tp=%d\n%lld requests, %lld rows handed over, %lld KiB sent\n", prompts, tp,
              requests, rows, bytes / 1024);
  std::printf("%s\nblocks in use afterwards: %lld\n",
              same == 1 ? "the answers are those of one engine" : "the answers differ", used);
  return same == 1 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
