// A hybrid of linear attention and windows with its states: PyTorch's logits and greedy tokens, on any mesh, whatever runs beside a sequence.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include "cached_generation.hpp"

#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/windowed.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/model/spiking_brain.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

using namespace infer_test;

namespace {

using hybrid_model = md::spiking_brain<double>;
using hybrid_tokens = std::vector<std::vector<std::int32_t>>;

using hybrid_offers = inf::model_runner<hybrid_model, world_type, backend>::capabilities;
static_assert(hybrid_offers::has<inf::next_token> && hybrid_offers::has<inf::bounded_reach>);
// Neither speculation nor shared prefixes without `restore`: a state has no rows that could be taken back or found again.
static_assert(hybrid_offers::has<inf::copy_states> && !hybrid_offers::has<inf::truncate> &&
              !hybrid_offers::has<inf::causal_rows> && !hybrid_offers::has<inf::tree_rows>);

struct hybrid_names {
  md::source_name operator()(std::string_view parameter) const { return {std::string(parameter)}; }
};

md::spiking_brain_config hybrid_config() {
  md::llama_config shape{
      .layers = 4, .heads = 6, .kv_heads = 2, .width = 24, .ffn = 17, .context = 96, .vocabulary = 43, .theta = 1000};
  shape.epsilon = 1e-6;
  return {shape, 6, 3};
}

inf::request hybrid_request(const std::vector<std::int32_t>& prompt, std::int64_t tokens) {
  inf::request r;
  r.prompt = prompt;
  r.max_tokens = tokens;
  r.sampling.temperature = 0;
  r.ignore_end_tokens = true;
  return r;
}

// Requests that come, go and are sent back in any order, by an engine of `Policies`: what is wrong with those that ended by themselves.
template <class... Policies, class Runner>
std::string hybrid_orders(Runner& runner, const hybrid_tokens& prompts, const hybrid_tokens& expected,
                          std::uint64_t seed, std::int64_t& preemptions) {
  const hd::counter_random random(seed, 9);
  std::uint64_t draws = 0;
  inf::engine<Runner, Policies..., inf::chunked_prefill<7>> e(runner,
                                                              {.max_running = sizeof...(Policies) > 1 ? 2 : 32});
  std::map<inf::request_id, std::pair<std::size_t, std::vector<std::int32_t>>> answers;
  std::string wrong;
  for (int left = 14; left > 0 || !e.idle();) {
    const auto draw = random.integer(draws++);
    if (left > 0 && draw % 3 == 0) {
      const std::size_t s = draw / 8 % prompts.size();
      answers[e.submit(hybrid_request(prompts[s], 8 + static_cast<std::int64_t>(draw / 64 % 50)))].first = s;
      --left;
    }
    if (draw % 11 == 0 && !answers.empty()) {
      const auto at = std::next(answers.begin(), static_cast<std::ptrdiff_t>(draw / 16 % answers.size()));
      if (e.cancel(at->first)) answers.erase(at);
    }
    for (const inf::event& x : e.step())
      if (x.token && answers.contains(x.id)) answers[x.id].second.push_back(*x.token);
  }
  for (const auto& [id, a] : answers)
    if (!std::equal(a.second.begin(), a.second.end(), expected[a.first].begin())) wrong += "tokens ";
  preemptions += e.counts().preemptions;
  if constexpr (sizeof...(Policies) > 1) {  // states are restored
    if (e.counts().cache.found == 0) wrong += "nothing was found ";
    if (e.counts().accepted_tokens == 0 || e.counts().accepted_tokens == e.counts().proposed_tokens)
      wrong += "proposals ";
  }
  if (e.counts().cache.used != 0) wrong += "blocks ";
  return wrong;
}

}  // namespace

TEST_CASE("a hybrid's greedy tokens are PyTorch's, in any order of requests, preemptions and cancellations",
          "[infer][golden]") {
  const std::string folder = HEDDLE_SOURCE_DIR "/tests/golden/models/spiking_brain";
  const auto expected = hd::io::read_json(folder + "/expected.json");
  const auto prompts = expected.at("samples").get<hybrid_tokens>();
  const auto tokens = expected.at("generated").get<hybrid_tokens>();
  const auto last = expected.at("last_logits").get<std::vector<std::vector<double>>>();
  const hd::io::safetensors_folder files(folder);
  const md::spiking_brain_config config = hybrid_config();
  for (const auto& [first, second] : {std::pair(1, 1), std::pair(1, 2), std::pair(2, 1), std::pair(2, 2)}) {
    CAPTURE(first, second);
    const auto ranks = hd::testing::on_ranks(mesh_type{first, second}, [&](world_type& world) {
      backend kernels{1};
      inf::model_runner<hybrid_model, world_type, backend> runner(config, world, kernels,
                                                                  {.blocks = 40, .block_rows = 4, .states = 6}, 16);
      md::read_parameters(runner.stage(), hd::io::safetensors_reader(files), hybrid_names{});
      std::string wrong;
      if (!runner.leads()) {
        runner.follow();
        return wrong;
      }
      if (runner.limits().states != 6 || runner.limits().window != 6) wrong += "limits ";
      // Of 4 layers 2 have states of 2 heads, 4 x 4 each: on this rank its share of layers and heads.
      const auto own = static_cast<std::int64_t>(runner.stage().layers().count) / 2 * 2 / second * 16;
      if (runner.stage().state_bytes() != 6 * own * 8) wrong += "bytes of states ";
      for (std::size_t s = 0; s < prompts.size(); ++s) {  // a prompt at once
        inf::step step;
        const auto n = std::ssize(prompts[s]);
        for (std::int64_t at = 0; at < n; at += 16) {
          const std::int64_t rows = (std::min)(n - at, std::int64_t{16});
          step = {};
          step.tokens.assign(prompts[s].begin() + at, prompts[s].begin() + at + rows);
          step.sequences = {{.rows = rows, .position = at, .blocks = 6, .state = static_cast<std::int64_t>(s)}};
          step.blocks = {0, 1, 2, 3, 4, 5};
          step.wanted = {rows - 1};
          std::vector<double> logits(static_cast<std::size_t>(config.vocabulary));
          runner.run(step, logits);
          if (at + rows == n)
            for (std::size_t w = 0; w < logits.size(); ++w)
              if (!(std::abs(logits[w] - last[s][w]) < 1e-10)) wrong += "logits ";
        }
      }
      std::int64_t preemptions = 0;
      for (const std::uint64_t seed : {1u, 2u, 3u})
        wrong += hybrid_orders<inf::windowed>(runner, prompts, tokens, seed, preemptions);
      wrong += hybrid_orders<inf::paged>(runner, prompts, tokens, 4, preemptions);
      for (const std::uint64_t seed : {5u, 6u})
        wrong += hybrid_orders<inf::prefix_shared, inf::ngram_speculation<>, inf::restore>(runner, prompts, tokens,
                                                                                           seed, preemptions);
      if (preemptions == 0) wrong += "nothing was sent back ";
      runner.finish();
      return wrong;
    });
    if (!ranks.ok()) FAIL(ranks.error);
    CHECK(ranks[0] == "");
  }
}

