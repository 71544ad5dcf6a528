// heddle/core/op_traits.hpp: traits of operators: orders and cuts that keep a result.
#pragma once

#include <heddle/core/monoid.hpp>

#include <concepts>
#include <cstdint>
#include <span>

namespace heddle::inline v0 {

/// What `Op` promises. Each is the static member of `Op` of the same name if it has one; specialise the struct for
/// operators that are not yours.
/// - `commutative` (false unless declared): contributions may be folded in any order.
/// - `associative` (true unless declared): they may be grouped in any way.
/// - `elementwise` (true unless declared): element i of the result depends on the elements i alone, so that a vector may
///   be cut. Otherwise the operator is called on whole vectors, `op(std::span<const T> a, std::span<const T> b,
///   std::span<T> result)`, with a result that overlaps neither.
/// - `idempotent` (false unless declared): x op x is x, so that a contribution may be folded in more than once.
template <class Op>
struct op_traits {
  static constexpr bool commutative = is_commutative<Op>;
  static constexpr bool associative = [] {
    if constexpr (requires { Op::associative; })
      return static_cast<bool>(Op::associative);
    else
      return true;
  }();
  static constexpr bool elementwise = [] {
    if constexpr (requires { Op::elementwise; })
      return static_cast<bool>(Op::elementwise);
    else
      return true;
  }();
  static constexpr bool idempotent = [] {
    if constexpr (requires { Op::idempotent; })
      return static_cast<bool>(Op::idempotent);
    else
      return false;
  }();
};

/// An operator that folds two elements into one, or where it is not elementwise two vectors into a third.
template <class Op, class T>
concept fold_operator =
    std::copy_constructible<Op> &&
    ((op_traits<Op>::elementwise && requires(const Op op, const T& a, const T& b) {
       { op(a, b) } -> std::convertible_to<T>;
     }) || (!op_traits<Op>::elementwise && requires(const Op op, std::span<const T> a, std::span<T> r) {
       op(a, a, r);
     }));

}  // namespace heddle::inline v0
