// What inference takes of the memory of a device and of pinned memory, over the stand-in for the CUDA runtime.
#include "emulated_launcher.hpp"

#include "catch.hpp"
#include "inference_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace {
namespace hd = heddle;
namespace inf = heddle::infer;
namespace md = heddle::model;
using namespace inference_trials;
template <int Threads>
using emulated = hd::compute::basic_cuda<cuda_double::emulated_launcher<Threads>>;

int pinned_allocations() {
  return cuda_double::calls()["cudaHostAlloc"];
}

// Allocations of pinned memory by all ranks, from the first step of an engine on, which has one row.
template <class Model, class... Policies>
int pinned_while_it_runs(const typename Model::config& config, const char* mesh) {
  CAPTURE(mesh);
  int before = 0, after = 0;
  inf::engine_counts counts{};
  on_leader<Model, emulated<1>>(config, mesh, {40, 3}, 24, [&](auto& runner) {
    inf::any_tree_runner steps(runner);
    inf::engine<decltype(steps), Policies...> engine(steps, {.max_running = 8});
    engine.submit({.prompt = {2}, .max_tokens = 1});
    engine.step();
    before = pinned_allocations();
    for (int i = 0; i < 3; ++i)
      for (inf::request r : requests()) {
        r.prompt.insert(r.prompt.end(), {4, 4, 1, static_cast<std::int32_t>(i)});
        if (i == 1) r.sampling.presence_penalty = 0.1;  // all by the host's sampler
        engine.submit(r);
      }
    while (!engine.idle()) engine.step();
    after = pinned_allocations();
    counts = engine.counts();
  });
  CHECK(before > 0);
  CHECK(counts.steps > 20);
  return after - before;
}
}  // namespace

TEST_CASE("an engine that runs takes no pinned memory", "[cuda][infer][ranks]") {
  for (const char* mesh : {"", "tp=2", "pp=2,tp=2"}) {
    CHECK(pinned_while_it_runs<md::llama<float>, inf::prefix_shared, inf::ngram_speculation<3>>(small_llama, mesh) ==
          0);
    CHECK(pinned_while_it_runs<md::gpt2<hd::bf16>, inf::paged>(small_gpt2, mesh) == 0);
  }
}

namespace {
std::int64_t used_bytes(const hd::cuda_memory::queue& queue) {
  return (std::int64_t{1} << 40) - static_cast<std::int64_t>(queue.free_bytes());
}

// Bytes of all ranks of a mesh, which share a device: those that runners are planned to hold and hold, and the most rooms of kernels in steps.
struct compared {
  std::int64_t planned = 0, held = 0, planned_rooms = 0, rooms = 0, held_after = 0;
};
template <class Backend, class Model>
compared memory_of(const typename Model::config& config, const char* mesh, inf::cache_extent cache, std::int64_t rows) {
  compared all;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh), [&](auto& world) {
    using runner_type = inf::model_runner<Model, std::remove_reference_t<decltype(world)>, Backend>;
    Backend kernels;
    const auto settled = [&] {
      kernels.queue().wait();
      world.control().barrier();
    };
    const inf::memory_plan plan = runner_type::plan(config, world, kernels, cache, rows);
    std::int64_t held = plan.held(), rooms = (std::max)(plan.attention, plan.drawing);
    world.control().all_reduce(std::span<std::int64_t>(&held, 1), hd::plus{});
    world.control().all_reduce(std::span<std::int64_t>(&rooms, 1), hd::maximum{});
    settled();
    const std::int64_t before = used_bytes(kernels.queue());
    settled();
    runner_type runner(config, world, kernels, cache, rows);
    settled();
    const std::int64_t after = used_bytes(kernels.queue());
    settled();
    runner.stage().initialize(4);
    settled();
    if (!runner.leads()) {
      runner.follow();
      return;
    }
    cuda_double::largest_room() = 0;
    all = {held, after - before, rooms, 0, 0};
    // Rows that see the whole context, each of a sequence of its own, and all are drawn.
    const std::int64_t blocks = (config.context + cache.block_rows - 1) / cache.block_rows;
    inf::step s;
    std::vector<hd::compute::token_draw> draws;
    for (std::int64_t r = 0; r < rows; ++r) {
      s.tokens.push_back(3);
      s.sequences.push_back({r, 1, config.context - 1, r * blocks, blocks});
      for (std::int64_t b = 0; b < blocks; ++b) s.blocks.push_back(static_cast<std::int32_t>(b));
      s.wanted.push_back(r);
      draws.push_back({.temperature = 1, .uniform = 0.5, .row = r});
    }
    std::vector<hd::compute::token_drawn> drawn(draws.size());
    runner.run(s, {}, std::span<const hd::compute::token_draw>(draws), std::span<hd::compute::token_drawn>(drawn));
    all.rooms = cuda_double::largest_room();
    all.held_after = used_bytes(kernels.queue()) - before;
    runner.finish();
  });
  return all;
}
template <class Backend, class Model>
void check_memory(const typename Model::config& config, const char* mesh, inf::cache_extent cache, std::int64_t rows) {
  CAPTURE(mesh);
  const compared c = memory_of<Backend, Model>(config, mesh, cache, rows);
  CHECK(c.planned == c.held);
  CHECK(c.planned_rooms == c.rooms);
  CHECK(c.held_after == c.held);
}
}  // namespace

