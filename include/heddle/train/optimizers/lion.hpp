// heddle/train/optimizers/lion.hpp: Lion: the sign of an interpolated momentum.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/train/optimizer_rule.hpp>

#include <array>
#include <cstdint>
#include <string>

namespace heddle::inline v0::optimizers {

/// Lion: p -= lr (sign(b1 m + (1-b1) g) + wd p), then m = b2 m + (1-b2) g. Its learning rate is 3 to 10 times smaller than AdamW's, its
/// weight decay as many times greater. One moment for each element.
/// Source: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
struct lion {
  using kind = optimizer_kind;
  static constexpr const char* name = "lion";
  static constexpr int moments = 1;
  static constexpr std::array slots{"momentum"};

  struct options {
    double beta1 = 0.9;
    double beta2 = 0.99;
    double weight_decay = 1.0;       ///< on tensors of two and more dimensions only
    train::parameter_rates rates{};  ///< factors of the learning rate for some parameters

    /// Errors: `config_error` naming the setting, its value and what would be accepted.
    void validate() const {
      train::detail::require_fraction("beta1", beta1);
      train::detail::require_fraction("beta2", beta2);
      train::detail::require_finite_setting("weight_decay", weight_decay);
      train::detail::require_rates(rates);
    }
    friend std::string to_string(const options& o) {
      using train::detail::exact_text;
      return "beta1=" + exact_text(o.beta1) + " beta2=" + exact_text(o.beta2) +
             " weight_decay=" + exact_text(o.weight_decay) + train::detail::text_of_rates(o.rates);
    }
  };
  template <class T>
  struct scalars {
    T rate, kept, b1, c1, b2, c2;
  };
  template <class T>
  static scalars<T> at(const options& o, double rate, std::int64_t, bool decays) {
    const auto of = [](double x) { return static_cast<T>(x); };
    return {of(rate),       of(decays ? 1 - rate * o.weight_decay : 1), of(o.beta1), of(1 - o.beta1), of(o.beta2),
            of(1 - o.beta2)};
  }
  template <class T>
  HEDDLE_HD static void update(T& w, T g, T* m, const scalars<T>& s) {
    const T c = s.b1 * m[0] + s.c1 * g;
    w = s.kept * w - s.rate * static_cast<T>((c > T(0)) - (c < T(0)));
    m[0] = s.b2 * m[0] + s.c2 * g;
  }
};

}  // namespace heddle::inline v0::optimizers
