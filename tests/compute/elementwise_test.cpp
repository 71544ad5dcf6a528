#include "catch.hpp"
#include "support.hpp"

#include <heddle/core/half_precision.hpp>

#include <cmath>
#include <limits>
#include <utility>

using namespace compute_test;

TEMPLATE_TEST_CASE("GELU: golden value, definition, every length", "[compute][elementwise]", float, double) {
  using T = TestType;
  hc::host<> backend(2);
  for (const int64_t n : {0, 1, 15, 64, 65, 1000, 40001}) {
    const auto x = normal<T>(n, 1, 2.0);
    std::vector<T> y(x.size()), want(x.size());
    hc::run<hc::ops::gelu>(backend, vec(x), vec(y));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double v = x[i];
      want[i] =
          static_cast<T>(0.5L * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0L)) * (v + 0.044715L * v * v * v))));
    }
    CHECK(distance(y, want) <= tolerance<T>);
  }
  std::vector<T> one{T(1)};
  hc::run<hc::ops::gelu>(backend, vec(std::as_const(one)), vec(one));  // in place
  CHECK(one[0] == Approx(0.8411919906).epsilon(std::is_same_v<T, float> ? 1e-6 : 1e-9));
}

TEST_CASE("GELU's backward equals finite differences, also in place", "[compute][elementwise]") {
  hc::host<> backend(2);
  auto x = normal<double>(101, 1, 2.0);
  const auto dy = normal<double>(101, 2);
  std::vector<double> dx(x.size()), y(x.size());
  hc::run<hc::ops::gelu_backward>(backend, vec(std::as_const(x)), vec(dy), vec(dx));
  const auto want = finite_differences(x, [&] {
    hc::run<hc::ops::gelu>(backend, vec(std::as_const(x)), vec(y));
    return dot(y, dy);
  });
  CHECK(distance(dx, want) <= 1e-8);
  auto in_place = dy;
  hc::run<hc::ops::gelu_backward>(backend, vec(std::as_const(x)), vec(std::as_const(in_place)), vec(in_place));
  CHECK(same_bits(in_place, dx));
}

TEMPLATE_TEST_CASE("GELU keeps NaN and stays finite for large arguments", "[compute][elementwise]", float, double) {
  using T = TestType;
  constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  hc::host<> backend;
  const std::vector<T> x{nan, T(1e4), T(-1e4), T(30), T(-30)}, dy(5, T(1));
  std::vector<T> y(5), dx(5);
  hc::run<hc::ops::gelu>(backend, vec(x), vec(y));
  hc::run<hc::ops::gelu_backward>(backend, vec(x), vec(dy), vec(dx));
  CHECK(std::isnan(y[0]));
  CHECK(std::isnan(dx[0]));
  CHECK(y[1] == T(1e4));
  CHECK(y[2] == T(0));
  CHECK(dx[1] == T(1));
  CHECK(dx[2] == T(0));
}

TEMPLATE_TEST_CASE("bias: added to every row; its gradient is the sum of columns", "[compute][elementwise]", float,
                   double) {
  using T = TestType;
  for (const int threads : {1, 3})
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{0, 4}, {4, 0}, {1, 1}, {7, 13}, {33, 130}, {257, 515}}) {
      hc::host<> backend(threads);
      const auto x = normal<T>(rows * columns, 1), b = normal<T>(columns, 2), start = normal<T>(columns, 3);
      auto y = x, db = start, want_y = x;
      std::vector<long double> sums(start.begin(), start.end());
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) {
          want_y[static_cast<std::size_t>(i * columns + j)] += b[static_cast<std::size_t>(j)];
          sums[static_cast<std::size_t>(j)] += x[static_cast<std::size_t>(i * columns + j)];
        }
      hc::run<hc::ops::add_bias>(backend, matrix(y, rows, columns), vec(b));
      hc::run<hc::ops::add_bias_backward>(backend, matrix(x, rows, columns), vec(db));
      CHECK(same_bits(y, want_y));
      CHECK(distance(db, sums) <= tolerance<T> * 4);
    }
}

