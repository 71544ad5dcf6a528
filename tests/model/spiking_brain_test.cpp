// A hybrid of linear attention and windows trains alike on any mesh.
#include "parallel_training.hpp"

#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/model/spiking_brain.hpp>

#include "catch.hpp"

#include <vector>

using namespace model_test;

TEST_CASE("SpikingBrain: any split over dp, pp and tp has the one-rank model's loss and gradients",
          "[model][parallel][ranks]") {
  using model = md::spiking_brain<double>;
  md::spiking_brain_config config(md::llama_config{.layers = 3,
                                                   .heads = 4,
                                                   .kv_heads = 2,
                                                   .width = 10,
                                                   .ffn = 7,
                                                   .context = 5,
                                                   .vocabulary = 17,
                                                   .theta = 50,
                                                   .initial_deviation = 0.3,
                                                   .head_elements = 6},
                                  3, 4);
  config.gate_normalizer = 0.5;
  const model_case<md::spiking_brain_config> usual{config, 5, {2, 0, 1}};
  const outcome one = train<model>(any_mesh(1, 1, 1), {config, 5, {}}, false);
  CHECK(one.problems == std::vector<std::string>{});
  for (const any_mesh& mesh : {any_mesh(2, 1, 1), any_mesh(1, 2, 1), any_mesh(1, 1, 2), any_mesh(1, 1, 3),
                               any_mesh(2, 1, 2), any_mesh(1, 2, 2)})
    for (const bool apart : {false, true}) {
      CAPTURE(mesh.extents(), apart);
      const outcome many = train<model>(mesh, usual, apart);
      // Along tp the gradient of what gates are made of is a sum of its own, which the counts for a Llama have not.
      if (mesh.extent<tp>() == 1) CHECK(many.problems == std::vector<std::string>{});
      CHECK(many.counted == md::layers::count_parameters(model::describe(config)));
      CHECK(many.loss == Approx(one.loss).epsilon(1e-12));
      CHECK(many.evaluated == Approx(one.loss).epsilon(1e-12));
      CHECK(relative_error(many.logits, one.logits) < 1e-10);
      REQUIRE(many.gradients.size() == one.gradients.size());
      for (const auto& [name, gradient] : one.gradients) {
        CAPTURE(name);
        CHECK(many.initial.at(name) == one.initial.at(name));
        std::vector<double> expected = gradient, got = many.gradients.at(name);
        expected.push_back(1e-3);
        got.push_back(1e-3);
        CHECK(relative_error(got, expected) < 1e-10);
      }
    }
}
