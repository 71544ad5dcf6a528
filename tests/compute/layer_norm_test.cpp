#include "catch.hpp"
#include "support.hpp"

#include <cmath>
#include <limits>
#include <utility>

using namespace compute_test;

namespace {
struct problem {
  int64_t rows, columns;
};
}  // namespace

TEMPLATE_TEST_CASE("layer norm equals its definition", "[compute][layer_norm]", float, double) {
  using T = TestType;
  for (const int threads : {1, 3})
    for (const problem s : {problem{0, 8}, {1, 1}, {5, 7}, {16, 64}, {33, 130}, {9, 768}}) {
      hc::host<> backend(threads);
      const auto x = normal<T>(s.rows * s.columns, 1, 3.0), w = normal<T>(s.columns, 2), b = normal<T>(s.columns, 3);
      std::vector<T> y(x.size()), mean(static_cast<std::size_t>(s.rows)), rstd(mean.size());
      hc::run<hc::ops::layer_norm>(backend, matrix(x, s.rows, s.columns), vec(w), vec(b), T(1e-5),
                                   matrix(y, s.rows, s.columns), vec(mean), vec(rstd));
      std::vector<long double> want(x.size());
      for (int64_t i = 0; i < s.rows; ++i) {
        const auto at = [&](int64_t j) { return static_cast<std::size_t>(i * s.columns + j); };
        long double mu = 0, variance = 0;
        for (int64_t j = 0; j < s.columns; ++j) mu += static_cast<long double>(x[at(j)]) / s.columns;
        for (int64_t j = 0; j < s.columns; ++j) variance += (x[at(j)] - mu) * (x[at(j)] - mu) / s.columns;
        const long double r = 1 / std::sqrt(variance + static_cast<long double>(T(1e-5)));
        for (int64_t j = 0; j < s.columns; ++j)
          want[at(j)] = (x[at(j)] - mu) * r * w[static_cast<std::size_t>(j)] + b[static_cast<std::size_t>(j)];
        if (s.columns > 1) CHECK(rstd[static_cast<std::size_t>(i)] == Approx(static_cast<double>(r)).epsilon(1e-5));
      }
      CHECK(distance(y, want) <= tolerance<T> * 2);
    }
}

TEMPLATE_TEST_CASE("a row of equal numbers is normalised to zero, however large they are", "[compute][layer_norm]",
                   float, double) {
  using T = TestType;
  for (const T c : {T(0), T(10.1), T(1000.1), T(-12345.6)})
    for (const int64_t columns : {1, 7, 100, 768}) {
      hc::host<> backend;
      const std::vector<T> x(static_cast<std::size_t>(columns), c), w(x.size(), T(1)), b(x.size(), T(0));
      std::vector<T> y(x.size()), mean(1), rstd(1);
      hc::run<hc::ops::layer_norm>(backend, matrix(x, 1, columns), vec(w), vec(b), T(1e-5), matrix(y, 1, columns),
                                   vec(mean), vec(rstd));
      INFO(c << " in " << columns << " columns");
      for (const T v : y) CHECK(std::abs(v) <= T(1e-3));
      CHECK(rstd[0] == Approx(316.227766).epsilon(1e-4));
    }
}

TEST_CASE("layer norm's backward equals finite differences and adds", "[compute][layer_norm]") {
  for (const problem s : {problem{3, 5}, {2, 33}, {7, 4}}) {
    hc::host<> backend(2);
    auto x = normal<double>(s.rows * s.columns, 1), w = normal<double>(s.columns, 2), b = normal<double>(s.columns, 3);
    const auto dy = normal<double>(s.rows * s.columns, 4);
    std::vector<double> y(x.size()), mean(static_cast<std::size_t>(s.rows)), rstd(mean.size());
    const auto value = [&] {
      hc::run<hc::ops::layer_norm>(backend, matrix(std::as_const(x), s.rows, s.columns), vec(std::as_const(w)),
                                   vec(std::as_const(b)), 1e-5, matrix(y, s.rows, s.columns), vec(mean), vec(rstd));
      return dot(y, dy);
    };
    value();
    const auto keep_mean = mean, keep_rstd = rstd;
    std::vector<double> dx(x.size(), 2.0), dw(w.size(), 3.0), db(b.size(), 4.0);
    hc::run<hc::ops::layer_norm_backward_input>(backend, matrix(dy, s.rows, s.columns),
                                                matrix(std::as_const(x), s.rows, s.columns), vec(std::as_const(w)),
                                                vec(keep_mean), vec(keep_rstd), matrix(dx, s.rows, s.columns));
    hc::run<hc::ops::layer_norm_backward_weight>(backend, matrix(dy, s.rows, s.columns),
                                                 matrix(std::as_const(x), s.rows, s.columns), vec(keep_mean),
                                                 vec(keep_rstd), vec(dw), vec(db));
    for (double& v : dx) v -= 2.0;
    for (double& v : dw) v -= 3.0;
    for (double& v : db) v -= 4.0;
    CHECK(distance(dx, finite_differences(x, value)) <= 1e-7);
    CHECK(distance(dw, finite_differences(w, value)) <= 1e-7);
    CHECK(distance(db, finite_differences(b, value)) <= 1e-7);
  }
}

TEST_CASE("a NaN in one row of a layer norm stays in that row", "[compute][layer_norm]") {
  hc::host<> backend;
  auto x = normal<float>(3 * 70, 1);
  const std::vector<float> w(70, 1.0f), b(70, 0.0f);
  x[75] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y(x.size()), mean(3), rstd(3);
  hc::run<hc::ops::layer_norm>(backend, matrix(std::as_const(x), 3, 70), vec(w), vec(b), 1e-5f, matrix(y, 3, 70),
                               vec(mean), vec(rstd));
  int wrong = 0;
  for (std::size_t i = 0; i < y.size(); ++i) wrong += std::isnan(y[i]) != (i / 70 == 1);
  CHECK(wrong == 0);
}
