// Speculation with heads of Medusa and with a drafter of Falcon against plain greedy decoding, in one run: a Llama is trained on a text, heads and drafters on the model's own answers, trees are
// built from measured accuracies. Counters: tokens per second, tokens per step and sequence (1 is plain), nodes of the tree. Answers are compared: they must be the same.
// The text is the file HEDDLE_BENCH_TEXT, else this source; HEDDLE_BENCH_STEPS are the steps of each training run.
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/falcon_calibration.hpp>
#include <heddle/infer/falcon_speculation.hpp>
#include <heddle/infer/head_accuracies.hpp>
#include <heddle/infer/medusa_heads.hpp>
#include <heddle/infer/medusa_speculation.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/falcon_drafter.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/with_medusa_head.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/further_targets.hpp>
#include <heddle/train/glancing_distillation.hpp>
#include <heddle/train/trainer.hpp>
#include HEDDLE_GEMM_HEADER

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;

namespace {

using mesh_type = hd::mesh<hd::axis<hd::dp>>;
using world_type = hd::world<hd::threads, mesh_type>;
using backend = hd::compute::host<HEDDLE_GEMM>;
using model_type = md::llama<float>;
using runner_type = inf::model_runner<model_type, world_type, backend>;
using heads_type = inf::medusa_heads<float, backend>;
using drafter_type = md::falcon_drafter<float, backend>;
using strategy = hd::strategy<mesh_type, hd::schedule::named, hd::zero<1>, backend>;
template <class Model>
using trainer_of = hd::train::trainer<Model, strategy, world_type>;

constexpr std::int64_t heads_count = 4, ranks = 8, draft_block = 2, draft_passes = 3;
constexpr md::llama_config shape{
    .layers = 4, .heads = 4, .kv_heads = 4, .width = 128, .ffn = 344, .context = 256, .vocabulary = 256};

std::int64_t setting(const char* name, std::int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

hd::train::options<md::llama_config> options(std::int64_t steps, double rate) {
  hd::train::options<md::llama_config> o;
  o.model = shape;
  o.model.context = 64;
  o.batch = 16;
  o.steps = steps;
  o.threads_per_rank = 1;
  o.learning_rate = {.peak = rate, .minimum = rate / 10, .warmup_steps = steps / 20, .total_steps = steps};
  return o;
}

using texts = std::vector<std::vector<std::int32_t>>;

template <class Decoding>
texts answers(runner_type& runner, Decoding decode, const texts& prompts, std::int64_t tokens, std::int64_t beside,
              double temperature, inf::engine_counts* counts = nullptr) {
  inf::engine<runner_type, Decoding> engine(runner, {.max_running = beside}, std::move(decode));
  for (std::size_t i = 0; i < prompts.size(); ++i)
    engine.submit({.prompt = prompts[i], .max_tokens = tokens, .sampling = {.temperature = temperature, .seed = i}});
  texts all = prompts;
  while (!engine.idle())
    for (const inf::event& e : engine.step())
      if (e.token) all[e.id - 1].push_back(*e.token);
  if (counts != nullptr) *counts = engine.counts();
  return all;
}

// The model, its heads and prompts: made once.
struct prepared {
  std::vector<std::int32_t> text{};
  std::vector<float> weights{};
  backend kernels{1};
  heads_type heads{kernels, heads_count, shape.width, shape.vocabulary, shape.epsilon};
  drafter_type drafter{kernels,
                       {.width = shape.width,
                        .heads = shape.heads,
                        .ffn = shape.ffn,
                        .vocabulary = shape.vocabulary,
                        .block = draft_block,
                        .context = shape.context,
                        .epsilon = shape.epsilon}};
  std::vector<std::vector<double>> accuracies{}, draft_accuracies{};
  texts prompts{};

  prepared() {
    const char* const path = std::getenv("HEDDLE_BENCH_TEXT");
    const hd::io::corpus corpus(path != nullptr ? path : __FILE__);
    text.assign(corpus.tokens().begin(), corpus.tokens().end());
    if (text.size() < 1100)
      throw hd::config_error("heddle: speculation_bench: the text should have at least 1100 bytes, got " +
                             std::to_string(text.size()));
    const hd::io::basic_dataset<std::int32_t> data(text, {.context = 64, .batch = 16, .seed = 1});
    const std::int64_t steps = setting("HEDDLE_BENCH_STEPS", 300);
    hd::launch<hd::threads>(mesh_type{1}, [&](world_type& world) {
      trainer_of<model_type> trainer(world, options(steps, 3e-3));
      double loss = 0;
      for (std::int64_t i = 0; i < steps; ++i) loss = trainer.step(data).loss;
      weights.assign(trainer.stage(0).weights().begin(), trainer.stage(0).weights().end());
      std::printf("model: %lld steps on %zu bytes, loss %.3f\n", static_cast<long long>(steps), text.size(), loss);
    });
    for (std::size_t i = 0; i < 64; ++i) {
      const auto from = text.begin() + static_cast<std::ptrdiff_t>(i * (text.size() - 32) / 64);
      prompts.emplace_back(from, from + 16);
    }
    texts said;
    with_runner(
        [&](runner_type& runner, world_type&) { said = answers(runner, inf::one_token{}, prompts, 200, 16, 0); });
    std::vector<std::int32_t> spoken;
    for (const auto& s : said) spoken.insert(spoken.end(), s.begin(), s.end());
    const hd::io::basic_dataset<std::int32_t> own(spoken, {.context = 64, .batch = 16, .seed = 2});
    for (std::int64_t k = 0; k < heads_count; ++k)
      hd::launch<hd::threads>(mesh_type{1}, [&](world_type& world) {
        trainer_of<md::with_medusa_head<model_type>> trainer(world, options(steps, 3e-3));
        backend other{1};
        auto config = shape;
        config.context = 64;
        inf::cached_stage<model_type, world_type, backend> base(config, world, other, trainer.stage(0).layers(), {1, 4},
                                                                4);
        std::copy(weights.begin(), weights.end(), base.weights().begin());
        md::begin_medusa_head(trainer.stage(0), base);
        const hd::train::further_targets<hd::io::basic_dataset<std::int32_t>> ahead{&own, k + 1};
        double loss = 0;
        for (std::int64_t i = 0; i < steps; ++i) loss = trainer.step(ahead).loss;
        heads.take(k, trainer.stage(0));
        std::printf("head %lld: loss %.3f\n", static_cast<long long>(k), loss);
      });
    with_runner(
        [&](runner_type& runner, world_type&) { accuracies = inf::head_accuracies(runner, heads, said, ranks); });
    for (std::size_t k = 0; k < accuracies.size(); ++k)
      std::printf("head %zu: right %.3f of the time, among %lld %.3f\n", k, accuracies[k][0],
                  static_cast<long long>(ranks), [&] {
                    double sum = 0;
                    for (const double x : accuracies[k]) sum += x;
                    return sum;
                  }());
    train_drafter(said, steps);
    // Prompts that neither heads nor tree have seen the answers of.
    for (auto& p : prompts) {
      const auto from = text.begin() + static_cast<std::ptrdiff_t>((&p - prompts.data()) * 31 % 997 + 7);
      p.assign(from, from + 16);
    }
    prompts.resize(16);
  }

  // As many steps in all as a head has, of 16 texts each.
  void train_drafter(const texts& said, std::int64_t steps) {
    std::vector<md::feature_text<float>> whole, parts;
    with_runner([&](runner_type& runner, world_type&) {
      drafter.take(runner.stage());
      whole = inf::features_of_texts(runner, drafter, said);
    });
    constexpr std::int64_t length = 64 + draft_block + 1;
    for (const auto& t : whole)
      for (std::int64_t at = 0; at + length <= std::ssize(t.tokens); at += 64)
        parts.push_back({{t.tokens.begin() + at, t.tokens.begin() + at + length},
                         {t.features.begin() + at * shape.width, t.features.begin() + (at + length) * shape.width}});
    const std::int64_t per_epoch = (std::ssize(parts) + 15) / 16, epochs = (steps + per_epoch - 1) / per_epoch;
    drafter.initialize(7, 0.05);
    hd::train::glancing_distillation train(drafter, kernels,
                                           {.epochs = epochs,
                                            .learning_rate = {.peak = 3e-3,
                                                              .minimum = 3e-4,
                                                              .warmup_steps = steps / 20,
                                                              .total_steps = epochs * per_epoch},
                                            .dropout = 0});
    hd::train::distillation_epoch e;
    for (std::int64_t i = 1; i <= epochs; ++i) e = train.run_epoch(parts, i);
    std::printf("drafter: %lld epochs of %zu texts, loss %.4f, wrong %.3f of the time\n",
                static_cast<long long>(epochs), parts.size(), e.loss,
                static_cast<double>(e.wrong) / static_cast<double>(e.rows));
    draft_accuracies = inf::draft_accuracies(drafter, whole, draft_passes, ranks, 3);
    for (std::size_t d = 0; d < draft_accuracies.size(); ++d)
      std::printf("draft %zu: right %.3f of the time\n", d + 1, draft_accuracies[d][0]);
  }

  template <class Body>
  void with_runner(Body&& body) {
    hd::launch<hd::threads>(mesh_type{1}, [&](world_type& world) {
      backend own{1};
      runner_type runner(shape, world, own, {1024, 16}, 512);
      std::copy(weights.begin(), weights.end(), runner.stage().weights().begin());
      body(runner, world);
    });
  }
};
prepared& made() {
  static prepared all;
  return all;
}

// Argument 0: sequences beside each other. Argument 1: nodes of the tree; 0 is plain decoding.
template <bool Falcon>
void decode(benchmark::State& state) {
  prepared& p = made();
  const std::int64_t beside = state.range(0), nodes = state.range(1), tokens = 128;
  p.with_runner([&](runner_type& runner, world_type&) {
    const texts plain = answers(runner, inf::one_token{}, p.prompts, tokens, beside, 0);
    inf::engine_counts counts{};
    texts found;
    using policy = inf::medusa_speculation<heads_type, 64>;
    for (auto _ : state)
      if (nodes == 0)
        found = answers(runner, inf::one_token{}, p.prompts, tokens, beside, 0, &counts);
      else if (Falcon)
        found = answers(
            runner,
            inf::falcon_speculation<drafter_type, 64>(p.drafter, inf::token_tree::best(p.draft_accuracies, nodes)),
            p.prompts, tokens, beside, 0, &counts);
      else
        found = answers(runner, policy(p.heads, inf::token_tree::best(p.accuracies, nodes)), p.prompts, tokens, beside,
                        0, &counts);
    if (found != plain) state.SkipWithError("the answers are not those of plain decoding");
    const auto answered = static_cast<double>(counts.answer_tokens);
    state.counters["tokens_s"] = benchmark::Counter(answered, benchmark::Counter::kIsIterationInvariantRate);
    state.counters["tokens_per_step"] = answered / (answered - static_cast<double>(counts.accepted_tokens));
  });
}
void arguments(benchmark::internal::Benchmark* b, std::vector<std::int64_t> trees) {
  b->ArgNames({"beside", "nodes"})->Unit(benchmark::kMillisecond)->UseRealTime()->MeasureProcessCPUTime();
  for (const int beside : {1, 8})
    for (const std::int64_t nodes : trees) b->Args({beside, nodes});
}
void medusa_arguments(benchmark::internal::Benchmark* b) {
  arguments(b, {0, 4, 8, 16, 32});
}
void falcon_arguments(benchmark::internal::Benchmark* b) {
  arguments(b, {4, 8, 16, 32});
}
BENCHMARK(decode<false>)->Name("medusa")->Apply(medusa_arguments);
BENCHMARK(decode<true>)->Name("falcon")->Apply(falcon_arguments);

}  // namespace

BENCHMARK_MAIN();