TEST_CASE("a model with states refuses a cache without, and steps without a state", "[infer][error]") {
  using Catch::Matchers::Contains;
  const auto ranks = hd::testing::on_ranks(mesh_type{1, 1}, [&](world_type& world) {
    backend kernels{1};
    using runner_type = inf::model_runner<hybrid_model, world_type, backend>;
    std::string said;
    try {
      runner_type(hybrid_config(), world, kernels, {.blocks = 4, .block_rows = 4}, 8);
    } catch (const heddle::config_error& e) {
      said = e.what();
    }
    runner_type runner(hybrid_config(), world, kernels, {.blocks = 4, .block_rows = 4, .states = 2}, 8);
    for (const std::int64_t state : {-1, 2}) try {
        inf::step step;
        step.tokens = {1};
        step.sequences = {{.rows = 1, .blocks = 1, .state = state}};
        step.blocks = {0};
        runner.run(step, {});
      } catch (const heddle::config_error& e) {
        said += e.what();
      }
    try {
      runner_type::plan(hybrid_config(), world, kernels, {.blocks = 4, .block_rows = 4}, 8);
    } catch (const heddle::config_error& e) {
      said += std::string("; a plan: ") + e.what();
    }
    // Blocks beside states: those of no states, less what they take.
    const std::int64_t state = runner.stage().state_bytes() / 2, block = runner.stage().cache_bytes() / 4;
    if (runner_type::cache_blocks_for(7 * block + 3 * state, hybrid_config(), world.mesh(), 4, 3) != 7 ||
        runner_type::cache_blocks_for(7 * block + 3 * state - 1, hybrid_config(), world.mesh(), 4, 3) != 6)
      said += "; blocks";
    const auto all = runner_type::plan(hybrid_config(), world, kernels, {.blocks = 5, .block_rows = 4, .states = 3}, 8);
    if (const auto n = runner_type::cache_blocks_within(all.total() - all.cache + 9 * block, hybrid_config(), world,
                                                        kernels, 4, 8, 3);
        n != 9)
      said += "; blocks within " + std::to_string(n);
    inf::engine<runner_type, inf::paged, inf::chunked_prefill<7>> engine(runner);
    const inf::handed_sequence away{.asked = {.prompt = {1, 2}, .max_tokens = 3}, .tokens = {1, 2, 3}, .computed = 2};
    try {
      engine.adopt_into(away, std::vector<std::int32_t>{0});
    } catch (const heddle::config_error& e) {
      said += e.what();
    }
    engine.adopt_into(away, {});  // is computed again
    std::int64_t tokens = 0;
    while (!engine.idle())
      for (const inf::event& e : engine.step()) tokens += e.token ? 1 : 0;
    said += "; " + std::to_string(tokens) + " tokens";
    runner.finish();
    return said;
  });
  if (!ranks.ok()) FAIL(ranks.error);
  CHECK_THAT(ranks[0], Contains("room for 1 to 2^31 - 1 of them, got 0"));
  CHECK_THAT(ranks[0], Contains("adopt_into: layers keep states, which blocks do not hold; expected no blocks") &&
                           Contains("; 2 tokens"));
  CHECK_THAT(ranks[0], Contains("; a plan: ") && !Contains("; blocks"));
  CHECK_THAT(ranks[0], Contains("one of the 2 states, got -1") && Contains("one of the 2 states, got 2"));
}

TEST_CASE("linear attention and windows of the published sizes", "[model]") {
  CHECK(md::layers::count_parameters(md::describe_spiking_brain(md::spiking_brain_7b())) == 7616542976);
  using runner_stage = inf::model_runner<hybrid_model, world_type, backend>::stage_type;
  // Heads of a group share their state: 4 heads of 128 x 128 for each of 14 layers, here in double.
  CHECK(runner_stage::state_bytes_of_sequence(md::spiking_brain_7b(), mesh_type{1, 1}, 0, {0, 28, 28}) ==
        14 * 4 * 128 * 128 * 8);
  CHECK(runner_stage::state_bytes_of_sequence(md::spiking_brain_7b(), mesh_type{1, 4}, 0, {0, 28, 28}) ==
        14 * 128 * 128 * 8);
}
#endif
