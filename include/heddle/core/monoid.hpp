// heddle/core/monoid.hpp: associative operators with identities, for reductions.
#pragma once

#include <heddle/core/config.hpp>

#include <concepts>
#include <limits>
#include <type_traits>

namespace heddle::inline v0 {

/// An associative operator on `T` with an identity: `op(a, op(b, c)) == op(op(a, b), c)` and
/// `op(Op::template identity<T>(), a) == a`. Commutativity is a separate trait (`is_commutative`);
/// heddle keeps rank order where an operator does not declare it.
template <class Op, class T>
concept monoid = std::copy_constructible<Op> && requires(const Op op, const T& a, const T& b) {
  { op(a, b) } -> std::convertible_to<T>;
  { Op::template identity<T>() } -> std::convertible_to<T>;
};

/// True for operators that declare `static constexpr bool commutative = true`.
template <class Op>
inline constexpr bool is_commutative = [] {
  if constexpr (requires { Op::commutative; })
    return static_cast<bool>(Op::commutative);
  else
    return false;
}();

namespace detail {
// A commutative operator whose identity is this number.
template <int Identity>
struct commutes_from {
  static constexpr bool commutative = true;
  template <class T>
  HEDDLE_HD static constexpr T identity() {
    return T(Identity);
  }
};
// A commutative operator whose identity is `T{}`.
struct commutes_from_default {
  static constexpr bool commutative = true;
  template <class T>
  static constexpr T identity() {
    return T{};
  }
};
// A commutative, idempotent operator whose identity is below all values, or above all.
template <bool Below>
struct commutes_from_end {
  static constexpr bool commutative = true;
  static constexpr bool idempotent = true;
  template <class T>
  static constexpr T identity() {
    using limits = std::numeric_limits<T>;
    static_assert(limits::is_specialized,
                  "heddle: maximum and minimum need std::numeric_limits of the element type for their identity");
    if constexpr (limits::has_infinity && Below)
      return static_cast<T>(-limits::infinity());
    else if constexpr (limits::has_infinity)
      return limits::infinity();
    else if constexpr (Below)
      return limits::lowest();
    else
      return (limits::max)();
  }
};
}  // namespace detail

/// The operator of sums. Identity: zero.
struct plus : detail::commutes_from<0> {
  template <class T>
  HEDDLE_HD constexpr T operator()(const T& a, const T& b) const {
    return static_cast<T>(a + b);
  }
};

/// The operator of products. Identity: one.
struct multiplies : detail::commutes_from<1> {
  template <class T>
  HEDDLE_HD constexpr T operator()(const T& a, const T& b) const {
    return static_cast<T>(a * b);
  }
};

/// The operator of maxima. Identity: minus infinity, or the lowest value of types without one. A NaN on either side is
/// kept, so that a reduction never hides one.
struct maximum : detail::commutes_from_end<true> {
  template <class T>
  HEDDLE_HD constexpr T operator()(const T& a, const T& b) const {
    return a != a ? a : (b != b || a < b ? b : a);
  }
};

/// The operator of minima. Identity: infinity, or the largest value of types without one. A NaN on either side is kept.
struct minimum : detail::commutes_from_end<false> {
  template <class T>
  HEDDLE_HD constexpr T operator()(const T& a, const T& b) const {
    return a != a ? a : (b != b || b < a ? b : a);
  }
};

}  // namespace heddle::inline v0