TEST_CASE("a runner takes the bytes of its plan, those of drawing and attention among them", "[cuda][infer][ranks]") {
  cuda_double::reset();
  auto long_llama = small_llama;
  long_llama.context = 150;
  auto wide_gpt2 = small_gpt2;
  wide_gpt2.vocabulary = 401;
  for (const char* mesh : {"", "tp=2", "pp=2,tp=2"}) {
    check_memory<emulated<1>, md::llama<float>>(long_llama, mesh, {24, 8}, 40);   // attention's
    check_memory<emulated<1>, md::gpt2<hd::bf16>>(wide_gpt2, mesh, {24, 4}, 40);  // drawing's: 32 rows
  }
  check_memory<emulated<1>, md::gpt2<hd::bf16>>(wide_gpt2, "", {24, 4}, 7);
  constexpr md::mixtral_config mixtral{{.layers = 2,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .width = 12,
                                        .ffn = 7,
                                        .context = 16,
                                        .vocabulary = 20,
                                        .initial_deviation = 0.3,
                                        .head_elements = 4},
                                       5,
                                       2};
  const compared experts = memory_of<emulated<1>, md::mixtral<float>>(mixtral, "tp=2", {24, 4}, 9);
  CHECK(experts.planned == experts.held);  // sorts of routed rows have rooms of their own
}

TEST_CASE("the cache has the blocks that fit beside all else", "[cuda][infer][ranks]") {
  std::vector<std::int64_t> found;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>("pp=2,tp=2"), [&](auto& world) {
    using runner_type = inf::model_runner<md::llama<float>, std::remove_reference_t<decltype(world)>, emulated<1>>;
    emulated<1> kernels;
    const auto blocks_within = [&](std::int64_t bytes) {
      return runner_type::cache_blocks_within(bytes, small_llama, world, kernels, 4, 9);
    };
    const auto largest = [&](std::int64_t blocks) {
      std::int64_t bytes = runner_type::plan(small_llama, world, kernels, {blocks, 4}, 9).total();
      world.control().all_reduce(std::span<std::int64_t>(&bytes, 1), hd::maximum{});
      return bytes;
    };
    const std::int64_t bytes = largest(30);
    const std::vector<std::int64_t> own{blocks_within(bytes), blocks_within(bytes - 1), blocks_within(100)};
    if (world.rank() == 0) found = own;
  });
  CHECK(found == std::vector<std::int64_t>{30, 29, 0});
}
