// Qwen-2 and Qwen-3 as stages: against Hugging Face transformers over two steps, and the same models on any mesh.
#include "golden_training.hpp"
#include "llama_golden.hpp"
#include "parallel_training.hpp"

#include <heddle/model/qwen.hpp>
#include HEDDLE_GEMM_HEADER

#include <string>
#include <type_traits>

using namespace model_test;

namespace {

using backend = hd::compute::host<HEDDLE_GEMM>;

// The model of a golden file made by transformers_golden.py.
template <class Model>
void equals_transformers(const char* file) {
  const golden_file golden(std::string(HEDDLE_SOURCE_DIR "/tests/golden/") + file);
  two_steps_in_float<Model, backend>(golden, llama_of(golden));
}

// Two key-value heads that serve two query heads each.
constexpr md::llama_config shape{.layers = 3,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .width = 10,
                                 .ffn = 7,
                                 .context = 5,
                                 .vocabulary = 17,
                                 .theta = 50,
                                 .initial_deviation = 0.3,
                                 .head_elements = 6};
template <class Model>
void on_any_mesh() {
  const model_case<typename Model::config> usual{shape, 5, {2, 0, 1}};
  for (const any_mesh& mesh : {any_mesh(2, 1, 1), any_mesh(1, 2, 1), any_mesh(1, 1, 2), any_mesh(1, 1, 3),
                               any_mesh(2, 1, 2), any_mesh(1, 2, 2)})
    for (const bool apart : {false, true}) {
      CAPTURE(mesh.extents(), apart);
      compare_with_one_rank<Model>(mesh, usual, apart, any_mesh(1, 1, 1));
    }
}

}  // namespace

TEST_CASE("Qwen-2, tied: two steps in float equal those of transformers to 1e-5", "[model][golden][qwen]") {
  equals_transformers<md::tied_qwen2<float>>("qwen2_golden.bin");
}
TEST_CASE("Qwen-3: two steps in float equal those of transformers to 1e-5", "[model][golden][qwen]") {
  equals_transformers<md::qwen3<float>>("qwen3_golden.bin");
}
TEST_CASE("Qwen-2 and Qwen-3: any split over dp, pp and tp trains the one-rank model",
          "[model][parallel][ranks][qwen]") {
  on_any_mesh<md::tied_qwen2<double>>();
  on_any_mesh<md::qwen3<double>>();
}

TEST_CASE("gradients are summed over the axes that follow from the sharding, bucket by bucket", "[model][qwen][law]") {
  using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using layouts = md::layouts<mesh, md::megatron<>>;
  using norms_of_heads = md::parameter_buckets<layouts, md::layers::head_norm<hd::dim::heads>, md::layers::rms_norm<>>;
  STATIC_REQUIRE(std::is_same_v<norms_of_heads::axes, hd::type_list<hd::type_list<dp>, hd::type_list<dp, tp>>>);
  STATIC_REQUIRE(
      std::is_same_v<norms_of_heads::layouts, hd::type_list<hd::layout<mesh, hd::varying<tp>>, hd::layout<mesh>>>);
  // A norm of the stream is computed alike along tp: its gradient is whole there.
  STATIC_REQUIRE(norms_of_heads::of<md::layers::parameter<md::layers::weight, md::dims<hd::dim::width>>> == 0);
  STATIC_REQUIRE(md::parameter_buckets<layouts, md::layers::rms_norm<>, md::layers::grouped_attention<>>::count == 1);
  // Experts that are split over the axis that splits samples: complete where they are.
  using experts =
      md::layouts<mesh, hd::sharding<hd::dim::split<hd::dim::samples, dp>, hd::dim::split<hd::dim::experts, dp>>>;
  using weights = md::layers::parameter<md::layers::weight, md::dims<hd::dim::experts>, md::dims<hd::dim::ffn>>;
  STATIC_REQUIRE(std::is_same_v<md::detail::summed_axes_of<experts, weights>, hd::type_list<>>);
}

TEST_CASE("configurations of Qwen name their family", "[model][qwen]") {
  CHECK(to_string(md::qwen2_0_5b()).rfind("qwen2 layers=24 heads=14 ", 0) == 0);
  CHECK(to_string(md::qwen3_8b()).rfind("qwen3 layers=36 heads=32 ", 0) == 0);
  CHECK(to_string(md::qwen3_8b()).find(" head_elements=128") != std::string::npos);
  md::llama_config odd = shape;
  odd.head_elements = 5;
  CHECK_THROWS_WITH(odd.validate(), Catch::Contains("head_elements = 5 must be even"));
  odd.head_elements = -1;
  CHECK_THROWS_WITH(odd.validate(), Catch::Contains("head_elements must be 0 to") && Catch::Contains("got -1"));
}
