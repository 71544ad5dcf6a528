// heddle/compute/host/optimizer.hpp: one AdamW step in one pass over parameters, gradients and moments.
#pragma once

#include <heddle/compute/adamw_scalars.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/ops/optimizer.hpp>
#include <heddle/core/error.hpp>

#include <cmath>
#include <string>

namespace heddle::inline v0::compute::detail {

/// The update of one block of elements: p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
/// p -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps). The scalars are computed in double and rounded once.
template <class T>
class adamw_update {
 public:
  static constexpr int width = block_size<T>;

  explicit adamw_update(const adamw_step& step) {
    if (step.step < 1)
      throw config_error("heddle: AdamW counts its steps from 1, got step " + std::to_string(step.step));
    const auto t = static_cast<double>(step.step);
    const double correction2 = std::sqrt(1.0 - std::pow(step.beta2, t));
    decay = static_cast<T>(1.0 - step.lr * step.weight_decay);
    b1 = static_cast<T>(step.beta1), c1 = static_cast<T>(1.0 - step.beta1);
    b2 = static_cast<T>(step.beta2), c2 = static_cast<T>(1.0 - step.beta2);
    rate = static_cast<T>(step.lr / (1.0 - std::pow(step.beta1, t)));
    inverse = static_cast<T>(1.0 / correction2), eps = static_cast<T>(step.eps);
    grad_scale = static_cast<T>(step.grad_scale);
  }

  void operator()(const T* gradient, T* first, T* second, T* parameter) const {
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
  }

 private:
  T decay, b1, c1, b2, c2, rate, inverse, eps, grad_scale;
};

/// Gives `body(i, count, first, second, parameter)` blocks of at most `width` elements; what is shorter lies in
/// whole blocks of memory, so that every element goes through the same code.
template <class T, class Body>
void for_each_adamw_block(std::int64_t begin, std::int64_t end, T* p, T* m, T* v, Body body) {
  constexpr int width = adamw_update<T>::width;
  std::int64_t i = begin;
  for (; i + width <= end; i += width) body(i, std::int64_t{width}, m + i, v + i, p + i);
  if (i == end) return;
  T first[width] = {}, second[width] = {}, parameter[width] = {};
  const auto rest = end - i;
  std::copy_n(m + i, rest, first);
  std::copy_n(v + i, rest, second);
  std::copy_n(p + i, rest, parameter);
  body(i, rest, first, second, parameter);
  std::copy_n(first, rest, m + i);
  std::copy_n(second, rest, v + i);
  std::copy_n(parameter, rest, p + i);
}

template <class T>
void body(ops::adamw, team& workers, std::int64_t n, T* p, const T* g, T* m, T* v, adamw_step step) {
  const adamw_update<T> update(step);
  constexpr int width = adamw_update<T>::width;
  workers.split(n, elementwise_grain, width, [&](std::int64_t begin, std::int64_t end) {
    for_each_adamw_block(begin, end, p, m, v,
                         [&](std::int64_t i, std::int64_t count, T* first, T* second, T* parameter) {
                           if (count == width) return update(g + i, first, second, parameter);
                           T gradient[width] = {};
                           std::copy_n(g + i, count, gradient);
                           update(gradient, first, second, parameter);
                         });
  });
}

/// As a step on master weights of type T with gradients of type G; `round(i, count, master, weights)` writes the weights.
template <class T, class W, class G, class Round>
void master_steps(team& workers, std::int64_t n, T* master, W* weights, const G* g, T* m, T* v, const adamw_step& step,
                  Round round) {
  const adamw_update<T> update(step);
  constexpr int width = adamw_update<T>::width;
  workers.split(n, elementwise_grain, width, [&](std::int64_t begin, std::int64_t end) {
    for_each_adamw_block(begin, end, master, m, v,
                         [&](std::int64_t i, std::int64_t count, T* first, T* second, T* parameter) {
                           T gradient[width] = {};
                           cast_lanes(count, g + i, gradient);
                           update(gradient, first, second, parameter);
                           round(i, count, static_cast<const T*>(parameter), weights + i);
                         });
  });
}

template <class T, class W, class G>
void body(ops::master_adamw<W, G>, team& workers, std::int64_t n, T* master, W* weights, const G* g, T* m, T* v,
          const adamw_step& step) {
  master_steps(workers, n, master, weights, g, m, v, step,
               [](std::int64_t, std::int64_t count, const T* from, W* to) { cast_lanes(count, from, to); });
}
template <class T, class G>
void body(ops::stochastic_adamw<G>, team& workers, std::int64_t n, T* master, bf16* weights, const G* g, T* m, T* v,
          const adamw_step& step, const stochastic& rounding) {
  master_steps(workers, n, master, weights, g, m, v, step,
               [&rounding](std::int64_t i, std::int64_t count, const T* from, bf16* to) {
                 cast_stochastic_lanes(count, from, rounding.random, rounding.first + static_cast<std::uint64_t>(i),
                                       to);
               });
}

/// Takes the last step with the same gradients and scalars back: p = (p + lr/(1-b1^t) m / (..)) / (1 - lr wd), then
/// v = (v - (1-b2) g^2) / b2 and m = (m - (1-b1) g) / b1, up to rounding. A second moment is never left below 0; moments
/// whose beta is 0 are set to 0, which is what the next step makes of them.
/// Source: Qi et al. 2023, arXiv:2401.10241, appendix C.
template <class T>
void body(ops::undo_adamw, team& workers, std::int64_t n, T* p, const T* g, T* m, T* v, adamw_step step) {
  const auto t = static_cast<double>(step.step);
  const double kept = 1.0 - step.lr * step.weight_decay;
  if (step.step < 1) throw config_error("heddle: AdamW counts its steps from 1, got step " + std::to_string(step.step));
  require_reversible(step);
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
