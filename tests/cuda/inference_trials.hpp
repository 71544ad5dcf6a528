// tests/cuda/inference_trials.hpp: answers and logits of models whose cache lies in the memory of a device, against those of the host's backend.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/prefix_shared.hpp>
#include <heddle/infer/widened_runner.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2_config.hpp>
#include <heddle/model/llama_config.hpp>

#include "catch.hpp"
#include "infer/generation_alone.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace inference_trials {

namespace hd = heddle;
namespace inf = heddle::infer;
namespace md = heddle::model;
using mesh_type = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp>>;
using host = hd::compute::host<>;

inline constexpr md::gpt2_config small_gpt2{
    .layers = 2, .heads = 4, .width = 16, .context = 20, .vocabulary = 23, .initial_deviation = 0.4};
inline constexpr md::llama_config small_llama{.layers = 2,
                                              .heads = 6,
                                              .kv_heads = 2,
                                              .width = 12,
                                              .ffn = 17,
                                              .context = 20,
                                              .vocabulary = 23,
                                              .initial_deviation = 0.4,
                                              .head_elements = 4};

/// A backend as it makes itself, one thread of it on the host.
template <class Backend>
struct kernels_of {
  Backend kernels{};
};
template <>
struct kernels_of<host> {
  host kernels{1};
};

/// Runs `body(runner)` on the leader of a mesh, whose other ranks follow.
template <class Model, class Backend, class Body>
void on_leader(const typename Model::config& config, const char* mesh, inf::cache_extent cache, std::int64_t max_rows,
               const Body& body) {
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh), [&](auto& world) {
    kernels_of<Backend> of;
    inf::model_runner<Model, std::remove_reference_t<decltype(world)>, Backend> runner(config, world, of.kernels, cache,
                                                                                       max_rows);
    runner.stage().initialize(4);
    if (!runner.leads()) {
      runner.follow();
      return;
    }
    body(runner);
    runner.finish();
  });
}

struct answer {
  std::vector<std::int32_t> tokens{};
  std::vector<double> log_probabilities{};
  inf::finish_reason finish{};
};
struct answered {
  std::vector<answer> answers{};
  inf::engine_counts counts{};
};

/// Prompts of uneven lengths, three of which begin alike, drawn greedily and by chance.
inline std::vector<inf::request> requests() {
  std::vector<inf::request> all;
  const std::vector<std::vector<std::int32_t>> prompts{
      {3},        {5, 1, 7, 7, 2, 9, 4, 8},     {5, 1, 7, 7, 2, 9, 4, 1, 6},
      {11, 2, 2}, {5, 1, 7, 7, 2, 9, 4, 8, 12}, {1, 2, 1, 2}};
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    inf::request r{.prompt = prompts[i],
                   .max_tokens = static_cast<std::int64_t>(5 + i % 3 * 3),
                   .log_probabilities = i % 3 == 2 ? 2 : 0};  // of others, too: drawn by the host's sampler
    if (i == 3) r.sampling.min_p = 0.01;
    if (i == 4) r.sampling.repetition_penalty = 1.1;
    if (i == 5) r.sampling.top_p = 0.95;
    r.sampling.temperature = i % 2 == 0 ? 0 : 0.9;
    r.sampling.top_k = i % 4 == 1 ? 7 : 0;
    r.sampling.seed = 100 + i;
    all.push_back(r);
  }
  return all;
}

/// A runner that draws no tokens: all logits come to the host, whose sampler draws.
template <class Runner>
struct without_draws {
  using scalar = typename Runner::scalar;
  using capabilities = inf::runner_capabilities<Runner>;
  Runner& of;
  inf::step_limits limits() const { return of.limits(); }
  void run(const inf::step& s, std::span<scalar> logits) { of.run(s, logits); }
  std::span<const scalar> streams() const { return of.streams(); }
};

enum class serves { as_it_is, by_host_draws, widened };

