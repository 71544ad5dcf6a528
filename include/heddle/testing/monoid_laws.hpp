// heddle/testing/monoid_laws.hpp: laws of operators, for reductions and partial layouts.
#pragma once

#include <heddle/core/monoid.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/type_name.hpp>
#include <heddle/testing/report.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {
namespace testing {

/// Whether two values are the same: equal, or both not a number.
struct same_value {
  template <class T>
  constexpr bool operator()(const T& a, const T& b) const {
    return a == b || (!(a == a) && !(b == b));
  }
};

/// The laws of `Op` on these values, every triple of them: identity on both sides, associativity, and commutativity where
/// the operator declares it. `rank` and `at` of the finding are the positions of a and b, `got` that of c.
template <class Op, class T, class Same = same_value>
  requires monoid<Op, T>
constexpr finding operator_laws(std::span<const T> values, const Op& op = {}, const Same& same = {}) {
  const T identity = Op::template identity<T>();
  const auto count = static_cast<std::int64_t>(values.size());
  finding f;
  const auto value = [&](std::int64_t i) -> const T& { return values[static_cast<std::size_t>(i)]; };
  for (std::int64_t a = 0; a < count; ++a) {
    if (!same(op(identity, value(a)), value(a))) return {problem::left_identity, -1, -1, a, -1, -1, -1, f.cases};
    if (!same(op(value(a), identity), value(a))) return {problem::right_identity, -1, -1, a, -1, -1, -1, f.cases};
  }
  for (std::int64_t a = 0; a < count; ++a) {
    for (std::int64_t b = 0; b < count; ++b) {
      if (is_commutative<Op> && !same(op(value(a), value(b)), op(value(b), value(a))))
        return {problem::commutativity, -1, -1, a, b, -1, -1, f.cases};
      for (std::int64_t c = 0; c < count; ++c, ++f.cases)
        if (!same(op(value(a), op(value(b), value(c))), op(op(value(a), value(b)), value(c))))
          return {problem::associativity, -1, -1, a, b, -1, c, f.cases};
    }
  }
  if (count == 0) f.what = problem::no_case;
  return f;
}

namespace detail {
template <class T>
std::string value_text(const T& value) {
  if constexpr (std::is_arithmetic_v<T>)
    return std::to_string(value);
  else if constexpr (requires { std::string(to_string(value)); })
    return std::string(to_string(value));
  else
    return "a value of " + std::string(short_type_name<T>());
}
// Small whole numbers: sums and products of three of them are exact in every arithmetic type of 16 bits and more.
template <class T>
std::vector<T> some_values(std::uint64_t seed, std::int64_t count) {
  const counter_random random(seed, 0x6d6f6e6f6964);
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<int>(random.integer(static_cast<std::uint64_t>(i)) % 31);
    values.push_back(static_cast<T>(std::is_signed_v<T> ? number - 15 : number));
  }
  return values;
}
}  // namespace detail

/// The laws of a user's own operator on the user's own values. `same` says when two values are the same: with a tolerance,
/// say, where the operator rounds.
template <class Op, class T, class Same = same_value>
  requires monoid<Op, T>
[[nodiscard]] report check_monoid(std::span<const T> values, const Op& op = {}, const Same& same = {}) {
  const finding f = operator_laws<Op, T, Same>(values, op, same);
  std::string text = "operator ";
  text += short_type_name<Op>();
  text += " on ";
  text += short_type_name<T>();
  if (f.ok()) return {true, {}, f.cases};
  const auto add = [&](const char* name, std::int64_t i) {
    if (i < 0) return;
    text += name;
    text += detail::value_text(values[static_cast<std::size_t>(i)]);
  };
  add(", a = ", f.rank);
  add(", b = ", f.at);
  add(", c = ", f.got);
  text += ": ";
  text += to_string(f.what);
  return failure(std::move(text), f.cases);
}

/// The same on numbers that heddle chooses: small whole ones, so that nothing rounds.
template <class Op, class T, class Same = same_value>
  requires(monoid<Op, T> && std::is_arithmetic_v<T>)
[[nodiscard]] report check_monoid(std::uint64_t seed = 1, const Op& op = {}, const Same& same = {}) {
  const auto values = detail::some_values<T>(seed, 24);
  report r = check_monoid<Op, T, Same>(std::span<const T>(values), op, same);
  if (!r.ok()) r.what = "seed " + std::to_string(seed) + ", " + r.what;
  return r;
}

}  // namespace testing
}  // namespace heddle::inline v0
