// tests/train/policies_test.cpp: everything at once: passes, pairs, split backwards, recomputation, offload, steps
// before the norm is known, and odd numbers of samples and ranks, train the model that one rank trains.
#include "../schedule/pairs.hpp"
#include "catch.hpp"
#include "folder.hpp"
#include "random_tokens.hpp"
#include "tables.hpp"
#include "transport.hpp"

#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/activations/memory_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace act = heddle::activations;
namespace md = heddle::model;
namespace sc = heddle::schedule;
using hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using away =
    act::recompute<act::full,
                   act::offload<act::memory_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>>>;

constexpr int context = 8, words = 37;

using token_source = train_test::random_tokens<context, words, 3>;

struct setup {
  int layers = 3;
  std::int64_t batch = 8;
  double clip = 0.5;
  std::string again = "";  // what is computed again
  std::int64_t steps = 3;
  std::string save_to = "", resume_from = "";
};

/// Loss and norm of each step, and the loss on held-out samples. `taken_back`: how many steps rank 0 took back.
template <class... Policies>
std::vector<double> train(const std::string& mesh_text, const sc::action_table& table, const setup& s,
                          std::int64_t* taken_back = nullptr) {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  hd::train::options<md::gpt2_config> o;
  o.model = {.layers = s.layers, .heads = 2, .width = 16, .context = context, .vocabulary = words};
  o.batch = s.batch;
  o.microbatches = table.microbatches;
  o.steps = s.steps;
  o.clip_norm = s.clip;
  o.learning_rate = {.peak = 1e-3, .minimum = 1e-4, .warmup_steps = 2, .total_steps = 20};
  o.threads_per_rank = 1;
  o.recompute = s.again;
  const sc::tabled when(table);
  std::vector<double> seen;
  std::int64_t back = 0;
  transport_test::launch(mesh, [&](auto& world) {
    hd::train::trainer<md::gpt2<double>, hd::strategy<mesh_type, sc::tabled, Policies...>,
                       std::remove_reference_t<decltype(world)>>
        trainer(world, o, when);
    if (!s.resume_from.empty()) hd::train::resume(trainer, s.resume_from);
    const auto note = [&](double x) {
      if (world.rank() == 0) seen.push_back(x);
    };
    trainer.run(token_source{}, [&](const hd::train::step_report& report) {
      note(report.loss);
      note(report.gradient_norm);
    });
    note(trainer.validate(token_source{}));
    if (!s.save_to.empty()) hd::train::save(trainer, s.save_to);
    if (world.rank() == 0) back = trainer.steps_taken_back();
  });
  transport_test::tell(seen, 0);
  transport_test::tell(back, 0);
  if (taken_back != nullptr) *taken_back += back;
  return seen;
}

std::vector<double> on_one_rank(setup s) {
  s.again = "";
  return train<hd::zero<0>>("", train_test::table_named("gpipe", 1, 1), s);
}

double largest_relative(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return 1e300;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / std::abs(b[i]);
    if (std::isnan(error) || error > worst) worst = error;
  }
  return worst;
}

bool has_room(const std::string& mesh) {
  return transport_test::on_threads || hd::parse_mesh<mesh_type>(mesh).size() <= transport_test::most_ranks();
}
int pipeline_of(const std::string& mesh) {
  return hd::parse_mesh<mesh_type>(mesh).template extent<pp>();
}

// A row of passes, some of them, behind random pairs.
sc::action_table passed(sc::action_table t, std::mt19937& random) {
  const auto now_and_then = [&] { return random() % 2 == 0; };
  if (now_and_then()) t = schedules::with_pairs(t, random, 0.3);
  if (now_and_then()) t = sc::lower(t, sc::passes::recompute<>{});
  if (now_and_then()) t = sc::lower(t, sc::passes::offload<>{.ahead = 2});
  if (now_and_then()) t = sc::lower(t, sc::passes::unshard{2});
  t = sc::lower(t, sc::passes::place_transfers{});
  if (now_and_then()) t = sc::lower(t, sc::passes::reduce_gradients{});
  if (now_and_then()) t = sc::lower(t, sc::passes::optimizer{.post_validation = now_and_then()});
  return t;
}

