// tests/train/recompute_test.cpp: training with recomputed activations: the same bits under every schedule.
#include "../model/gpt2_activations.hpp"
#include "catch.hpp"
#include "random_tokens.hpp"
#include "tables.hpp"
#include "transport.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/activations/memory_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace act = heddle::activations;
namespace md = heddle::model;
namespace sc = heddle::schedule;
using hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
template <class Activations, class World>
using trainer_of =
    hd::train::trainer<md::gpt2<double>, hd::strategy<mesh_type, sc::tabled, hd::zero<1>, Activations>, World>;
using chosen = act::recompute<>;  // at start-up
using away =
    act::recompute<act::full,
                   act::offload<act::memory_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>>>;

constexpr int layers = 5, context = 8, width = 16, heads = 2, words = 37, steps = 2;

using token_source = train_test::random_tokens<context, words>;

struct rank_result {
  std::vector<double> losses, weights, gradients;
  hd::train::activation_bytes bytes;
  std::int64_t slots = 0, saved_formula = 0;  // of all stages; elements per token that their slots hold, by the formula
  std::int64_t offloaded = 0;                 // bytes
  std::int64_t held = 0, forecast = 0;        // bytes of the rank
};
// For the processes of one run to tell each other.
[[maybe_unused]] auto members(rank_result& r) {
  return std::tie(r.losses, r.weights, r.gradients, r.bytes, r.slots, r.saved_formula, r.offloaded, r.held, r.forecast);
}

hd::train::options<md::gpt2_config> options_for(const std::string& again, int microbatches) {
  hd::train::options<md::gpt2_config> o;
  o.model = {.layers = layers, .heads = heads, .width = width, .context = context, .vocabulary = words};
  o.batch = 2 * microbatches;
  o.microbatches = microbatches;
  o.steps = steps;
  o.learning_rate = {.peak = 1e-3, .minimum = 1e-4, .warmup_steps = 2, .total_steps = 20};
  o.threads_per_rank = 1;
  o.recompute = again;
  return o;
}

/// What each rank has after some steps.
template <class Activations>
std::vector<rank_result> train(const std::string& mesh_text, const sc::action_table& table,
                               const std::string& again = "") {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  const auto told = options_for(again, table.microbatches);
  const sc::tabled when(table);
  std::vector<rank_result> all(static_cast<std::size_t>(mesh.size()));
  transport_test::launch(mesh, [&](auto& world) {
    rank_result& r = all[static_cast<std::size_t>(world.rank())];
    trainer_of<Activations, std::remove_reference_t<decltype(world)>> trainer(world, told, when);
    while (trainer.steps_done() < steps) {
      const auto step = trainer.compute_gradients(token_source{});
      r.losses.push_back(step.loss);
      for (int k = 0; k < trainer.stages(); ++k) {
        const auto g = trainer.stage(k).gradients();
        r.gradients.insert(r.gradients.end(), g.begin(), g.end());
      }
      trainer.apply_gradients(step);
    }
    r.losses.push_back(trainer.validate(token_source{}));
    r.bytes = trainer.activation_bytes();
    r.held = hd::train::bytes_held(trainer);
    r.forecast = hd::train::predicted_memory(trainer).value().total();
    for (int k = 0; k < trainer.stages(); ++k) {
      auto& stage = trainer.stage(k);
      const auto w = stage.weights();
      r.weights.insert(r.weights.end(), w.begin(), w.end());
      const std::int64_t slots = trainer.plan().storage.slots(trainer.held(k).index);
      r.slots += slots;
      const std::int64_t parts = world.template along_if<tp>().size();
      const model_test::block_extents e{width, heads / parts, width / heads, 4 * width / parts};
      for (int l = 0; l < stage.layers().count; ++l)
        r.saved_formula += slots * model_test::kept_elements(e, stage.recomputed().of_block(stage.layers().first + l));
      if constexpr (std::is_same_v<Activations, away>)
        r.offloaded += stage.saved_layers().report().tensors.bytes_stored;
    }
  });
  transport_test::share(all);
  return all;
}

bool same_bits(const std::vector<rank_result>& a, const std::vector<rank_result>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const rank_result& x, const rank_result& y) {
    return x.losses == y.losses && x.gradients == y.gradients && x.weights == y.weights;
  });
}

const std::vector<std::string> sets{"full",
                                    "every 2",
                                    "first 3",
                                    "full,ln_f.out,head.logits",
                                    "attn.out,mlp.hidden,mlp.activated",
                                    "mid,ln_2.out,head.logits",
                                    "ln_1.out,attn.qkv"};

// Every schedule that runs there, each with another set.
void every_schedule_on(const std::string& mesh, int ranks, int microbatches, int at_least) {
  int compared = 0;
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "interleaved:3", "breadth-first:2", "zb-h1", "zb-h1:2",
                           "zb-h2", "zb-v", "v-half", "v-min", "dual-pipe-v", "hanayo:1", "hanayo:2", "dual-pipe",
                           "chimera", "v shape", "two waves", "bidirectional, split"}) {
    if (!train_test::has_table(name, ranks, microbatches)) continue;
    const std::string& again = sets[static_cast<std::size_t>(compared) % sets.size()];
    INFO(name << " on " << mesh << ", recompute " << again);
    const sc::action_table table = train_test::table_named(name, ranks, microbatches);
    CHECK(same_bits(train<chosen>(mesh, table, again), train<act::keep>(mesh, table)));
    ++compared;
  }
  CHECK(compared >= at_least);
}

}  // namespace

