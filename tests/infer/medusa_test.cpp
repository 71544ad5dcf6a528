// Heads of Medusa and drafters of Falcon on a small Llama: trained on what the model says, they make its answers come in fewer steps, the same.
#include "catch.hpp"

#include "../train/folder.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/falcon_calibration.hpp>
#include <heddle/infer/falcon_speculation.hpp>
#include <heddle/infer/head_accuracies.hpp>
#include <heddle/infer/medusa_heads.hpp>
#include <heddle/infer/medusa_speculation.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/falcon_drafter.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/with_medusa_head.hpp>
#include <heddle/model/with_medusa_heads.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/further_targets.hpp>
#include <heddle/train/glancing_distillation.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;

namespace {

using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
using world_type = hd::world<hd::threads, mesh_type>;
using backend = hd::compute::host<>;
using model_type = md::llama<double>;
using runner_type = inf::model_runner<model_type, world_type, backend>;
using heads_type = inf::medusa_heads<double, backend>;
using policy = inf::medusa_speculation<heads_type, 24>;
using headed = md::with_medusa_head<model_type>;
using trainer_type = hd::train::trainer<headed, hd::strategy<mesh_type, hd::schedule::named, hd::zero<1>>, world_type>;

constexpr md::llama_config small{.layers = 2,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .width = 16,
                                 .ffn = 20,
                                 .context = 64,
                                 .vocabulary = 29,
                                 .initial_deviation = 0.35,
                                 .head_elements = 4};
constexpr std::uint64_t seed = 77;

// Calls body(runner) on the leader of a mesh; `base`: what a drafter has of the model, gathered from all ranks.
template <class Body>
void on_runner(const mesh_type& mesh, Body&& body, md::falcon_base<double>* base = nullptr) {
  hd::launch<hd::threads>(mesh, [&](world_type& world) {
    backend kernels{1};
    runner_type runner(small, world, kernels, {80, 4}, 120);
    runner.stage().initialize(seed);
    if (base != nullptr)
      if (auto gathered = md::gather_falcon_base(runner.stage(), world); runner.leads()) *base = std::move(gathered);
    if (!runner.leads()) {
      runner.follow();
      return;
    }
    body(runner, kernels);
    runner.finish();
  });
}

struct result {
  std::vector<std::vector<std::int32_t>> answers;
  inf::engine_counts counts;
};
template <class Decoding>
result answers(runner_type& runner, Decoding decode, int requests, double temperature, std::int64_t tokens) {
  inf::engine<runner_type, Decoding> engine(runner, {.max_running = 4}, std::move(decode));
  for (int i = 0; i < requests; ++i)
    engine.submit({.prompt = {i % small.vocabulary, (i * 7 + 3) % small.vocabulary},
                   .max_tokens = tokens,
                   .sampling = {.temperature = temperature, .seed = static_cast<std::uint64_t>(i)}});
  result r;
  r.answers.resize(static_cast<std::size_t>(requests));
  while (!engine.idle())
    for (const inf::event& e : engine.step())
      if (e.token) r.answers[e.id - 1].push_back(*e.token);
  r.counts = engine.counts();
  return r;
}

}  // namespace

TEST_CASE("a head that begins is the model's own", "[infer][medusa]") {
  on_runner(mesh_type{1, 1, 1}, [&](runner_type& runner, backend& kernels) {
    heads_type heads(kernels, 1, small.width, small.vocabulary, small.epsilon);
    for (const md::parameter& p : runner.stage().parameters()) {
      const auto from = runner.stage().weights().begin() + p.offset;
      if (p.name == "model.norm.weight") std::copy_n(from, p.count, heads.norm(0).begin());
      if (p.name == "lm_head.weight") std::copy_n(from, p.count, heads.words(0).begin());
    }
    inf::step step{
        .tokens = {5, 6, 7}, .sequences = {{0, 3, 0, 0, 1}}, .blocks = {9}, .wanted = {0, 2}, .streams = true};
    std::vector<double> logits(2 * 29), same(2 * 29);
    runner.run(step, logits);
    heads.run(runner.streams(), 2, same);
    for (std::size_t i = 0; i < logits.size(); ++i) CHECK(same[i] == Approx(logits[i]).margin(1e-12));
  });
}

