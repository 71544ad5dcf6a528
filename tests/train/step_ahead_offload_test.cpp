// tests/train/step_ahead_offload_test.cpp: forwards that are done again where activations are stored elsewhere or
// computed again.
#include "activation_stores.hpp"
#include "catch.hpp"
#include "random_tokens.hpp"
#include "tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/lower/lower.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/activations/memory_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace tr = heddle::train;
namespace act = heddle::activations;

namespace {

constexpr hd::model::gpt2_config config{.layers = 4, .heads = 2, .width = 16, .context = 6, .vocabulary = 29};

using tokens = train_test::random_tokens<config.context, config.vocabulary, 0>;

using mesh = hd::mesh<hd::axis<hd::pp, 2>>;
// Half of the layers elsewhere, some activations of all layers computed again.
using away =
    act::recompute<act::named<"mlp.hidden", "attn.qkv">,
                   act::offload<act::memory_store, act::amount::first<1>, act::prefetch::ahead<1>, act::min_bytes<0>>>;

struct outcome {
  std::vector<double> losses, norms;
  std::int64_t taken_back = 0;
};
template <class... Policies>
outcome run(const char* schedule, double clip) {
  tr::options<hd::model::gpt2_config> o;
  o.model = config;
  o.batch = 8;
  o.microbatches = 4;
  o.schedule = schedule;
  o.steps = 4;
  o.clip_norm = clip;
  o.threads_per_rank = 1;
  outcome result;
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    tr::trainer<hd::model::gpt2<double>, hd::strategy<mesh, hd::schedule::named, Policies...>,
                std::remove_reference_t<decltype(world)>>
        trainer(world, o);
    trainer.run(tokens{}, [&](const tr::step_report& r) {
      if (world.rank() != 0) return;
      result.losses.push_back(r.loss);
      result.norms.push_back(r.gradient_norm);
    });
    if (world.rank() == 0) result.taken_back = trainer.steps_taken_back();
  });
  return result;
}

}  // namespace

TEST_CASE("forwards are done again where activations are stored elsewhere", "[train][post_validation][offload]") {
  for (const char* schedule : {"gpipe", "1f1b", "zb-v"}) {
    INFO(schedule);
    const outcome whole = run<>(schedule, 1e9);
    const double clip = 0.95 * whole.norms[1];
    const outcome waits = run<>(schedule, clip), ahead = run<hd::post_validation, away>(schedule, clip);
    CHECK(ahead.taken_back >= 1);
    REQUIRE(ahead.losses.size() == waits.losses.size());
    for (std::size_t k = 0; k < waits.losses.size(); ++k) {
      CHECK(ahead.losses[k] == Approx(waits.losses[k]).epsilon(1e-12));
      CHECK(ahead.norms[k] == Approx(waits.norms[k]).epsilon(1e-11));
    }
    CHECK(run<hd::post_validation, away>(schedule, 1e9).losses == whole.losses);
  }
}

TEST_CASE("stages that have stepped when the store fails are taken back", "[train][post_validation][offload]") {
  using activation_stores::failing_device;
  using failing =
      act::offload<activation_stores::patient_failing_store, act::amount::all, act::prefetch::off, act::min_bytes<0>>;
  using alone = hd::mesh<hd::axis<hd::pp, 1>>;
  namespace passes = hd::schedule::passes;
  // OPTIM of the third and the second stage come before the last backward of the first.
  const hd::schedule::tabled when(hd::schedule::lower(train_test::table_named("interleaved:4", 1, 4),
                                                      passes::merge_backward{}, passes::offload<>{.ahead = 1},
                                                      passes::optimizer{.post_validation = true}));
  hd::launch<hd::threads>(alone{}, [&](auto& world) {
    tr::options<hd::model::gpt2_config> o;
    o.model = config;
    o.batch = 8;
    o.microbatches = 4;
    o.clip_norm = 1e9;
    o.threads_per_rank = 1;
    const auto weights_of = [](auto& trainer) {
      std::vector<double> all;
      for (int k = 0; k < trainer.stages(); ++k)
        all.insert(all.end(), trainer.stage(k).weights().begin(), trainer.stage(k).weights().end());
      return all;
    };
    for (const int reads : {9, 10, 11, 12}) {  // of a step, before one fails; it has 12
      INFO(reads << " reads");
      failing_device::fail_after(999, 999, 999);
      tr::trainer<hd::model::gpt2<double>, hd::strategy<alone, hd::schedule::tabled, hd::post_validation, failing>,
                  std::remove_reference_t<decltype(world)>>
          trainer(world, o, when);
      trainer.step(tokens{});
      const std::vector<double> before = weights_of(trainer);
      failing_device::fail_after(999, 999, reads);
      if (reads == 12)
        CHECK_NOTHROW(trainer.step(tokens{}));
      else
        CHECK_THROWS_AS(trainer.step(tokens{}), hd::offload_error);
      CHECK(trainer.steps_done() == (reads == 12 ? 2 : 1));
      CHECK_FALSE(trainer.is_ahead());
      const std::vector<double> after = weights_of(trainer);
      double difference = 0;
      for (std::size_t i = 0; i < after.size(); ++i) difference = std::max(difference, std::abs(after[i] - before[i]));
      if (reads == 12)
        CHECK(difference > 1e-6);
      else
        CHECK(difference < 1e-15);
    }
  });
}
