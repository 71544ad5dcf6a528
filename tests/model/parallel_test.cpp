// The same GPT-2 on any mesh: losses, gradients and logits equal those of one rank, in double.
#include "parallel_training.hpp"

#include <heddle/model/with_chunked_loss.hpp>

using namespace model_test;

namespace {

using model = md::gpt2<double>;

const model_case<model::config> usual{
    {.layers = 3, .heads = 4, .width = 12, .context = 5, .vocabulary = 17, .initial_deviation = 0.3}, 5, {2, 0, 1}};
// Fewer heads and words than ranks along tp: some ranks hold none.
const model_case<model::config> scarce{
    {.layers = 2, .heads = 2, .width = 6, .context = 3, .vocabulary = 3, .initial_deviation = 0.3}, 3, {1}};

}  // namespace

TEST_CASE("any split over pp and tp trains the one-rank model", "[model][parallel][ranks]") {
  const int stages = GENERATE(1, 2, 3), parts = GENERATE(1, 2, 3);
  CAPTURE(stages, parts);
  compare_with_one_rank<model>(any_mesh(1, stages, parts), usual);
}

TEST_CASE("any split with the halves of backward apart", "[model][parallel][ranks]") {
  const int stages = GENERATE(1, 2), parts = GENERATE(1, 2);
  CAPTURE(stages, parts);
  compare_with_one_rank<model>(any_mesh(1, stages, parts), usual, true);
}

TEST_CASE("replicas with unequal shares add up to the one-rank gradient", "[model][parallel][ranks]") {
  const int replicas = GENERATE(2, 3);
  CAPTURE(replicas);
  compare_with_one_rank<model>(any_mesh(replicas, 2, 2), usual);
}

TEST_CASE("ranks without heads, without words and stages without layers", "[model][parallel][ranks]") {
  compare_with_one_rank<model>(any_mesh(1, 1, 4), scarce);
  compare_with_one_rank<model>(any_mesh(1, 3, 1), scarce);
  compare_with_one_rank<model>(any_mesh(1, 4, 2), scarce);
}

TEST_CASE("meshes that lack axes or are static", "[model][parallel][ranks]") {
  compare_with_one_rank<model>(hd::mesh<hd::axis<tp, 2>>{}, usual);
  compare_with_one_rank<model>(hd::mesh<hd::axis<tp>, hd::axis<pp, 2>>{2}, usual);
}

TEST_CASE("a head that makes some logits at a time trains as the one that keeps them all", "[model][parallel][ranks]") {
  using chunked = md::with_chunked_loss<model, 4>;
  for (const bool apart : {false, true})
    for (const auto& mesh : {any_mesh(1, 1, 1), any_mesh(1, 2, 1), any_mesh(2, 1, 2), any_mesh(1, 1, 3)}) {
      CAPTURE(apart, to_string(mesh));
      compare_with_one_rank<chunked, model>(mesh, usual, apart);
    }
  compare_with_one_rank<chunked, model>(any_mesh(1, 1, 4), scarce);  // ranks without words
}
