// Mistral with a cache: transformers' logits and greedy tokens far beyond the window, any chunks on any mesh, and a cache of windows.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include "cached_generation.hpp"

#include <heddle/infer/engine.hpp>
#include <heddle/infer/windowed.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/model/hugging_face/config.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mistral.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

using namespace infer_test;

namespace {

using mistral_model = md::mistral<double>;

using mistral_offers = inf::model_runner<mistral_model, world_type, backend>::capabilities;
static_assert(mistral_offers::has<inf::truncate> && mistral_offers::has<inf::causal_rows> &&
              mistral_offers::has<inf::next_token> && mistral_offers::has<inf::bounded_reach> &&
              !mistral_offers::has<inf::tree_rows> && !mistral_offers::has<inf::window_rows>);

struct mistral_answer {
  std::vector<std::int32_t> tokens{};
  std::vector<double> log_probabilities{};
  friend bool operator==(const mistral_answer&, const mistral_answer&) = default;
};

// Answers of all requests by an engine with these policies, and the most blocks in use.
template <class... Policies, class Runner>
std::pair<std::map<inf::request_id, mistral_answer>, std::int64_t> mistral_answers(
    Runner& runner, const std::vector<std::vector<std::int32_t>>& prompts, std::int64_t tokens) {
  inf::engine<Runner, Policies...> e(runner, {});
  for (const auto& p : prompts) {
    inf::request r;
    r.prompt = p;
    r.max_tokens = tokens;
    r.log_probabilities = 0;
    r.sampling.temperature = 0;
    r.ignore_end_tokens = true;
    e.submit(std::move(r));
  }
  std::pair<std::map<inf::request_id, mistral_answer>, std::int64_t> all;
  while (!e.idle()) {
    for (const inf::event& x : e.step()) {
      if (!x.token) continue;
      all.first[x.id].tokens.push_back(*x.token);
      all.first[x.id].log_probabilities.push_back(*x.log_probability);
    }
    all.second = (std::max)(all.second, e.counts().cache.used);
  }
  return all;
}

}  // namespace

TEST_CASE("greedy tokens of Mistral beyond its window are those of transformers, from any cache", "[infer][golden]") {
  const std::string folder = HEDDLE_SOURCE_DIR "/tests/golden/models/mistral";
  const auto about = md::from_config(hd::io::read_json(folder + "/config.json"));
  CHECK(about.family() == "mistral");
  const auto config = std::get<md::mistral_config>(about.config);
  CHECK(config.window == 7);
  const auto expected = hd::io::read_json(folder + "/expected.json");
  const auto prompts = expected.at("samples").get<std::vector<std::vector<std::int32_t>>>();
  const auto tokens = expected.at("generated").get<std::vector<std::vector<std::int32_t>>>();
  const auto last = expected.at("last_logits").get<std::vector<std::vector<double>>>();
  const hd::io::safetensors_folder files(folder, about.scales);
  for (const auto& [first, second] : {std::pair(1, 1), std::pair(1, 2), std::pair(2, 1), std::pair(2, 2)}) {
    CAPTURE(first, second);
    const auto ranks = hd::testing::on_ranks(mesh_type{first, second}, [&](world_type& world) {
      backend kernels{1};
      inf::model_runner<mistral_model, world_type, backend> runner(config, world, kernels, {60, 4}, 32);
      md::read_parameters(runner.stage(), hd::io::safetensors_reader(files), md::names_in(files));
      std::string wrong;
      if (!runner.leads()) {
        runner.follow();
        return wrong;
      }
      if (runner.limits().window != 7) wrong += "the window ";
      driver<decltype(runner)> d(runner, prompts, 3);
      for (std::size_t s = 0; s < prompts.size(); ++s) {
        while (d.left(s) > 0) d.feed({{s, (std::min)(d.left(s), std::int64_t{8})}});
        for (std::size_t w = 0; w < last[s].size(); ++w)
          if (!(std::abs(d.found()[s].back()[w] - last[s][w]) <= 1e-5 * (1 + std::abs(last[s][w])))) wrong += "logits ";
      }
      const auto paged = mistral_answers<inf::paged>(runner, prompts, 64);
      const auto windowed = mistral_answers<inf::windowed>(runner, prompts, 64);
      for (std::size_t s = 0; s < prompts.size(); ++s)
        if (paged.first.at(static_cast<inf::request_id>(s + 1)).tokens != tokens[s]) wrong += "tokens ";
      if (windowed.first != paged.first) wrong += "not the bits of paged ";  // log-probabilities, too
      if (!(windowed.second < paged.second / 2)) wrong += "blocks ";
      runner.finish();
      return wrong;
    });
    if (!ranks.ok()) FAIL(ranks.error);
    CHECK(ranks[0] == "");
  }
}