TEST_CASE("trained heads are on any mesh those of one rank, and answers are the same in fewer steps",
          "[infer][medusa][law][slow]") {
  const train_test::folder folder("medusa");
  std::filesystem::create_directories(folder.path);
  CAPTURE(seed);
  // What the model says, to train heads on.
  std::vector<std::int32_t> text;
  result plain_greedy, plain_sampled;
  on_runner(mesh_type{1, 1, 1}, [&](runner_type& runner, backend&) {
    for (const double temperature : {0.0, 0.5})
      for (const auto& a : answers(runner, inf::one_token{}, 40, temperature, 60).answers)
        text.insert(text.end(), a.begin(), a.end());
    plain_greedy = answers(runner, inf::one_token{}, 24, 0, 50);
    plain_sampled = answers(runner, inf::one_token{}, 24, 0.7, 50);
  });
  const hd::io::basic_dataset<std::int32_t> data(text, {.context = 20, .batch = 16, .seed = 3});

  hd::train::options<md::llama_config> options;
  options.model = small;
  options.model.context = 20;
  options.batch = 16;
  options.clip_norm = 1;
  options.threads_per_rank = 1;
  backend kernels{1};
  const auto train = [&](const mesh_type& mesh, std::int64_t head, std::int64_t steps, heads_type& to) {
    options.steps = steps;
    options.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 5, .total_steps = steps};
    std::mutex mutex;
    std::int64_t taken = 0;
    double first = 0, last = 0;
    hd::launch<hd::threads>(mesh, [&](world_type& world) {
      trainer_type trainer(world, options);
      backend own{1};
      for (int k = 0; k < trainer.stages(); ++k) {
        auto whole = small;
        whole.context = 20;
        inf::cached_stage<model_type, world_type, backend> base(whole, world, own, trainer.stage(k).layers(), {1, 4},
                                                                4);
        base.initialize(seed);
        md::begin_medusa_head(trainer.stage(k), base);
      }
      const hd::train::further_targets<hd::io::basic_dataset<std::int32_t>> ahead{&data, head + 1};
      for (std::int64_t i = 0; i < steps; ++i) {
        const double loss = trainer.step(ahead).loss;
        (i == 0 ? first : last) = loss;
      }
      const std::lock_guard lock(mutex);
      for (int k = 0; k < trainer.stages(); ++k) taken += to.take(head, trainer.stage(k));
    });
    CHECK(taken >= to.elements());
    return std::pair(first, last);
  };
  heads_type heads(kernels, 3, small.width, small.vocabulary, small.epsilon);
  for (std::int64_t k = 0; k < 3; ++k) {
    const auto [first, last] = train(mesh_type{1, 1, 1}, k, 80, heads);
    INFO("head " << k << ": loss " << first << " to " << last);
    CHECK(last < first - 0.1);
  }
  {
    heads_type one(kernels, 1, small.width, small.vocabulary, small.epsilon);
    heads_type split(kernels, 1, small.width, small.vocabulary, small.epsilon);
    train(mesh_type{1, 1, 1}, 0, 4, one);
    train(mesh_type{2, 1, 2}, 0, 4, split);
    double off = 0, size = 0;
    for (const auto& [a, b] : {std::pair(one.square(0), split.square(0)), std::pair(one.words(0), split.words(0)),
                               std::pair(one.norm(0), split.norm(0))})
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double d = std::abs(a[i] - b[i]);
        if (!(d <= off)) off = d;
        size = (std::max)(size, std::abs(a[i]));
      }
    CHECK(off < 1e-10);
    CHECK(size > 0.1);
  }
  heads.save(folder.path / "heads");
  heads_type loaded(kernels, 3, small.width, small.vocabulary, small.epsilon);
  loaded.load(folder.path / "heads");
  for (std::int64_t k = 0; k < 3; ++k) {
    CHECK(std::ranges::equal(loaded.square(k), heads.square(k)));
    CHECK(std::ranges::equal(loaded.words(k), heads.words(k)));
    CHECK(std::ranges::equal(loaded.norm(k), heads.norm(k)));
  }
  heads_type four(kernels, 4, small.width, small.vocabulary, small.epsilon);
  CHECK_THROWS_WITH(four.load(folder.path / "heads"), Catch::Contains("medusa_head.3.norm.weight"));

  heads_type random(kernels, 3, small.width, small.vocabulary, small.epsilon);
  random.initialize(5, 0.3);
  // The tree for how often heads are right on the model's own greedy answers, and the steps that it promises.
  std::vector<std::vector<double>> accuracies;
  std::vector<std::vector<std::int32_t>> texts;
  for (std::size_t i = 0; i < plain_greedy.answers.size(); ++i) {
    const auto n = static_cast<std::int32_t>(i);
    texts.push_back({n % small.vocabulary, (n * 7 + 3) % small.vocabulary});
    texts.back().insert(texts.back().end(), plain_greedy.answers[i].begin(), plain_greedy.answers[i].end());
  }
  on_runner(mesh_type{1, 1, 1},
            [&](runner_type& runner, backend&) { accuracies = inf::head_accuracies(runner, heads, texts, 29); });
  for (const std::vector<double>& a : accuracies) {
    double sum = 0;
    for (const double x : a) sum += x;
    CHECK(sum == Approx(1).epsilon(1e-12));  // all ranks: one of them is right
  }
  const inf::token_tree tree = inf::token_tree::best(accuracies, 12);
  for (const mesh_type& mesh : {mesh_type{1, 1, 1}, mesh_type{1, 1, 2}, mesh_type{1, 2, 1}})
    on_runner(mesh, [&](runner_type& runner, backend&) {
      const result greedy = answers(runner, policy(loaded, tree), 24, 0, 50);
      CHECK(greedy.answers == plain_greedy.answers);
      const result sampled = answers(runner, policy(loaded, tree), 24, 0.7, 50);
      CHECK(sampled.answers == plain_sampled.answers);
      const result by_chance = answers(runner, policy(random, tree), 24, 0, 50);
      CHECK(by_chance.answers == plain_greedy.answers);
      // Tokens in a step and sequence are 1 and what was accepted.
      const auto per_step = [](const result& r) {
        return static_cast<double>(r.counts.answer_tokens) /
               static_cast<double>(r.counts.answer_tokens - r.counts.accepted_tokens);
      };
      INFO(per_step(greedy) << " " << per_step(sampled) << " " << per_step(by_chance));
      CHECK(per_step(greedy) > 1.6);
      CHECK(per_step(greedy) > per_step(by_chance) + 0.3);
      CHECK(greedy.counts.steps < plain_greedy.counts.steps * 3 / 4);
    });
}

