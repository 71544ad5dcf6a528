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
    check(products<B, double>(rows, columns), products<host, double>(rows, columns), 1e-10, 4);
    check(products<B, float>(rows, columns), products<host, float>(rows, columns), 1e-4, 4);
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

// Grouped queries, every mask, queries in several slices and in none, values of another width, pages; heads inside wider rows.
template <class B>
auto sliced_attention(bool paged) {
  trial<B, double> t;
  using space = typename B::space;
  const std::int64_t queries = 13, keys = 12;
  const auto wide = t.some(queries, 20), k_rows = t.some(keys, 8), v_rows = t.some(keys, 11), d = t.some(queries, 12);
  auto out_rows = t.some(queries, 12), dq_rows = t.some(queries, 16), dk_rows = t.some(keys, 8),
       dv_rows = t.some(keys, 6);
  auto lse = t.some(4 * queries);
  const auto q = co::heads_of(wide, 4, 4, 3);
  const auto k = co::heads_of(k_rows, 2, 4), v = co::heads_of(v_rows, 2, 3, 5);
  const auto out = co::heads_of(out_rows, 4, 3);
  using co::slice_mask;
  const std::vector<co::attention_slice> slices{{0, 5, 0, 4, slice_mask::causal},
                                                {0, 5, 4, 8, slice_mask::inverse_causal},
                                                {5, 7, 1, 9, slice_mask::full},
                                                {7, 10, 0, 6, slice_mask::bi_causal},
                                                {10, 12, 3, 3, slice_mask::full}};
  const auto listed = hd::detail::row_at<space>(static_cast<const co::attention_slice*>(t.keep(slices)),
                                                static_cast<std::int64_t>(slices.size()));
  co::key_pages_in<space> pages;
  if (paged) {
    const std::vector<std::int32_t> order{3, 0, 2};
    if constexpr (std::is_same_v<space, hd::host_memory>)
      pages = {{static_cast<const std::int32_t*>(t.keep(order)), 3}, 3};
    else
      pages = {hd::detail::row_at<space>(static_cast<const std::int32_t*>(t.keep(order)), 3), 3};
  }
  t.backend.attention(q, k, v, listed, 0.4, out, lse, pages);
  t.note("out", out_rows), t.note("lse", lse);
  t.backend.attention_backward(co::heads_of(d, 4, 3), q, k, v, out, lse, listed, 0.4, co::heads_of(dq_rows, 4, 4),
                               co::heads_of(dk_rows, 2, 4), co::heads_of(dv_rows, 2, 3), pages);
  t.note("dq", dq_rows), t.note("dk", dk_rows), t.note("dv", dv_rows);
  return t.results;
}
TEST_CASE("attention of the CUDA backend has grouped queries, masks by slices, and pages", "[cuda]") {
  for (const bool paged : {false, true}) {
    CAPTURE(paged);
    check(sliced_attention<emulated<1>>(paged), sliced_attention<host>(paged), 1e-10, 5);
    check(sliced_attention<emulated<3>>(paged), sliced_attention<host>(paged), 1e-10, 5);
  }
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
