// heddle/rl/objective.hpp: losses of reinforcement learning as functions of one token.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <memory>
#include <string>
#include <type_traits>

namespace heddle::inline v0::rl {

/// What an objective knows of a token of an answer. Log-probabilities: `behaviour`, of the policy that drew it;
/// `proximal`, of the one at the batch's begin; `reference`, of the model that a divergence is measured to. `weight`
/// multiplies loss and slope, and no objective needs to look at it.
struct token {
  double advantage = 0, behaviour = 0, proximal = 0, reference = 0, weight = 1;
};
/// The loss of a token, and its derivative by the token's log-probability.
struct term {
  double loss = 0, slope = 0;
};

/// A loss of one token, given its log-probability under the weights at hand: `term operator()(double, const token&)
/// const`, and a function `std::string to_string(const Objective&)`, which ranks compare. Optional: `void validate()
/// const`, which throws `config_error`. A `slope` that leaves something out, such as the derivative of an importance
/// weight, is a gradient that does.
template <class Objective>
concept objective = std::copy_constructible<Objective> && requires(const Objective& o, double lp, const token& t) {
  { o(lp, t) } -> std::same_as<term>;
  { to_string(o) } -> std::convertible_to<std::string>;
};

/// Whether an objective reads what drew a token, `behaviour` or, which is that where nothing else is given, `proximal`: a
/// member `static constexpr bool reads_behaviour = true`.
template <class Objective>
inline constexpr bool reads_behaviour = [] {
  if constexpr (requires { Objective::reads_behaviour; }) return bool{Objective::reads_behaviour};
  return false;
}();

/// Whether an objective reads the reference: a member `static constexpr bool reads_reference = true`.
template <class Objective>
inline constexpr bool reads_reference = [] {
  if constexpr (requires { Objective::reads_reference; }) return bool{Objective::reads_reference};
  return false;
}();

namespace detail {
template <class Objective>
void validate_objective(const Objective& o) {
  if constexpr (requires { o.validate(); }) o.validate();
}
// Log-ratios are cut at these, as verl does; beyond them a ratio has no gradient.
inline constexpr double greatest_log_ratio = 20, greatest_k3 = 10;
inline double ratio_of(double log_ratio) noexcept {
  return std::exp((std::clamp)(log_ratio, -greatest_log_ratio, greatest_log_ratio));
}
inline bool is_cut(double log_ratio) noexcept {
  return std::abs(log_ratio) > greatest_log_ratio;
}
inline void require(bool holds, const char* setting, double got, const char* accepted) {
  if (!holds)
    throw config_error("heddle: " + std::string(setting) + " must be " + accepted + ", got " + number_text(got));
}
// -min(pi / mu, most) A log(pi), the weight not differentiated.
inline term weighted_policy_gradient(double lp, const token& t, double most) {
  const double w = (std::min)(ratio_of(lp - t.behaviour), most);
  return {-w * t.advantage * lp, -w * t.advantage};
}
}  // namespace detail

/// REINFORCE with an importance weight of the token's distribution, at most `cap` and not differentiated: -min(pi / mu,
/// cap) A log(pi). `cap` 0: no weight.
struct reinforce {
  static constexpr bool reads_behaviour = true;
  double cap = 5;
  term operator()(double lp, const token& t) const {
    if (cap == 0) return {-t.advantage * lp, -t.advantage};
    return detail::weighted_policy_gradient(lp, t, cap);
  }
  /// Errors: `config_error`.
  void validate() const { detail::require(cap >= 0, "reinforce.cap", cap, "at least 0 (0: no weights)"); }
};
inline std::string to_string(const reinforce& o) {
  return "reinforce cap=" + number_text(o.cap);
}

/// Asynchronous importance-weighted policy optimisation: -min(pi / mu, rho) A log(pi), the weight not differentiated.
/// An infinite `rho` gives the exact off-policy gradient.
/// Source: Wu et al. 2025, LlamaRL, arXiv:2505.24034, section 6.
struct aipo {
  static constexpr bool reads_behaviour = true;
  double rho = 4;
  term operator()(double lp, const token& t) const { return detail::weighted_policy_gradient(lp, t, rho); }
  /// Errors: `config_error`.
  void validate() const { detail::require(rho > 0, "aipo.rho", rho, "positive"); }
};
inline std::string to_string(const aipo& o) {
  return "aipo rho=" + number_text(o.rho);
}

/// Proximal policy optimisation: with r = pi / proximal, max(-r A, -clip(r, 1 - low, 1 + high) A), and for A < 0 at
/// most -dual A (`dual` 0: no such bound). The default clips are those of DAPO. With `group_normalised` advantages this
/// is GRPO.
/// Source: Schulman et al. 2017, arXiv:1707.06347; Ye et al. 2019, arXiv:1912.09729 (dual clip).
struct ppo {
  static constexpr bool reads_behaviour = true;
  double low = .2, high = .28, dual = 3;
  term operator()(double lp, const token& t) const {
    const double d = lp - t.proximal, r = detail::ratio_of(d), a = t.advantage;
    term x{-r * a, detail::is_cut(d) ? 0 : -r * a};
    if (const double clipped = -(std::clamp)(r, 1 - low, 1 + high) * a; clipped > x.loss) x = {clipped, 0};
    if (const double most = -dual * a; dual > 0 && a < 0 && x.loss > most) x = {most, 0};
    return x;
  }
  /// Errors: `config_error`.
  void validate() const {
    detail::require(low >= 0 && low <= 1, "ppo.low", low, "0 to 1");
    detail::require(high >= 0, "ppo.high", high, "at least 0");
    detail::require(dual == 0 || dual > 1, "ppo.dual", dual, "above 1, or 0 for none");
  }
};
inline std::string to_string(const ppo& o) {
  return "ppo low=" + number_text(o.low) + " high=" + number_text(o.high) + " dual=" + number_text(o.dual);
}

/// Estimates of the divergence from the reference, of one token. With d = log(pi) - reference: `k1` is d, `k2` is d^2 /
/// 2, `k3` is exp(-d) + d - 1. `k3_with_gradient_of_k2` has the value of k3 and the slope of k2, whose mean is the
/// gradient of the divergence.
/// Source: Schulman 2020, "Approximating KL divergence".
enum class kl_form { k1, k2, k3, k3_with_gradient_of_k2 };
/// Its name, as in "k3".
inline std::string to_string(kl_form form) {
  constexpr const char* names[] = {"k1", "k2", "k3", "k3 with the gradient of k2"};
  return names[static_cast<int>(form)];
}
/// The estimate and its slope. -d is cut at 20 and k3 at 10, as in verl: beyond them the slope of k3 is 0.
inline term divergence(kl_form form, double lp, double reference) {
  const double d = lp - reference;
  if (form == kl_form::k1) return {d, 1};
  if (form == kl_form::k2) return {d * d / 2, d};
  const double kept = (std::clamp)(-d, -detail::greatest_log_ratio, detail::greatest_log_ratio), e = std::exp(kept);
  const double k3 = e - kept - 1;
  const bool cut = detail::is_cut(d) || k3 > detail::greatest_k3;
  return {(std::min)(k3, detail::greatest_k3), form == kl_form::k3 ? (cut ? 0 : 1 - e) : d};
}

/// `of`, and `beta` times the divergence from the reference.
template <objective Of>
struct with_kl {
  static constexpr bool reads_behaviour = rl::reads_behaviour<Of>, reads_reference = true;
  Of of{};
  double beta = 1e-3;
  kl_form form = kl_form::k3;
  term operator()(double lp, const token& t) const {
    const term x = of(lp, t), kl = divergence(form, lp, t.reference);
    return {x.loss + beta * kl.loss, x.slope + beta * kl.slope};
  }
  /// Errors: `config_error`.
  void validate() const {
    detail::validate_objective(of);
    detail::require(beta >= 0 && std::isfinite(beta), "with_kl.beta", beta, "a finite number >= 0");
  }
  friend std::string to_string(const with_kl& o) {
    return to_string(o.of) + ", " + number_text(o.beta) + " times " + rl::to_string(o.form);
  }
};

/// The weight of a token in decoupled PPO: min(proximal / mu, cap), for `token::weight`.
/// Source: Hilton et al. 2021, arXiv:2110.00641; Fu et al. 2025, AReaL, arXiv:2505.24298.
inline double decoupled_weight(double proximal, double behaviour, double cap) {
  return (std::min)(detail::ratio_of(proximal - behaviour), cap);
}

/// Any `objective`, chosen at run time: what depends on it has one type. That of none is `reinforce{}`.
class any_objective {
 public:
  static constexpr bool reads_behaviour = true;  // known at run time: `knows_what_drew`
  any_objective() : any_objective(reinforce{}) {}
  template <class Objective>
    requires(!std::same_as<Objective, any_objective>) && objective<Objective>
  any_objective(const Objective& o) : of_(std::make_shared<const Objective>(o)), verbs_(&verbs_of<Objective>) {}

  term operator()(double lp, const token& t) const { return verbs_->term_of(of_.get(), lp, t); }
  void validate() const { verbs_->validate(of_.get()); }
  /// `reads_behaviour` of the one that it holds.
  bool knows_what_drew() const noexcept { return verbs_->knows; }
  /// `reads_reference` of the one that it holds.
  bool knows_reference() const noexcept { return verbs_->knows_reference; }
  friend std::string to_string(const any_objective& o) { return o.verbs_->text(o.of_.get()); }

 private:
  struct verbs {
    term (*term_of)(const void*, double, const token&);
    void (*validate)(const void*);
    std::string (*text)(const void*);
    bool knows, knows_reference;
  };
  template <class Objective>
  static constexpr verbs verbs_of{
      [](const void* o, double lp, const token& t) { return (*static_cast<const Objective*>(o))(lp, t); },
      [](const void* o) { detail::validate_objective(*static_cast<const Objective*>(o)); },
      [](const void* o) { return std::string(to_string(*static_cast<const Objective*>(o))); },
      rl::reads_behaviour<Objective>, rl::reads_reference<Objective>};

  std::shared_ptr<const void> of_;
  const verbs* verbs_;
};

}  // namespace heddle::inline v0::rl