TEST_CASE("a distilled drafter makes answers come in fewer steps, the same, on any mesh and in blocks of any size",
          "[infer][falcon][law][slow]") {
  using drafter_type = md::falcon_drafter<double, backend>;
  using falcon = inf::falcon_speculation<drafter_type, 24>;
  CAPTURE(seed);
  backend kernels{1};
  result plain, sampled;
  std::vector<std::vector<std::int32_t>> texts;
  const auto make = [&](std::int64_t block) {
    return drafter_type(kernels, {.width = 16, .heads = 2, .ffn = 24, .vocabulary = 29, .block = block, .context = 64});
  };
  drafter_type two = make(2);
  std::vector<md::feature_text<double>> learned, unseen;
  on_runner(mesh_type{1, 1, 1}, [&](runner_type& runner, backend&) {
    two.take(runner.stage());
    for (const auto& a : answers(runner, inf::one_token{}, 60, 0.4, 27).answers) texts.push_back(a);
    plain = answers(runner, inf::one_token{}, 24, 0, 50);
    sampled = answers(runner, inf::one_token{}, 24, 0.7, 50);
    learned = inf::features_of_texts(runner, two, texts);
    unseen = inf::features_of_texts(runner, two, plain.answers);
  });
  two.initialize(3, 0.2);
  hd::train::glancing_distillation train(
      two, kernels,
      {.epochs = 40,
       .learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 8, .total_steps = 160},
       .dropout = 0});
  const double first = train.run_epoch(learned, 1).loss;
  double last = 0;
  for (std::int64_t i = 2; i <= 40; ++i) last = train.run_epoch(learned, i).loss;
  INFO("loss " << first << " to " << last);
  CHECK(last < first / 2);
  const auto accuracies = inf::draft_accuracies(two, unseen, 2, 29, 3);
  REQUIRE(accuracies.size() == 4);
  for (const std::vector<double>& a : accuracies) {
    double sum = 0;
    for (const double x : a) sum += x;
    CHECK(sum == Approx(1).epsilon(1e-12));
  }
  const inf::token_tree tree = inf::token_tree::best(accuracies, 12);
  const auto steps = [](const result& r) {
    return static_cast<double>(r.counts.answer_tokens) /
           static_cast<double>(r.counts.answer_tokens - r.counts.accepted_tokens);
  };
  double by_chance = 0;
  on_runner(mesh_type{1, 1, 1}, [&](runner_type& runner, backend&) {
    for (const std::int64_t block : {1, 2, 3, 4}) {
      drafter_type random = make(block);
      random.take(runner.stage());
      random.initialize(5, 0.3);
      const result r = answers(runner, falcon(random, tree), 24, 0, 50);
      CHECK(r.answers == plain.answers);
      if (block == 2) by_chance = steps(r);
    }
  });
  inf::engine_counts of_one{};
  for (const mesh_type& mesh : {mesh_type{1, 1, 1}, mesh_type{1, 1, 2}, mesh_type{1, 2, 1}, mesh_type{1, 2, 2}}) {
    CAPTURE(mesh.extent<hd::pp>(), mesh.extent<hd::tp>());
    md::falcon_base<double> base;
    on_runner(
        mesh,
        [&](runner_type& runner, backend& own) {
          drafter_type here(own, two.shape());
          here.take(base);
          std::ranges::copy(two.weights(), here.weights().begin());
          const result greedy = answers(runner, falcon(here, tree), 24, 0, 50);
          CHECK(greedy.answers == plain.answers);
          CHECK(answers(runner, falcon(here, tree), 24, 0.7, 50).answers == sampled.answers);
          INFO(steps(greedy) << " " << by_chance);
          CHECK(steps(greedy) > 1.5);
          CHECK(steps(greedy) > by_chance + 0.3);
          if (mesh.size() == 1) of_one = greedy.counts;  // drafts are the same on each mesh
          CHECK(greedy.counts.proposed_tokens == of_one.proposed_tokens);
          CHECK(greedy.counts.accepted_tokens == of_one.accepted_tokens);
        },
        &base);
  }
}

