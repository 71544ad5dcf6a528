// tests/compute/support.hpp: what the tests of kernels share: random data, comparisons, finite differences.
#pragma once

#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace compute_test {
namespace hd = heddle;
namespace hc = heddle::compute;
using std::int64_t;

inline constexpr std::uint64_t seed = 20240607;

/// Standard normal numbers times `deviation`.
template <class T>
std::vector<T> normal(int64_t n, std::uint64_t stream, double deviation = 1.0) {
  const hd::counter_random random(seed, stream);
  std::vector<T> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(deviation * random.normal(i));
  return x;
}

/// Multiples of 1e-6 from -1 to 1.
inline std::vector<float> between_one(int64_t n, std::uint64_t key) {
  const hd::counter_random random(key, 1);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<double>(random.integer(i) % 2000001) / 1000000.0 - 1.0);
  return x;
}

inline std::vector<std::int32_t> tokens(int64_t n, std::int32_t vocabulary, std::uint64_t stream) {
  const hd::counter_random random(seed, stream);
  std::vector<std::int32_t> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<std::int32_t>(random.integer(i) % static_cast<std::uint64_t>(vocabulary));
  return x;
}

template <class T>
hd::matrix_view<T> matrix(std::vector<T>& x, int64_t rows, int64_t columns) {
  return {std::span<T>(x), hd::dynamic_shape<2>(rows, columns)};
}
template <class T>
hd::matrix_view<const T> matrix(const std::vector<T>& x, int64_t rows, int64_t columns) {
  return {std::span<const T>(x), hd::dynamic_shape<2>(rows, columns)};
}
template <class T>
std::span<T> vec(std::vector<T>& x) {
  return x;
}
template <class T>
std::span<const T> vec(const std::vector<T>& x) {
  return x;
}

/// The largest |a - b|, relative to the largest |b| (or to 1, if that is smaller); NaN if there is one.
template <class A, class B>
double distance(const std::vector<A>& a, const std::vector<B>& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0, scale = 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (std::isnan(d)) return d;
    most = (std::max)(most, d);
    scale = (std::max)(scale, std::abs(static_cast<double>(b[i])));
  }
  return most / scale;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// The gradient of `f` (a function of the vector x, changed in place and put back) by central differences.
template <class F>
std::vector<double> finite_differences(std::vector<double>& x, F f, double h = 1e-5) {
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + h;
    const double above = f();
    x[i] = at - h;
    const double below = f();
    x[i] = at;
    gradient[i] = (above - below) / (2 * h);
  }
  return gradient;
}

/// sum of a[i] * b[i]: turns a kernel's output into a number to differentiate.
inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

template <class T>
inline constexpr double tolerance = std::is_same_v<T, float> ? 2e-6 : 1e-14;

}  // namespace compute_test
