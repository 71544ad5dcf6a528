// heddle/core/privacy.hpp: budgets of differential privacy as types, and a ledger.
#pragma once

#include <heddle/core/error.hpp>

#include <cstdint>
#include <limits>
#include <numeric>
#include <ratio>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::privacy {

/// A budget of n / d as a value, for what is known at run time only.
struct budget {
  std::int64_t n = 0, d = 1;
  friend constexpr bool operator==(budget, budget) = default;
  friend std::string to_string(budget b) { return std::to_string(b.n) + "/" + std::to_string(b.d); }
};

namespace detail {
[[noreturn]] inline void throw_inexact() {
  throw config_error(
      "heddle: privacy: a sum of budgets is no fraction of 64-bit numbers: take budgets of like denominators");
}
// Of numbers of 0 or more.
constexpr std::int64_t exact_product(std::int64_t a, std::int64_t b) {
  if (b != 0 && a > (std::numeric_limits<std::int64_t>::max)() / b) throw_inexact();
  return a * b;
}
// a + sign b in lowest terms; the numerator may be negative. Requires |sign| = 1.
constexpr budget exact_sum(budget a, std::int64_t sign, budget b) {
  const std::int64_t common = std::gcd(a.d, b.d);
  const std::int64_t d = exact_product(a.d / common, b.d), left = exact_product(a.n, b.d / common),
                     right = exact_product(b.n, a.d / common);
  if (sign > 0 && left > (std::numeric_limits<std::int64_t>::max)() - right) throw_inexact();
  const std::int64_t n = left + sign * right;
  const std::int64_t shared = std::gcd(n, d);
  return {n / shared, d / shared};
}
}  // namespace detail

/// The budgets of two releases in sequence. Errors: `config_error` if the sum is no fraction of 64-bit numbers.
constexpr budget operator+(budget a, budget b) {
  return detail::exact_sum(a, 1, b);
}

/// A budget of N / D: what a release may multiply the odds of any two neighbouring inputs by is exp(N / D).
/// A budget of 0 or below is a compile error.
template <std::intmax_t N, std::intmax_t D = 1>
struct epsilon {
  using ratio = typename std::ratio<N, D>::type;
  static_assert(N > 0 && D > 0,
                "heddle: privacy::epsilon<N, D>: the budget N / D must be above 0, with a positive denominator");
  static constexpr budget value{ratio::num, ratio::den};
};

namespace detail {
template <class Ratio>
using budget_of = epsilon<Ratio::num, Ratio::den>;

template <class First, class... Rest>
struct sum_of {
  using type = budget_of<std::ratio_add<typename First::ratio, typename sum_of<Rest...>::type::ratio>>;
};
template <class Last>
struct sum_of<Last> {
  using type = budget_of<typename Last::ratio>;
};

template <class First, class... Rest>
struct greatest_of {
  using rest = typename greatest_of<Rest...>::type;
  using type = std::conditional_t<std::ratio_less_v<typename First::ratio, typename rest::ratio>, rest,
                                  budget_of<typename First::ratio>>;
};
template <class Last>
struct greatest_of<Last> {
  using type = budget_of<typename Last::ratio>;
};
}  // namespace detail

/// What releases of the same pixels cost together: the sum, in lowest terms. Budgets whose common denominator leaves 64 bits do
/// not compile (`std::ratio`). Source: Dwork, Roth 2014, "The algorithmic foundations of differential privacy", theorem 3.14.
template <class... Budgets>
using in_sequence = typename detail::sum_of<Budgets...>::type;

/// What releases of regions without common pixels cost together: the greatest, in lowest terms, where the noise of each is made
/// for all the changes that two neighbours may have. Source: McSherry 2009, "Privacy integrated queries", theorem 4.
template <class... Budgets>
using in_parallel = typename detail::greatest_of<Budgets...>::type;

/// What was spent, at run time, on releases of one scene: frames of it show the same people, so their budgets add up. Knows seeds
/// and frame numbers too: noise that was drawn once must not be drawn again for other pixels.
/// Every rank of a world keeps one and is told the same.
class ledger {
 public:
  /// Allows releases of a budget in all.
  template <std::intmax_t N, std::intmax_t D>
  explicit ledger(epsilon<N, D>) : left_(epsilon<N, D>::value) {}
  /// Errors: `config_error` for a budget below 0, or of a denominator that is not positive.
  explicit ledger(budget all) : left_(all) {
    if (all.n < 0 || all.d < 1)
      throw config_error("heddle: privacy::ledger: a budget is 0 or more over a positive denominator, got " +
                         to_string(all));
  }

  /// Charges `frames` releases of `each`, of the frames from `first` on with the noise of a seed.
  /// Errors: `config_error`, with nothing charged, if less is left, if noise of the seed was drawn for one of the frames before,
  /// for numbers of frames below 0, a budget of 0 or below, or if what would be left is no fraction of 64-bit numbers.
  void spend(budget each, std::uint64_t seed, std::int64_t first, std::int64_t frames) {
    if (frames < 0 || first < 0 || first > (std::numeric_limits<std::int64_t>::max)() - frames)
      throw config_error("heddle: privacy::ledger: " + std::to_string(frames) + " frames from " +
                         std::to_string(first) + " on: both numbers, and their sum, must be 0 or more");
    if (each.n < 1 || each.d < 1)
      throw config_error("heddle: privacy::ledger: a release costs more than 0, over a positive denominator, got " +
                         to_string(each));
    if (frames == 0) return;
    for (const use& u : used_)
      if (u.seed == seed && first < u.end && u.first < first + frames)
        throw config_error("heddle: privacy::ledger: frames " + std::to_string(first) + " to " +
                           std::to_string(first + frames - 1) + " would get noise of a seed that frames " +
                           std::to_string(u.first) + " to " + std::to_string(u.end - 1) +
                           " have had: take other frame numbers or another seed");
    const budget rest = detail::exact_sum(left_, -1, {detail::exact_product(each.n, frames), each.d});
    if (rest.n < 0)
      throw config_error("heddle: privacy::ledger: " + std::to_string(frames) + " frames of a budget of " +
                         to_string(each) + " cost more than the " + to_string(left_) +
                         " that is left; nothing was released");
    used_.push_back({seed, first, first + frames});
    left_ = rest;
  }
  template <std::intmax_t N, std::intmax_t D>
  void spend(epsilon<N, D>, std::uint64_t seed, std::int64_t first, std::int64_t frames) {
    spend(epsilon<N, D>::value, seed, first, frames);
  }
  budget left() const noexcept { return left_; }

 private:
  struct use {
    std::uint64_t seed;
    std::int64_t first, end;
  };

  budget left_;
  std::vector<use> used_;
};

}  // namespace heddle::inline v0::privacy
