// tests/train/mesh_to_mesh_test.cpp: with determinism::mesh_to_mesh a model has the same bits on any number of data-parallel ranks and
// pipeline stages, and without it it has not.
#include "catch.hpp"
#include "small_dataset.hpp"
#include "transport.hpp"

#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/mesh_to_mesh.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;

namespace {

struct determined_run {
  std::string mesh = "", schedule = "1f1b";
  int microbatches = 1, steps = 20;
  std::int64_t batch = 16;
};
// Of the weights, byte by byte in the order of their names (FNV-1a), and whether memory is what the forecast says.
struct determined_outcome {
  std::uint64_t checksum = 0;
  bool memory_as_forecast = true;
};

template <class Model, class... Policies>
determined_outcome train_determined(const determined_run& s) {
  using T = typename Model::scalar;
  using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
  using strategy = hd::strategy<mesh_type, hd::schedule::named, Policies...>;
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = 3, .heads = 2, .width = 8, .context = 6, .vocabulary = 31};
  o.batch = s.batch;
  o.microbatches = s.microbatches;
  o.schedule = s.schedule;
  o.steps = s.steps;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 2, .total_steps = 40};
  o.clip_norm = 0.5;
  o.threads_per_rank = 1;
  const train_test::small_dataset data(train_test::noise(241, o.model.vocabulary),
                                       {.context = o.model.context, .batch = s.batch});
  std::map<std::string, std::vector<T>> whole;
  determined_outcome result;
  std::mutex guard;
  transport_test::launch(hd::parse_mesh<mesh_type>(s.mesh), [&](auto& world) {
    hd::train::trainer<Model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
    const auto predicted = hd::train::predicted_memory(trainer);
    for (int k = 0; k < s.steps; ++k) trainer.step(data);
    const std::lock_guard lock(guard);
    const auto held = trainer.parameter_memory().bytes();
    result.memory_as_forecast = result.memory_as_forecast && predicted &&
                                predicted->parameters.total() == held.total() &&
                                predicted->between_stages == trainer.boundary_bytes();
    for (int k = 0; k < trainer.stages(); ++k) {
      auto& stage = trainer.stage(k);
      for (const auto& p : stage.parameters()) {
        if (p.tied_copy) continue;
        auto& to = whole[p.name];
        to.resize(static_cast<std::size_t>(p.global_count()));
        hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
          std::copy_n(std::as_const(stage).weights().data() + p.offset + local, length, to.data() + global);
        });
      }
    }
  });
  result.checksum = 14695981039346656037u;
  for (const auto& [name, values] : whole)
    for (const std::byte b : std::as_bytes(std::span(values)))
      result.checksum = (result.checksum ^ std::to_integer<std::uint64_t>(b)) * 1099511628211u;
  return result;
}

// The checksums on these meshes, with one that has each.
using determined_sums = std::map<std::uint64_t, std::string>;
struct determined_mesh {
  const char* schedule;
  int stages, samples;
};
template <class Model, int Zero, class... Policies>
void train_on_meshes(determined_sums& seen, int steps, const std::vector<determined_mesh>& meshes) {
  for (const auto& [schedule, p, d] : meshes) {
    const std::string mesh = "dp=" + std::to_string(d) + ",pp=" + std::to_string(p);
    INFO(mesh << " " << schedule << " zero " << Zero);
    const determined_outcome o = train_determined<Model, hd::zero<Zero>, Policies...>(
        {.mesh = mesh, .schedule = schedule, .microbatches = 8 / d, .steps = steps});
    CHECK(o.memory_as_forecast);
    seen.emplace(o.checksum, mesh + " " + schedule);
  }
}
template <class Model>
void compare_meshes(int steps, const std::vector<determined_mesh>& meshes) {
  determined_sums seen;
  train_on_meshes<Model, 0, hd::determinism::mesh_to_mesh>(seen, steps, meshes);
  train_on_meshes<Model, 1, hd::determinism::mesh_to_mesh>(seen, steps, meshes);
  CAPTURE(seen.size());
  CHECK(seen.size() == 1);
}

}  // namespace

TEST_CASE("weights trained mesh to mesh have one checksum on some meshes, schedules and zero stages",
          "[train][determinism]") {
  compare_meshes<hd::model::gpt2<float>>(4, {{"1f1b", 1, 1}, {"zb-h1", 2, 2}, {"1f1b", 1, 4}});
  compare_meshes<hd::model::gpt2<hd::bf16>>(4, {{"1f1b", 1, 2}, {"zb-h1", 2, 4}});
}
TEST_CASE("and on all of them, after 20 steps", "[.determinism-all][slow]") {
  std::vector<determined_mesh> all;
  for (const char* schedule : {"1f1b", "zb-h1"})
    for (const int p : {1, 2})
      for (const int d : {1, 2, 4}) all.push_back({schedule, p, d});
  compare_meshes<hd::model::gpt2<float>>(20, all);
  compare_meshes<hd::model::gpt2<hd::bf16>>(20, all);
}

TEST_CASE("a model with a head of its own, too", "[train][determinism]") {
  determined_sums seen;
  train_on_meshes<hd::model::untied_gpt2<float>, 1, hd::determinism::mesh_to_mesh>(seen, 4,
                                                                                   {{"1f1b", 1, 2}, {"zb-h1", 2, 2}});
  CHECK(seen.size() == 1);
}

TEST_CASE("without it they differ", "[train][determinism]") {
  determined_sums seen;
  train_on_meshes<hd::model::gpt2<float>, 0>(seen, 4, {{"1f1b", 1, 1}, {"1f1b", 1, 4}});
  CHECK(seen.size() == 2);
}

TEST_CASE("mesh_to_mesh refuses what would cut the tree", "[train][determinism]") {
  const auto refused = [](determined_run s, const std::string& what) {
    s.steps = 1;
    try {
      train_determined<hd::model::gpt2<float>, hd::zero<0>, hd::determinism::mesh_to_mesh>(s);
    } catch (const hd::config_error& e) {
      INFO(e.what());
      return std::string(e.what()).find(what) != std::string::npos;
    }
    return false;
  };
  CHECK(refused({.mesh = "dp=1", .microbatches = 3, .batch = 9}, "expected a power of two, got 3"));
  CHECK(refused({.mesh = "dp=3", .microbatches = 2, .batch = 12},
                "ranks that share a step's samples: expected a power of two, got 3"));
  CHECK(refused({.mesh = "dp=2", .microbatches = 4, .batch = 12},
                "expected a multiple of all ranks' microbatches, got 12"));
  CHECK(refused({.mesh = "tp=2", .microbatches = 2}, "expected 1, got 2"));
  CHECK(refused({.mesh = "pp=1", .schedule = "interleaved:2", .microbatches = 2}, "embedding and head in two stages"));
}

TEST_CASE("mesh_to_mesh refuses a stage that a microbatch skips", "[train][determinism]") {
  using enum hd::schedule::action_kind;
  hd::schedule::action_table t;
  t.microbatches = 4;
  t.rank_of_stage = {0, 1};
  t.actions = {{backward, 0, 0}, {backward, 0, 1}, {backward, 0, 2}, {backward, 0, 3},
               {backward, 1, 0}, {backward, 1, 1}, {backward, 1, 2}};
  t.offsets = {0, 4, 7};
  CHECK_THROWS_WITH(hd::train::detail::require_weights_in_order(t.view()),
                    Catch::Matchers::Contains("of stage 1: expected 4, got 3"));
}
