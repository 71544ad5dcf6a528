// Engines of models in bf16: the tokens that the model alone continues a prompt with.
#include <heddle/core/config.hpp>

#if __has_include(<heddle/infer/model_runner.hpp>)
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/beam_search.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/medusa_heads.hpp>
#include <heddle/infer/medusa_speculation.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/widened_runner.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>

#include "catch.hpp"
#include "generation_alone.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace {

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;
using mesh_type = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp>>;
using world_type = hd::world<hd::threads, mesh_type>;
using backend = hd::compute::host<>;
using ids = std::vector<std::int32_t>;
using answer = std::pair<ids, std::vector<double>>;
using llama = md::llama<hd::bf16>;
using gpt2 = md::gpt2<hd::bf16>;
template <class Model>
using runner_of = inf::model_runner<Model, world_type, backend>;

constexpr md::llama_config small_llama{.layers = 2,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .width = 16,
                                       .ffn = 20,
                                       .context = 48,
                                       .vocabulary = 29,
                                       .initial_deviation = 0.5,
                                       .head_elements = 4};
constexpr md::gpt2_config small_gpt2{
    .layers = 2, .heads = 4, .width = 16, .context = 48, .vocabulary = 29, .initial_deviation = 0.4};

// Prompts of uneven lengths, three of which begin alike.
const std::vector<ids> prompts{{3},
                               {5, 1, 7, 7, 2, 9, 4, 8, 2},
                               {5, 1, 7, 7, 2, 9, 4, 8, 12, 28, 1},
                               {11, 2, 2},
                               {5, 1, 7, 7, 2, 9, 4, 8, 2, 21, 20, 3, 17, 17, 4, 6, 0, 25, 11},
                               {1, 2, 1, 2}};
std::int64_t tokens_of(std::size_t prompt) {
  return static_cast<std::int64_t>(6 + prompt % 3 * 5);
}

// body(runner) on the leader of a mesh.
template <class Model, class Body>
void on_leader(const typename Model::config& config, const mesh_type& mesh, std::int64_t blocks, const Body& body) {
  hd::launch<hd::threads>(mesh, [&](world_type& world) {
    backend kernels{1};
    runner_of<Model> runner(config, world, kernels, {blocks, 4}, 20);
    runner.stage().initialize(5);
    if (!runner.leads()) {
      runner.follow();
      return;
    }
    body(runner);
    runner.finish();
  });
}

template <class Model>
std::vector<answer> answers_alone(const typename Model::config& config, const mesh_type& mesh) {
  std::vector<answer> found;
  on_leader<Model>(config, mesh, 12, [&](auto& runner) {
    for (std::size_t i = 0; i < prompts.size(); ++i)
      found.push_back(alone::generated(runner, prompts[i], tokens_of(i)));
  });
  return found;
}

template <class Engine>
std::vector<answer> answers_of(Engine& engine) {
  std::vector<answer> found(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i)
    engine.submit({.prompt = prompts[i],
                   .max_tokens = tokens_of(i),
                   .sampling = {.temperature = 0},
                   .log_probabilities = i % 2 == 0 ? 0 : 2});
  while (!engine.idle())
    for (const inf::event& e : engine.step()) {
      answer& a = found[e.id - 1];
      if (e.token) a.first.push_back(*e.token);
      if (e.log_probability) a.second.push_back(*e.log_probability);
    }
  return found;
}

template <class Model, class... Policies>
std::vector<answer> answers(const typename Model::config& config, const mesh_type& mesh, std::int64_t blocks,
                            inf::engine_counts& counts) {
  std::vector<answer> found;
  on_leader<Model>(config, mesh, blocks, [&](auto& runner) {
    inf::engine<runner_of<Model>, Policies...> engine(runner, {.max_running = 4});
    found = answers_of(engine);
    counts = engine.counts();
  });
  return found;
}

