// tests/train/skipping_policies_test.cpp: ways of microbatches with post-validation, recomputation and offload.
#include "catch.hpp"
#include "random_tokens.hpp"
#include "transport.hpp"

#include <heddle/mesh/mesh.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/routed.hpp>
#include <heddle/train/activations/memory_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
namespace act = heddle::activations;
using hd::dp, hd::pp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>>;

using token_source = train_test::random_tokens<8, 61>;

// Two origins, a stage of two nodes and one of one; skips and a swap.
sc::routed ways() {
  sc::path_table t;
  t.stages = 4;
  t.length = 3;
  t.stage_of_node = {0, 0, 1, 1, 2, 3};
  t.way = {0, 2, 4, 1, 3, 5, 0, 4, 5, 1, 4, 3, 0, 3, 4, 1, 2, 5};
  return sc::routed(t);
}

struct outcome {
  std::vector<double> losses;
  std::vector<std::vector<double>> weights;  // of each rank
  std::int64_t taken_back = 0;
};

template <class... Policies>
outcome train(const std::string& recompute, double clip, int dp_size = 1) {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = 6, .heads = 2, .width = 16, .context = 8, .vocabulary = 61};
  o.batch = 15;
  o.steps = 3;
  o.learning_rate = {.peak = 1e-3, .minimum = 1e-4, .warmup_steps = 2, .total_steps = 20};
  o.clip_norm = clip;
  o.threads_per_rank = 1;
  o.recompute = recompute;
  const mesh_type mesh(dp_size, 6);
  outcome r;
  r.weights.resize(static_cast<std::size_t>(mesh.size()));
  std::vector<std::int64_t> taken_back(r.weights.size());
  const sc::routed when = ways();
  transport_test::launch(mesh, [&](auto& world) {
    using strategy = hd::strategy<mesh_type, sc::routed, hd::zero<1>, sc::by_visits, Policies...>;
    hd::train::trainer<hd::model::gpt2<double>, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o,
                                                                                                            when);
    trainer.run(token_source{}, [&](const hd::train::step_report& report) {
      if (world.rank() == 0) r.losses.push_back(report.loss);
    });
    const auto rank = static_cast<std::size_t>(world.rank());
    for (int k = 0; k < trainer.stages(); ++k) {
      const auto w = trainer.stage(k).weights();
      r.weights[rank].insert(r.weights[rank].end(), w.begin(), w.end());
    }
    taken_back[rank] = trainer.steps_taken_back();
  });
  transport_test::tell(r.losses, 0);
  transport_test::share(r.weights);
  transport_test::share(taken_back);
  for (const std::int64_t n : taken_back) r.taken_back += n;
  return r;
}

double apart(const outcome& a, const outcome& b) {
  double worst = 0;
  for (std::size_t r = 0; r < a.weights.size(); ++r)
    for (std::size_t i = 0; i < a.weights[r].size(); ++i)
      worst = (std::max)(worst, std::abs(a.weights[r][i] - b.weights.at(r).at(i)));
  return worst;
}

using offloaded = act::offload<act::memory_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>>;

}  // namespace

TEST_CASE("activations on ways are kept, computed again or offloaded: the same bits", "[train][skippipe]") {
  if (transport_test::most_ranks() < 6) return;
  const outcome kept = train("", 0.5);
  REQUIRE(kept.losses.size() == 3);
  for (const char* again : {"full", "every 2,mlp.hidden"}) {
    const outcome other = train<act::recompute<>>(again, 0.5);
    CHECK(other.losses == kept.losses);
    CHECK(other.weights == kept.weights);
  }
  const outcome stored = train<offloaded>("", 0.5);
  CHECK(stored.losses == kept.losses);
  CHECK(stored.weights == kept.weights);
}

TEST_CASE("post-validation on ways takes the same steps", "[train][skippipe][post_validation]") {
  if (transport_test::most_ranks() < 6) return;
  const double never = std::numeric_limits<double>::infinity();
  const outcome plain = train("", never), ahead = train<hd::post_validation>("", never);
  CHECK(ahead.losses == plain.losses);
  CHECK(ahead.weights == plain.weights);
  CHECK(ahead.taken_back == 0);
  const outcome clipped = train("", 0.5), taken_back = train<hd::post_validation>("", 0.5);
  CHECK(apart(clipped, plain) > 1e-9);
  CHECK(apart(taken_back, clipped) <= 1e-12);
  if (transport_test::most_ranks() < 12) return;
  CHECK(apart(train<hd::post_validation>("", 0.5, 2), train("", 0.5, 2)) <= 1e-12);
}
