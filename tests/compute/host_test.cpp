#include "catch.hpp"
#include "gemms.hpp"
#include "support.hpp"

#include <heddle/compute/facets.hpp>

#include <string>
#include <thread>
#include <utility>

using namespace compute_test;

namespace {
template <class... G>
constexpr bool all_complete =
    (hc::kernel_set<hc::host<G>, float> && ...) && (hc::kernel_set<hc::host<G>, double> && ...);

struct without_attention {};
}  // namespace

TEST_CASE("the host backend is a kernel set with every library", "[compute][host]") {
  STATIC_REQUIRE(all_complete<HEDDLE_TEST_GEMMS>);
  STATIC_REQUIRE_FALSE(hc::kernel_set<without_attention, float>);
  STATIC_REQUIRE_FALSE(hc::attention_facet::offered<without_attention, float>);
  STATIC_REQUIRE_FALSE(hc::gemm_library<without_attention, float>);
  CHECK(hc::host<>(3).threads() == 3);
  CHECK(hc::host<>(1).gemm_name() == std::string("portable"));
  CHECK_THROWS_AS(hc::host<>(0), hd::config_error);
}

TEMPLATE_TEST_CASE("the host backend offers every facet", "[compute][host][facets]", float, double) {
  using T = TestType;
  STATIC_REQUIRE(hc::offers<hc::host<>, T, hc::product_facet, hc::elementwise_facet, hc::layer_norm_facet,
                            hc::rms_norm_facet, hc::rotary_facet, hc::gated_facet<hc::silu>, hc::attention_facet,
                            hc::sliced_attention_facet, hc::capped_attention_facet, hc::attention_sinks_facet,
                            hc::capped_cross_entropy_facet, hc::soft_cap_facet, hc::embedding_facet,
                            hc::cross_entropy_facet, hc::loss_facet, hc::weighted_cross_entropy_facet,
                            hc::reduction_facet, hc::optimizer_facet, hc::reversible_optimizer_facet, hc::routing_facet,
                            hc::grouped_product_facet, hc::cast_facet<hd::bf16>, hc::cast_facet<hd::f16>,
                            hc::master_optimizer_facet<hd::bf16, hd::bf16>, hc::master_optimizer_facet<T, T>>);
  STATIC_REQUIRE(hc::offers<hc::host<>, hd::bf16, hc::half_product_facet, hc::rms_norm_facet, hc::cast_facet<T>>);
  STATIC_REQUIRE(hc::offers<without_attention, T>);
  STATIC_REQUIRE_FALSE(hc::offers<without_attention, T, hc::product_facet>);
  STATIC_REQUIRE(hc::require_facets<without_attention, hc::host<>&, T, hc::loss_facet, hc::routing_facet>());
}

