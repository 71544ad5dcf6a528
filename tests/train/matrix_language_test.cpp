// tests/train/matrix_language_test.cpp: language models by optimizers that act on whole matrices: any mesh that cuts none, experts, bf16, state bytes.
#include "language_training.hpp"

#include <heddle/model/gpt2.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/train/optimizers/adafactor.hpp>
#include <heddle/train/optimizers/muon.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

using namespace language_training;
using Catch::Matchers::Contains;
using hd::ep;
using hd::optimizers::adafactor, hd::optimizers::muon;

namespace {

constexpr md::gpt2_config settings{.layers = 3, .heads = 2, .width = 12, .context = 6, .vocabulary = 29};
using tokens = random_tokens<settings.context, settings.vocabulary, 3>;
template <class Rule, class Model = md::gpt2<double>>
outcome train_gpt2(const std::string& mesh, const std::string& schedule, int microbatches,
                   const hd::train::any_optimizer_options& options = {}) {
  return train<Model, tokens, mesh_type, Rule>(settings, mesh, schedule, microbatches, "", options);
}

// Five experts of 7 hidden units; ranks along ep have other samples, and other experts.
constexpr md::mixtral_config mixed{{.layers = 2,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .width = 12,
                                    .ffn = 7,
                                    .context = 6,
                                    .vocabulary = 29,
                                    .initial_deviation = 0.3,
                                    .head_elements = 4},
                                   5,
                                   2};
template <class Rule>
outcome train_mixtral(const std::string& mesh, int microbatches) {
  using experts_mesh = hd::mesh<hd::axis<dp>, hd::axis<ep>, hd::axis<pp>>;
  return train<md::mixtral<double, md::expert_parallel<>>, tokens, experts_mesh, Rule>(mixed, mesh, "1f1b",
                                                                                       microbatches);
}

// Published shapes of a GPT-2.
std::vector<md::parameter> gpt2_table(std::int64_t layers, std::int64_t width, std::int64_t context,
                                      std::int64_t vocabulary) {
  std::vector<md::parameter> table;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
    md::parameter p;
    p.name = std::move(name);
    p.logical = p.local = p.shape = std::move(shape);
    p.start.resize(p.shape.size());
    p.count = p.global_count();
    p.offset = table.empty() ? 0 : table.back().offset + table.back().count;
    table.push_back(std::move(p));
  };
  const auto both = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    add(name + ".weight", {in, out}), add(name + ".bias", {out});
  };
  const auto norm = [&](const std::string& name) { add(name + ".weight", {width}), add(name + ".bias", {width}); };
  add("wte.weight", {vocabulary, width}), add("wpe.weight", {context, width});
  for (std::int64_t k = 0; k < layers; ++k) {
    const std::string block = "h." + std::to_string(k) + ".";
    norm(block + "ln_1"), both(block + "attn.c_attn", width, 3 * width), both(block + "attn.c_proj", width, width);
    norm(block + "ln_2"), both(block + "mlp.c_fc", width, 4 * width), both(block + "mlp.c_proj", 4 * width, width);
  }
  norm("ln_f");
  return table;
}
// Numbers of state of a rule for all parameters of a table, and all parameters.
template <class Rule>
std::int64_t numbers_of_state(const std::vector<md::parameter>& table) {
  hd::train::detail::tensors_of_share tensors(Rule::name, table);
  tensors.template place<Rule, float>({}, 0, table.back().offset + table.back().count);
  std::int64_t n = 0;
  for (int k = 0; k < Rule::moments; ++k) n += tensors.owned(k).end - tensors.owned(k).begin;
  return n;
}

}  // namespace

