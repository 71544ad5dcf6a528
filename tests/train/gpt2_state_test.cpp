// tests/train/gpt2_state_test.cpp: the formula of all that GPT-2's training holds against what a trainer counts.
#include "catch.hpp"
#include "tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/static_profile.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
using hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
constexpr hd::model::gpt2_config settings{.layers = 5, .heads = 3, .width = 21, .context = 7, .vocabulary = 33};

template <int Stages, int Dp, int Tp, bool OneRank>
struct shape {
  static constexpr hd::model::gpt2_config config = settings;
  static constexpr int stages = Stages;
  static constexpr int dp = Dp;
  static constexpr int tp = Tp;
  static constexpr bool ends_on_one_rank = OneRank;
  static constexpr std::int64_t samples = 3;
};

struct counted {
  std::int64_t held = 0, formula = 0;
};
// Of each rank; the formula by the trainer's own table.
template <class Formula>
std::vector<counted> run(int ranks_along_pp, const std::string& schedule, int m) {
  constexpr int dp_size = Formula::dp;
  const int tp_size = Formula::words() < settings.vocabulary ? 2 : 1;
  const mesh_type mesh(dp_size, ranks_along_pp, tp_size);
  hd::train::options<hd::model::gpt2_config> o;
  o.model = settings;
  o.batch = 3 * m * dp_size;
  o.steps = 1;
  o.threads_per_rank = 1;
  const sc::tabled when(train_test::table_named(schedule, ranks_along_pp, m));
  std::vector<counted> all(static_cast<std::size_t>(mesh.size()));
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    hd::train::trainer<hd::model::gpt2<double>, hd::strategy<mesh_type, sc::tabled, hd::zero<1>>, world_type> trainer(
        world, o, when);
    counted& c = all[static_cast<std::size_t>(world.rank())];
    c.held = hd::train::bytes_held(trainer);
    const Formula formula;
    const auto plan = trainer.plan();
    const int rank = trainer.pipeline_group().rank();
    c.formula = plan.storage.buffers(rank) * formula.boundary_bytes();
    for (int k = 0; k < trainer.stages(); ++k) {
      const int s = trainer.held(k).index;
      c.formula += plan.storage.slots(s) * formula.activation_bytes(s) + formula.resident_bytes(s) +
                   hd::train::detail::most_deferred(plan.table.list(rank), s) * formula.deferred_bytes(s);
    }
  });
  return all;
}
template <int Stages, int Dp, int Tp, bool OneRank = false>
void check(int ranks_along_pp, const std::string& schedule, int m) {
  INFO(schedule << ", dp " << Dp << ", pp " << ranks_along_pp << ", tp " << Tp);
  const auto all = run<hd::train::gpt2_with_state<double, shape<Stages, Dp, Tp, OneRank>>>(ranks_along_pp, schedule, m);
  for (std::size_t r = 0; r < all.size(); ++r) {
    const bool first = static_cast<int>(r) % Tp == 0 && static_cast<int>(r) < ranks_along_pp * Tp;
    if (first)
      CHECK(all[r].held == all[r].formula);
    else
      CHECK(all[r].held <= all[r].formula);
  }
}

template <class When, class Model, int Ranks>
using profile_of = hd::train::static_profile<When, hd::mesh<hd::axis<pp, Ranks>>, Model>;

}  // namespace

TEST_CASE("a trainer holds the bytes of the formula: weights, gradients, moments, activations, tensors between stages",
          "[train][memory][sja]") {
  check<1, 1, 1>(1, "1f1b", 2);
  check<2, 1, 1>(2, "1f1b", 4);
  check<2, 3, 1>(2, "zb-h1", 4);
  check<2, 1, 2>(2, "gpipe", 2);
  check<4, 2, 1, true>(2, "zb-v", 4);
  check<2, 1, 1, true>(2, "chimera", 4);
}

TEST_CASE("what the types say is what the fullest rank of a run holds", "[train][memory][sja]") {
  using model = hd::train::gpt2_with_state<double, shape<3, 1, 1, false>>;
  const auto same = [](const auto& profile, const std::string& name) {
    std::int64_t most = 0;
    for (const counted& c : run<model>(3, name, 4)) most = (std::max)(most, c.held);
    CHECK(profile.bytes == most);
    CHECK(profile.profile(10, hd::sim::stage_times{1, 1, 1}).phases[0].bytes == static_cast<double>(most));
  };
  same(profile_of<sc::one_f_one_b<hd::microbatches<4>>, model, 3>{}, "1f1b");
  same(profile_of<sc::gpipe<hd::microbatches<4>>, model, 3>{}, "gpipe");
}

TEST_CASE("where head and embedding are apart, the embedding's rank counts what the head sends it",
          "[train][memory][counts]") {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = settings;
  o.threads_per_rank = 1;
  std::vector<std::int64_t> between(3);
  hd::launch<hd::threads>(mesh_type(1, 3, 1), [&](auto& world) {
    hd::train::trainer<hd::model::gpt2<float>, hd::strategy<mesh_type>, std::remove_reference_t<decltype(world)>>
        trainer(world, o);
    const std::int64_t boundaries =
        trainer.plan().storage.buffers(world.rank()) * trainer.max_samples() * settings.context * settings.width * 4;
    between[static_cast<std::size_t>(world.rank())] = trainer.boundary_bytes() - boundaries;
  });
  CHECK(between == std::vector<std::int64_t>{settings.vocabulary * settings.width * 4, 0, 0});
}

TEST_CASE("moments are shared over dp by zero<1> only", "[train][memory]") {
  using whole = hd::train::gpt2_with_state<float, shape<2, 4, 1, false>, hd::zero<0>>;
  using shared = hd::train::gpt2_with_state<float, shape<2, 4, 1, false>>;
  STATIC_REQUIRE(whole::moment_bytes(0) == 2 * whole::weight_bytes(0));
  STATIC_REQUIRE(shared::moment_bytes(1) == whole::moment_bytes(1) / 4);
  STATIC_REQUIRE(shared::weight_bytes(0) == whole::weight_bytes(0));
}
