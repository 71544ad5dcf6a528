// heddle/train/learning_rate.hpp: learning rates: one's own, or warm-up and then a cosine.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace heddle::inline v0::train {

namespace detail {
template <class Rate>
concept rate_has_call = requires(const Rate& rate, std::int64_t step) {
  { rate(step) } -> std::convertible_to<double>;
};
template <class Rate>
concept rate_has_validate = requires(const Rate& rate) { rate.validate(); };
template <class Rate>
concept rate_has_text = requires(const Rate& rate) {
  { to_string(rate) } -> std::convertible_to<std::string>;
};
}  // namespace detail

/// A learning rate as a function of the step, counted from 0: a struct of plain settings that is copied, with
/// `double operator()(std::int64_t step) const`, `void validate() const`, which throws `config_error` for settings that cannot work, and a
/// free `std::string to_string(const rate&)` with all its settings, which the ranks of a run compare.
/// A member `total_steps` that is 0 becomes the steps of the run. `double greatest() const`, an upper bound of all rates, is
/// needed by `post_validation` only.
template <class Rate>
concept learning_rate = detail::rate_has_call<Rate> && detail::rate_has_validate<Rate> && detail::rate_has_text<Rate>;

namespace detail {
// These carry the rate into the compiler's message.
template <bool Ok, class Rate>
inline constexpr bool is_learning_rate = Ok;
// Stops at the first mistake, so that one mistake gives one error.
template <class Rate>
constexpr bool rate_checked() {
  if constexpr (!rate_has_call<Rate>)
    static_assert(is_learning_rate<rate_has_call<Rate>, Rate>,
                  "heddle: a learning rate needs `double operator()(std::int64_t step) const`, its value at a step "
                  "counted from 0");
  else if constexpr (!rate_has_validate<Rate>)
    static_assert(is_learning_rate<rate_has_validate<Rate>, Rate>,
                  "heddle: a learning rate needs `void validate() const`, which throws heddle::config_error for "
                  "settings that cannot work");
  else
    static_assert(is_learning_rate<rate_has_text<Rate>, Rate>,
                  "heddle: a learning rate needs a free function `std::string to_string(const rate&)` in its "
                  "namespace, or as a friend, with all its settings: ranks compare it before they start");
  return true;
}
// A number with all its digits.
HEDDLE_INLINE std::string exact_text(double x);

// Step t < warmup_steps of a linear warm-up.
inline double warming(double peak, std::int64_t t, std::int64_t warmup_steps) {
  return peak * static_cast<double>(t + 1) / static_cast<double>(warmup_steps);
}
inline double between(double low, double high, double part) {
  return low + part * (high - low);
}
// From 1 down to 0 while r goes from 0 to 1.
inline double half_cosine(double r) {
  return 0.5 * (1.0 + std::cos(3.141592653589793238463 * r));
}
inline double ratio(std::int64_t some, std::int64_t all) {
  return static_cast<double>(some) / static_cast<double>(all);
}
}  // namespace detail

/// Linear warm-up to `peak` over `warmup_steps`, then half a cosine down to `minimum` at `total_steps`, then `minimum`.
/// Step t < W: `peak*(t+1)/W`; after that `minimum + (1 + cos(pi r))/2 * (peak - minimum)`, r = (t-W)/(total-W).
/// Source: Loshchilov and Hutter, arXiv:1608.03983, equation 5, without restarts.
struct warmup_cosine {
  double peak = 1e-3;
  double minimum = 0.0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  ///< where the cosine ends; a trainer reads 0 as its own number of steps

  /// Errors: `config_error` naming the setting that cannot work.
  void validate() const;
  double greatest() const noexcept { return peak; }

  /// The rate at step `t`, counted from 0.
  double operator()(std::int64_t t) const {
    if (t < warmup_steps) return detail::warming(peak, t, warmup_steps);
    if (t >= total_steps) return minimum;
    return detail::between(minimum, peak, detail::half_cosine(detail::ratio(t - warmup_steps, total_steps - warmup_steps)));
  }
};
/// "lr=0.001 minimum_lr=0 warmup_steps=10 total_steps=100", with all digits.
HEDDLE_INLINE std::string to_string(const warmup_cosine& rate);

/// Any `learning_rate`: what a trainer keeps, whose type does not depend on the rate's.
class any_learning_rate {
 public:
  any_learning_rate() : any_learning_rate(warmup_cosine{}) {}
  template <class Rate>
    requires(!std::same_as<Rate, any_learning_rate>) && learning_rate<Rate>
  any_learning_rate(const Rate& rate) : rate_(new Rate(rate)), verbs_(&verbs_of<Rate>) {}

  /// Errors: `config_error` naming the step where the rate is negative or not finite.
  HEDDLE_INLINE double operator()(std::int64_t step) const;
  void validate() const { verbs_->validate(rate_.get()); }
  /// The rate's own bound, if it has one.
  std::optional<double> greatest() const { return verbs_->greatest(rate_.get()); }
  /// The same rate, of so many steps where its `total_steps` are 0.
  any_learning_rate over(std::int64_t steps) const { return verbs_->over(*this, steps); }
  /// The rate if it is a `Rate`, else null.
  template <class Rate>
  const Rate* target() const noexcept {
    return verbs_ == &verbs_of<Rate> ? static_cast<const Rate*>(rate_.get()) : nullptr;
  }
  friend std::string to_string(const any_learning_rate& rate) { return rate.verbs_->text(rate.rate_.get()); }

 private:
  struct verbs {
    double (*at)(const void*, std::int64_t);
    void (*validate)(const void*);
    std::string (*text)(const void*);
    std::optional<double> (*greatest)(const void*);
    any_learning_rate (*over)(const any_learning_rate&, std::int64_t);
  };
  template <class Rate>
  static std::optional<double> greatest_of(const void* rate) {
    if constexpr (requires(const Rate& r) { r.greatest(); })
      return static_cast<const Rate*>(rate)->greatest();
    else
      return std::nullopt;
  }
  template <class Rate>
  static any_learning_rate over_steps(const any_learning_rate& any, [[maybe_unused]] std::int64_t steps) {
    if constexpr (requires(Rate r) { r.total_steps = steps; })
      if (Rate rate = *static_cast<const Rate*>(any.rate_.get()); rate.total_steps == 0) {
        rate.total_steps = steps;
        return any_learning_rate(rate);
      }
    return any;
  }
  template <class Rate>
  static constexpr verbs verbs_of{
      [](const void* rate, std::int64_t step) -> double { return (*static_cast<const Rate*>(rate))(step); },
      [](const void* rate) { static_cast<const Rate*>(rate)->validate(); },
      [](const void* rate) { return std::string(to_string(*static_cast<const Rate*>(rate))); }, &greatest_of<Rate>,
      &over_steps<Rate>};

  std::shared_ptr<const void> rate_;
  const verbs* verbs_;
};

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/learning_rate.hpp>
#endif
