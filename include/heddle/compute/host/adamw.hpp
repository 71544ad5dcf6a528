// heddle/compute/host/adamw.hpp: one AdamW step in one pass over parameters, gradients and moments.
#pragma once

#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>

#include <cmath>
#include <string>

namespace heddle::inline v0::compute::detail {

/// p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps).
/// The scalars are computed in double and rounded once.
template <class T>
void adamw(team& workers, std::int64_t n, T* p, const T* g, T* m, T* v, const adamw_step& step) {
  if (step.step < 1) throw config_error("heddle: AdamW counts its steps from 1, got step " + std::to_string(step.step));
  const auto t = static_cast<double>(step.step);
  const double correction2 = std::sqrt(1.0 - std::pow(step.beta2, t));
  const T decay = static_cast<T>(1.0 - step.lr * step.weight_decay);
  const T b1 = static_cast<T>(step.beta1), c1 = static_cast<T>(1.0 - step.beta1);
  const T b2 = static_cast<T>(step.beta2), c2 = static_cast<T>(1.0 - step.beta2);
  const T rate = static_cast<T>(step.lr / (1.0 - std::pow(step.beta1, t)));
  const T inverse = static_cast<T>(1.0 / correction2), eps = static_cast<T>(step.eps);
  const T grad_scale = static_cast<T>(step.grad_scale);
  constexpr int width = block_size<T>;
  const auto update = [=](const T* gradient, T* first, T* second, T* parameter) {
    T mean[width], square[width], root[width];
    for (int l = 0; l < width; ++l) {
      const T d = gradient[l] * grad_scale;
      mean[l] = b1 * first[l] + c1 * d;
      square[l] = b2 * second[l] + c2 * d * d;
    }
    square_roots<width>(square, root);
    for (int l = 0; l < width; ++l) root[l] = parameter[l] * decay - rate * mean[l] / (root[l] * inverse + eps);
    for (int l = 0; l < width; ++l) first[l] = mean[l];
    for (int l = 0; l < width; ++l) second[l] = square[l];
    for (int l = 0; l < width; ++l) parameter[l] = root[l];
  };
  workers.split(n, elementwise_grain, width, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t i = begin;
    for (; i + width <= end; i += width) update(g + i, m + i, v + i, p + i);
    if (i == end) return;
    T gradient[width] = {}, first[width] = {}, second[width] = {}, parameter[width] = {};
    const auto rest = end - i;
    std::copy_n(g + i, rest, gradient);
    std::copy_n(m + i, rest, first);
    std::copy_n(v + i, rest, second);
    std::copy_n(p + i, rest, parameter);
    update(gradient, first, second, parameter);
    std::copy_n(first, rest, m + i);
    std::copy_n(second, rest, v + i);
    std::copy_n(parameter, rest, p + i);
  });
}

/// Takes the last `adamw` with the same gradients and scalars back: p = (p + lr/(1-b1^t) m / (..)) / (1 - lr wd), then
/// v = (v - (1-b2) g^2) / b2 and m = (m - (1-b1) g) / b1, up to rounding. A second moment is never left below 0; moments
/// whose beta is 0 are set to 0, which is what the next step makes of them.
/// Source: Qi et al. 2023, arXiv:2401.10241, appendix C.
template <class T>
void undo_adamw(team& workers, std::int64_t n, T* p, const T* g, T* m, T* v, const adamw_step& step) {
  const auto t = static_cast<double>(step.step);
  const double kept = 1.0 - step.lr * step.weight_decay;
  if (step.step < 1) throw config_error("heddle: AdamW counts its steps from 1, got step " + std::to_string(step.step));
  if (!(kept > 0))
    throw config_error("heddle: an AdamW step with learning rate times weight decay of 1 or more cannot be taken back");
  const T decay = static_cast<T>(kept);
  const T b1 = static_cast<T>(step.beta1), c1 = static_cast<T>(1.0 - step.beta1);
  const T b2 = static_cast<T>(step.beta2), c2 = static_cast<T>(1.0 - step.beta2);
  const T rate = static_cast<T>(step.lr / (1.0 - std::pow(step.beta1, t)));
  const T inverse = static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(step.beta2, t))), eps = static_cast<T>(step.eps);
  const T grad_scale = static_cast<T>(step.grad_scale);
  workers.split(n, elementwise_grain, block_size<T>, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T d = g[i] * grad_scale;
      p[i] = (p[i] + rate * m[i] / (std::sqrt(v[i]) * inverse + eps)) / decay;
      const T second = v[i] - c2 * d * d;
      v[i] = b2 > T(0) && second > T(0) ? second / b2 : T(0);
      m[i] = b1 > T(0) ? (m[i] - c1 * d) / b1 : T(0);
    }
  });
}

}  // namespace heddle::inline v0::compute::detail
