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

}  // namespace heddle::inline v0
