// heddle/train/optimizers/by_default.hpp: AdamW, the default rule of optimizers.
#pragma once

#include <heddle/compute/adamw_scalars.hpp>
#include <heddle/compute/facets.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/optimizer_rule.hpp>
#include <heddle/train/rule_kernels.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace heddle::inline v0 {

namespace train {

/// AdamW's constants. Source: Loshchilov and Hutter, arXiv:1711.05101; epsilon as in PyTorch, outside the root.
struct adamw_options {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< on tensors of two and more dimensions only
  parameter_rates rates{};    ///< factors of the learning rate for some parameters

  /// The greatest factor of a learning rate: 1, or that of an entry. Which parameters decay, and have an entry, is not asked.
  double greatest_rate() const noexcept {
    double greatest = 1;
    for (const auto& entry : rates)
      if (entry.second > greatest) greatest = entry.second;
    return greatest;
  }

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    detail::require_fraction("beta1", beta1);
    detail::require_fraction("beta2", beta2);
    if (!(epsilon > 0 && std::isfinite(epsilon)))
      detail::refuse_setting("epsilon", number_text(epsilon), "positive and finite");
    detail::require_finite_setting("weight_decay", weight_decay);
    detail::require_rates(rates);
  }
  friend bool operator==(const adamw_options&, const adamw_options&) = default;
  friend std::string to_string(const adamw_options& o) {
    using detail::exact_text;
    return "beta1=" + exact_text(o.beta1) + " beta2=" + exact_text(o.beta2) + " epsilon=" + exact_text(o.epsilon) +
           " weight_decay=" + exact_text(o.weight_decay) + detail::text_of_rates(o.rates);
  }
};

}  // namespace train

/// Rules of optimizers, as policies of a strategy.
namespace optimizers {

/// AdamW: p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps). The default; its
/// options are `train::options::adamw`.
struct adamw {
  using kind = optimizer_kind;
  static constexpr const char* name = "adamw";
  static constexpr int moments = 2;
  static constexpr std::array slots{"first_moment", "second_moment"};
  static constexpr bool is_square(int k) { return k == 1; }
  using options = train::adamw_options;

  /// Errors: `config_error` where a step with these rates could not be taken back.
  static void require_reversible(const options& o, const std::optional<double>& greatest) {
    if (!greatest)
      throw config_error(
          "heddle: post_validation takes steps back, which needs a bound of the learning rate: give it `double "
          "greatest() const`; post_validation_with_copy needs none");
    const double factor = o.greatest_rate();
    if (*greatest * factor * o.weight_decay < 1) return;
    char numbers[120];
    std::snprintf(numbers, sizeof numbers, "%g times %g times weight decay %g", *greatest, factor, o.weight_decay);
    throw config_error(
        text_of({"heddle: post_validation takes steps back, which cannot be done where the learning "
                 "rate, times the greatest of adamw.rates, times weight decay is 1 or more, got ",
                 numbers, "; post_validation_with_copy can"}));
  }
};

/// The rule of a strategy that names none.
using by_default = adamw;

}  // namespace optimizers

namespace train::detail {

template <>
inline constexpr bool has_kernels_of_backend<optimizers::adamw> = true;

template <>
struct rule_kernels<optimizers::adamw> {
  using options = adamw_options;
  template <class T>
  using scalars = compute::detail::adamw_scalars<T>;
  template <class T>
  using step = compute::adamw_step;
  template <class T>
  using step_at = compute::adamw_step_at<T>;
  template <class T, class Space>
  using slots = std::array<row_view<T, Space>, 2>;

  template <class Row>
  using element = element_of<Row>;

  static constexpr bool undoes = true;
  template <class Backend, class T>
  static constexpr bool updates_at = compute::offered<compute::ops::adamw_at, Backend, T>;
  template <class Backend, class T, class W, class G>
  static constexpr bool updates_masters_at = compute::offered<compute::ops::master_adamw_at<W, G>, Backend, T>;
  template <class Needs, class Backend, class T, class W, class G, bool InPlace>
  static consteval bool required() {
    if constexpr (InPlace)
      return compute::require_facet<Needs, compute::optimizer_facet, Backend, T>();
    else
      return compute::require_facet<Needs, compute::master_optimizer_facet<W, G>, Backend, T>();
  }

  template <class Needs, class Backend, class T>
  static consteval bool undo_required() {
    return compute::require_facet<Needs, compute::reversible_optimizer_facet, Backend, T>();
  }

  template <class T>
  static compute::adamw_step step_of(const options& o, double rate, std::int64_t number, bool decays,
                                     double grad_scale) {
    return {rate, o.beta1, o.beta2, o.epsilon, decays ? o.weight_decay : 0.0, number, grad_scale};
  }
  template <class T>
  static scalars<T> scalars_of(const compute::adamw_step& s) {
    return scalars<T>(s);
  }

  template <class>
  static void update(auto& backend, auto p, auto g, const auto& m, const auto& s) {
    compute::run<compute::ops::adamw>(backend, p, g, m[0], m[1], s);
  }
  template <class>
  static void undo(auto& backend, auto p, auto g, const auto& m, const auto& s) {
    compute::run<compute::ops::undo_adamw>(backend, p, g, m[0], m[1], s);
  }
  template <class>
  static void update_masters(auto& backend, auto p, auto weights, auto g, const auto& m, const auto& s) {
    using ops = compute::ops::master_adamw<element<decltype(weights)>, element<decltype(g)>>;
    compute::run<ops>(backend, p, weights, g, m[0], m[1], s);
  }
  template <class>
  static void update_at(auto& backend, auto p, auto g, const auto& m, const auto& at) {
    compute::run<compute::ops::adamw_at>(backend, p, g, m[0], m[1], at);
  }
  template <class>
  static void update_masters_at(auto& backend, auto p, auto weights, auto g, const auto& m, const auto& at) {
    using ops = compute::ops::master_adamw_at<element<decltype(weights)>, element<decltype(g)>>;
    compute::run<ops>(backend, p, weights, g, m[0], m[1], at);
  }
};

}  // namespace train::detail

}  // namespace heddle::inline v0
