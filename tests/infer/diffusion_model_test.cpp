// Masked models decode the tokens of the published loops, with every cache, on any number of ranks.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include "diffusion_any_rule.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/diffusion.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/hugging_face/masked_models.hpp>
#include <heddle/model/masked.hpp>
#include <heddle/testing/on_ranks.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace {
namespace hd = heddle;
namespace inf = heddle::infer;
namespace md = heddle::model;
using diffusion_test::any_rule;
using nlohmann::json;

using masked_mesh = hd::mesh<hd::axis<hd::tp>>;
using masked_world = hd::world<hd::threads, masked_mesh>;
using masked_kernels = hd::compute::host<>;
template <class Reach>
using masked_runner = inf::any_runner<double, inf::capabilities<inf::window_rows, inf::rows_see<Reach>>>;

struct masked_answers {
  std::vector<std::vector<std::int32_t>> tokens{};
  std::int64_t forwards = 0;
};

template <std::int64_t Block, class Cache, class Reach>
masked_answers masked_decoded(masked_runner<Reach>& runner, const any_rule& rule, const json& expected, bool shifted,
                              bool together = true) {
  using decoding = inf::diffusion<Block, any_rule, Cache, Reach>;
  masked_answers found;
  std::map<inf::request_id, std::vector<std::int32_t>> answers;
  inf::engine<masked_runner<Reach>, decoding> engine(runner, {},
                                                     decoding(rule, expected.at("mask").get<std::int32_t>(), shifted));
  const auto run = [&] {
    while (!engine.idle())
      for (const inf::event& e : engine.step()) {
        if (!e.message.empty()) FAIL(e.message);
        if (e.token) answers[e.id].push_back(*e.token);
      }
  };
  for (const json& prompt : expected.at("prompts")) {
    engine.submit(
        {.prompt = prompt.get<std::vector<std::int32_t>>(), .max_tokens = 64, .sampling = {.temperature = 0}});
    if (!together) run();
  }
  run();
  for (const auto& [id, tokens] : answers) found.tokens.push_back(tokens);
  found.forwards = engine.decoder().counts().forwards;
  return found;
}

// The published loop of one entry, by name.
template <class Reach>
masked_answers masked_loop(masked_runner<Reach>& runner, const json& loop, const json& expected) {
  const std::string kind = loop.at("loop");
  const bool shifted = kind == "maskgit" || loop.value("shifted", 0) == 1;
  const any_rule rule = diffusion_test::rule_of(loop);
  if constexpr (std::is_same_v<Reach, md::everything>) {
    if (kind == "maskgit") return masked_decoded<64, inf::none, Reach>(runner, rule, expected, shifted);
    const std::string cache = loop.value("cache", "none");
    if (cache == "prefix") return masked_decoded<16, inf::prefix, Reach>(runner, rule, expected, shifted);
    if (cache == "dual") return masked_decoded<16, inf::dual, Reach>(runner, rule, expected, shifted);
    // The first steps of an answer are counted for each request.
    if (cache == "vicinity")
      return masked_decoded<16, inf::vicinity<3, 5, 2>, Reach>(runner, rule, expected, shifted, false);
    return masked_decoded<16, inf::none, Reach>(runner, rule, expected, shifted);
  } else {
    return masked_decoded<8, inf::exact, Reach>(runner, rule, expected, shifted);
  }
}

// `loops`: which of the published loops; none: all.
template <class Model, class Names>
void check_masked_folder(const std::string& name, std::vector<int> ranks_of_meshes,
                         std::vector<std::size_t> loops = {}) {
  using reach = md::reach_of<Model>;
  const std::string folder = HEDDLE_SOURCE_DIR "/tests/golden/models/" + name;
  const md::masked_model about = md::masked_from_config(hd::io::read_json(folder + "/config.json"));
  const json expected = hd::io::read_json(folder + "/expected.json");
  CHECK(about.family() == name);
  CHECK(about.mask_token == expected.at("mask").get<int>());
  const auto config = std::get<typename Model::config>(about.config);
  const hd::io::safetensors_folder files(folder);
  const bool every = loops.empty();
  for (std::size_t i = 0; every && i < expected.at("loops").size(); ++i) loops.push_back(i);
  for (const int ranks_of_mesh : ranks_of_meshes) {
    const auto ranks = hd::testing::on_ranks(masked_mesh{ranks_of_mesh}, [&](masked_world& world) {
      masked_kernels kernels{1};
      inf::model_runner<Model, masked_world, masked_kernels> runner(config, world, kernels, {40, 5}, 160);
      const hd::io::safetensors_reader weights(files);
      md::read_parameters(runner.stage(), weights, Names{});
      std::vector<masked_answers> found;
      if (runner.leads()) {
        masked_runner<reach> any(runner);
        for (const std::size_t i : loops) found.push_back(masked_loop<reach>(any, expected.at("loops")[i], expected));
        if constexpr (!std::is_same_v<reach, md::everything>)  // without a cache
          found.push_back(masked_decoded<8, inf::none, reach>(any, diffusion_test::rule_of(expected.at("loops")[0]),
                                                              expected, false));
      } else {
        runner.follow();
      }
      return found;
    });
    if (!ranks.ok()) FAIL(ranks.error);
    for (std::size_t i = 0; i < ranks[0].size(); ++i) {
      const json& loop = expected.at("loops")[loops[(std::min)(i, loops.size() - 1)]];
      CAPTURE(name, ranks_of_mesh, i, loop.at("loop").get<std::string>());
      CHECK(ranks[0][i].tokens == loop.at("answers").get<std::vector<std::vector<std::int32_t>>>());
      std::int64_t forwards = 0;
      for (const json& n : loop.at("forwards")) forwards += n.get<std::int64_t>();
      CHECK(ranks[0][i].forwards == forwards);
    }
  }
}

}  // namespace

TEST_CASE("LLaDA's answers are those of the published loops over transformers' Llama", "[infer][golden]") {
  check_masked_folder<md::llada<double>, md::llada_names>("llada", {1, 2, 4});
}
TEST_CASE("LLaDA's answers are the same where ranks share the rows of a step", "[infer][golden]") {
  check_masked_folder<md::llada<double, md::megatron_sequence<>>, md::llada_names>("llada", {2, 4}, {0, 3, 5});
}
TEST_CASE("Dream's answers are those of the published loops over transformers' Qwen 2", "[infer][golden]") {
  check_masked_folder<md::dream<double>, md::same_names>("dream", {1, 2});
}
TEST_CASE("SDAR's answers, cached and not, are those of the published loop over transformers' Qwen 3",
          "[infer][golden]") {
  check_masked_folder<md::sdar<double, 8>, md::same_names>("sdar", {1, 2});
}

#endif
