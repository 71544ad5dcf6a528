// heddle/compute/adamw_scalars.hpp: one AdamW step at one number, and its inverse.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cmath>
#include <string>

namespace heddle::inline v0::compute::detail {

/// Whether a step can be taken back: its decay has left something. Errors: `config_error` where it has not.
inline void require_reversible(const adamw_step& step) {
  if (!(1.0 - step.lr * step.weight_decay > 0))
    throw config_error(
        "heddle: an AdamW step with learning rate times weight decay of 1 or more cannot be taken back; got learning "
        "rate " +
        number_text(step.lr) + " and weight decay " + number_text(step.weight_decay));
}

/// The scalars of a step, computed in double on the host and rounded once: p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2)
/// g^2; p -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps).
template <class T>
struct adamw_scalars {
  T decay, b1, c1, b2, c2, rate, inverse, eps, grad_scale;

  adamw_scalars() = default;
  explicit adamw_scalars(const adamw_step& step) {
    if (step.step < 1)
      throw config_error("heddle: AdamW counts its steps from 1, got step " + std::to_string(step.step));
    const auto t = static_cast<double>(step.step);
    decay = static_cast<T>(1.0 - step.lr * step.weight_decay);
    b1 = static_cast<T>(step.beta1), c1 = static_cast<T>(1.0 - step.beta1);
    b2 = static_cast<T>(step.beta2), c2 = static_cast<T>(1.0 - step.beta2);
    rate = static_cast<T>(step.lr / (1.0 - std::pow(step.beta1, t)));
    inverse = static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(step.beta2, t)));
    eps = static_cast<T>(step.eps), grad_scale = static_cast<T>(step.grad_scale);
  }
  HEDDLE_HD T updated(T p, T g, T& m, T& v) const {
    const T d = g * grad_scale;
    m = b1 * m + c1 * d;
    v = b2 * v + c2 * d * d;
    return p * decay - rate * m / (std::sqrt(v) * inverse + eps);
  }
  HEDDLE_HD T taken_back(T p, T g, T& m, T& v) const {
    const T d = g * grad_scale, before = (p + rate * m / (std::sqrt(v) * inverse + eps)) / decay;
    const T second = v - c2 * d * d;
    v = b2 > T(0) && second > T(0) ? second / b2 : T(0);
    m = b1 > T(0) ? (m - c1 * d) / b1 : T(0);
    return before;
  }
};

}  // namespace heddle::inline v0::compute::detail

namespace heddle::inline v0::compute {

/// An AdamW step whose numbers are read from the memory of the kernel's device when it runs, so that it may be part of a graph:
/// `scalars` without their `grad_scale`, and what gradients are multiplied by. Where that is negative nothing is done.
template <class T>
struct adamw_step_at {
  const detail::adamw_scalars<T>* scalars;
  const double* grad_scale;
};

}  // namespace heddle::inline v0::compute
