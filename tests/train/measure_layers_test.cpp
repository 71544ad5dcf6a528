// tests/train/measure_layers_test.cpp: measured costs of layers are the same on all ranks, and make a partition.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/layer_assignment.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/train/measure_layers.hpp>
#include <heddle/train/trainer.hpp>

#include <type_traits>
#include <vector>

namespace hd = heddle;

namespace {

// The last stage has the loss alone.
struct loss_apart : hd::schedule::one_f_one_b<hd::microbatches<>> {
  using hd::schedule::one_f_one_b<hd::microbatches<>>::one_f_one_b;
  constexpr int part_of(int stage) const noexcept { return stage; }
  constexpr int parts() const noexcept { return 3; }
  constexpr int parts_with_layers() const noexcept { return 2; }
};

}  // namespace

TEST_CASE("measured costs of layers are the same on all ranks, and make a partition", "[train][layers]") {
  const hd::model::gpt2_config config{.layers = 6, .heads = 2, .width = 8, .context = 8, .vocabulary = 4000};
  std::vector<hd::plan::layer_costs> by_rank(2);
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::tp, 2>>{}, [&](auto& world) {
    hd::compute::host<> kernels(1);
    by_rank[static_cast<std::size_t>(world.rank())] =
        hd::train::measure_layer_costs<hd::model::gpt2<float>>(world, config, kernels, 4);
  });
  for (const auto& costs : by_rank) {
    REQUIRE(costs.layers.size() == 6);
    CHECK(costs.layers == by_rank[0].layers);
    CHECK(costs.first == by_rank[0].first);
    CHECK(costs.last == by_rank[0].last);
    for (const double c : costs.layers) CHECK(c > 0);
    CHECK(costs.last > 0);
    int total = 0;
    for (const int n : hd::plan::partition_layers(costs, 3).counts) total += n;
    CHECK(total == 6);
  }
}

TEST_CASE("counted costs give the head's stage fewer layers", "[train][layers]") {
  using model = hd::model::gpt2<float>;
  // Of GPT-2's smallest size the head does the work of nearly five blocks.
  const auto costs = hd::layers_by_cost::costs<model>(hd::model::gpt2_124m());
  CHECK(costs.last / costs.layers[0] == Approx(4.9).margin(0.1));
  const auto cut = hd::plan::partition_layers(costs, 4);
  CHECK(cut.counts == std::vector<int>{4, 4, 4, 0});
  int first = 0;
  for (int s = 0; s < 4; ++s) {
    const auto part = hd::layers_by_cost::layers_of<model>(hd::model::gpt2_124m(), s, 4);
    CHECK(part.first == first);
    CHECK(part.count == cut.counts[static_cast<std::size_t>(s)]);
    first += part.count;
  }
}

TEST_CASE("a schedule says which parts have layers, whoever makes it", "[train][layers]") {
  using mesh_type = hd::mesh<hd::axis<hd::pp, 3>>;
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = 5, .heads = 2, .width = 8, .context = 4, .vocabulary = 11};
  o.microbatches = 2;
  o.threads_per_rank = 1;
  std::vector<int> given(3), made(3);
  hd::launch<hd::threads>(mesh_type{}, [&](auto& world) {
    using trainer_type = hd::train::trainer<hd::model::gpt2<float>, hd::strategy<mesh_type, loss_apart>,
                                            std::remove_reference_t<decltype(world)>>;
    const auto rank = static_cast<std::size_t>(world.rank());
    given[rank] = trainer_type(world, o, loss_apart{2}).stage().layers().count;
    made[rank] = trainer_type(world, o).stage().layers().count;
  });
  CHECK(given == std::vector<int>{3, 2, 0});
  CHECK(made == given);
}
