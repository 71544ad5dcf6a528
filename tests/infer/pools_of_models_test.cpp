// Pools of a model on two meshes: tokens and log-probabilities of one engine on one rank, and the bytes of the layouts.
#include "cached_generation.hpp"
#include "catch.hpp"

#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/move_cache.hpp>
#include <heddle/infer/pools.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/spiking_brain.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace infer_test;

namespace {

using pools_union = hd::mesh<hd::axis<hd::dp>>;  // the ranks of both pools
constexpr std::int64_t pools_step_rows = 9;

constexpr md::llama_config pools_llama{.layers = 3,
                                       .heads = 6,
                                       .kv_heads = 3,
                                       .width = 12,
                                       .ffn = 17,
                                       .context = 40,
                                       .vocabulary = 23,
                                       .initial_deviation = 0.4,
                                       .head_elements = 4};

md::deepseek_config pools_deepseek() {
  md::deepseek_config c;
  c.layers = 3;
  c.heads = 4;
  c.width = 16;
  c.ffn = 6;
  c.context = 40;
  c.vocabulary = 23;
  c.query_latent = 8;
  c.key_latent = 6;
  c.still = 4;
  c.rotating = 4;
  c.value = 4;
  c.experts = 4;
  c.chosen = 2;
  c.groups = 2;
  c.kept_groups = 1;
  c.dense = 1;
  c.dense_ffn = 20;
  c.initial_deviation = 0.3;
  return c;
}

struct pools_answer {
  std::vector<std::int32_t> tokens{};
  std::vector<double> log_probabilities{};
};
using pools_answers = std::map<inf::request_id, pools_answer>;

std::vector<inf::request> pools_requests(bool greedy) {
  std::vector<inf::request> all;
  for (std::size_t n : {std::size_t{7}, std::size_t{1}, std::size_t{19}, std::size_t{12}, std::size_t{4}}) {
    inf::request r{.max_tokens = 8, .log_probabilities = 0};
    r.prompt = random_tokens(n, 23, 300 + n);
    if (greedy)
      r.sampling.temperature = 0;
    else if (n == 12)
      r.sampling.repetition_penalty = 1.3;
    all.push_back(r);
  }
  return all;
}

template <class Engine>
pools_answers pools_run(Engine& e, const std::vector<inf::request>& requests) {
  pools_answers all;
  std::size_t next = 0;
  while (next < requests.size() || !e.idle()) {
    if (next < requests.size()) e.submit(requests[next++]);
    for (const inf::event& x : e.step()) {
      if (x.token) all[x.id].tokens.push_back(*x.token);
      if (x.log_probability) all[x.id].log_probabilities.push_back(*x.log_probability);
    }
  }
  return all;
}

template <class Model, class Config>
pools_answers pools_alone(const Config& config, const std::vector<inf::request>& requests) {
  pools_answers all;
  hd::launch<hd::threads>(mesh_type{1, 1}, [&](world_type& world) {
    backend kernels{1};
    using runner_type = inf::model_runner<Model, world_type, backend>;
    runner_type runner(config, world, kernels, {40, 4, 5}, pools_step_rows);
    runner.stage().initialize(77);
    inf::engine<runner_type> engine(runner, {.seed = 5});
    all = pools_run(engine, requests);
  });
  return all;
}

struct pools_found {
  pools_answers greedy{}, sampled{};
  std::int64_t rows = 0, sent = 0, used = 0;
};

// Rank 0 leads both pools: it is the first of either mesh, and the rest of their ranks are of one pool each. `Apart`: rank 0 leads the pool of answers, the
// first rank behind it that of prompts, and both compute at the same time.
template <class Model, bool Apart, class Config>
pools_found pools_on(const Config& config, const mesh_type& prompts, const mesh_type& answers) {
  pools_found found;
  const int ranks = prompts.size() + answers.size() - (Apart ? 0 : 1), behind = Apart ? answers.size() : 0;
  std::vector<int> of_prompts(static_cast<std::size_t>(prompts.size())), of_answers{0};
  std::iota(of_prompts.begin(), of_prompts.end(), behind);
  for (int r = Apart ? 1 : prompts.size(); std::ssize(of_answers) < answers.size(); ++r) of_answers.push_back(r);
  std::vector<std::int64_t> sent(static_cast<std::size_t>(ranks));
  using runner_type = inf::model_runner<Model, world_type, backend>;
  using stage_type = typename runner_type::stage_type;
  using lane_type = std::conditional_t<Apart, inf::engine_lane, inf::in_turn>;
  lane_type lane;
  runner_type* first_runner = nullptr;
  void* first_mover = nullptr;
  hd::launch<hd::threads>(pools_union{ranks}, [&](auto& world) {
    backend kernels{1};
    auto prompt_world = world.on(prompts, of_prompts), answer_world = world.on(answers, of_answers);
    std::optional<runner_type> prefill, decode;
    if (prompt_world) prefill.emplace(config, *prompt_world, kernels, inf::cache_extent{30, 4, 4}, pools_step_rows);
    if (answer_world) decode.emplace(config, *answer_world, kernels, inf::cache_extent{30, 3, 3}, pools_step_rows);
    if (prefill) prefill->stage().initialize(77);
    if (decode) decode->stage().initialize(77);
    stage_type* const from = prefill ? &prefill->stage() : nullptr;
    stage_type* const to = decode ? &decode->stage() : nullptr;
    inf::cache_mover mover(world, kernels, from, to);
    if (world.rank() == behind) first_runner = &*prefill, first_mover = &mover;
    world.control().barrier();
    if (world.rank() == 0) {
      std::optional<inf::lane_end> end;
      if constexpr (Apart) end.emplace(lane);
      using link_type = inf::mover_link<runner_type, runner_type, decltype(mover), lane_type>;
      link_type link(*first_runner, *decode, mover, *static_cast<decltype(mover)*>(first_mover), lane,
                     Apart ? 5 : 1000);
      using engine_type = inf::engine<runner_type>;
      using pools_type = inf::pools<engine_type, engine_type, link_type, lane_type>;
      engine_type first(*first_runner, {.seed = 5}), second(*decode, {.seed = 5});
      {
        pools_type pools(first, second, link, lane);
        found.greedy = pools_run(pools, pools_requests(true));
      }
      {
        engine_type again(*first_runner, {.seed = 5});
        pools_type pools(again, second, link, lane);
        found.sampled = pools_run(pools, pools_requests(false));
        found.used = pools.counts().cache.used + first.counts().cache.used;
      }
      found.rows = link.rows();
      if (!Apart) first_runner->finish();
      decode->finish();
    } else if (Apart && world.rank() == behind) {
      if constexpr (Apart) lane.serve();
      prefill->finish();
    } else {
      runner_type& own = prefill ? *prefill : *decode;
      while (own.follow() == inf::followed::interrupted) mover.follow();
    }
    sent[static_cast<std::size_t>(world.rank())] = mover.bytes_sent();
  });
  for (const std::int64_t n : sent) found.sent += n;
  return found;
}

void pools_equal(const pools_answers& a, const pools_answers& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (const auto& [id, x] : a) {
    const pools_answer& y = b.at(id);
    CHECK(x.tokens == y.tokens);
    REQUIRE(x.log_probabilities.size() == y.log_probabilities.size());
    for (std::size_t i = 0; i < x.log_probabilities.size(); ++i)
      largest = (std::max)(largest, std::abs(x.log_probabilities[i] - y.log_probabilities[i]));
  }
  CHECK(largest < 1e-10);
}

// Bytes of a row: of each layer what ranks of the second mesh have and rank 0, where it has the layer on both, does not keep.
// `columns(layer, tp, rank)`: first and last column of a tensor on a rank.
template <class Model, bool Apart, class Config, class Columns>
std::int64_t pools_bytes_of_row(const Config& config, const mesh_type& prompts, const mesh_type& answers,
                                const Columns& columns) {
  const auto has = [&](const mesh_type& m, int stage, int layer) {
    const auto part = Model::layers_of(config, stage, m.template extent<hd::pp>());
    return layer >= part.first && layer < part.first + part.count;
  };
  std::int64_t n = 0;
  for (int layer = 0; layer < config.layers; ++layer)
    for (int s = 0; s < answers.template extent<hd::pp>(); ++s)
      for (int r = 0; has(answers, s, layer) && r < answers.template extent<hd::tp>(); ++r) {
        const auto [first, last] = columns(answers.template extent<hd::tp>(), r);
        n += last - first;
        if (!Apart && s == 0 && r == 0 && has(prompts, 0, layer)) {  // rank 0
          const auto [own, end] = columns(prompts.template extent<hd::tp>(), 0);
          n -= (std::max)(std::int64_t{0}, (std::min)(last, end) - (std::max)(first, own));
        }
      }
  return n * static_cast<std::int64_t>(sizeof(double));
}

template <class Model, bool Apart = false, class Config, class Columns>
void pools_check(const Config& config, std::int64_t tensors, const Columns& columns) {
  const pools_answers greedy = pools_alone<Model>(config, pools_requests(true));
  const pools_answers sampled = pools_alone<Model>(config, pools_requests(false));
  REQUIRE(greedy.size() == 5);
  const std::vector<std::pair<mesh_type, mesh_type>> pairs{{mesh_type{1, 1}, mesh_type{1, 2}},
                                                           {mesh_type{2, 2}, mesh_type{1, 1}},
                                                           {mesh_type{1, 4}, mesh_type{1, 2}},
                                                           {mesh_type{1, 2}, mesh_type{2, 3}}};
  for (const auto& [a, b] : pairs) {
    CAPTURE(hd::to_string(a), hd::to_string(b));
    const pools_found found = pools_on<Model, Apart>(config, a, b);
    pools_equal(found.greedy, greedy);
    pools_equal(found.sampled, sampled);
    CHECK(found.rows == 2 * (7 + 1 + 19 + 12 + 4));
    CHECK(found.used == 0);
    if (tensors > 0 && !Apart)
      CHECK(found.sent == found.rows * tensors * pools_bytes_of_row<Model, Apart>(config, a, b, columns));
    CHECK(found.sent > 0);
  }
}

}  // namespace

