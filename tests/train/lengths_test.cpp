// tests/train/lengths_test.cpp: microbatches of a GPT-2 that differ in samples and in length, under every schedule.
#include "catch.hpp"
#include "difference.hpp"
#include "tables.hpp"
#include "transport.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/train/activations/stage_for.hpp>
#include <heddle/train/activations/memory_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/local_stages.hpp>
#include <heddle/train/sharded_optimizer.hpp>
#include <heddle/train/trainer_checks.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace act = heddle::activations;
namespace md = heddle::model;
namespace sc = heddle::schedule;

namespace {

using gradients = std::map<std::string, std::vector<double>>;  // whole tensors by name, and "loss"
using away =
    act::recompute<act::full,
                   act::offload<act::memory_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>>>;

constexpr md::gpt2_config config{.layers = 3, .heads = 2, .width = 16, .context = 9, .vocabulary = 31};
constexpr int most_samples = 3;

struct microbatch {
  std::vector<std::int32_t> tokens, targets;
  int samples, sequence;
};

// Between one token and whole contexts, no two neighbours alike.
std::vector<microbatch> microbatches(int m) {
  const hd::counter_random random(3, 8);
  std::vector<microbatch> all;
  std::uint64_t draw = 0;
  const auto id = [&] { return static_cast<std::int32_t>(random.integer(draw++) % 31); };
  for (int i = 0; i < m; ++i) {
    microbatch b{{}, {}, 1 + i % most_samples, 1 + (4 * i) % config.context};
    for (int k = 0; k < b.samples * b.sequence; ++k) {
      b.tokens.push_back(id());
      b.targets.push_back(id());
    }
    all.push_back(b);
  }
  return all;
}

template <class Held>
struct hooks {
  Held& held;
  std::vector<double>& losses;
  int last;
  void forward_done(int stage, int i, int slot) {
    if (held.at(stage).part == last) losses[static_cast<std::size_t>(i)] = held.at(stage).stage.loss_sum(slot);
  }
  void reduce_gradient(int) {}
  void recompute(int stage, int, int slot) { hd::model::of_stage::recompute(held.at(stage).stage, slot); }
  void reload(int stage, int, int slot) { hd::model::of_stage::reload(held.at(stage).stage, slot); }
};

/// The gradients of a step under a table.
template <class Activations>
gradients run(const sc::action_table& table) {
  const sc::plan plan =
      sc::make_plan(hd::train::detail::reloads<Activations>
                        ? sc::lower(table, sc::passes::merge_backward{}, sc::passes::offload<>{.ahead = 1})
                        : table);
  const sc::plan_view view = plan;
  const std::vector<microbatch> data = microbatches(table.microbatches);
  gradients all;
  std::mutex guard;
  transport_test::launch(hd::mesh<hd::axis<hd::pp>>(static_cast<int>(table.offsets.size()) - 1), [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    using backend = hd::compute::host<>;
    using stage = hd::train::detail::stage_for<md::gpt2<double>, world_type, backend, Activations>;
    using held_type = hd::train::local_stages<stage, hd::train::optimizer<double, hd::zero<0>>>;
    auto& pipe = world.template along<hd::pp>();
    backend products(1);
    const auto list = view.table.list(pipe.rank());
    const hd::train::stage_parts parts(view.table);
    held_type held(
        view.table, parts, pipe.rank(),
        [&](int s, stage* lender) {
          auto layers = md::split_layers(config.layers, parts.part_of(s), parts.parts());
          layers.replica = parts.replica_of(s);
          const int slots = view.storage.slots(s), deferred = hd::train::detail::most_deferred(list, s);
          if constexpr (std::is_same_v<Activations, act::keep>)
            return stage(config, world, products, layers, slots, most_samples, deferred, lender);
          else
            return stage(config, world, products, layers, slots, most_samples, deferred, lender,
                         typename stage::layers_memory::settings{});
        },
        0, 1);
    held.for_each([](auto& h) {
      h.stage.initialize(5);
      h.stage.zero_gradients();
      hd::model::of_stage::begin_step(h.stage);
    });
    std::vector<md::batch<double>> batches;
    for (const microbatch& b : data) batches.push_back({b.tokens, b.targets, b.samples, 0.01, b.sequence});
    std::vector<double> losses(data.size());
    hd::null_observer off;
    hd::model::executor<stage, std::remove_reference_t<decltype(pipe)>> executor(view, held.pointers(), pipe,
                                                                                 most_samples, off);
    executor.run(std::span<const md::batch<double>>(batches), 0, hooks<held_type>{held, losses, parts.parts() - 1});
    held.sum_shared(pipe, products, true);

    const std::lock_guard lock(guard);
    auto& loss = all["loss"];
    loss.resize(losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) loss[i] += losses[i];
    held.for_each([&](auto& h) {
      if (h.replica > 0) return;
      for (const auto& p : h.stage.parameters()) {
        if (p.tied_copy) continue;
        auto& to = all[p.name];
        to.resize(static_cast<std::size_t>(p.global_count()));
        md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
          for (std::int64_t k = 0; k < length; ++k)
            to[static_cast<std::size_t>(global + k)] +=
                h.stage.gradients()[static_cast<std::size_t>(p.offset + local + k)];
        });
      }
    });
  });
  // With processes each has its own part of the tensors.
  std::vector<gradients> parts(table.offsets.size() - 1);
  if (transport_test::on_threads) return all;
  const auto here = static_cast<std::size_t>(transport_test::process());
  if (here < parts.size()) parts[here] = all;
  transport_test::share(parts);
  gradients whole;
  for (const gradients& part : parts)
    for (const auto& [name, values] : part) {
      auto& to = whole[name];
      to.resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) to[i] += values[i];
    }
  return whole;
}

void every_schedule(int ranks, int m, int at_least) {
  if (!transport_test::on_threads && ranks > transport_test::most_ranks()) return;
  const gradients alone = run<act::keep>(train_test::table_named("1f1b", 1, m));
  REQUIRE(alone.at("loss").size() == static_cast<std::size_t>(m));
  const gradients serial = run<act::keep>(train_test::table_named("gpipe", 1, m));
  CHECK(serial == alone);
  int compared = 0;
  for (const char* name :
       {"gpipe", "1f1b", "interleaved:2", "interleaved:3", "breadth-first:2", "zb-h1", "zb-h1:2", "zb-h2", "zb-v",
        "v-half", "v-min", "dual-pipe-v", "hanayo:1", "hanayo:2", "dual-pipe", "chimera"}) {
    if (!train_test::has_table(name, ranks, m)) continue;
    INFO(name << " on " << ranks << " ranks, " << m << " microbatches");
    const auto table = train_test::table_named(name, ranks, m);
    CHECK(train_test::relative_difference(run<act::keep>(table), alone) <= 1e-10);
    if (compared % 3 == 0) CHECK(train_test::relative_difference(run<away>(table), alone) <= 1e-10);
    ++compared;
  }
  CHECK(compared >= at_least);
}

}  // namespace

TEST_CASE("microbatches may differ in samples and in length: 2 ranks", "[train][executor][lengths][ranks]") {
  every_schedule(2, 6, 14);
}
TEST_CASE("microbatches may differ in samples and in length: 4 ranks", "[train][executor][lengths][ranks]") {
  every_schedule(4, 8, 14);
}
