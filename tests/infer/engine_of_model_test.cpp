#include <heddle/core/config.hpp>

#if __has_include(<heddle/infer/model_runner.hpp>)
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/llama.hpp>

#include "catch.hpp"
#include "fake_runner.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;

namespace {

using mesh_type = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp>>;
using world_type = hd::world<hd::threads, mesh_type>;
using backend = hd::compute::host<>;
using model_type = md::llama<double>;
using runner_type = inf::model_runner<model_type, world_type, backend>;

constexpr md::llama_config small{.layers = 2,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .width = 16,
                                 .ffn = 20,
                                 .context = 48,
                                 .vocabulary = 13,
                                 .initial_deviation = 0.5,
                                 .head_elements = 4};

// Answers of an engine on a mesh to requests that come two in a step, at most `max_running` at once.
template <class... Policies>
std::vector<fake::answer> answers(const mesh_type& mesh, std::int64_t blocks, std::int64_t block_rows,
                                  std::int64_t max_running, const std::vector<inf::request>& requests,
                                  inf::engine_counts* counts = nullptr, std::int64_t* all_reduces = nullptr) {
  std::vector<fake::answer> found(requests.size());
  hd::launch<hd::threads>(mesh, [&](world_type& world) {
    backend kernels{1};
    runner_type runner(small, world, kernels, {blocks, block_rows}, 20);
    runner.stage().initialize(5);
    if (!runner.leads()) {
      runner.follow();
      return;
    }
    inf::engine<runner_type, Policies...> engine(runner, {.max_running = max_running});
    std::size_t next = 0;
    while (next < requests.size() || !engine.idle()) {
      for (int i = 0; i < 2 && next < requests.size(); ++i) engine.submit(requests[next++]);
      for (const inf::event& e : engine.step()) {
        fake::answer& a = found[e.id - 1];
        if (e.token) a.tokens.push_back(*e.token);
        if (e.log_probability) a.log_probabilities.push_back(*e.log_probability);
        a.finish = e.finish;
      }
    }
    if (counts != nullptr) *counts = engine.counts();
    constexpr auto all_reduce = static_cast<std::size_t>(hd::comm_operation::all_reduce);
    if (all_reduces != nullptr) *all_reduces = world.template along<hd::tp>().counters().by_operation[all_reduce].calls;
    runner.finish();
  });
  return found;
}

}  // namespace

TEST_CASE("a Llama's answers do not depend on batch, cache, preemption, speculation or mesh", "[infer][engine][law]") {
  const unsigned seed = 8;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<inf::request> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(fake::any_request(random, 30));
  const std::vector<fake::answer> alone = answers<inf::contiguous>(mesh_type{1, 1}, 1, 48, 1, requests);
  inf::engine_counts together{}, tight{};
  CHECK(answers<inf::continuous_batching>(mesh_type{1, 1}, 60, 5, 8, requests) == alone);
  CHECK(answers<inf::prefix_shared, inf::ngram_speculation<3>, inf::chunked_prefill<9>>(mesh_type{1, 1}, 60, 4, 8,
                                                                                        requests, &together) == alone);
  CHECK(answers<inf::prefix_shared, inf::ngram_speculation<3>, inf::chunked_prefill<9>>(mesh_type{1, 1}, 14, 4, 8,
                                                                                        requests, &tight) == alone);
  CHECK(together.cache.found > 0);
  CHECK(together.accepted_tokens > 0);
  CHECK(tight.preemptions > 0);
  // Fused steps over slots: the same bits, and as many sums over ranks in a step whatever the number of requests.
  inf::engine_counts fused{};
  CHECK(answers<inf::temporal_fusion<5>>(mesh_type{1, 1}, 60, 5, 8, requests, &fused) == alone);
  CHECK(fused.slot_moves > 0);
  for (const int ranks : {2, 4}) {
    std::int64_t all_reduces = 0;
    const std::vector<fake::answer> split =
        answers<inf::temporal_fusion<5>>(mesh_type{1, ranks}, 60, 5, 8, requests, &fused, &all_reduces);
    CHECK(all_reduces == fused.steps * (1 + 2 * small.layers));  // and one for the embedding
    for (std::size_t i = 0; i < requests.size(); ++i) CHECK(split[i].tokens == alone[i].tokens);
  }
  for (const mesh_type& mesh : {mesh_type{1, 2}, mesh_type{2, 1}, mesh_type{2, 2}, mesh_type{2, 4}}) {
    const std::vector<fake::answer> split =
        answers<inf::prefix_shared, inf::ngram_speculation<3>, inf::chunked_prefill<9>>(mesh, 14, 4, 8, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      CAPTURE(i);
      CHECK(split[i].tokens == alone[i].tokens);
      CHECK(split[i].finish == alone[i].finish);
      REQUIRE(split[i].log_probabilities.size() == alone[i].log_probabilities.size());
      for (std::size_t t = 0; t < alone[i].log_probabilities.size(); ++t)
        CHECK(split[i].log_probabilities[t] == Approx(alone[i].log_probabilities[t]).epsilon(1e-9));
    }
  }
}
#endif