TEMPLATE_TEST_CASE("no kernel's result depends on the number of threads", "[compute][host]", float, double) {
  using T = TestType;
  const int64_t rows = 150, columns = 1030;
  const auto x = normal<T>(rows * columns, 1), dy = normal<T>(rows * columns, 2), w = normal<T>(columns, 3);
  const hc::attention_shape s{3, 50, 5, 8};
  const auto qkv = normal<T>(s.rows() * 3 * s.width(), 4), dout = normal<T>(s.rows() * s.width(), 5);
  const auto targets = tokens(rows, 1030, 6);
  const auto everything = [&](int threads) {
    hc::host<> backend(threads);
    std::vector<std::vector<T>> results;
    std::vector<T> y(x.size()), mean(150), rstd(150), dx(x.size()), dw(1030), db(1030), sum(150);
    hc::run<hc::ops::gelu>(backend, vec(x), vec(y));
    results.push_back(y);
    hc::run<hc::ops::gelu_backward>(backend, vec(x), vec(dy), vec(y));
    results.push_back(y);
    hc::run<hc::ops::layer_norm>(backend, matrix(x, rows, columns), vec(w), vec(w), T(1e-5), matrix(y, rows, columns),
                                 vec(mean), vec(rstd));
    results.push_back(y);
    hc::run<hc::ops::layer_norm_backward_input>(backend, matrix(dy, rows, columns), matrix(x, rows, columns), vec(w),
                                                vec(std::as_const(mean)), vec(std::as_const(rstd)),
                                                matrix(dx, rows, columns));
    results.push_back(dx);
    hc::run<hc::ops::layer_norm_backward_weight>(backend, matrix(dy, rows, columns), matrix(x, rows, columns),
                                                 vec(std::as_const(mean)), vec(std::as_const(rstd)), vec(dw), vec(db));
    results.push_back(dw);
    results.push_back(db);
    std::vector<T> out(dout.size()), lse(static_cast<std::size_t>(s.rows() * s.heads)), dqkv(qkv.size());
    hc::run<hc::ops::causal_attention>(backend, matrix(qkv, s.rows(), 3 * s.width()), s,
                                       matrix(out, s.rows(), s.width()), vec(lse));
    results.push_back(out);
    results.push_back(lse);
    hc::run<hc::ops::causal_attention_backward>(backend, matrix(dout, s.rows(), s.width()),
                                                matrix(qkv, s.rows(), 3 * s.width()),
                                                matrix(std::as_const(out), s.rows(), s.width()),
                                                vec(std::as_const(lse)), s, matrix(dqkv, s.rows(), 3 * s.width()));
    results.push_back(dqkv);
    y = x;
    hc::run<hc::ops::row_max>(backend, matrix(x, rows, columns), vec(mean));
    hc::run<hc::ops::row_sum_exp>(backend, matrix(x, rows, columns), vec(std::as_const(mean)), vec(sum));
    hc::run<hc::ops::cross_entropy_backward>(backend, matrix(y, rows, columns), vec(std::as_const(mean)),
                                             vec(std::as_const(sum)), targets, 0, T(1));
    results.push_back(mean);
    results.push_back(sum);
    results.push_back(y);
    return results;
  };
  const auto want = everything(1);
  for (const int threads : {2, 3, 5}) {
    const auto got = everything(threads);
    for (std::size_t i = 0; i < want.size(); ++i) {
      CAPTURE(threads, i);
      CHECK(same_bits(got[i], want[i]));
    }
  }
}

TEMPLATE_TEST_CASE("several ranks use their own backends at once", "[compute][host]", HEDDLE_TEST_GEMMS) {
  const auto a = normal<float>(120 * 130, 1), b = normal<float>(130 * 140, 2);
  const auto once = [&](int threads) {
    hc::host<TestType> backend(threads);
    std::vector<float> c(120 * 140);
    for (int i = 0; i < 5; ++i) {
      hc::matmul(backend, matrix(a, 120, 130), matrix(b, 130, 140), matrix(c, 120, 140), 0.0f);
      hc::run<hc::ops::gelu>(backend, vec(std::as_const(c)), vec(c));
    }
    return c;
  };
  const auto want = once(2);
  std::vector<std::vector<float>> got(4);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t r = 0; r < got.size(); ++r) ranks.emplace_back([&, r] { got[r] = once(2); });
  }
  for (const auto& c : got) CHECK(same_bits(c, want));
}

TEST_CASE("float results agree with double ones", "[compute][host]") {
  hc::host<> backend(2);
  const hc::attention_shape s{2, 30, 3, 16};
  const auto wide = normal<double>(s.rows() * 3 * s.width(), 1);
  const std::vector<float> narrow(wide.begin(), wide.end());
  const auto run = [&]<class T>(const std::vector<T>& qkv) {
    std::vector<T> out(static_cast<std::size_t>(s.rows() * s.width())),
        lse(static_cast<std::size_t>(s.rows() * s.heads)), dqkv(qkv.size());
    hc::run<hc::ops::causal_attention>(backend, matrix(qkv, s.rows(), 3 * s.width()), s,
                                       matrix(out, s.rows(), s.width()), vec(lse));
    hc::run<hc::ops::causal_attention_backward>(backend, matrix(std::as_const(out), s.rows(), s.width()),
                                                matrix(qkv, s.rows(), 3 * s.width()),
                                                matrix(std::as_const(out), s.rows(), s.width()),
                                                vec(std::as_const(lse)), s, matrix(dqkv, s.rows(), 3 * s.width()));
    return dqkv;
  };
  CHECK(distance(run(narrow), run(wide)) <= 2e-6);
}