void check_same(const std::vector<answer>& found, const std::vector<answer>& expected) {
  REQUIRE(found.size() == expected.size());
  std::set<std::int32_t> words;
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    words.insert(found[i].first.begin(), found[i].first.end());
    CHECK(found[i].first == expected[i].first);
    REQUIRE(found[i].second.size() == expected[i].second.size());
    for (std::size_t t = 0; t < found[i].second.size(); ++t)
      CHECK(found[i].second[t] == Approx(expected[i].second[t]).epsilon(1e-10));
  }
  CHECK(words.size() > 4);
}

}  // namespace

TEST_CASE("an engine of a model in bf16 answers as the model alone", "[infer][engine][law]") {
  inf::engine_counts counts{};
  for (const mesh_type& mesh : {mesh_type{1, 1}, mesh_type{1, 2}, mesh_type{2, 2}}) {
    CAPTURE(hd::to_string(mesh));
    const std::vector<answer> expected = answers_alone<llama>(small_llama, mesh);
    check_same(answers<llama, inf::continuous_batching>(small_llama, mesh, 60, counts), expected);
    check_same(answers<llama, inf::prefix_shared, inf::ngram_speculation<3>, inf::chunked_prefill<9>>(small_llama, mesh,
                                                                                                      60, counts),
               expected);
    CHECK(counts.cache.found > 0);
    CHECK(counts.proposed_tokens > 0);
    check_same(answers<llama, inf::prefix_shared, inf::chunked_prefill<9>>(small_llama, mesh, 13, counts), expected);
    CHECK(counts.preemptions > 0);
  }
  check_same(answers<gpt2, inf::prefix_shared>(small_gpt2, mesh_type{1, 2}, 60, counts),
             answers_alone<gpt2>(small_gpt2, mesh_type{1, 2}));
}

TEST_CASE("a runner in bf16 serves as one of float, with heads of Medusa in float", "[infer][engine]") {
  std::vector<answer> found;
  inf::engine_counts counts{};
  on_leader<llama>(small_llama, mesh_type{1, 2}, 60, [&](auto& runner) {
    inf::widened_runner wide(runner);
    inf::any_tree_runner<float> steps(wide);
    backend kernels{1};
    inf::medusa_heads<float, backend> heads(kernels, 2, small_llama.width, small_llama.vocabulary, 1e-5);
    heads.initialize(3, 0.5);
    inf::engine<inf::any_tree_runner<float>, inf::medusa_speculation<decltype(heads)>> engine(
        steps, {.max_running = 4}, inf::medusa_speculation(heads, inf::token_tree({{0}, {1}, {0, 0}})));
    found = answers_of(engine);
    counts = engine.counts();
  });
  check_same(found, answers_alone<llama>(small_llama, mesh_type{1, 2}));
  CHECK(counts.proposed_tokens > 0);
}

TEST_CASE("beam search with a model in bf16 finds the best of all texts", "[infer][engine]") {
  auto config = small_llama;
  config.vocabulary = 11;
  std::vector<inf::found_text> all, found;
  on_leader<llama>(config, mesh_type{1, 1}, 60, [&](auto& runner) {
    const ids prompt{5, 1, 7, 7, 2};
    const std::vector<double> first = alone::log_probabilities(alone::logits_behind(runner, prompt, 0));
    for (std::int32_t a = 0; a < 11; ++a) {
      ids text = prompt;
      text.push_back(a);
      const std::vector<double> second = alone::log_probabilities(alone::logits_behind(runner, text, 5));
      for (std::int32_t b = 0; b < 11; ++b)
        all.push_back({.tokens = {a, b},
                       .log_probability = first[static_cast<std::size_t>(a)] + second[static_cast<std::size_t>(b)]});
    }
    found = inf::beam_search(runner, prompt, {.beams = 11, .max_tokens = 2});
  });
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.log_probability > b.log_probability; });
  REQUIRE(found.size() == 11);
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i].log_probability == Approx(all[i].log_probability).epsilon(1e-10));
    const auto is_same = [&](const auto& t) {
      return t.tokens == found[i].tokens && t.log_probability == Approx(found[i].log_probability).epsilon(1e-10);
    };
    CHECK(std::any_of(all.begin(), all.end(), is_same));
  }
}
#endif
