// Parameters of a model of three hundred, which is more than folds and tuples of compilers hold.
#include "catch.hpp"

#include <heddle/train/named_parameters.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace hd = heddle;
namespace tr = heddle::train;
using hd::tp;

namespace {

#define HEDDLE_TEST_LAYER(n)                                                                                        \
  {"layers/" #n "/input_layernorm/weight", {16}}, {"layers/" #n "/self_attn/q_proj/kernel", {16, 16}},              \
      {"layers/" #n "/self_attn/k_proj/kernel", {16, 8}}, {"layers/" #n "/self_attn/v_proj/kernel", {16, 8}},       \
      {"layers/" #n "/self_attn/o_proj/kernel", {16, 16}}, {"layers/" #n "/post_attention_layernorm/weight", {16}}, \
      {"layers/" #n "/mlp/gate_proj/kernel", {16, 32}}, {"layers/" #n "/mlp/up_proj/kernel", {16, 32}}, {           \
    "layers/" #n "/mlp/down_proj/kernel", {32, 16}                                                                  \
  }
#define HEDDLE_TEST_LAYERS(n)                                                                             \
  HEDDLE_TEST_LAYER(n##0), HEDDLE_TEST_LAYER(n##1), HEDDLE_TEST_LAYER(n##2), HEDDLE_TEST_LAYER(n##3),     \
      HEDDLE_TEST_LAYER(n##4), HEDDLE_TEST_LAYER(n##5), HEDDLE_TEST_LAYER(n##6), HEDDLE_TEST_LAYER(n##7), \
      HEDDLE_TEST_LAYER(n##8), HEDDLE_TEST_LAYER(n##9), HEDDLE_TEST_LAYER(n##x)
struct llama {
  static constexpr hd::named_shape parameters[]{{"embed_tokens/embedding", {32, 16}},
                                                HEDDLE_TEST_LAYERS(0),
                                                HEDDLE_TEST_LAYERS(1),
                                                HEDDLE_TEST_LAYERS(2),
                                                {"norm/weight", {16}},
                                                {"lm_head/kernel", {16, 32}}};
};
using mesh = hd::mesh<hd::axis<tp, 4>>;

struct heads {
  static constexpr hd::named_shape parameters[]{{"attn/o/kernel", {4, 8, 16}}, {"attn/q/kernel", {512, 2, 2}}};
};

}  // namespace

TEST_CASE("a model may have hundreds of parameters", "[train][named_parameters]") {
  using all = tr::named_parameters<float, llama, mesh>;
  STATIC_REQUIRE(all::size == 300);
  STATIC_REQUIRE(all::layouts::of<"layers/2x/mlp/down_proj/kernel">::dim_of<tp> == 0);
  STATIC_REQUIRE(all::layouts::of<"lm_head/kernel">::dim_of<tp> == 1);
  all p(mesh{}, 3);
  p.initialize(1);
  std::size_t count = 0;
  bool in_order = true;
  p.for_each(
      [&](auto&, const hd::named_shape& d) { in_order = in_order && d.path == llama::parameters[count++].path; });
  CHECK(count == 300);
  CHECK(in_order);
  CHECK(p.of<"layers/2x/mlp/down_proj/kernel">().weight.elements().size() == 32 * 16 / 4);
  CHECK(p.of<"norm/weight">().weight.elements()[0] == 1.0f);
}

TEST_CASE("kernels start with the deviation of their inputs", "[train][named_parameters]") {
  tr::named_parameters<double, heads, hd::mesh<hd::axis<tp, 1>>> p({}, 0);
  p.initialize(1);
  const auto deviation = [](const auto& w) {
    double squares = 0;
    for (const double x : w.elements()) squares += x * x;
    return std::sqrt(squares / static_cast<double>(w.elements().size()));
  };
  CHECK(deviation(p.of<"attn/o/kernel">().weight) == Approx(1 / std::sqrt(32.0)).epsilon(0.15));
  CHECK(deviation(p.of<"attn/q/kernel">().weight) == Approx(1 / std::sqrt(512.0)).epsilon(0.15));
}
