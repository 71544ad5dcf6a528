// tests/model/support.hpp: random numbers, a group of one rank and central differences.
#pragma once

#include "golden_file.hpp"

#include <heddle/compute/kernels.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/gpt2.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace model_test {

namespace hd = heddle;
namespace md = heddle::model;

inline std::vector<double> random_vector(std::int64_t n, std::uint64_t stream, double scale = 1.0, double mean = 0.0) {
  const hd::counter_random random(2024, stream);
  std::vector<double> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = mean + scale * random.normal(i);
  return v;
}

inline std::vector<std::int32_t> random_ids(std::int64_t n, int vocabulary, std::uint64_t stream) {
  const hd::counter_random random(7, stream);
  std::vector<std::int32_t> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<std::int32_t>(random.integer(i) % static_cast<std::uint64_t>(vocabulary));
  return v;
}

/// A group of one rank. Layers ask for its size and then call nothing else.
struct alone {
  int size() const noexcept { return 1; }
  void all_gather_v(std::span<const double>, std::span<double>, std::span<const std::int64_t>) const {}
  void all_gather_v(std::span<const float>, std::span<float>, std::span<const std::int64_t>) const {}
};

/// A world of one rank with no axes.
struct alone_world {
  int rank() const noexcept { return 0; }
  hd::mesh<> mesh() const noexcept { return {}; }
  template <class... Tags>
  alone along_if() const noexcept {
    return {};
  }
};

inline double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// The greatest difference between a gradient and central differences of `f` in the numbers it belongs to, relative to
/// the greatest element of the gradient (or 1e-3, for gradients that vanish).
template <class F>
double difference_error(std::span<double> x, std::span<const double> gradient, F&& f, double step = 1e-5) {
  double worst = 0, greatest = 1e-3;
  for (const double g : gradient) greatest = (std::max)(greatest, std::abs(g));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + step;
    const double above = f();
    x[i] = kept - step;
    const double below = f();
    x[i] = kept;
    const double error = std::abs((above - below) / (2 * step) - gradient[i]);
    if (std::isnan(error) || error > worst) worst = error;  // a NaN stays
  }
  return worst / greatest;
}

}  // namespace model_test