TEST_CASE("a Mistral's logits do not depend on chunks, companions, blocks and ranks", "[infer]") {
  const std::uint64_t seed = 5;
  CAPTURE(seed);
  md::mistral_config config = md::mistral_tiny();
  config.context = 26;
  config.vocabulary = 29;
  std::vector<std::vector<std::int32_t>> sequences;
  for (const std::size_t n : {std::size_t{20}, std::size_t{3}, std::size_t{5}, std::size_t{6}})
    sequences.push_back(random_tokens(n, config.vocabulary, seed + n));
  std::copy_n(sequences[2].begin(), 3, sequences[3].begin());
  const auto expected = logits_of_prefixes<mistral_model>(config, seed, sequences);
  for (const mesh_type& mesh : {mesh_type{1, 1}, mesh_type{2, 1}, mesh_type{1, 2}, mesh_type{2, 2}})
    for (const std::int64_t block_rows : {1, 3, 26}) {
      CAPTURE(mesh.size(), block_rows);
      const auto found = all_ways<mistral_model>(mesh, config, block_rows, 3, sequences, expected, seed);
      CHECK(found.from_expected < 1e-10);
      CHECK(found.from_first < 1e-10);
    }
}

namespace {
// Logits of all rows, fed in chunks of three.
template <class Model>
all_logits<double> chunked_logits(const mesh_type& mesh, const typename Model::config& config,
                                  const std::vector<std::vector<std::int32_t>>& sequences) {
  const auto ranks = hd::testing::on_ranks(mesh, [&](world_type& world) {
    backend kernels{1};
    inf::model_runner<Model, world_type, backend> runner(config, world, kernels, {40, 4}, 8);
    runner.stage().initialize(11);
    if (!runner.leads()) return static_cast<void>(runner.follow()), all_logits<double>();
    driver<decltype(runner)> d(runner, sequences, 3);
    for (std::size_t s = 0; s < sequences.size(); ++s)
      while (d.left(s) > 0) d.feed({{s, (std::min)(d.left(s), std::int64_t{3})}});
    runner.finish();
    return d.found();
  });
  if (!ranks.ok()) FAIL(ranks.error);
  return ranks[0];
}
}  // namespace

TEST_CASE("a window of all tokens has the bits of full attention", "[infer][law]") {
  md::mistral_config config = md::mistral_tiny();
  config.context = 26;
  config.vocabulary = 29;
  const std::vector<std::vector<std::int32_t>> sequences{random_tokens(26, 29, 1), random_tokens(10, 29, 2)};
  for (const mesh_type& mesh : {mesh_type{1, 1}, mesh_type{2, 1}, mesh_type{1, 2}}) {
    CAPTURE(mesh.size());
    const auto full = chunked_logits<md::llama<double>>(mesh, config, sequences);
    REQUIRE(full.at(0).size() == 26);
    for (const int window : {26, 1000}) {
      config.window = window;
      CHECK(chunked_logits<mistral_model>(mesh, config, sequences) == full);
    }
    config.window = 25;
    CHECK(chunked_logits<mistral_model>(mesh, config, sequences) != full);
  }
}

TEST_CASE("windows over ranks that share the rows of a step are those of one rank", "[infer]") {
  using shared_rows = md::mistral<double, md::megatron_sequence<>>;
  md::mistral_config config = md::mistral_tiny();
  config.context = 26;
  config.vocabulary = 29;
  const std::vector<std::vector<std::int32_t>> sequences{random_tokens(26, 29, 3), random_tokens(10, 29, 4)};
  const auto alone = chunked_logits<mistral_model>(mesh_type{1, 1}, config, sequences);
  for (const mesh_type& mesh : {mesh_type{1, 2}, mesh_type{2, 2}})
    CHECK(distance(chunked_logits<shared_rows>(mesh, config, sequences), alone) < 1e-10);
}
#endif