TEST_CASE("a drafter takes its model whole from the ranks of any mesh, and parts of it are refused",
          "[infer][falcon][law]") {
  using drafter_type = md::falcon_drafter<double, backend>;
  CAPTURE(seed);
  const md::falcon_shape shape{.width = 16, .heads = 2, .ffn = 24, .vocabulary = 29, .block = 2, .context = 64};
  const auto drafts = [&](drafter_type& d) {
    d.initialize(11, 0.4);
    typename drafter_type::prefix p;
    const std::vector<double> streams(5 * 16, 0.7);
    std::vector<double> features(streams.size());
    d.features_of(streams, features);
    d.append(p, std::vector<std::int32_t>{3, 1, 28, 0, 14}, features);
    auto blocks = d.begin_drafts(p);
    const std::int64_t first = 0;
    d.draft(p, blocks, std::span(&first, 1), std::vector<std::int32_t>{27, 2});
    return std::pair(blocks[0].logits, blocks[1].logits);
  };
  md::falcon_base<double> one;
  std::pair<std::vector<double>, std::vector<double>> expected;
  for (const mesh_type& mesh : {mesh_type{1, 1, 1}, mesh_type{1, 1, 2}, mesh_type{1, 2, 1}, mesh_type{1, 2, 2}}) {
    CAPTURE(mesh.extent<hd::pp>(), mesh.extent<hd::tp>());
    md::falcon_base<double> base;
    on_runner(
        mesh,
        [&](runner_type& runner, backend& own) {
          drafter_type whole(own, shape), alone(own, shape);
          whole.take(base);
          alone.take(runner.stage());  // what the leader has
          if (mesh.size() == 1) {
            one = base;
            expected = drafts(whole);
            CHECK(drafts(alone) == expected);
            return;
          }
          CHECK(base.embedding == one.embedding);
          CHECK(base.head == one.head);
          CHECK(base.final_norm == one.final_norm);
          CHECK(drafts(whole) == expected);
          const auto says = Catch::Contains("gather_falcon_base");
          CHECK_THROWS_WITH(alone.require_whole(), says);
          CHECK_THROWS_WITH(drafts(alone), says);
          CHECK_THROWS_WITH(
              inf::falcon_speculation(alone, inf::token_tree(std::vector<std::vector<std::int64_t>>{{0}})), says);
        },
        &base);
    // A model whose head is its embedding: the last stage has a copy of it.
    using tied = md::tied_llama<double>;
    hd::launch<hd::threads>(mesh, [&](world_type& world) {
      backend own{1};
      const auto layers = tied::layers_of(small, world.coordinate<hd::pp>(), world.mesh().extent<hd::pp>());
      inf::cached_stage<tied, world_type, backend> stage(small, world, own, layers, {1, 4}, 4);
      stage.initialize(seed);
      const auto tied_base = md::gather_falcon_base(stage, world);
      if (world.rank() != 0) {
        if (!tied_base.embedding.empty()) throw hd::error("a rank that does not lead has the embedding");
        return;
      }
      drafter_type whole(own, shape);
      whole.take(tied_base);
      CHECK(tied_base.head.empty());
      CHECK(std::ranges::equal(whole.head(), whole.embedding()));
      CHECK(std::ranges::equal(whole.embedding(), one.embedding));  // drawn as that of the other model
      if (mesh.size() == 1) {
        md::falcon_base<double> other = tied_base;
        other.final_norm.pop_back();
        CHECK_THROWS_WITH(whole.take(other), Catch::Contains("'model.norm.weight' should have 16 elements, got 15"));
      }
    });
  }
  // A model without an embedding of this name.
  struct nothing {
    using scalar = double;
    using space = hd::host_memory;
    std::vector<md::parameter> none{};
    space::queue at_once{};
    const std::vector<md::parameter>& parameters() const { return none; }
    const std::vector<md::parameter>& frozen_parameters() const { return none; }
    std::span<const double> weights() const { return {}; }
    std::span<const double> frozen_weights() const { return {}; }
    space::queue& queue() { return at_once; }
  };
  hd::launch<hd::threads>(mesh_type{1, 1, 1}, [&](world_type& world) {
    nothing stage;
    CHECK_THROWS_WITH(md::gather_falcon_base(stage, world),
                      Catch::Contains("all of 'model.embed_tokens.weight', got 0"));
  });
}

