// 64 tokens chosen greedily, step by step with a cache, and texts of beam searches are those of Hugging Face's generate.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include "cached_generation.hpp"
#include "greedy_tokens.hpp"

#include <heddle/infer/beam_search.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/model/hugging_face/config.hpp>
#include <heddle/model/with_model.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <variant>

using namespace infer_test;
using nlohmann::json;

namespace {

// The beam searches of the folder's beams.json, where there is one, of which some text is another or has another score.
template <class Runner>
std::vector<int> wrong_beams(Runner& runner, const json& cases) {
  std::vector<int> wrong;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const json& c = cases[i];
    const auto found = inf::beam_search(runner, c.at("prompt").template get<std::vector<std::int32_t>>(),
                                        {.beams = 3,
                                         .max_tokens = c.at("max_tokens").template get<std::int64_t>(),
                                         .length_penalty = c.at("length_penalty").template get<double>(),
                                         .early_stopping = c.at("early_stopping").template get<bool>(),
                                         .end_tokens = c.at("end_tokens").template get<std::vector<std::int32_t>>()});
    bool same = found.size() == c.at("texts").size();
    for (std::size_t t = 0; same && t < found.size(); ++t)
      same =
          found[t].tokens == c.at("texts")[t].template get<std::vector<std::int32_t>>() &&
          std::abs(found[t].score - c.at("scores")[t].template get<double>()) < 1e-5 * (1 + std::abs(found[t].score));
    if (!same) wrong.push_back(static_cast<int>(i));
  }
  return wrong;
}

// On ranks along two axes: a pipeline's and tp, unless the mesh says otherwise.
template <class Model, class Mesh = mesh_type>
void check(const std::string& name) {
  using world_type = hd::world<hd::threads, Mesh>;
  const std::string folder = HEDDLE_SOURCE_DIR "/tests/golden/models/" + name;
  const auto about = md::from_config(hd::io::read_json(folder + "/config.json"));
  auto config = std::get<typename Model::config>(about.config);
  const json expected = hd::io::read_json(folder + "/expected.json");
  const auto prompts = expected.at("samples").get<token_lists>();
  const auto tokens = expected.at("generated").get<token_lists>();
  if constexpr (!std::is_same_v<md::gpt2_config, typename Model::config>) config.context = 80;
  const bool has_beams = std::filesystem::exists(folder + "/beams.json");
  const json beams = has_beams ? hd::io::read_json(folder + "/beams.json") : json::array();
  CHECK(has_beams == (name == "llama3"));
  const hd::io::safetensors_folder files(folder, about.scales);
  const auto names = md::names_in(files);
  for (const auto& [first, second] : {std::pair(1, 1), std::pair(1, 2), std::pair(2, 1), std::pair(2, 2)}) {
    CAPTURE(name, first, second);
    const auto ranks = hd::testing::on_ranks(Mesh{first, second}, [&](world_type& world) {
      backend kernels{1};
      inf::model_runner<Model, world_type, backend> runner(config, world, kernels, {64, 5}, 64);
      const hd::io::safetensors_reader weights(files);
      md::read_parameters(runner.stage(), weights, names);
      std::pair<token_lists, std::vector<int>> made;
      if (runner.leads()) {
        made.first = greedy_tokens(runner, prompts, tokens[0].size());
        made.second = wrong_beams(runner, beams);
      } else {
        runner.follow();
      }
      return made;
    });
    if (!ranks.ok()) FAIL(ranks.error);
    CHECK(ranks[0].first == tokens);
    CHECK(ranks[0].second == std::vector<int>{});
  }
}

}  // namespace

TEST_CASE("in float, not a bit depends on companions, chunks and blocks, on any number of threads", "[infer]") {
  using model = md::llama<float>;
  const std::uint64_t seed = 77;
  CAPTURE(seed);
  md::llama_config config{.layers = 2, .heads = 4, .kv_heads = 2, .width = 40, .ffn = 50, .context = 300};
  config.vocabulary = 29;
  std::vector<std::vector<std::int32_t>> sequences;
  for (const std::size_t n : {std::size_t{290}, std::size_t{3}, std::size_t{5}, std::size_t{6}})
    sequences.push_back(random_tokens(n, config.vocabulary, seed + n));
  std::copy_n(sequences[2].begin(), 3, sequences[3].begin());
  all_logits<float> first;
  for (const int threads : {1, 2})
    for (const std::int64_t block_rows : {1, 7, 300}) {
      CAPTURE(threads, block_rows);
      const auto found = all_ways<model>(mesh_type{1, 1}, config, block_rows, 3, sequences, first, seed, threads);
      if (first.empty()) first = found.first;
      CHECK(found.from_first == 0);
      CHECK(distance(found.first, first) == 0);
    }
}

TEST_CASE("greedy tokens of Llama are those of transformers", "[infer][golden]") {
  check<md::llama<float>>("llama3");
  check<md::tied_llama<float>>("llama_tied");
}
TEST_CASE("greedy tokens of Qwen are those of transformers", "[infer][golden]") {
  check<md::tied_qwen2<float>>("qwen2");
  check<md::qwen3<float>>("qwen3");
}
TEST_CASE("greedy tokens of GPT-2 are those of transformers", "[infer][golden]") {
  check<md::gpt2<float>>("gpt2_long");
}
TEST_CASE("a Mixtral generates greedily what transformers does, its experts on ranks of their own", "[infer][golden]") {
  using how = md::megatron_with_experts<>;
  check<md::mixtral<float, how>, hd::mesh<hd::axis<hd::ep>, hd::axis<hd::tp>>>("mixtral");
  check<md::mixtral<float, how>>("mixtral");
}
TEST_CASE("a DeepSeek-V3 generates greedily what transformers does, its experts on ranks of their own",
          "[infer][golden]") {
  check<md::deepseek<float>, hd::mesh<hd::axis<hd::ep>, hd::axis<hd::tp>>>("deepseek");
  check<md::deepseek<float>, hd::mesh<hd::axis<hd::ep>, hd::axis<hd::tp>>>("deepseek_fp8");  // matrices in 8 bits
  check<md::deepseek<float>, hd::mesh<hd::axis<hd::ep>, hd::axis<hd::tp>>>("deepseek_v2");
  check<md::deepseek<float>>("deepseek_dense");  // two leading blocks without experts, YaRN
}
TEST_CASE("a DeepSeek-V3 caches the latent vector of a token, whole on every rank", "[infer][deepseek]") {
  const md::deepseek_config config = [] {
    md::deepseek_config c = md::deepseek_tiny();
    c.layers = 3;
    c.dense = 1;
    return c;
  }();
  const auto ranks = hd::testing::on_ranks(mesh_type{2, 2}, [&](world_type& world) {
    backend kernels{1};
    inf::model_runner<md::deepseek<float>, world_type, backend> runner(config, world, kernels, {4, 5}, 8);
    return std::pair(runner.stage().cache_bytes(), runner.stage().layers().count);
  });
  if (!ranks.ok()) FAIL(ranks.error);
  int layers = 0;
  for (int r = 0; r < 4; ++r) {  // of each block and token, key_latent + rotating numbers
    CHECK(ranks[r].first == std::int64_t{ranks[r].second} * 4 * 5 * (7 + 4) * 4);
    layers += ranks[r].second;
  }
  CHECK(layers == 2 * config.layers);
}
#endif