TEST_CASE("pools of Llamas on two meshes, in turn and at the same time, give the answers of one engine",
          "[infer][engine][law]") {
  const auto columns = [](int ranks, int rank) {  // heads, the first ranks one more
    const std::int64_t heads = pools_llama.kv_heads, each = heads / ranks, more = heads % ranks;
    const std::int64_t first = rank * each + (std::min)(std::int64_t{rank}, more);
    return std::pair{4 * first, 4 * (first + each + (rank < more ? 1 : 0))};
  };
  pools_check<md::llama<double>>(pools_llama, 2, columns);
  pools_check<md::llama<double>, true>(pools_llama, 2, columns);
}

TEST_CASE("pools of DeepSeeks move latents to each rank", "[infer][engine][law]") {
  pools_check<md::deepseek<double>>(pools_deepseek(), 1,
                                    [](int, int) { return std::pair{std::int64_t{0}, std::int64_t{10}}; });
}

TEST_CASE("pools of hybrids move states and rows of windows", "[infer][engine][law]") {
  const md::llama_config shape{.layers = 4,
                               .heads = 6,
                               .kv_heads = 3,
                               .width = 12,
                               .ffn = 10,
                               .context = 40,
                               .vocabulary = 23,
                               .initial_deviation = 0.3,
                               .head_elements = 4};
  pools_check<md::spiking_brain<double>, true>(md::spiking_brain_config(shape, 6, 3), 0,
                                               [](int, int) { return std::pair{std::int64_t{0}, std::int64_t{0}}; });
}

TEST_CASE("rows of a cache for a runner of another model are refused", "[infer]") {
  std::string message;
  hd::launch<hd::threads>(mesh_type{1, 2}, [&](world_type& world) {
    using runner_type = inf::model_runner<md::llama<double>, world_type, backend>;
    backend kernels{1};
    md::llama_config other = pools_llama;
    other.kv_heads = 2;
    runner_type a(pools_llama, world, kernels, {12, 4}, 4), b(other, world, kernels, {12, 4}, 4);
    try {
      inf::cache_mover mover(world, kernels, &a.stage(), &b.stage());
    } catch (const hd::config_error& e) {
      if (world.rank() == 0) message = e.what();
    }
    if (!a.leads()) {
      a.follow();
      b.follow();
    } else {
      a.finish();
      b.finish();
    }
  });
  CHECK(message ==
        "heddle: cache_mover: both pools should run the same model; tensor 0 of layer 0 of the cache has columns 3 x 4 "
        "where rows leave, and 2 x 4 where they arrive");
}
