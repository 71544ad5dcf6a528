// heddle/core/policy.hpp: policies are types with a kind, given in any order, at most one per kind.
#pragma once

#include <heddle/core/type_list.hpp>

#include <type_traits>

namespace heddle::inline v0 {

/// A policy names what it decides: `using kind = ...;`.
template <class P>
concept policy = requires { typename P::kind; };

namespace detail {
template <class Kind, class Default, class... Ps>
struct select_policy {
  using type = Default;
};
template <class Kind, class Default, class P, class... Ps>
struct select_policy<Kind, Default, P, Ps...>
    : std::conditional_t<std::is_same_v<typename P::kind, Kind>, std::type_identity<P>,
                         select_policy<Kind, Default, Ps...>> {};
}  // namespace detail

/// The policy of `Kind` among `Ps`, or `Default` if none has that kind.
template <class Kind, class Default, policy... Ps>
using select_policy = typename detail::select_policy<Kind, Default, Ps...>::type;

/// How many of `Ps` have the kind `Kind`.
template <class Kind, policy... Ps>
inline constexpr std::size_t policies_of_kind = count_of<Kind, typename Ps::kind...>;

}  // namespace heddle::inline v0
