// heddle/compute/group/choices.hpp: greatest numbers and softmax of rows, by groups.
#pragma once

#include <heddle/compute/group/threads.hpp>
#include <heddle/core/half_precision.hpp>

#include <cmath>
#include <cstdint>

namespace heddle::inline v0::compute::detail::in_groups {

/// Whether number a of a row is chosen before number b: the greater one, NaN before all numbers, of equal ones that of the lower place.
template <class T>
HEDDLE_HD bool is_greater(T a, std::int64_t at_a, T b, std::int64_t at_b) {
  if (a != a || b != b) return a != a && (b == b || at_a < at_b);
  return a > b || (a == b && at_a < at_b);
}
/// Less than all numbers; what `std::numeric_limits` has is a function of the host's.
template <class T>
inline constexpr T minus_infinity = -static_cast<T>(HUGE_VAL);
/// The place of the one of n numbers that is chosen after x[last], of the first one for last = -1; n if there is none. The same on all threads of the group.
template <class G, class T>
HEDDLE_HD std::int64_t next_greatest(G& g, std::int64_t n, const T* x, std::int64_t last) {
  using S = sum_of_type<T>;
  constexpr S none = minus_infinity<S>;
  std::int64_t mine = -1;
  for (std::int64_t e = g.rank(); e < n; e += g.size())
    if ((last < 0 || is_greater(x[last], last, x[e], e)) && (mine < 0 || is_greater(x[e], e, x[mine], mine))) mine = e;
  const S found = mine < 0 ? none : static_cast<S>(x[mine]);
  const S top = g.largest(found);
  const bool has = mine >= 0 && (found == top || (found != found && top != top));
  return -static_cast<std::int64_t>(g.largest(static_cast<double>(has ? -mine : -n)));
}

/// The softmax of a row of logits, number by number; of elements of 16 bits in float.
template <class T>
class softmax_of_row {
  using S = sum_of_type<T>;

 public:
  template <class G>
  HEDDLE_HD softmax_of_row(G& g, std::int64_t n, const T* logits) {
    S top = minus_infinity<S>;
    for (std::int64_t e = g.rank(); e < n; e += g.size()) top = larger(top, static_cast<S>(logits[e]));
    top_ = top = g.largest(top);
    sum_ = sum_over(g, n, [=](std::int64_t e) {
      using std::exp;
      return exp(logits[e] - top);
    });
  }
  HEDDLE_HD S of(S logit) const {
    using std::exp;
    return exp(logit - top_) / sum_;
  }

 private:
  S top_, sum_;
};

}  // namespace heddle::inline v0::compute::detail::in_groups
