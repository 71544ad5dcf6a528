// Each facet of the CUDA backend against the host's backend, on the same numbers: its bodies on threads of the host, in groups
// of several sizes, in the order of streams of the stand-in for CUDA.
#include "compute/backend_trials.hpp"
#include "emulated_launcher.hpp"

#include <heddle/compute/cuda/cuda.hpp>

namespace {
using namespace backend_trials;
template <int Threads>
using emulated = co::basic_cuda<cuda_double::emulated_launcher<Threads>>;

}  // namespace

TEST_CASE("the CUDA backend offers what a GPT-2 needs", "[cuda][law]") {
  using tested = emulated<2>;
  STATIC_REQUIRE(co::backend_queue<tested>);
  STATIC_REQUIRE(co::product_kernels<tested, float>);
  STATIC_REQUIRE(co::elementwise_kernels<tested, double>);
  STATIC_REQUIRE(co::norm_kernels<tested, float>);
  STATIC_REQUIRE(co::rms_norm_kernels<tested, float>);
  STATIC_REQUIRE(co::rotary_kernels<tested, float>);
  STATIC_REQUIRE(co::gated_kernels<tested, double, co::relu>);
  STATIC_REQUIRE(co::embedding_kernels<tested, float>);
  STATIC_REQUIRE(co::cross_entropy_kernels<tested, float>);
  STATIC_REQUIRE(co::reversible_optimizer_kernels<tested, double>);
  STATIC_REQUIRE(co::reduction_kernels<tested, float>);
  STATIC_REQUIRE(co::cast_kernels<tested, float, hd::bf16>);
  STATIC_REQUIRE(co::half_product_kernels<tested, hd::bf16>);
  STATIC_REQUIRE(co::half_product_kernels<tested, hd::f16>);
  STATIC_REQUIRE(co::stochastic_cast_kernels<tested>);
  STATIC_REQUIRE(co::stochastic_optimizer_kernels<tested, float, float>);
  STATIC_REQUIRE(co::squared_error_kernels<tested, double>);
  STATIC_REQUIRE(co::attention_kernels<tested, float>);
  STATIC_REQUIRE(co::sliced_attention_kernels<tested, double>);
  STATIC_REQUIRE(co::kernel_set<tested, float>);
  STATIC_REQUIRE_FALSE(co::routing_kernels<tested, float>);
}

TEST_CASE("bodies of the CUDA backend compute what the host's kernels do, in groups of one", "[cuda]") {
  compare_with_host<emulated<1>, double>(1e-10, 1e-10);
  compare_with_host<emulated<1>, float>(1e-4, 1e-4);
}
TEST_CASE("bodies of the CUDA backend compute what the host's kernels do, in groups of four", "[cuda]") {
  compare_with_host<emulated<4>, double>(1e-10, 1e-10);
  compare_with_host<emulated<4>, float>(1e-4, 1e-4);
}

TEST_CASE("products of 16-bit operands and stochastic rounding of the CUDA backend are the host's", "[cuda]") {
  compare_halves_with_host<emulated<1>>();
}

TEST_CASE("tiles of attention that end inside of sequences are the host's", "[cuda]") {
  for (const std::int64_t sequence : {1, 7, 8, 9, 37}) {
    CAPTURE(sequence);
    check(attention<emulated<2>, double>(sequence), attention<co::host<>, double>(sequence), 1e-10, 4);
  }
}

TEST_CASE("masks, pages and what is not finite go through the CUDA backend as on the host", "[cuda]") {
  compare_corners_with_host<emulated<1>>();
  compare_corners_with_host<emulated<3>>();
}

TEST_CASE("arguments that do not fit a kernel of the CUDA backend are refused with both numbers", "[cuda]") {
  trial<emulated<1>, float> t;
  auto c = t.some(3, 4), a = t.some(3, 5), b = t.some(6, 4);
  CHECK_THROWS_WITH(t.backend.matmul(a, b, c),
                    Catch::Contains("rows of op(b)") && Catch::Contains("5") && Catch::Contains("6"));
  auto bias = t.some(3);
  CHECK_THROWS_AS(t.backend.add_bias(c, bias), hd::layout_error);
}
