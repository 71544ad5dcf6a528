// heddle/train/optimizers/sgd.hpp: stochastic gradient descent with momentum.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/train/optimizer_rule.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::optimizers {

/// SGD with momentum, as torch.optim.SGD: d = g + wd p; m = d in the first step, then mu m + (1-dampening) d; p -= lr m, with Nesterov's
/// momentum p -= lr (d + mu m). One moment for each element, also where the momentum is 0. `post_validation` can take its steps back where
/// the learning rate times weight decay is below 1.
/// Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning"; PyTorch, torch/optim/sgd.py.
struct sgd {
  using kind = optimizer_kind;
  static constexpr const char* name = "sgd";
  static constexpr int moments = 1;
  static constexpr std::array slots{"momentum"};

  struct options {
    double momentum = 0.9;
    double dampening = 0;
    double weight_decay = 0;  ///< on tensors of two and more dimensions only
    bool nesterov = false;
    train::parameter_rates rates{};  ///< factors of the learning rate for some parameters

    /// Errors: `config_error` naming the setting, its value and what would be accepted.
    void validate() const {
      train::detail::require_fraction("momentum", momentum);
      if (!(dampening >= 0 && dampening <= 1))
        train::detail::refuse_setting("dampening", number_text(dampening), "in [0, 1]");
      train::detail::require_finite_setting("weight_decay", weight_decay);
      if (nesterov && !(momentum > 0 && dampening == 0))
        train::detail::refuse_setting("nesterov",
                                      "momentum " + number_text(momentum) + " and dampening " + number_text(dampening),
                                      "with a momentum above 0 and a dampening of 0");
      train::detail::require_rates(rates);
    }
    friend std::string to_string(const options& o) {
      using train::detail::exact_text;
      return "momentum=" + exact_text(o.momentum) + " dampening=" + exact_text(o.dampening) +
             " weight_decay=" + exact_text(o.weight_decay) + " nesterov=" + (o.nesterov ? "1" : "0") +
             train::detail::text_of_rates(o.rates);
    }
  };
  template <class T>
  struct scalars {
    T rate, decay, mu, c, ahead, by_gradient;  // p -= rate (ahead m + by_gradient d)
  };
  template <class T>
  static scalars<T> at(const options& o, double rate, std::int64_t step, bool decays) {
    const auto of = [](double x) { return static_cast<T>(x); };
    return {of(rate),
            of(decays ? o.weight_decay : 0),
            of(o.momentum),
            of(step == 1 ? 1 : 1 - o.dampening),
            of(o.nesterov ? o.momentum : 1),
            of(o.nesterov ? 1 : 0)};
  }
  template <class T>
  HEDDLE_HD static void update(T& w, T g, T* m, const scalars<T>& s) {
    const T d = g + s.decay * w;
    m[0] = s.mu * m[0] + s.c * d;
    w -= s.rate * (s.ahead * m[0] + s.by_gradient * d);
  }
  template <class T>
  HEDDLE_HD static void undo(T& w, T g, T* m, const scalars<T>& s) {
    w = (w + s.rate * (s.ahead * m[0] + s.by_gradient * g)) / (T(1) - s.rate * s.by_gradient * s.decay);
    m[0] = s.mu > T(0) ? (m[0] - s.c * (g + s.decay * w)) / s.mu : T(0);
  }

  /// Errors: `config_error` where a step with these rates could not be taken back.
  template <class Bound>
  static void require_reversible(const options& o, const Bound& greatest) {
    double factor = 1;
    for (const auto& entry : o.rates) factor = entry.second > factor ? entry.second : factor;
    if (o.nesterov && o.weight_decay > 0 && !(greatest && *greatest * factor * o.weight_decay < 1))
      throw config_error(
          "heddle: post_validation takes steps back, which needs a learning rate whose greatest() times weight decay "
          "is "
          "below 1 under sgd with nesterov; post_validation_with_copy can");
  }
};

}  // namespace heddle::inline v0::optimizers