/// Answers to all of them, some beside each other.
template <class Model, class Backend, class... Policies>
answered answers(const typename Model::config& config, const char* mesh, std::int64_t blocks,
                 serves how = serves::as_it_is) {
  answered all;
  all.answers.resize(requests().size());
  const auto serve = [&](auto& steps) {
    inf::engine<std::remove_reference_t<decltype(steps)>, Policies...> engine(steps, {.max_running = 4});
    for (const inf::request& r : requests()) engine.submit(r);
    while (!engine.idle())
      for (const inf::event& e : engine.step()) {
        answer& a = all.answers[e.id - 1];
        if (e.token) a.tokens.push_back(*e.token);
        if (e.log_probability) a.log_probabilities.push_back(*e.log_probability);
        a.finish = e.finish;
      }
    all.counts = engine.counts();
  };
  on_leader<Model, Backend>(config, mesh, {blocks, 3}, 9, [&](auto& runner) {
    using runner_type = std::remove_reference_t<decltype(runner)>;
    static_assert(inf::drawing_runner<runner_type>);
    if (runner.draws() == std::is_same_v<Backend, host>)
      throw hd::error("tokens should be drawn on devices, and not on the host");
    if constexpr (hd::is_half_precision<typename Model::scalar>) {
      without_draws<runner_type> plain{runner};
      inf::widened_runner wide(runner);
      if (how == serves::by_host_draws) {
        inf::any_tree_runner steps(plain);
        return serve(steps);
      }
      if (how == serves::widened) {
        inf::any_tree_runner<float> steps(wide);
        return serve(steps);
      }
    }
    inf::any_tree_runner steps(runner);  // as programs have it
    serve(steps);
  });
  return all;
}

/// Checks that all answers have the tokens and ends that are expected, as many as were asked for, and the log-probabilities to `tolerance`; and that they are not one word again and again.
inline void compare_answers(const answered& got, const answered& expected, double tolerance) {
  std::set<std::int32_t> words;
  for (std::size_t i = 0; i < expected.answers.size(); ++i) {
    CAPTURE(i);
    const answer &want = expected.answers[i], &found = got.answers[i];
    REQUIRE(want.tokens.size() == static_cast<std::size_t>(requests()[i].max_tokens));
    words.insert(want.tokens.begin(), want.tokens.end());
    CHECK(found.tokens == want.tokens);
    CHECK(found.finish == want.finish);
    REQUIRE(want.log_probabilities.size() == want.tokens.size());
    REQUIRE(found.log_probabilities.size() == want.tokens.size());
    for (std::size_t t = 0; t < want.tokens.size(); ++t)
      CHECK(std::abs(found.log_probabilities[t] - want.log_probabilities[t]) < tolerance);
  }
  CHECK(words.size() > 3);
  CHECK(got.counts.steps == expected.counts.steps);
}

/// Checks that a model of 16 bits answers, with tokens drawn on a device, as with all of its logits and the host's sampler, itself and widened to float.
template <class Backend, class Model, class... Policies>
inf::engine_counts check_drawn_answers(const typename Model::config& config, const char* mesh, std::int64_t blocks) {
  CAPTURE(mesh, blocks);
  const answered expected = answers<Model, Backend, Policies...>(config, mesh, blocks, serves::by_host_draws);
  for (const serves how : {serves::as_it_is, serves::widened}) {
    CAPTURE(static_cast<int>(how));
    const answered got = answers<Model, Backend, Policies...>(config, mesh, blocks, how);
    compare_answers(got, expected, 1e-10);
    CHECK(got.counts.accepted_tokens == expected.counts.accepted_tokens);
  }
  return expected.counts;
}

/// Checks that an engine of a model on a device continues prompts greedily as the model alone does.
template <class Backend, class Model, class... Policies>
void check_greedy_answers(const typename Model::config& config, const char* mesh) {
  CAPTURE(mesh);
  std::vector<std::vector<std::int32_t>> expected, got(requests().size());
  on_leader<Model, Backend>(config, mesh, {8, 3}, 9, [&](auto& runner) {
    for (const inf::request& r : requests()) expected.push_back(alone::generated(runner, r.prompt, r.max_tokens).first);
  });
  on_leader<Model, Backend>(config, mesh, {24, 3}, 9, [&](auto& runner) {
    inf::engine<std::remove_reference_t<decltype(runner)>, Policies...> engine(runner, {.max_running = 4});
    for (inf::request r : requests()) {
      r.sampling = {.temperature = 0};
      engine.submit(r);
    }
    while (!engine.idle())
      for (const inf::event& e : engine.step())
        if (e.token) got[e.id - 1].push_back(*e.token);
  });
  CHECK(got == expected);
}

