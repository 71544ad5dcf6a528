// heddle/plan/privacy.hpp: budgets of differential privacy, added up by the compiler, and a ledger of what was spent.
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

/// A budget of N / D: what a release may multiply the odds of any two neighbouring inputs by is exp(N / D).
/// A budget of 0 or below is a compile error.
template <std::intmax_t N, std::intmax_t D = 1>
struct epsilon {
  using ratio = typename std::ratio<N, D>::type;
  static_assert(N > 0 && D > 0,
                "heddle: privacy::epsilon<N, D>: the budget N / D must be above 0, with a positive denominator");
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
  constexpr explicit ledger(epsilon<N, D>) noexcept : left_{epsilon<N, D>::ratio::num, epsilon<N, D>::ratio::den} {}

  /// Charges `frames` releases of `Budget` each, of the frames from `first` on with the noise of a seed.
  /// Errors: `config_error`, with nothing charged, if less is left, if noise of the seed was drawn for one of the frames before,
  /// for numbers of frames below 0, or if what would be left is no fraction of 64-bit numbers.
  template <class Budget>
  void spend(Budget, std::uint64_t seed, std::int64_t first, std::int64_t frames) {
    spend(amount{Budget::ratio::num, Budget::ratio::den}, seed, first, frames);
  }
  /// What is left, as "N/D".
  std::string left() const { return to_text(left_); }

 private:
  struct amount {
    std::int64_t n, d;
  };
  struct use {
    std::uint64_t seed;
    std::int64_t first, end;
  };

  static std::string to_text(amount a) { return std::to_string(a.n) + "/" + std::to_string(a.d); }

  void spend(amount each, std::uint64_t seed, std::int64_t first, std::int64_t frames) {
    if (frames < 0 || first < 0 || first > (std::numeric_limits<std::int64_t>::max)() - frames)
      throw config_error("heddle: privacy::ledger: " + std::to_string(frames) + " frames from " + std::to_string(first) +
                         " on: both numbers, and their sum, must be 0 or more");
    if (frames == 0) return;
    for (const use& u : used_)
      if (u.seed == seed && first < u.end && u.first < first + frames)
        throw config_error("heddle: privacy::ledger: frames " + std::to_string(first) + " to " +
                           std::to_string(first + frames - 1) + " would get noise of a seed that frames " +
                           std::to_string(u.first) + " to " + std::to_string(u.end - 1) +
                           " have had: take other frame numbers or another seed");
    // left.n / left.d - frames each.n / each.d over the least common denominator.
    const std::int64_t common = std::gcd(left_.d, each.d);
    const auto times = [&](std::int64_t a, std::int64_t b) {
      if (b != 0 && a > (std::numeric_limits<std::int64_t>::max)() / b)
        throw config_error("heddle: privacy::ledger: " + to_text(left_) + " less " + std::to_string(frames) + " times " +
                           to_text(each) + " is no fraction of 64-bit numbers: take budgets of like denominators");
      return a * b;
    };
    const std::int64_t d = times(left_.d / common, each.d);
    const std::int64_t n = times(left_.n, each.d / common) - times(times(each.n, left_.d / common), frames);
    if (n < 0)
      throw config_error("heddle: privacy::ledger: " + std::to_string(frames) + " frames of a budget of " + to_text(each) +
                         " cost more than the " + to_text(left_) + " that is left; nothing was released");
    used_.push_back({seed, first, first + frames});
    const std::int64_t shared = n == 0 ? d : std::gcd(n, d);
    left_ = {n / shared, d / shared};
  }

  amount left_;
  std::vector<use> used_;
};

}  // namespace heddle::inline v0::privacy
