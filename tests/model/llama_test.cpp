// Llama as a stage: against PyTorch over two steps, and the same model on any mesh.
#include "golden_training.hpp"
#include "parallel_training.hpp"

#include <heddle/model/llama.hpp>
#include HEDDLE_GEMM_HEADER

using namespace model_test;

namespace {

using backend = hd::compute::host<HEDDLE_GEMM>;

const golden_file& golden() {
  static const golden_file file(HEDDLE_SOURCE_DIR "/tests/golden/llama_golden.bin");
  return file;
}

using model = md::llama<double>;

// Two key-value heads that serve two query heads each.
const model_case<md::llama_config> usual{{.layers = 3,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .width = 16,
                                          .ffn = 7,
                                          .context = 5,
                                          .vocabulary = 17,
                                          .theta = 50,
                                          .initial_deviation = 0.3},
                                         5,
                                         {2, 0, 1}};

void compare(const any_mesh& mesh, bool apart) {
  compare_with_one_rank<model>(mesh, usual, apart, any_mesh(1, 1, 1));
}

}  // namespace

TEST_CASE("Llama: two steps in float equal PyTorch's to 1e-5", "[model][golden][llama]") {
  two_steps_in_float<md::llama<float>, backend>(golden(), md::llama_tiny());
}

TEST_CASE("Llama: two steps in double equal PyTorch's to 1e-10, in unequal microbatches too",
          "[model][golden][llama]") {
  const int microbatches = GENERATE(1, 3);
  const bool apart = GENERATE(false, true);
  two_steps_in_double<model, backend>(golden(), md::llama_tiny(), microbatches, apart);
}

TEST_CASE("Llama: any split over dp, pp and tp trains the one-rank model", "[model][parallel][ranks][llama]") {
  const any_mesh mesh = GENERATE(any_mesh(2, 1, 1), any_mesh(1, 2, 1), any_mesh(1, 1, 2), any_mesh(2, 1, 2),
                                 any_mesh(1, 2, 2), any_mesh(2, 2, 2));
  CAPTURE(mesh.extents());
  compare(mesh, false);
}

TEST_CASE("Llama: more ranks along tp than key-value heads, and stages without layers",
          "[model][parallel][ranks][llama]") {
  compare(any_mesh(1, 1, 3), false);
  compare(any_mesh(1, 4, 1), false);
}

TEST_CASE("Llama: any split with the halves of backward apart", "[model][parallel][ranks][llama]") {
  const any_mesh mesh = GENERATE(any_mesh(1, 1, 2), any_mesh(1, 2, 2), any_mesh(1, 1, 3));
  CAPTURE(mesh.extents());
  compare(mesh, true);
}
