// What inference takes of the memory of a device and of pinned memory, over the stand-in for the CUDA runtime.
#include "emulated_launcher.hpp"

#include "catch.hpp"
#include "inference_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>

#include <cstdint>

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