/// Checks that a backend gives the host's tokens, and its log-probabilities to `tolerance`. Returns the host's counts.
template <class Backend, class Model, class... Policies>
inf::engine_counts check_answers(const typename Model::config& config, const char* mesh, std::int64_t blocks,
                                 double tolerance) {
  CAPTURE(mesh, blocks);
  const answered expected = answers<Model, host, Policies...>(config, mesh, blocks),
                 got = answers<Model, Backend, Policies...>(config, mesh, blocks);
  compare_answers(got, expected, tolerance);
  CHECK(got.counts.preemptions == expected.counts.preemptions);
  return got.counts;
}

/// All logits and residual streams of steps with trees of rows, moves of rows and copies of blocks.
template <class Model, class Backend>
std::vector<double> numbers_of_steps(const typename Model::config& config, const char* mesh) {
  std::vector<double> all;
  on_leader<Model, Backend>(config, mesh, {12, 3}, 40, [&](auto& runner) {
    using T = typename Model::scalar;
    std::vector<T> logits;
    const auto run = [&](const inf::step& s) {
      logits.assign(s.wanted.size() * static_cast<std::size_t>(config.vocabulary), std::numeric_limits<T>::quiet_NaN());
      runner.run(s, logits);
      all.insert(all.end(), logits.begin(), logits.end());
      if (s.streams) all.insert(all.end(), runner.streams().begin(), runner.streams().end());
    };
    // Two texts of 4 and 2 tokens; then trees of rows behind them.
    run({.tokens = {4, 9, 1, 7, 3, 3},
         .sequences = {{0, 4, 0, 0, 2}, {4, 2, 0, 2, 1}},
         .blocks = {7, 2, 5},
         .wanted = {1, 5}});
    run({.tokens = {2, 8, 8, 1, 6, 2, 2},
         .sequences = {{0, 4, 4, 0, 3}, {4, 3, 2, 3, 2}},
         .blocks = {7, 2, 0, 5, 11},
         .wanted = {0, 1, 2, 3, 4, 5, 6},
         .parents = {-1, 0, 0, 2, -1, -1, 1},
         .streams = true});
    // Of the first the path of rows 0, 2, 3 stays; the second goes on in a copy of its first block.
    run({.tokens = {5, 6},
         .sequences = {{0, 1, 7, 0, 3}, {1, 1, 2, 3, 1}},
         .blocks = {7, 2, 0, 9},
         .wanted = {0, 1},
         .copies = {{5, 9}},
         .moves = {{0, 8}, {1, 0}},
         .streams = true});
    run({.tokens = {1}, .sequences = {{0, 1, 8, 0, 3}}, .blocks = {7, 2, 0}, .wanted = {}, .copies = {}});
  });
  return all;
}
template <class Backend, class Model>
void check_steps(const typename Model::config& config, const char* mesh, double tolerance) {
  CAPTURE(mesh);
  const std::vector<double> expected = numbers_of_steps<Model, host>(config, mesh),
                            got = numbers_of_steps<Model, Backend>(config, mesh);
  REQUIRE(expected.size() == static_cast<std::size_t>(11 * config.vocabulary + 9 * config.width));
  REQUIRE(got.size() == expected.size());
  double greatest = 0, off = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    greatest = std::abs(expected[i]) > greatest ? std::abs(expected[i]) : greatest;
    if (!(std::abs(got[i] - expected[i]) <= off)) off = std::abs(got[i] - expected[i]);
  }
  CHECK(greatest > 0.1);
  CHECK(off < tolerance);
}