TEST_CASE("add, scale, fill, copy", "[compute][elementwise]") {
  hc::host<> backend(3);
  for (const int64_t n : {0, 1, 63, 64, 1000, 70001}) {
    const auto a = normal<float>(n, 1), b = normal<float>(n, 2);
    std::vector<float> c(a.size()), sum(a.size()), twice(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum[i] = a[i] + b[i];
      twice[i] = a[i] * 2.5f;
    }
    hc::run<hc::ops::add>(backend, vec(a), vec(b), vec(c));
    CHECK(same_bits(c, sum));
    c = a;
    hc::run<hc::ops::add>(backend, vec(std::as_const(c)), vec(b), vec(c));
    CHECK(same_bits(c, sum));
    c = a;
    hc::run<hc::ops::scale>(backend, vec(c), 2.5f);
    CHECK(same_bits(c, twice));
    hc::run<hc::ops::copy>(backend, vec(b), vec(c));
    CHECK(same_bits(c, b));
    hc::run<hc::ops::fill>(backend, vec(c), 0.5f);
    CHECK(c == std::vector<float>(a.size(), 0.5f));
  }
  const std::vector<float> four(4);
  std::vector<float> five(5);
  CHECK_THROWS_WITH(hc::run<hc::ops::copy>(backend, vec(four), vec(five)),
                    "heddle: copy: elements of y should be 4, got 5");
}

TEMPLATE_TEST_CASE("sums of squares are exact to double and do not depend on threads", "[compute][elementwise]", float,
                   double) {
  using T = TestType;
  for (const int64_t n : {0, 1, 100, 4096, 4097, 100003}) {
    const auto x = normal<T>(n, 5);
    long double want = 0;
    for (const T v : x) want += static_cast<long double>(v) * static_cast<long double>(v);
    hc::host<> one(1);
    const double first = hc::sum_of<hc::ops::sum_of_squares>(one, vec(x));
    CHECK(first == Approx(static_cast<double>(want)).epsilon(1e-13));
    for (const int threads : {2, 3, 5}) {
      hc::host<> several(threads);
      CHECK(hc::sum_of<hc::ops::sum_of_squares>(several, vec(x)) == first);
    }
  }
  hc::host<> backend(2);
  std::vector<T> x(50000, T(1));
  x[40000] = std::numeric_limits<T>::quiet_NaN();
  CHECK(std::isnan(hc::sum_of<hc::ops::sum_of_squares>(backend, vec(x))));
}

TEMPLATE_TEST_CASE("all_finite finds a single infinity or NaN anywhere", "[compute][elementwise]", float, double) {
  using T = TestType;
  hc::host<> backend(2);
  CHECK(hc::all_finite(backend, std::span<const T>()));
  for (const int64_t n : {1, 63, 64, 65, 50000}) {
    std::vector<T> x(static_cast<std::size_t>(n), (std::numeric_limits<T>::max)());
    x[0] = std::numeric_limits<T>::denorm_min();
    CHECK(hc::all_finite(backend, vec(x)));
    for (const int64_t at : {int64_t{0}, n / 2, n - 1})
      for (const T bad : {std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity(),
                          std::numeric_limits<T>::quiet_NaN()}) {
        const T old = std::exchange(x[static_cast<std::size_t>(at)], bad);
        CHECK_FALSE(hc::all_finite(backend, vec(x)));
        x[static_cast<std::size_t>(at)] = old;
      }
  }
}

TEMPLATE_TEST_CASE("reductions add to a number in the backend's memory", "[compute][elementwise]", float, double,
                   hd::bf16, hd::f16) {
  using T = TestType;
  for (const int64_t n : {0, 1, 127, 128, 5000, 100003}) {
    std::vector<T> x;
    for (const float v : normal<float>(n, 5)) x.push_back(T(v));
    double want = 0;
    for (const T v : x) want += static_cast<double>(v) * static_cast<double>(v);
    for (const int threads : {1, 3}) {
      hc::host<> backend(threads);
      double sum = 2.5, bad = 1;
      hc::run<hc::ops::sum_of_squares>(backend, vec(x), &sum);
      CHECK(sum == Approx(2.5 + want).epsilon(1e-13));
      CHECK(sum == 2.5 + hc::sum_of<hc::ops::sum_of_squares>(backend, vec(x)));
      hc::run<hc::ops::count_nonfinite>(backend, vec(x), &bad);
      CHECK(bad == 1);
      auto worse = x;
      double count = 1;
      for (std::size_t i = 0; i < x.size(); i += 1 + i / 3, ++count)
        worse[i] = i % 2 == 0 ? T(static_cast<float>(INFINITY)) : (std::numeric_limits<T>::quiet_NaN)();
      hc::run<hc::ops::count_nonfinite>(backend, vec(std::as_const(worse)), &bad);
      CHECK(bad == count);
    }
  }
}
