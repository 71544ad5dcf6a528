// Each facet of the CUDA backend against the host's backend, on the same numbers: its bodies on threads of the host, in groups
// of several sizes, in the order of streams of the stand-in for CUDA.
#include "compute/backend_trials.hpp"
#include "emulated_launcher.hpp"

#include <heddle/compute/cuda/cuda.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

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

TEST_CASE("tiles of attention fit into what a device offers a block", "[cuda]") {
  namespace gpu = co::detail::on_cuda;
  using mask = gpu::causal_batch;
  struct device : gpu::launcher_base {
    std::int64_t offered;
    explicit device(std::int64_t kib) : offered(kib * 1024) {}
    std::int64_t tile_bytes() const { return gpu::tile_bytes_of(offered); }
  };
  // Of sm_90, sm_80, sm_86, sm_75, of a device that offers no more than all do, and of none.
  for (const int kib : {227, 163, 99, 64, 48, 0})
    for (std::int64_t width = 1; width <= 300; ++width) {
      const device d(kib);
      CAPTURE(kib, width);
      const auto fits = [&]<class Body, class T>(Body*, T*) {
        const std::int64_t edge = gpu::edge_of_tiles<Body, T>(d, width, width);
        const auto bytes = [&](std::int64_t e) {
          return Body::elements(e, width, width) * static_cast<std::int64_t>(sizeof(T));
        };
        if (edge != 0) CHECK(bytes(edge) <= d.offered);
        if (edge != 64) CHECK(bytes(edge == 0 ? 8 : edge * 2) > (std::min)(d.offered, std::int64_t{112} * 1024));
      };
      fits(static_cast<gpu::attention_tile<float, mask>*>(nullptr), static_cast<float*>(nullptr));
      fits(static_cast<gpu::attention_tile<double, mask>*>(nullptr), static_cast<double*>(nullptr));
      fits(static_cast<gpu::attention_backward_query_tile<float, mask>*>(nullptr), static_cast<float*>(nullptr));
      fits(static_cast<gpu::attention_backward_key_tile<float, mask>*>(nullptr), static_cast<float*>(nullptr));
    }
  // Heads of 128 floats, whose gradients of 32 keys take 105 KiB: on sm_86 there are 16.
  using keys = gpu::attention_backward_key_tile<float, mask>;
  CHECK(gpu::edge_of_tiles<keys, float>(device(227), 128, 128) == 32);
  CHECK(gpu::edge_of_tiles<keys, float>(device(99), 128, 128) == 16);
}

TEST_CASE("attention of the CUDA backend is the host's with tiles of every size", "[cuda]") {
  const std::int64_t sequence = 70;  // ends inside of tiles of each size
  const auto expected = attention<co::host<>, double>(sequence);
  for (const auto& [offered, edge] : {std::pair{99 * 1024, 64}, {30'000, 32}, {10'000, 16}, {3'000, 8}, {1'000, 0}}) {
    CAPTURE(offered, edge);
    cuda_double::last_edge() = 0;
    cuda_double::offered_to_groups() = offered;
    const auto got = attention<emulated<1>, double>(sequence);
    cuda_double::offered_to_groups() = 0;
    check(got, expected, 1e-10, 4);
    CHECK(cuda_double::last_edge() == edge);
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