TEST_CASE(
    "a model trained with its heads is on any mesh that of one rank, heads learn at a rate of their own, and it "
    "speculates",
    "[infer][medusa][train][law][slow]") {
  using joint = md::with_medusa_heads<model_type, 2>;
  using joint_trainer =
      hd::train::trainer<joint, hd::strategy<mesh_type, hd::schedule::named, hd::zero<1>>, world_type>;
  CAPTURE(seed);
  std::vector<std::int32_t> text;
  on_runner(mesh_type{1, 1, 1}, [&](runner_type& runner, backend&) {
    for (const auto& a : answers(runner, inf::one_token{}, 40, 0.5, 60).answers)
      text.insert(text.end(), a.begin(), a.end());
  });
  const hd::io::basic_dataset<std::int32_t> data(text, {.context = 20, .batch = 16, .seed = 3});
  hd::train::options<md::llama_config> options;
  options.model = small;
  options.model.context = 20;
  options.batch = 16;
  options.threads_per_rank = 1;
  using whole = std::map<std::string, std::vector<double>>;
  struct trained {
    whole weights{};
    std::vector<double> losses{};
  };
  // Begins with the model's weights and heads that are the model's own, then trains all of it.
  const auto train = [&](const mesh_type& mesh, std::int64_t steps, double factor, double rate,
                         heads_type* heads = nullptr) {
    options.steps = steps;
    options.microbatches = mesh.extent<hd::pp>();
    options.learning_rate = {.peak = rate, .minimum = rate / 10, .warmup_steps = 2, .total_steps = steps + 1};
    options.adamw.weight_decay = 0;
    options.adamw.rates = {{"medusa_head.", factor}};
    options.clip_norm = 1e9;
    trained t;
    std::mutex mutex;
    hd::launch<hd::threads>(mesh, [&](world_type& world) {
      joint_trainer trainer(world, options);
      backend own{1};
      auto config = options.model;
      for (int k = 0; k < trainer.stages(); ++k) {
        inf::cached_stage<model_type, world_type, backend> base(config, world, own, trainer.stage(k).layers(), {1, 4},
                                                                4);
        base.initialize(seed);
        md::begin_medusa_head(trainer.stage(k), base);
      }
      std::vector<double> losses;
      for (std::int64_t i = 0; i < steps; ++i) losses.push_back(trainer.step(data).loss);
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) t.losses = losses;
      for (int k = 0; k < trainer.stages(); ++k) {
        if (heads != nullptr) heads->take_joint(trainer.stage(k));
        for (const md::parameter& p : trainer.stage(k).parameters()) {
          std::vector<double>& to = t.weights[p.name];
          to.resize(static_cast<std::size_t>(p.global_count()));
          md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
            std::copy_n(trainer.stage(k).weights().begin() + p.offset + local, length, to.begin() + global);
          });
        }
      }
    });
    return t;
  };
  const trained one = train(mesh_type{1, 1, 1}, 3, 4, 1e-3);
  CHECK(one.weights.size() == 2 * 9 + 3 + 4);
  for (const mesh_type& mesh : {mesh_type{2, 1, 1}, mesh_type{1, 2, 1}, mesh_type{1, 1, 2}, mesh_type{2, 1, 2}}) {
    const trained split = train(mesh, 3, 4, 1e-3);
    CAPTURE(mesh.extent<hd::dp>(), mesh.extent<hd::pp>(), mesh.extent<hd::tp>());
    REQUIRE(split.weights.size() == one.weights.size());
    double off = 0;
    for (const auto& [name, w] : one.weights)
      for (std::size_t i = 0; i < w.size(); ++i) off = (std::max)(off, std::abs(w[i] - split.weights.at(name)[i]));
    CHECK(off < 1e-10);
    for (std::size_t i = 0; i < 3; ++i) CHECK(split.losses[i] == Approx(one.losses[i]).epsilon(1e-10));
  }
  // The first step of AdamW moves heads four times as far, the model as far as without the factor.
  const trained still = train(mesh_type{1, 1, 1}, 0, 1, 1e-3), plain = train(mesh_type{1, 1, 1}, 1, 1, 1e-3),
                fast = train(mesh_type{1, 1, 1}, 1, 4, 1e-3);
  double moved = 0, off = 0;
  for (const auto& [name, w] : still.weights)
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double factor = name.starts_with("medusa_head.") ? 4 : 1;
      const double step = plain.weights.at(name)[i] - w[i];
      moved = (std::max)(moved, std::abs(step));
      off = (std::max)(off, std::abs(fast.weights.at(name)[i] - w[i] - factor * step));
    }
  CHECK(moved > 1e-5);
  CHECK(off < 1e-12);

  // Trained on what the model says, it says much the same, and speculates.
  backend kernels{1};
  heads_type heads(kernels, 2, small.width, small.vocabulary, small.epsilon);
  const trained last = train(mesh_type{1, 1, 1}, 60, 4, 3e-3, &heads);
  CHECK(last.losses.back() < last.losses.front());
  heads_type again(kernels, 2, small.width, small.vocabulary, small.epsilon);
  std::mutex mutex;
  hd::launch<hd::threads>(mesh_type{1, 2, 2}, [&](world_type& world) {
    joint_trainer trainer(world, options);
    const std::lock_guard lock(mutex);
    for (int k = 0; k < trainer.stages(); ++k) {
      heads.put_joint(trainer.stage(k));
      again.take_joint(trainer.stage(k));
    }
  });
  for (std::int64_t k = 0; k < 2; ++k) {
    CHECK(std::ranges::equal(again.square(k), heads.square(k)));
    CHECK(std::ranges::equal(again.words(k), heads.words(k)));
  }
  const inf::token_tree tree(std::vector<std::vector<std::int64_t>>{{0}, {1}, {0, 0}, {0, 1}, {1, 0}});
  on_runner(mesh_type{1, 1, 1}, [&](runner_type& runner, backend&) {
    for (const md::parameter& p : runner.stage().parameters()) {
      const std::vector<double>& w = last.weights.at(p.name);
      std::copy(w.begin(), w.end(), runner.stage().weights().begin() + p.offset);
    }
    const result alone = answers(runner, inf::one_token{}, 24, 0, 50);
    const result fewer = answers(runner, policy(heads, tree), 24, 0, 50);
    CHECK(fewer.answers == alone.answers);
    CHECK(fewer.counts.accepted_tokens > fewer.counts.answer_tokens / 5);
    INFO(fewer.counts.accepted_tokens << " of " << fewer.counts.answer_tokens);
  });
}
