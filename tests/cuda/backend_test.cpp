// Each facet of the CUDA backend against the host's backend, on the same numbers: its bodies on threads of the host, in groups
// of several sizes, in the order of streams of the stand-in for CUDA.
#include "compute/backend_trials.hpp"
#include "emulated_launcher.hpp"

#include <heddle/compute/cuda/cuda.hpp>

#include <cstdint>
#include <limits>
#include <vector>

namespace {
using namespace backend_trials;
using host = co::host<>;
template <int Threads>
using emulated = co::basic_cuda<cuda_double::emulated_launcher<Threads>>;

template <class B>
void compare() {
  for (const auto& [rows, columns] : trial_sizes) {
    CAPTURE(rows, columns);
    const std::size_t count = columns >= 12 ? 24 : 20;
    check(elementwise<B, double>(rows, columns), elementwise<host, double>(rows, columns), 1e-10, count);
    check(elementwise<B, float>(rows, columns), elementwise<host, float>(rows, columns), 1e-4, count);
    check(norms<B, double>(rows, columns), norms<host, double>(rows, columns), 1e-10, 10);
    check(norms<B, float>(rows, columns), norms<host, float>(rows, columns), 1e-4, 10);
    check(cross_entropy<B, double>(rows, columns), cross_entropy<host, double>(rows, columns), 1e-10, 5);
    check(cross_entropy<B, float>(rows, columns), cross_entropy<host, float>(rows, columns), 1e-4, 5);
    check(sums_and_steps<B, double>(rows, columns), sums_and_steps<host, double>(rows, columns), 1e-10, 16);
    check(sums_and_steps<B, float>(rows, columns), sums_and_steps<host, float>(rows, columns), 1e-4, 16);
    check(products<B, double>(rows, columns), products<host, double>(rows, columns), 1e-10, 5);
    check(products<B, float>(rows, columns), products<host, float>(rows, columns), 1e-4, 5);
  }
  for (const std::int64_t sequence : {0, 1, 6, 37}) {
    CAPTURE(sequence);
    check(attention<B, double>(sequence), attention<host, double>(sequence), 1e-10, 4);
    check(attention<B, float>(sequence), attention<host, float>(sequence), 1e-4, 4);
  }
}
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
  STATIC_REQUIRE(co::squared_error_kernels<tested, double>);
  STATIC_REQUIRE(co::attention_kernels<tested, float>);
  STATIC_REQUIRE(co::sliced_attention_kernels<tested, double>);
  STATIC_REQUIRE(co::kernel_set<tested, float>);
  STATIC_REQUIRE_FALSE(co::routing_kernels<tested, float>);
}

TEST_CASE("bodies of the CUDA backend compute what the host's kernels do, in groups of one", "[cuda]") {
  compare<emulated<1>>();
}
TEST_CASE("bodies of the CUDA backend compute what the host's kernels do, in groups of four", "[cuda]") {
  compare<emulated<4>>();
}

TEST_CASE("attention of the CUDA backend has grouped queries, masks by slices, and pages", "[cuda]") {
  for (const auto& pages : trial_pages) {
    CAPTURE(pages);
    check(sliced_attention<emulated<1>>(pages), sliced_attention<host>(pages), 1e-10, 5);
    check(sliced_attention<emulated<3>>(pages), sliced_attention<host>(pages), 1e-10, 5);
  }
}

TEST_CASE("scores of -inf in the CUDA backend's attention are those of no key, as on the host", "[cuda]") {
  check(attention_of_overflows<emulated<1>>(), attention_of_overflows<host>(), 1e-6, 5);
  check(attention_of_overflows<emulated<2>>(), attention_of_overflows<host>(), 1e-6, 5);
}

TEST_CASE("NaN and infinity go through the CUDA backend as on the host", "[cuda]") {
  const double inf = (std::numeric_limits<double>::infinity)(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto run = [&]<class B>(B*) {
    trial<B, double> t;
    const std::vector<double> x{nan, 1, inf, -inf, 0, -800, 800, 1e-300, 5, nan, nan, 2};
    hd::matrix_view<double, typename B::space> m(t.keep(x), hd::dynamic_shape<2>(4, 3));
    auto row = hd::detail::row_at<typename B::space>(m.address(), 12);
    auto y = t.some(12), top = t.some(4);
    t.backend.row_max(m, top), t.note("row_max", top);
    t.backend.gelu(row, y), t.note("gelu", y);
    t.backend.gelu_backward(row, row, y), t.note("gelu_backward", y);
    t.backend.template gated<co::relu>(row, row, y), t.note("relu", y);
    return t.results;
  };
  const auto expected = run(static_cast<host*>(nullptr));
  check(run(static_cast<emulated<1>*>(nullptr)), expected, 1e-12, 4);
  check(run(static_cast<emulated<3>*>(nullptr)), expected, 1e-12, 4);
}

TEST_CASE("arguments that do not fit a kernel of the CUDA backend are refused with both numbers", "[cuda]") {
  trial<emulated<1>, float> t;
  auto c = t.some(3, 4), a = t.some(3, 5), b = t.some(6, 4);
  CHECK_THROWS_WITH(t.backend.matmul(a, b, c),
                    Catch::Contains("rows of op(b)") && Catch::Contains("5") && Catch::Contains("6"));
  auto bias = t.some(3);
  CHECK_THROWS_AS(t.backend.add_bias(c, bias), hd::layout_error);
}
