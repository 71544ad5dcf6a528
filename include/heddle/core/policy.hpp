// heddle/core/policy.hpp: policies are types with a kind, given in any order, at most one per kind.
#pragma once

#include <heddle/core/type_list.hpp>

#include <type_traits>

namespace heddle::inline v0 {

/// A policy names what it decides: `using kind = ...;`.
template <class P>
concept policy = requires { typename P::kind; };

namespace detail {
// The operands of a fold that is never evaluated: what is wanted, with the default, or found. Functions that are only declared cost less to compile
// than a class for each kind and policy.
template <class Kind, class Default>
struct wanted_policy {
  using type = Default;
};
template <class P>
struct found_policy {
  using type = P;
};
template <class Kind, class Default, class P>
  requires(std::is_same_v<typename P::kind, Kind>)
found_policy<P> operator->*(wanted_policy<Kind, Default>, std::type_identity<P>);
template <class Kind, class Default, class P>
  requires(!std::is_same_v<typename P::kind, Kind>)
wanted_policy<Kind, Default> operator->*(wanted_policy<Kind, Default>, std::type_identity<P>);
template <class Found, class P>
found_policy<Found> operator->*(found_policy<Found>, std::type_identity<P>);
}  // namespace detail

/// The policy of `Kind` among `Ps`, or `Default` if none has that kind.
template <class Kind, class Default, policy... Ps>
using select_policy =
    typename decltype((detail::wanted_policy<Kind, Default>{}->*...->*std::type_identity<Ps>{}))::type;

/// How many of `Ps` have the kind `Kind`.
template <class Kind, policy... Ps>
inline constexpr std::size_t policies_of_kind = count_of<Kind, typename Ps::kind...>;

/// Whether no other of `All` has the kind of `P`, which is one of them.
template <class P, class... All>
inline constexpr bool only_policy_of_its_kind = policies_of_kind<typename P::kind, All...> == 1;

namespace detail {
template <class P, class... Kinds>
inline constexpr bool has_kind_of = false;
template <policy P, class... Kinds>
inline constexpr bool has_kind_of<P, Kinds...> = contains<typename P::kind, Kinds...>;
}  // namespace detail

/// Chooses the policies of a class template: at most one of each of `Kinds`, in any order. What derives from it says what
/// is wrong: `refuse_unknown<P>()` asserts `takes<P>`, which it may replace by a stricter one, and
/// `refuse_doubled<Ps...>()` asserts `only_policy_of_its_kind<Ps, Ps...>` of each.
template <class Says, class... Kinds>
struct policy_set {
  template <class P>
  static constexpr bool takes = detail::has_kind_of<P, Kinds...>;

  /// Whether these policies are taken. Stops at the first mistake, so that one mistake gives one error.
  template <class... Ps>
  static constexpr bool accepts() {
    if constexpr (!(Says::template takes<Ps> && ...)) {
      (..., Says::template refuse_unknown<Ps>());
      return false;
    } else if constexpr (!(only_policy_of_its_kind<Ps, Ps...> && ...)) {
      Says::template refuse_doubled<Ps...>();
      return false;
    } else {
      return true;
    }
  }
  /// `Chosen`, which selects among `Ps`, if they are taken and its `fits()` is true; else `Refused`,
  /// whose uses add no errors of their own. As a `std::type_identity`.
  template <class Chosen, class Refused, class... Ps>
  static constexpr auto choose() {
    if constexpr (!accepts<Ps...>())
      return std::type_identity<Refused>{};
    else if constexpr (!Chosen::fits())
      return std::type_identity<Refused>{};
    else
      return std::type_identity<Chosen>{};
  }
};

}  // namespace heddle::inline v0
