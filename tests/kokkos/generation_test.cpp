// Answers of an engine whose model, with its cache, is on Kokkos: the tokens and log-probabilities of the host's backend.
#include "catch.hpp"
#include "space.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/prefix_shared.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/gpt2.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace hd = heddle;
namespace inf = heddle::infer;
namespace md = heddle::model;
using mesh_type = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp>>;
using host = hd::compute::host<>;
using tested = hd::compute::kokkos<tested_space>;

struct answer {
  std::vector<std::int32_t> tokens;
  std::vector<double> log_probabilities;
};

// Five prompts of different lengths, two of which begin alike, answered greedily, some beside each other.
template <class Model, class Backend>
std::map<inf::request_id, answer> answers(const typename Model::config& config, const mesh_type& mesh) {
  std::map<inf::request_id, answer> all;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    using runner_type = inf::model_runner<Model, std::remove_reference_t<decltype(world)>, Backend>;
    Backend kernels{1};
    runner_type runner(config, world, kernels, {24, 3}, 9);
    runner.stage().initialize(4);
    if (!runner.leads()) {
      runner.follow();
      return;
    }
    inf::engine<runner_type, inf::prefix_shared, inf::chunked_prefill<4>> engine(runner, {.max_running = 3});
    for (const auto& prompt : std::vector<std::vector<std::int32_t>>{
             {3}, {5, 1, 7, 7, 2, 9, 4, 8}, {5, 1, 7, 7, 2, 9, 4, 1, 6}, {11, 2, 2}, {5, 1, 7, 7, 2, 9, 4, 8, 12}})
      engine.submit({.prompt = prompt, .max_tokens = 9, .sampling = {.temperature = 0}, .log_probabilities = 0});
    while (!engine.idle())
      for (const inf::event& e : engine.step()) {
        if (e.token) all[e.id].tokens.push_back(*e.token);
        if (e.log_probability) all[e.id].log_probabilities.push_back(*e.log_probability);
      }
    runner.finish();
  });
  return all;
}

template <class Model>
void check_answers(const typename Model::config& config) {
  for (const char* text : {"", "tp=2", "pp=2,tp=2"}) {
    CAPTURE(text);
    if (!ranks_can_be_threads && std::string(text) != "") continue;
    const auto mesh = hd::parse_mesh<mesh_type>(text);
    const auto expected = answers<Model, host>(config, mesh), got = answers<Model, tested>(config, mesh);
    REQUIRE(expected.size() == 5);
    REQUIRE(got.size() == 5);
    std::set<std::int32_t> words;
    for (const auto& [id, want] : expected) {
      CAPTURE(id);
      REQUIRE(want.tokens.size() == 9);
      words.insert(want.tokens.begin(), want.tokens.end());
      CHECK(got.at(id).tokens == want.tokens);
      REQUIRE(want.log_probabilities.size() == 9);
      REQUIRE(got.at(id).log_probabilities.size() == 9);
      for (std::size_t i = 0; i < 9; ++i)
        CHECK(std::abs(got.at(id).log_probabilities[i] - want.log_probabilities[i]) < 1e-4);
    }
    CHECK(words.size() > 3);  // not one word again and again
  }
}

}  // namespace

TEST_CASE("an engine answers on Kokkos as on the host, of a GPT-2 and a DeepSeek-V3", "[kokkos][ranks][infer]") {
  check_answers<md::gpt2<float>>(
      {.layers = 2, .heads = 4, .width = 16, .context = 20, .vocabulary = 30, .initial_deviation = 0.4});
  md::deepseek_config deepseek = md::deepseek_tiny();
  deepseek.heads = 4;
  deepseek.context = 20;
  deepseek.initial_deviation = 0.4;
  deepseek.ffn = 10;
  check_answers<md::deepseek<float>>(deepseek);
}