// Every second schedule from number `first` on that runs there, each with passes of its own and all policies.
void all_at_once(const std::string& mesh, int first) {
  if (!has_room(mesh)) return;
  const int p = pipeline_of(mesh), m = 2 * p;
  const unsigned seed = 20261121;
  INFO("seed " << seed << ", mesh '" << mesh << "'");
  std::mt19937 random(seed);
  const setup whole{.layers = 5, .clip = 1e9, .again = "every 2"};
  const auto without = on_one_rank(whole);
  // Less than the norm of each step, more than what one rank knows of it: known behind the next step's forwards.
  const setup clipped{.layers = 5, .clip = 0.98 * *std::min_element(without.begin(), without.end())};
  const auto with_clip = on_one_rank(clipped);
  std::int64_t taken_back = 0;
  int compared = 0, number = 0;
  for (const char* name : {"1f1b", "interleaved:2", "zb-h1", "zb-h2", "zb-v", "v-half", "dual-pipe-v", "hanayo:2",
                           "dual-pipe", "chimera", "two waves"}) {
    if (!train_test::has_table(name, p, m) || number++ % 2 != first) continue;
    if (!transport_test::on_threads && compared > 1) break;  // with processes each run takes longer
    const auto table = passed(train_test::table_named(name, p, m), random);
    INFO(name << "\n" << sc::to_text(table));
    CHECK(largest_relative(train<hd::zero<3>, away>(mesh, table, clipped), with_clip) <= 1e-10);
    CHECK(largest_relative(train<hd::zero<3>, away, hd::post_validation>(mesh, table, clipped, &taken_back),
                           with_clip) <= 1e-10);
    CHECK(largest_relative(train<hd::zero<0>, act::recompute<>, hd::post_validation>(mesh, table, whole), without) <=
          1e-10);
    ++compared;
  }
  CHECK(compared >= (transport_test::on_threads ? 5 : 2));
  CHECK(taken_back >= compared);
}

}  // namespace

TEST_CASE("all policies at once, any passes: 2 ranks", "[train][policies]") {
  all_at_once("pp=2", 0);
}
TEST_CASE("all policies at once, any passes: 2 x 2 ranks of dp and pp", "[train][policies][ranks]") {
  all_at_once("dp=2,pp=2", 1);
}
TEST_CASE("all policies at once, any passes: 2 x 2 ranks of pp and tp", "[train][policies]") {
  all_at_once("pp=2,tp=2", 0);
}
TEST_CASE("all policies at once, any passes: 4 ranks", "[train][policies]") {
  all_at_once("pp=4", 1);
}
TEST_CASE("all policies at once, any passes: 8 ranks", "[train][policies]") {
  all_at_once("dp=2,pp=2,tp=2", 0);
}

TEST_CASE("samples that microbatches and ranks do not divide, or that are fewer than they", "[train][policies]") {
  for (const std::int64_t batch : {7, 2, 1}) {
    const setup s{.batch = batch, .steps = 2};
    const auto serial = on_one_rank(s);
    for (const char* mesh : {"pp=2", "dp=2,pp=2", "pp=3"})
      for (const char* name : {"1f1b", "zb-v", "chimera", "interleaved:2"}) {
        const int p = pipeline_of(mesh), m = 4;
        if (!has_room(mesh) || !train_test::has_table(name, p, m)) continue;
        INFO(batch << " samples, " << name << " on " << mesh);
        const auto table = train_test::table_named(name, p, m);
        CHECK(largest_relative(train<hd::zero<3>, away>(mesh, table, s), serial) <= 1e-10);
      }
  }
}

TEST_CASE("ranks may have nothing to do, and a run goes on with other idle ranks", "[train][policies][save][ranks]") {
  if (!has_room("pp=3")) return;
  const train_test::folder saves("policies");
  const setup s{};
  const auto serial = on_one_rank(s);
  const auto middle = sc::parse("0F0 0F1 0B0 0B1 | - | 1F0 1B0 1F1 1B1");
  const auto front = sc::parse("- | 0F0 0F1 0B0 0B1 | 1F0 1B0 1F1 1B1");
  CHECK(largest_relative(train<hd::zero<3>, away>("pp=3", middle, s), serial) <= 1e-10);
  CHECK(largest_relative(train<hd::zero<3>, away, hd::post_validation>("pp=3", front, s), serial) <= 1e-10);
  if (has_room("dp=2,pp=3"))
    CHECK(largest_relative(train<hd::zero<3>, away, hd::post_validation>("dp=2,pp=3", middle, s), serial) <= 1e-10);
  setup head = s, rest = s;
  head.steps = 2;
  head.save_to = rest.resume_from = saves.path.string();
  train<hd::zero<3>, away>("pp=3", front, head);
  const auto resumed = train<hd::zero<3>, away>("pp=3", middle, rest);
  CHECK(largest_relative(resumed, {serial.begin() + 4, serial.end()}) <= 1e-10);
}
