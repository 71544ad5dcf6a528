#include "catch.hpp"
#include "support.hpp"

#include <cmath>
#include <limits>
#include <utility>

using namespace compute_test;

TEMPLATE_TEST_CASE("AdamW gives PyTorch's numbers", "[compute][adamw]", float, double) {
  using T = TestType;
  const double golden[] = {.9989900001, .9993461137038839, .9989928791783396};
  const T gradients[] = {T(.1), T(-.2), T(.3)};
  hc::host<> backend;
  std::vector<T> p{T(1)}, m{T(0)}, v{T(0)};
  for (int t = 1; t <= 3; ++t) {
    const std::vector<T> g{gradients[t - 1]};
    hc::run<hc::ops::adamw>(backend, vec(p), vec(g), vec(m), vec(v),
                            hc::adamw_step{1e-3, 0.9, 0.999, 1e-8, 0.01, t, 1.0});
    CHECK(static_cast<double>(p[0]) == Approx(golden[t - 1]).epsilon(std::is_same_v<T, float> ? 1e-7 : 1e-10));
  }
}

TEST_CASE("AdamW refuses a step before the first", "[compute][adamw]") {
  hc::host<> backend;
  std::vector<float> p{1}, m{0}, v{0};
  const std::vector<float> g{1};
  CHECK_THROWS_AS(hc::run<hc::ops::adamw>(backend, vec(p), vec(g), vec(m), vec(v),
                                          hc::adamw_step{1e-3, 0.9, 0.999, 1e-8, 0.01, 0, 1.0}),
                  heddle::config_error);
}

TEMPLATE_TEST_CASE("AdamW equals its definition for any length and number of threads", "[compute][adamw]", float,
                   double) {
  using T = TestType;
  for (const int64_t n : {0, 1, 31, 64, 65, 1000, 40001}) {
    const auto start = normal<T>(n, 1), g = normal<T>(n, 2);
    auto p = start, m = normal<T>(n, 3, 0.1), v = normal<T>(n, 4, 0.1);
    for (T& x : v) x *= x;
    const auto m0 = m, v0 = v;
    const hc::adamw_step step{3e-2, 0.9, 0.95, 1e-8, 0.1, 7, 0.5};
    std::vector<long double> want(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      const long double d = g[i] * 0.5L, first = 0.9L * m0[i] + 0.1L * d, second = 0.95L * v0[i] + 0.05L * d * d;
      want[i] = start[i] * (1 - 3e-2L * 0.1L) - 3e-2L / (1 - std::pow(0.9L, 7)) * first /
                                                    (std::sqrt(second) / std::sqrt(1 - std::pow(0.95L, 7)) + 1e-8L);
    }
    hc::host<> one(1);
    hc::run<hc::ops::adamw>(one, vec(p), vec(g), vec(m), vec(v), step);
    CHECK(distance(p, want) <= tolerance<T>);
    for (const int threads : {2, 3, 5}) {
      hc::host<> several(threads);
      auto p2 = start, m2 = m0, v2 = v0;
      hc::run<hc::ops::adamw>(several, vec(p2), vec(g), vec(m2), vec(v2), step);
      CHECK(same_bits(p2, p));
      CHECK(same_bits(m2, m));
      CHECK(same_bits(v2, v));
    }
  }
}

TEST_CASE("an AdamW step with zero gradient and no decay leaves a parameter alone; NaN does not hide",
          "[compute][adamw]") {
  hc::host<> backend;
  std::vector<float> p{1.5f, 2.5f}, m(2), v(2);
  const std::vector<float> g{0.0f, std::numeric_limits<float>::quiet_NaN()};
  hc::run<hc::ops::adamw>(backend, vec(p), vec(g), vec(m), vec(v), hc::adamw_step{1e-3, 0.9, 0.999, 1e-8, 0.0, 1, 1.0});
  CHECK(p[0] == 1.5f);
  CHECK(std::isnan(p[1]));
}
