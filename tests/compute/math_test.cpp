#include "catch.hpp"
#include "support.hpp"

#include <heddle/compute/host/lanes.hpp>
#include <heddle/compute/host/math.hpp>

#include <cmath>
#include <limits>

using namespace compute_test;
namespace kernels = heddle::compute::detail;

namespace {
// What is measured is the vectorised loop, as the kernels use it.
template <class T, class Op>
std::vector<T> mapped(const std::vector<T>& x, Op op) {
  std::vector<T> y(x.size());
  kernels::map_lanes(static_cast<int64_t>(x.size()), y.data(), op, x.data());
  return y;
}

template <class T>
std::vector<T> ladder(double from, double to, int n) {
  std::vector<T> x(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] = static_cast<T>(from + (to - from) * i / (n - 1));
  return x;
}
}  // namespace

TEMPLATE_TEST_CASE("exp is right to two units in the last place over its whole range", "[compute][math]", float,
                   double) {
  using T = TestType;
  constexpr double lowest = std::is_same_v<T, float> ? -87.3 : -708.3,
                   highest = std::is_same_v<T, float> ? 88.7 : 709.7;
  double most = 0;
  for (const auto& x : {ladder<T>(lowest, highest, 200001), ladder<T>(-1, 1, 50001), ladder<T>(-1e-6, 1e-6, 1001)}) {
    const auto y = mapped(x, [](T v) { return kernels::exp_lane(v); });
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double exact = std::exp(static_cast<long double>(x[i]));
      const auto error = static_cast<double>(std::abs((static_cast<long double>(y[i]) - exact) / exact));
      if (std::isnan(error) || error > most) most = error;  // a NaN stays
    }
  }
  INFO("largest relative error " << most);
  CHECK(most <= 2.0 * static_cast<double>(std::numeric_limits<T>::epsilon()));
}

TEMPLATE_TEST_CASE("exp at the ends: zero, infinity, gradual underflow, NaN", "[compute][math]", float, double) {
  using T = TestType;
  constexpr T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const T top = std::log((std::numeric_limits<T>::max)());
  const auto y = mapped(std::vector<T>{T(0), -T(0), -inf, inf, nan, top * T(1.001), -top * T(1.3), T(-1e30), T(1e30)},
                        [](T v) { return kernels::exp_lane(v); });
  CHECK(y[0] == T(1));
  CHECK(y[1] == T(1));
  CHECK(y[2] == T(0));
  CHECK(y[3] == inf);
  CHECK(std::isnan(y[4]));
  CHECK(y[5] == inf);
  CHECK(y[6] == T(0));
  CHECK(y[7] == T(0));
  CHECK(y[8] == inf);
  const T small = std::log(std::numeric_limits<T>::denorm_min()) + T(3);
  const T tiny = mapped(std::vector<T>{small}, [](T v) { return kernels::exp_lane(v); })[0];
  CHECK(tiny > T(0));
  CHECK(std::abs(tiny - std::exp(small)) <= 2 * std::numeric_limits<T>::denorm_min());
}

TEMPLATE_TEST_CASE("tanh agrees with the standard library's", "[compute][math]", float, double) {
  using T = TestType;
  double worst = 0;
  for (const T scale : {T(0.01), T(0.7), T(25)}) {
    const auto x = ladder<T>(-scale, scale, 10000);  // without 0
    const auto y = mapped(x, [](T v) { return kernels::tanh_lane(v); });
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double expected = std::tanh(static_cast<long double>(x[i]));
      const auto error = static_cast<double>(std::abs((y[i] - expected) / expected));
      if (!(error <= worst)) worst = error;  // a NaN stays
    }
  }
  INFO("largest error " << worst);
  CHECK(worst <= 6 * static_cast<double>(std::numeric_limits<T>::epsilon()));
  constexpr T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const auto ends = mapped(std::vector<T>{inf, -inf, nan, T(0)}, [](T v) { return kernels::tanh_lane(v); });
  CHECK(ends[0] == T(1));
  CHECK(ends[1] == T(-1));
  CHECK(std::isnan(ends[2]));
  CHECK(ends[3] == T(0));
}

TEMPLATE_TEST_CASE("GELU and its derivative agree with their definition", "[compute][math]", float, double) {
  using T = TestType;
  const auto x = ladder<T>(-30, 30, 60001);
  const auto y = mapped(x, [](T v) { return kernels::gelu_lane(v); });
  const auto d = mapped(x, [](T v) { return kernels::gelu_derivative_lane(v); });
  double value_error = 0, slope_error = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double v = x[i], root = std::sqrt(2 / 3.14159265358979323846264338327950288L);
    const long double t = std::tanh(root * (v + 0.044715L * v * v * v));
    const long double value = 0.5L * v * (1 + t);
    const long double slope = 0.5L * (1 + t) + 0.5L * v * (1 - t * t) * root * (1 + 3 * 0.044715L * v * v);
    const auto of_value = static_cast<double>(std::abs(y[i] - value) / (1 + std::abs(v)));
    const auto of_slope = static_cast<double>(std::abs(d[i] - slope));
    if (std::isnan(of_value) || of_value > value_error) value_error = of_value;  // a NaN stays
    if (std::isnan(of_slope) || of_slope > slope_error) slope_error = of_slope;
  }
  INFO("largest errors " << value_error << ", " << slope_error);
  const double unit = static_cast<double>(std::numeric_limits<T>::epsilon());
  CHECK(value_error <= unit);
  CHECK(slope_error <= 5 * unit);
  CHECK(kernels::gelu_lane(T(1)) == Approx(0.8411919906).epsilon(std::is_same_v<T, float> ? 1e-6 : 1e-9));
}

TEMPLATE_TEST_CASE("square roots in blocks are the correctly rounded ones", "[compute][math]", float, double) {
  using T = TestType;
  constexpr int width = kernels::block_size<T>;
  std::vector<T> x = normal<T>(width, 3), y(x.size());
  for (T& v : x) v = v * v;
  x[0] = T(0);
  kernels::square_roots<width>(x.data(), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == std::sqrt(x[i]));
}

TEMPLATE_TEST_CASE("the largest element keeps infinities and NaN", "[compute][math]", float, double) {
  using T = TestType;
  constexpr T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  CHECK(kernels::largest<T>(0, nullptr) == -inf);
  for (const int64_t n : {1, 5, 64, 65, 200, 257}) {
    auto x = normal<T>(n, 4);
    CHECK(kernels::largest(n, x.data()) == *std::max_element(x.begin(), x.end()));
    for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
      const T old = std::exchange(x[static_cast<std::size_t>(at)], nan);
      CHECK(std::isnan(kernels::largest(n, x.data())));
      x[static_cast<std::size_t>(at)] = inf;
      CHECK(kernels::largest(n, x.data()) == inf);
      x[static_cast<std::size_t>(at)] = old;
    }
  }
}