TEST_CASE("recomputed activations train the same bits under every schedule: 2 ranks", "[train][recompute][ranks]") {
  every_schedule_on("pp=2", 2, 4, 17);
}
TEST_CASE("recomputed activations train the same bits under every schedule: 4 ranks", "[train][recompute][ranks]") {
  every_schedule_on("pp=4", 4, 8, 17);
}

TEST_CASE("every set trains the same bits, over tp, too", "[train][recompute][ranks]") {
  struct where {
    const char *mesh, *schedule;
    int ranks;
  };
  for (const where& w : {where{"", "1f1b", 1}, where{"pp=2,tp=2", "zb-h1", 2}, where{"tp=4", "gpipe", 1},
                         where{"dp=2,pp=2", "zb-v", 2}}) {
    const sc::action_table table = train_test::table_named(w.schedule, w.ranks, 4);
    const auto kept = train<act::keep>(w.mesh, table);
    for (const std::string& again : sets) {
      INFO(w.schedule << " on '" << w.mesh << "', recompute " << again);
      CHECK(same_bits(train<chosen>(w.mesh, table, again), kept));
    }
  }
}

TEST_CASE("RECOMPUTE in a table begins ahead of the backward", "[train][recompute][ranks]") {
  for (const char* name : {"1f1b", "zb-h1", "zb-v"}) {
    const sc::action_table plain = train_test::table_named(name, 2, 4);
    const sc::action_table table = sc::passes::recompute<>{}(plain);
    REQUIRE(table.view().has(sc::action_kind::recompute));
    const auto kept = train<act::keep>("pp=2", plain);
    INFO(name);
    CHECK(same_bits(train<chosen>("pp=2", table, "full,head.logits"), kept));
    CHECK(same_bits(train<chosen>("pp=2,tp=2", table, "full"), train<act::keep>("pp=2,tp=2", plain)));
    CHECK(same_bits(train<act::keep>("pp=2", table), kept));  // nothing to do
  }
}

TEST_CASE("slots hold what the formula says", "[train][recompute][ranks]") {
  // What the last stage keeps of its end is not a block's.
  const std::int64_t end = width + width + 2 + words + 3, rows = 2 * context, line = 8;
  REQUIRE(rows % line == 0);
  const sc::action_table table = train_test::table_named("1f1b", 2, 4);
  for (const char* again : {"none", "full", "every 2", "first 3", "attn.out,mlp.hidden,mlp.activated"}) {
    const auto all = train<chosen>("pp=2", table, again);
    INFO(again);
    for (const rank_result& r : all) CHECK(r.held == r.forecast);
    CHECK(all[0].bytes.saved == all[0].saved_formula * rows * 8);
    CHECK(all[1].bytes.saved == (all[1].saved_formula + all[1].slots * end) * rows * 8);
  }
  const auto kept = train<act::keep>("pp=2", table), full = train<chosen>("pp=2", table, "full");
  CHECK(kept[0].bytes.saved == 2 * 3 * (16 * width + 4 + heads) * rows * 8);  // two microbatches, three layers
  CHECK(full[0].bytes.saved == 2 * 3 * width * rows * 8);
  CHECK(kept[0].bytes.scratch == full[0].bytes.scratch);
  CHECK(full[0].bytes.total() < kept[0].bytes.total());
}

TEST_CASE("what is kept of recomputed layers can be offloaded", "[train][recompute][offload][ranks]") {
  for (const char* name : {"1f1b", "interleaved:2", "zb-h1"}) {
    const sc::action_table table = train_test::table_named(name, 2, 4);
    const auto kept = train<act::keep>("pp=2", table), both = train<away>("pp=2", table);
    INFO(name);
    CHECK(same_bits(both, kept));
    for (const rank_result& r : both) {
      // At most each layer's input of each microbatch, in whole pages.
      CHECK(r.offloaded > 0);
      CHECK(r.offloaded <= steps * 4 * 3 * width * 2 * context * 8);
    }
  }
}

TEST_CASE("what cannot be recomputed is refused at start-up", "[train][recompute]") {
  const sc::action_table table = train_test::table_named("1f1b", 1, 2);
  CHECK_THROWS_WITH(
      train<chosen>("", table, "mlp"),
      Catch::Matchers::Contains("heddle: recompute \"mlp\" names no saved activation; there are none, full"));
  CHECK_THROWS_WITH(train<chosen>("", table, "full,keep-tail 1/2"), Catch::Matchers::Contains("for models whose sharding has a context split"));
  CHECK_THROWS_WITH(train<act::keep>("", table, "full"),
                    Catch::Matchers::Contains("this strategy does not recompute; give it activations::recompute<>"));
}