TEST_CASE("a GPT-2 trained by rules on whole matrices on any mesh is that of one rank", "[train][optimizer][ranks]") {
  const auto check = []<class Rule>(Rule, const hd::train::any_optimizer_options& options) {
    const outcome serial = train_gpt2<Rule>("", "1f1b", 1, options);
    REQUIRE(serial.norms[0] > 0.05);
    REQUIRE(std::abs(serial.losses[2] - serial.losses[0]) > 1e-6);
    check_same(train_gpt2<Rule>("dp=2", "1f1b", 2, options), serial);
    check_same(train_gpt2<Rule>("dp=3,pp=2", "1f1b", 2, options), serial);
    check_same(train_gpt2<Rule>("dp=2,pp=3", "zb-h1", 3, options), serial);
    // The extents of this mesh are known when it starts.
    CHECK_THROWS_WITH(train_gpt2<Rule>("tp=2", "1f1b", 1, options),
                      Contains(std::string("heddle: the rule ") + Rule::name +
                               " acts on whole matrices, and this rank has "
                               "a part of 'wte.weight' only"));
  };
  check(muon{}, {});
  check(muon{}, muon::options{.by_adamw = {}});  // the tied embedding, too, of which two ranks have a copy
  // The gradient of biases of keys is zero but for rounding, which a step without an epsilon makes as great as any.
  check(adafactor{}, adafactor::options{.epsilon1 = 1e-8});
}

TEST_CASE("experts of other ranks are whole matrices", "[train][optimizer][mixtral]") {
  const auto check = []<class Rule>(Rule) {
    const outcome serial = train_mixtral<Rule>("", 1);
    REQUIRE(serial.weights.at("model.layers.1.block_sparse_moe.experts.*.w2.weight").size() == 5 * 12 * 7);
    check_same(train_mixtral<Rule>("ep=2", 2), serial);
    check_same(train_mixtral<Rule>("dp=2,ep=3", 1), serial);
    check_same(train_mixtral<Rule>("ep=2,pp=2", 2), serial);
  };
  check(muon{});
  check(adafactor{});
}

TEST_CASE("a GPT-2 of bf16 is trained by rules on whole matrices", "[train][optimizer][precision]") {
  using half = md::gpt2<hd::bf16>;
  const auto check = []<class Rule>(Rule) {
    const outcome exact = train_gpt2<Rule, md::gpt2<float>>("", "1f1b", 1);
    const outcome alone = train_gpt2<Rule, half>("", "1f1b", 1), many = train_gpt2<Rule, half>("dp=2", "1f1b", 2);
    CHECK(relative_difference(alone.losses, exact.losses) < 0.05);
    CHECK(relative_difference(many.losses, alone.losses) < 0.05);
  };
  check(muon{});
  check(adafactor{});
}

TEST_CASE("rules on whole matrices keep the published numbers for a GPT-2", "[train][optimizer][memory]") {
  hd::train::options<md::gpt2_config> o;
  o.model = settings;
  o.threads_per_rank = 1;
  const auto table = gpt2_table(settings.layers, settings.width, settings.context, settings.vocabulary);
  const auto check = [&]<class Rule>(Rule) {
    hd::launch<hd::threads>(hd::mesh<>{}, [&](auto& world) {
      using world_type = std::remove_reference_t<decltype(world)>;
      hd::train::trainer<md::gpt2<float>, hd::strategy<hd::mesh<>, Rule>, world_type> trainer(world, o);
      auto& optimizer = trainer.optimizer_state();
      const std::int64_t bytes = 4 * numbers_of_state<Rule>(table);
      CHECK(optimizer.state_bytes() - optimizer.room_bytes() == bytes);
      CHECK(trainer.parameter_memory().bytes().moments == optimizer.state_bytes());
      CHECK(!hd::train::predicted_memory(trainer));  // shares follow from the tensors
    });
  };
  check(muon{});
  check(adafactor{});
  // Of the 124 million parameters of the smallest published one, as docs/tutorial/own_optimizer.md has it.
  const auto published = gpt2_table(12, 768, 1024, 50257);
  CHECK(published.back().offset + published.back().count == 124439808);
  CHECK(4 * numbers_of_state<muon>(published) == 655779840);
  CHECK(4 * numbers_of_state<adafactor>(published) == 1286468);
}
