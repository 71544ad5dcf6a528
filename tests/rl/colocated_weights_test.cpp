// A trainer and a stage for generation on the same ranks: memory is for the weights in use, and training goes on with the same bits.
#include "catch.hpp"
#include "train/random_tokens.hpp"
#include "train/tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/cached_stage.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/rl/colocated_weights.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace tr = heddle::train;
namespace rl = heddle::rl;
using hd::dp, hd::pp, hd::tp;

namespace {
namespace colocated {

struct replica {};
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using generation_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>, hd::axis<replica>>;
using backend = hd::testing::checked_backend<hd::compute::host<hd::compute::portable>>;
constexpr md::gpt2_config config{.layers = 4, .heads = 4, .width = 16, .context = 6, .vocabulary = 32};

struct outcome {
  std::vector<double> losses;
  std::string wrong;  // of any rank
};

template <class Work>
bool refuses(Work&& work) {
  try {
    work();
  } catch (const hd::config_error&) {
    return true;
  }
  return false;
}

// Four steps on a mesh, with a generation between them if there is a mesh for it: it holds what the trainer had.
template <int Zero>
outcome train(const std::string& training, const generation_mesh* generating, const char* schedule = "1f1b") {
  const auto mesh = hd::parse_mesh<mesh_type>(training);
  const hd::schedule::tabled when(train_test::table_named(schedule, mesh.template extent<pp>(), 2));
  outcome all;
  std::mutex mutex;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    constexpr std::int64_t limit = std::int64_t{1} << 28;
    const hd::testing::limited_checked_memory counted(limit);
    using trainer_type =
        tr::trainer<md::gpt2<float>, hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<Zero>, backend>,
                    world_type>;
    tr::options<md::gpt2_config> o{.batch = 8, .steps = 4, .learning_rate = {.peak = 1e-2, .warmup_steps = 0}};
    o.model = config;
    o.threads_per_rank = 1;
    trainer_type trainer(world, o, when);
    std::vector<double> losses;
    const auto step = [&] {
      losses.push_back(trainer.step(train_test::random_tokens<config.context, config.vocabulary>{}).loss);
    };
    std::string problem;
    const auto expect = [&](bool ok, const char* what) {
      if (!ok) problem += std::string(" ") + what;
    };
    if (generating == nullptr) {
      for (int k = 0; k < 4; ++k) step();
    } else {
      std::vector<int> ranks(static_cast<std::size_t>(world.size()));
      std::iota(ranks.begin(), ranks.end(), 0);
      auto where = world.on(*generating, ranks)->template sub<pp, tp>();
      using stage_type = hd::infer::cached_stage<md::gpt2<float>, decltype(where), backend>;
      auto& queue = trainer.backend().queue();
      step();
      queue.wait();
      const auto bytes = [](std::int64_t elements) { return elements * std::int64_t{sizeof(float)}; };
      const auto free = [&] {
        queue.wait();
        return static_cast<std::int64_t>(queue.free_bytes());
      };
      const auto part =
          md::split_layers(config.layers, where.template coordinate<pp>(), where.mesh().template extent<pp>());
      stage_type stage(config, where, trainer.backend(), part, {.blocks = 2, .block_rows = 4}, 4);
      std::int64_t trained = 0;
      for (int k = 0; k < trainer.stages(); ++k) trained += Zero < 3 ? bytes(trainer.stage(k).flat_elements()) : 0;
      const std::int64_t generated = bytes(stage.flat_elements());
      const std::int64_t before = free() + generated;
      constexpr std::int64_t bucket = 2048;
      rl::colocated_weights<trainer_type, stage_type> weights(world, &trainer, &stage, bucket);
      expect(free() == before, "in training there is none of the stage");
      for (int k = 0; k < 3; ++k) {
        if (k > 0) step();
        weights.to_generation(world, trainer.backend());
        expect(free() == before + trained - generated, "while it generates there is none of the trainer");
        // At a change there are both, and the route's two buckets.
        const std::int64_t both = limit - before + generated + 2 * bucket;
        expect(queue.most_bytes() <= both, "at most both");
        expect(k > 0 || queue.most_bytes() > both - bucket, "which is more than a step of so small a model has");
        if (k == 1) expect(refuses([&] { weights.to_generation(world, trainer.backend()); }), "twice there");
        weights.to_training(world, trainer.backend());
        if (k == 1) expect(refuses([&] { weights.to_training(world, trainer.backend()); }), "twice back");
        expect(free() == before, "in training again");
      }
      step();
    }
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) all.losses = losses;
    all.wrong += problem;
  });
  return all;
}

}  // namespace colocated
}  // namespace

TEST_CASE("weights have memory where they are used, and training goes on as without generation",
          "[rl][route][threads]") {
  using namespace colocated;
  const generation_mesh halves(2, 1, 1, 2), whole(1, 1, 1, 4);
  const outcome alone = train<1>("dp=2,tp=2", nullptr);
  for (const generation_mesh& m : {halves, whole}) {
    const outcome between = train<1>("dp=2,tp=2", &m);
    CHECK(between.wrong == "");
    CHECK(between.losses == alone.losses);
  }
  CHECK(train<3>("dp=2,tp=2", &halves).wrong == "");
  CHECK(train<3>("dp=2,tp=2", &halves).losses == train<3>("dp=2,tp=2", nullptr).losses);
  const outcome in_v = train<1>("pp=2,tp=2", &halves, "v shape");
  CHECK(in_v.wrong == "");
  CHECK(in_v.losses == train<1>("pp=2,tp=2", nullptr, "v shape").losses);
  CHECK(train<1>("pp=2,tp=2", &halves).losses == train<1>("pp=2,tp=2", nullptr).losses);
}