/// The logits of one row that decodes have the same bits alone, beside others that do, and beside prompts and rows of drafts.
template <class Backend, class Model>
void check_companions(typename Model::config config, const char* mesh) {
  CAPTURE(mesh);
  using T = typename Model::scalar;
  config.context = 90;
  std::vector<std::vector<T>> found;
  on_leader<Model, Backend>(config, mesh, {40, 8}, 160, [&](auto& runner) {
    std::vector<std::int32_t> text;
    for (std::int64_t i = 0; i < 130; ++i) text.push_back(static_cast<std::int32_t>(i * i % config.vocabulary));
    const std::vector<std::int32_t> first_blocks{9, 2, 4, 11, 5, 30, 8, 1, 0, 12}, second_blocks{20, 7, 3, 21, 22, 23};
    const auto run = [&](std::vector<std::int32_t> tokens, std::vector<inf::sequence_rows> sequences,
                         std::vector<std::int32_t> blocks, std::vector<std::int64_t> wanted) {
      std::vector<T> logits(wanted.size() * static_cast<std::size_t>(config.vocabulary),
                            std::numeric_limits<T>::quiet_NaN());
      runner.run({.tokens = std::move(tokens),
                  .sequences = std::move(sequences),
                  .blocks = std::move(blocks),
                  .wanted = std::move(wanted)},
                 logits);
      return logits;
    };
    const auto all = [](std::vector<std::int32_t> x, const std::vector<std::int32_t>& y) {
      x.insert(x.end(), y.begin(), y.end());
      return x;
    };
    // Texts of 79 and 44 tokens, then the 80th of the first again and again, with what stands beside it.
    run({text.begin(), text.begin() + 79}, {{0, 79, 0, 0, 10}}, first_blocks, {});
    run({text.begin(), text.begin() + 44}, {{0, 44, 0, 0, 6}}, second_blocks, {});
    found.push_back(run({6}, {{0, 1, 79, 0, 10}}, first_blocks, {0}));
    found.push_back(run({6, 3}, {{0, 1, 79, 0, 10}, {1, 1, 44, 10, 6}}, all(first_blocks, second_blocks), {0}));
    found.push_back(run({1, 2, 3, 6}, {{0, 3, 44, 0, 6}, {3, 1, 79, 6, 10}}, all(second_blocks, first_blocks), {3}));
    std::vector<std::int32_t> prompt(text.begin() + 50, text.begin() + 110);
    prompt.push_back(6);
    found.push_back(
        run(prompt, {{0, 60, 0, 0, 8}, {60, 1, 79, 8, 10}}, all({31, 32, 33, 34, 35, 36, 37, 38}, first_blocks), {60}));
  });
  REQUIRE(found.size() == 4);
  for (std::size_t i = 1; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i] == found[0]);
  }
  CHECK(*std::max_element(found[0].begin(), found[0].end()) > T(0));
}

/// What a stage says of its attention's bytes, `counted()` after its largest step of few rows: one has the whole context.
template <class Backend, class Model, class Counted>
std::int64_t attention_bytes(typename Model::config config, const char* mesh, const Counted& counted) {
  CAPTURE(mesh);
  config.context = 150;
  std::int64_t predicted = 0, found = 0;
  on_leader<Model, Backend>(config, mesh, {24, 8}, 5, [&](auto& runner) {
    using T = typename Model::scalar;
    predicted = runner.stage().attention_bytes();
    std::vector<std::int32_t> blocks;
    for (int i = 0; i < 21; ++i) blocks.push_back(i);
    // Keys of tokens before are what they are: bytes do not ask.
    std::vector<T> logits(static_cast<std::size_t>(config.vocabulary));
    runner.run({.tokens = {1, 2, 3, 4, 5},
                .sequences = {{0, 1, 149, 0, 19}, {1, 3, 4, 19, 1}, {4, 1, 0, 20, 1}},
                .blocks = blocks,
                .wanted = {4}},
               logits);
    found = counted();
  });
  CHECK(found == predicted);
  return predicted;
}

}  // namespace inference_trials
